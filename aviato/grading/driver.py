"""What is sent to the program `inside/cases.py` (with `late.py` before it), and how its records are read."""

from __future__ import annotations
import __future__

import functools
import importlib.util
import json
import marshal
import secrets
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.grading.inside import FUTURE, program
from aviato.values.text import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN_BYTES = 16
LOADER = """
import _frozen_importlib_external as importer, marshal
given = open(0, "rb", 0, closefd=False)
def taken(size):
    data = b""
    while len(data) < size:
        piece = given.read(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
head = taken(20)
program = taken(int(head[4:12]) - 20)
source = taken(int(head[12:]) - 20 - len(program))
names = {"__name__": "aviato_cases", "__builtins__": __builtins__}
if head[:4] != importer.MAGIC_NUMBER:
    import zlib
    exec(compile(zlib.decompress(source), "aviato_cases", "exec"), names)
else:
    exec(marshal.loads(program), names)
names["main"](given)
"""
"""Compiling the program inside would take 5 ms, so it comes as bytecode where the versions agree."""
MAX_OUTPUT_BYTES = 64 << 20
"""Of the records."""
OUTPUT_BYTES = 64 << 10
"""Of each stream of a case."""


class Case(NamedTuple):
    """Source to be run after the code under test, or a call of one of its functions.

    Attributes:
        source: of the case; empty for a call.
        name: what its traceback calls it.
        timeout_seconds: its limit, None for none.
        counts: whether the source marks each check that it reaches; without any mark it has not checked anything.
        collect: whose tests it defines that are to be run after it, `pytest` or `unittest`; empty for none.
        left_out: names of such tests that it runs itself.
        call: the function that is called; its value is reported.
        args, kwargs: with what, as `inside.packing.pack` gives them.
    """

    source: str
    name: str
    timeout_seconds: float | None = None
    counts: bool = False
    collect: str = ""
    left_out: tuple[str, ...] = ()
    call: str = ""
    args: Any = None
    kwargs: Any = None

    def told(self) -> dict[str, Any]:
        """What the program inside is told of it."""
        if self.call:
            return {"name": self.name, "call": self.call, "args": self.args, "kwargs": self.kwargs}
        # No file has a NUL in its name, and as such a file it is compiled.
        texts = {"name": self.name.replace("\0", "\\0"), "source": encode(self.source)}
        return {**texts, "counts": self.counts, "collect": self.collect, "left_out": self.left_out}


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
    prelude: str = "",
    python: str = "python3",
    packages_later: bool = False,
    output_bytes: int = OUTPUT_BYTES,
    reports: bool = False,
    report_bytes: int | None = None,
) -> Command:
    """What runs code against cases.

    Args:
        code: under test, the module `solution`; without any, cases run by themselves.
        cases: at least one.
        prelude: source that runs before the code.
        python: the interpreter.
        packages_later: look for installed packages when one is asked for, and not at the start.
        output_bytes: what is kept of each stream of a case.
        reports: whether cases have `__aviato_report__`, which says something of a part of them; calls need it.
        report_bytes: what is kept of that of a case; None is `output_bytes`.
    """
    told = payload(code, cases, prelude=prelude, reports=reports)
    token, calls = told["token"], told["calls"]
    given = sent(cases_program(calls)) + ascii(told).encode()
    asked = {
        "timeout_seconds": [case.timeout_seconds for case in cases],
        "token": token,
        "output_bytes": output_bytes,
        "reports": reports,
        **({} if report_bytes is None else {"report_bytes": report_bytes}),
    }
    return Command([python, "-I", *(["-S"] if packages_later else []), "-c", LOADER], given, asked)


def payload(code: str, cases: Sequence[Case], *, prelude: str = "", reports: bool = False) -> dict[str, Any]:
    """What the program inside is told; arguments as of `command`."""
    return {
        "token": secrets.token_hex(TOKEN_BYTES),
        "code": encode(code),
        "file": bool(code),
        "prelude": encode(prelude),
        "cases": [case.told() for case in cases],
        "collect": encode(program("collect")) if any(case.collect for case in cases) else b"",
        "reports": reports,
        "calls": any(case.call for case in cases),
        "timed": any(case.timeout_seconds is not None for case in cases),
    }


@functools.cache
def cases_program(calls: bool = False) -> tuple[bytes, bytes]:
    """The program that runs inside, compiled for Pythons of this version, and its source, compressed, for others.

    Args:
        calls: whether some cases are calls.
    """
    return compiled(program("late", "module", "unseen", *(("packing", "calls") if calls else ()), "cases"))


def compiled(text: str) -> tuple[bytes, bytes]:
    """A program as bytecode of this version, and its source, compressed."""
    # The statement would import the module; the bytecode has its meaning without.
    flag, own = __future__.annotations.compiler_flag, text.replace(FUTURE, "", 1)
    bytecode = compile(own, "aviato_cases", "exec", flags=flag, dont_inherit=True, optimize=2)
    return marshal.dumps(bytecode), zlib.compress(text.encode())


def sent(program: tuple[bytes, bytes]) -> bytes:
    """What `LOADER` reads of a compiled program; what follows is for its `main`."""
    bytecode, source = program
    ends = b"%8d%8d" % (20 + len(bytecode), 20 + len(bytecode) + len(source))
    return b"".join((importlib.util.MAGIC_NUMBER, ends, bytecode, source))


def records(stdout: bytes) -> tuple[list[dict[str, Any]], bool]:
    """The verdicts that the sandbox's process 1 has written, and whether its last line came after them."""
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
