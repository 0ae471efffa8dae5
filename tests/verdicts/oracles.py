"""The verdicts of plain Python, pytest and unittest on a test source beside code, and the one that is had here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import aviato.grading.inside
from aviato.rl.test_source import look

RIGHT = """
def f(x):
    if x < 0:
        raise ValueError("negative")
    return 2 * x
"""
WRONG = """
def f(x):
    return 7
"""
COLLECT = Path(aviato.grading.inside.__file__).with_name("collect.py")
DRIVEN = Path(__file__).with_name("driven.py")


def plain(how: str, code: str, source: str, folder: Path) -> str:
    """`passed` or `failed`, by the return code of `python`, `python -m pytest` or `python -m unittest`; `not_run` by pytest's."""
    path = folder / "test_solution.py"
    path.write_bytes((code + "\n" + source).encode(errors="surrogatepass"))
    command = {
        "python": [sys.executable, "-S", path.name],
        "pytest": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", path.name],
        "unittest": [sys.executable, "-m", "unittest", path.stem],
    }[how]
    found = subprocess.run(command, cwd=folder, capture_output=True, timeout=50)
    return {0: "passed", 5: "not_run"}.get(found.returncode, "failed")


def here(code: str, source: str, folder: Path, python: str = sys.executable) -> str:
    """`refused`, or what the driver says: `passed`, `failed: …`, `not_run`, `skipped`, `ended_early`."""
    told = look(source)
    if told.kind == "nothing":
        return "refused"
    job = {"code": code, "source": told.instrumented, "kind": told.kind}
    job |= {"counts_checks": told.counts_checks, "already_run": told.already_run}
    found = subprocess.run(
        [python, str(DRIVEN), str(COLLECT)], cwd=folder, input=json.dumps(job), capture_output=True, text=True, timeout=50
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.rstrip("\n").split("\n")[-1]
