"""Every example with flags says what they are, whatever of its frameworks is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WITH_FLAGS = [path for path in sorted(EXAMPLES.rglob("*.py")) if "parse_args()" in path.read_text() or path.name == "train.py"]


@pytest.mark.parametrize("path", WITH_FLAGS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_help(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr
