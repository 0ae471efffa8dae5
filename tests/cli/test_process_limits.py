"""Under limits that no server can live with, a sentence says so at once, and the line in it is what helps."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.matrices import deep

AVIATO = shlex.join([sys.executable, "-m", "aviato"])
LIMITS = {
    "ulimit -n 40": "has 40 descriptors at most, and a server needs 256: run `ulimit -n 256`",
    "ulimit -v 300000": "may map 300000 KiB at most, and a server needs 524288: run `ulimit -v 524288`",
    "ulimit -f 0": "may write files of 0 KiB at most, and a server needs 65536: run `ulimit -f 65536`",
}


def under(limit: str, command: str, state: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "AVIATO_BASE_URL"}
    environment |= {"AVIATO_STATE_DIR": str(state)}
    line = f"{limit}; {AVIATO} {command}"
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.parametrize("command", ["run true", *deep(["ls", "serve", "doctor"])])
@pytest.mark.parametrize("limit", LIMITS)
def test_it_is_said_in_a_sentence(limit: str, command: str, state: Path) -> None:
    began = time.monotonic()
    done = under(limit, command, state)
    assert done.returncode in (1, 125)
    said = LIMITS[limit] if command != "doctor" else LIMITS[limit].partition(": run")[0]
    assert said in done.stderr + done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    assert command == "doctor" or len(done.stderr.splitlines()) == 1, done.stderr
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("limit", ["ulimit -Sv 300000", *deep(["ulimit -Sf 0"])])
def test_what_it_says_helps(limit: str, state: Path) -> None:
    said = under(limit, "doctor", state)
    advice = re.search(r"repair: `(ulimit \S+ \d+)` here", said.stdout)
    assert said.returncode == 1 and advice is not None, said.stdout
    assert "process limits" not in under(f"{limit}; {advice[1]}", "doctor", state).stdout
    done = under(limit, "run echo here", state)
    assert (done.returncode, done.stdout) == (0, "here\n"), "the embedded server begins with what a login has"
