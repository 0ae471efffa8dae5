"""Control groups of version 2, in a virtual machine: what this machine does not have itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.test_ordinary_user import interpreter, user
from tests.vm import machine

ROOT = Path(__file__).parents[2]
ASKED = "AVIATO_TEST_VM"
"""Set where it may take minutes: without the processor's help all is ten times slower."""
LACKING = machine.missing()
SUITES = ("tests/backends/test_groups.py", "tests/backends/test_limits.py")
FEW = ("tests/backends/test_groups.py", "-k", "lets_nothing or outside or share or lacked_memory or left")

pytestmark = [
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
    pytest.mark.skipif(not machine.fast() and ASKED not in os.environ, reason=f"no KVM here; {ASKED}=1 does it in minutes"),
    pytest.mark.timeout(400),
]


def run(python: str, *options: str) -> None:
    suites = SUITES if machine.fast() else FEW
    argv = [sys.executable, "-m", "tests.vm", *options, "--timeout", "380", python, "-m", "pytest", "-q", "-rs", "--color=no"]
    argv += ["-p", "no:cacheprovider", "-p", "no:asyncio", "--timeout", "120", "--basetemp=/tmp/bt", *suites]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=395)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "no control groups here" not in done.stdout


def test_as_root() -> None:
    run(sys.executable)


def test_as_an_ordinary_user_with_a_group_of_its_own() -> None:
    who = user()
    python = None if who is None or os.geteuid() != 0 else interpreter(who)
    if who is None or python is None:
        pytest.skip("no ordinary user with an environment (AVIATO_TEST_USER_PYTHON)")
    run(python, "--user", who.pw_name)
