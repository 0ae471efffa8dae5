"""The program that runs cases inside, on Pythons of other versions and without what newer ones have."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
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
