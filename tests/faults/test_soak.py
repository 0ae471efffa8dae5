"""Everything at once, and at its end nothing is left: see `soak.py`.

`AVIATO_TEST_SOAK_MINUTES=10` makes it the long form: so many minutes after one that warms up. Without it only leaks show, and
memory is not compared.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINUTES = int(os.environ.get("AVIATO_TEST_SOAK_MINUTES", "0"))
SEED = int(os.environ.get("AVIATO_TEST_FAULT_SEED", "0")) or random.randrange(1, 1 << 31)
SHORT_SECONDS = 3.0
QUIET_SECONDS = 120.0
"""A round's end and its figures take no longer."""
ROUNDS, ROUND_SECONDS = (1 + MINUTES, 60.0) if MINUTES else (2, SHORT_SECONDS)
MOST_SECONDS = ROUNDS * (ROUND_SECONDS + QUIET_SECONDS)


@pytest.mark.deep
@pytest.mark.timeout(MOST_SECONDS + 60)
def test_nothing_is_left(_private_environment: None, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.faults.soak", "--seed", str(SEED)]
    command += ["--rounds", str(ROUNDS), "--round-seconds", str(ROUND_SECONDS)]
    with (tmp_path / "said").open("w+") as said:
        soak = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
        try:
            soak.wait(MOST_SECONDS)
        finally:
            soak.terminate()
            soak.wait()
        said.seek(0)
        text = said.read()
    print(text)
    assert soak.returncode == 0, text[-8000:]
    assert "left:" not in text, text[-8000:]
