"""The program that runs cases inside, on Pythons of other versions and without what newer ones have."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from aviato.grading import driver

NONCES = [bytes([65 + number]) * driver.NONCE_BYTES for number in range(4)]
CASES = ["assert f() == 1", "assert f() == 1", "import sys; print('out'); print('err', file=sys.stderr); assert f() == 1"]


def records(begin: str = "", magic: bytes = importlib.util.MAGIC_NUMBER) -> list[dict[str, Any]]:
    """What the program writes, each line behind the nonce that is its own."""
    payload = {
        "code": "kept = []\ndef f():\n    kept.append(1)\n    return len(kept)\n",
        "cases": [{"source": source, "name": f"test_{number}"} for number, source in enumerate(CASES, 1)],
        "case_timeout_seconds": 20,
    }
    given = magic + driver.given(ascii(payload).encode(), NONCES)[len(magic) :]
    done = subprocess.run([sys.executable, "-I", "-c", begin + driver.LOADER], input=given, capture_output=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.splitlines()
    assert len(lines) == len(NONCES)
    return [ast.literal_eval(line.removeprefix(nonce + b" ").decode()) for line, nonce in zip(lines, NONCES, strict=True)]


@pytest.mark.parametrize(
    ("begin", "magic"),
    [
        ("", importlib.util.MAGIC_NUMBER),
        ("", b"\0\0\0\0"),
        ("import os; del os.pidfd_open\n", importlib.util.MAGIC_NUMBER),
        ("import sys; sys.modules['_ctypes'] = None\n", importlib.util.MAGIC_NUMBER),
    ],
    ids=["as here", "another version", "no pidfd", "no ctypes"],
)
def test_wherever_it_runs(begin: str, magic: bytes) -> None:
    *cases, last = records(begin, magic)
    assert last == {"cases": 3}
    assert [case["reason"] for case in cases] == ["passed", "assertion", "passed"]
    assert (cases[2]["stdout"], cases[2]["stderr"]) == ("out\n", "err\n")


def test_bytecode_is_used_where_the_versions_agree() -> None:
    program, source = driver.cases_program()
    given = driver.given(b"", [])
    assert given.startswith(importlib.util.MAGIC_NUMBER) and program in given and source in given
    assert len(given) < 1 << 15  # It is to fit the request of its command with room for the cases.


PACKAGE = 'VALUE = "found"\n'
LATE = """
import sys
import venv
assert sys.flags.no_site == 0 and "site" not in sys.modules and exit and quit and help
try:
    import there_is_no_such_package
except ModuleNotFoundError as error:
    assert error.name == "there_is_no_such_package"
import importlib.metadata, subprocess, late_package
assert late_package.VALUE == "found" and importlib.metadata.version("late_package") == "1.5"
assert sys.prefix == {prefix!r}
asked = "import late_package, sys; sys.exit(not sys.flags.isolated)"
subprocess.run([sys.executable, *subprocess._args_from_interpreter_flags(), "-c", asked], check=True)
"""
BY_METADATA = "import importlib.metadata\nassert importlib.metadata.version('late_package') == '1.5'\nimport late_package\n"


@pytest.mark.parametrize("code", [LATE, BY_METADATA], ids=["by import", "by its version"])
def test_packages_are_found_late(code: str, tmp_path: Path) -> None:
    venv.create(tmp_path)
    python = tmp_path / "bin" / "python"
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    (packages / "late_package.py").write_text(PACKAGE)
    (packages / "late_package-1.5.dist-info").mkdir()
    (packages / "late_package-1.5.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: late_package\nVersion: 1.5\n"
    )
    payload = {"code": code.replace("{prefix!r}", repr(str(tmp_path))), "cases": [{"source": "", "name": "test_1"}]}
    program, given = driver.command(str(python), packages_later=True), driver.given(ascii(payload).encode(), NONCES[:2])
    done = subprocess.run(program, input=given, capture_output=True, timeout=50)
    (case,), whole = driver.records(done.stdout, NONCES[:2])
    assert whole and case["passed"], case
