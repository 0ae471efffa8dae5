"""What is sent to the program `inside/cases.py` (with `late.py` before it), and how its records are read."""

from __future__ import annotations

import functools
import importlib.util
import json
import marshal
import secrets
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.grading.inside import program

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN_BYTES = 16
LOADER = """
import _frozen_importlib_external as importer, marshal
given = open(0, "rb", closefd=False).read()
at = [int(given[n : n + 8]) for n in (4, 12)]
program, source, payload = given[20 : at[0]], given[at[0] : at[1]], given[at[1] :]
names = {"__name__": "aviato_cases", "__builtins__": __builtins__}
if given[:4] != importer.MAGIC_NUMBER:
    import zlib
    exec(compile(zlib.decompress(source), "aviato_cases", "exec"), names)
else:
    exec(marshal.loads(program), names)
names["main"](payload)
"""
"""Compiling the program inside would take 5 ms, so it comes as bytecode where the versions agree."""
MAX_OUTPUT_BYTES = 64 << 20
"""Of the records."""
OUTPUT_BYTES = 64 << 10
"""Of each stream of a case."""


class Case(NamedTuple):
    """Source to be run after the code under test, or in its place.

    Attributes:
        source: of the case.
        name: what its traceback calls it.
        timeout_seconds: its limit, None for none.
        as_main: whether the code is to take itself for the program.
    """

    source: str
    name: str
    timeout_seconds: float | None = None
    as_main: bool = False


class Command(NamedTuple):
    """A command that runs cases.

    Attributes:
        argv: the program.
        given: its standard input.
        cases: what its sandbox is asked to do for it, see `wire.execution.Cases`.
    """

    argv: list[str]
    given: bytes
    cases: dict[str, Any]


def command(
    code: str,
    cases: Sequence[Case],
    *,
    python: str = "python3",
    packages_later: bool = False,
    output_bytes: int = OUTPUT_BYTES,
    reports: bool = False,
) -> Command:
    """What runs code against cases.

    Args:
        code: under test.
        cases: at least one.
        python: the interpreter.
        packages_later: look for installed packages when one is asked for, and not at the start.
        output_bytes: what is kept of each stream of a case.
        reports: whether cases have `__aviato_report__`, which says something of a part of them.
    """
    token = secrets.token_hex(TOKEN_BYTES)
    told = [{"source": case.source, "name": case.name, "as_main": case.as_main} for case in cases]
    timed = any(case.timeout_seconds is not None for case in cases)
    payload = ascii({"token": token, "code": code, "cases": told, "reports": reports, "timed": timed}).encode()
    compiled, source = cases_program()
    ends = b"%8d%8d" % (20 + len(compiled), 20 + len(compiled) + len(source))
    given = b"".join((importlib.util.MAGIC_NUMBER, ends, compiled, source, payload))
    asked = {
        "timeout_seconds": [case.timeout_seconds for case in cases],
        "token": token,
        "output_bytes": output_bytes,
        "reports": reports,
    }
    return Command([python, "-I", *(["-S"] if packages_later else []), "-c", LOADER], given, asked)


@functools.cache
def cases_program() -> tuple[bytes, bytes]:
    """The program that runs inside, compiled for Pythons of this version, and its source, compressed, for others."""
    source = program("late", "cases").encode()
    return marshal.dumps(compile(source, "aviato_cases", "exec", optimize=2)), zlib.compress(source)


def records(stdout: bytes) -> tuple[list[dict[str, Any]], bool]:
    """The verdicts that the sandbox's supervisor has written, and whether its last line came after them."""
    found: list[dict[str, Any]] = []
    for line in stdout.splitlines():
        try:
            verdict = json.loads(line)
        except ValueError:
            return found, False  # Cut off in its middle, by a limit or by an end.
        if "cases" in verdict:
            return found, verdict["cases"] == len(found)
        found.append(verdict)
    return found, False
