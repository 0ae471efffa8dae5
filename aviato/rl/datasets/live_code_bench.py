"""LiveCodeBench's code generation, with its private tests."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from typing import Any, NoReturn

from aviato.rl.cases import CallCase, ProgramCase
from aviato.rl.datasets.apps_family import IMPORTS
from aviato.rl.datasets.printed import decimal_lines
from aviato.rl.datasets.returned import same_but_tuple
from aviato.rl.datasets.rows import Problem, Row, data, items, mapping, of_rows, refused
from aviato.rl.datasets.sources import program_with
from aviato.rl.task import Task

_SCHEMA = "livecodebench"
PRELUDE = IMPORTS + "sys.setrecursionlimit(50000)\n"
"""What its harness imports before an answer."""
CASE_TIMEOUT_SECONDS = 6.0
LARGEST_TESTS_BYTES = 1 << 30
"""Of the private tests of a row, unpacked."""


def livecodebench(row: Row, code: str | None = None) -> Task:
    """A row of `livecodebench/code_generation_lite` or `livecodebench/code_generation`.

    All public and private tests count, up to the first that fails. With `func_name` in `metadata` each is a call, of a function
    or of a method of `class Solution`; else each is a run of a program. Both have the imports that LiveCodeBench has.

    Args:
        row: with `public_test_cases`, `private_test_cases` and `metadata`.
        code: of the answer.

    Raises:
        AviatoValidationError: a row without tests, or tests that cannot be read.
    """
    return problem(row).with_code(code)


@of_rows
def problem(row: Row) -> Problem:
    """What the row asks for."""
    tests = [*_tests("public_test_cases", row), *_tests("private_test_cases", row)]
    if not tests:
        raise refused(_SCHEMA, "public_test_cases", "it has no tests")
    name = mapping(_SCHEMA, "metadata", data(_SCHEMA, "metadata", row.get("metadata") or {})).get("func_name")
    whole = (CASE_TIMEOUT_SECONDS + 1) * len(tests) + 5
    limits: dict[str, Any] = {
        "case_timeout_seconds": CASE_TIMEOUT_SECONDS,
        "timeout_seconds": whole,
        "stop_at_first_failure": True,
    }
    if name:
        calls = [_call(str(name), given, output) for given, output in tests]
        return Problem(Task(tests=calls, prelude=PRELUDE, **limits))
    runs = [ProgramCase(given, output, judge=decimal_lines) for given, output in tests]
    return Problem(Task(tests=runs, **limits), program_with(PRELUDE))


def _call(name: str, given: str, output: str) -> CallCase:
    args = [data(_SCHEMA, "input", line) for line in given.split("\n")]
    return CallCase(name, args, data(_SCHEMA, "output", output), judge=same_but_tuple)


def _tests(name: str, row: Row) -> list[tuple[str, str]]:
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = data(_SCHEMA, name, _unpacked(name, value))
    found = [] if value is None else items(value)
    if found is None:
        raise refused(_SCHEMA, name, f"its field {name!r} is no list of tests but {type(value).__name__}")
    tests = [mapping(_SCHEMA, name, test) for test in found]
    for test in tests:
        if not isinstance(test.get("input"), str) or not isinstance(test.get("output"), str):
            raise refused(_SCHEMA, name, f"a test in {name!r} has no text as 'input' and 'output'")
    return [(test["input"], test["output"]) for test in tests]


def _unpacked(name: str, value: str) -> str:
    """Text that is packed as base64 of zlib of pickle. Nothing but text comes out of the pickle, and nothing is called."""
    try:
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(base64.b64decode(value), LARGEST_TESTS_BYTES)
        if unpacking.unconsumed_tail:
            raise ValueError(f"it has more than {LARGEST_TESTS_BYTES >> 20} MiB")
        found = _TextUnpickler(io.BytesIO(packed)).load()
        if isinstance(found, (str, bytes)):
            return found if isinstance(found, str) else found.decode()
        raise ValueError(f"it holds no text but {type(found).__name__}")
    except (binascii.Error, zlib.error, pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError) as error:
        message = f"its field {name!r} is neither JSON nor text as LiveCodeBench packs it: {error}"
        raise refused(_SCHEMA, name, message) from None


class _TextUnpickler(pickle.Unpickler):
    """Reads what needs no class and no function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every one."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only text is expected")

    def persistent_load(self, identity: Any) -> NoReturn:
        """Refuse every one."""
        raise pickle.UnpicklingError("it refers to something outside")
