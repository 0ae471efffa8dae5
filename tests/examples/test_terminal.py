"""The example of a terminal, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "terminal.py"


def test_it_shows_what_it_says(server: Any) -> None:
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "It has 30 lines of 100 characters.",
        "After a resize it has 43 lines of 132.",
        "Ctrl-C ended the command, and not the shell.",
        "The shell ended with 3",
    ]
