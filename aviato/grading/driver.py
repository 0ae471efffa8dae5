"""What is sent to the program `inside/cases.py` (with `late.py` before it), and how its records are read."""

from __future__ import annotations

import ast
import functools
import importlib.util
import marshal
import secrets
import zlib
from typing import Any

from aviato.grading.inside import program

NONCE_BYTES = 32
LOADER = """
import os, _frozen_importlib_external as importer
def take(count):
    data = os.read(0, count)
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more: os._exit(3)
        data += more
    return data
magic, sizes = take(4), [int(take(8)) for _ in range(3)]
program, source = take(sizes[0]), take(sizes[1])
names = {"__name__": "aviato_cases", "__builtins__": __builtins__}
if magic == importer.MAGIC_NUMBER:
    import marshal
    exec(marshal.loads(program), names)
else:
    import zlib
    exec(compile(zlib.decompress(source), "aviato_cases", "exec"), names)
names["main"](take, sizes[2])
os._exit(0)
"""
"""Compiling the program inside would take 5 ms, so it comes as bytecode where the versions agree."""
MAX_OUTPUT_BYTES = 64 << 20
"""Of the records."""


def command(python: str = "python3", *, packages_later: bool = False) -> list[str]:
    """What runs the program, with what `given` returns as its standard input.

    Args:
        python: the interpreter.
        packages_later: look for installed packages when one is asked for, and not at the start.
    """
    return [python, "-I", *(["-S"] if packages_later else []), "-c", LOADER]


def new_nonces(cases: int) -> list[bytes]:
    """One for each record and one for the last line."""
    return [secrets.token_hex(NONCE_BYTES // 2).encode() for _ in range(cases + 1)]


def given(payload: bytes, nonces: list[bytes]) -> bytes:
    """What the loader reads: the program in both forms, then what the program reads."""
    program, source = cases_program()
    sizes = b"%8d%8d%8d" % (len(program), len(source), len(payload))
    return b"".join((importlib.util.MAGIC_NUMBER, sizes, program, source, payload, *nonces))


@functools.cache
def cases_program() -> tuple[bytes, bytes]:
    """The program that runs inside, compiled for Pythons of this version, and its source, compressed, for others."""
    source = program("late", "cases").encode()
    return marshal.dumps(compile(source, "aviato_cases", "exec", optimize=2)), zlib.compress(source)


def records(stdout: bytes, nonces: list[bytes]) -> tuple[list[dict[str, Any]], bool]:
    """The records that the keeper wrote, and whether it wrote its last line after exactly as many as there are cases.

    The n-th record begins with the n-th nonce, which the keeper had only once the n-th case was over.
    """
    found: list[dict[str, Any]] = []
    cases = len(nonces) - 1
    for line in stdout.split(b"\n"):
        if not line.startswith(nonces[len(found)] + b" "):
            continue
        try:
            record: dict[str, Any] = ast.literal_eval(line[NONCE_BYTES + 1 :].decode("ascii"))
        except (ValueError, SyntaxError):
            continue
        if "cases" in record:
            return found, record["cases"] == cases == len(found)
        if len(found) == cases:
            return found, False
        found.append(record)
    return found, False
