"""CodeContests of DeepMind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Any

from aviato.languages import ALIASES, RECIPES
from aviato.rl.cases import ProgramCase
from aviato.rl.datasets.file_programs import file_problem
from aviato.rl.datasets.rows import Problem, Row, items, mapping, of_rows, pairs, refused, text
from aviato.rl.datasets.sources import for_online_judge
from aviato.rl.judges import as_bytes, differs, expected_of
from aviato.rl.task import Task

_SCHEMA = "code_contests"
DEFAULT_TIMEOUT_SECONDS = 10.0
"""Of a test of a row without `time_limit`, as its harness has it."""
TOLERANCE = 1e-5
_WORD = re.compile(rb"[^ \n\t\r\v]+")
_TESTS = ("public_tests", "private_tests", "generated_tests")


def code_contests(row: Row, code: str | None = None, language: str = "python") -> Task:
    """A row of `deepmind/code_contests`: all its tests, within the row's time and memory.

    What is printed is compared as its harness does: word by word, in any case, numbers within 0.00001. How the program ended is
    not looked at. C and C++ have `ONLINE_JUDGE` defined, as the contests have it.

    Args:
        row: with `public_tests`, `private_tests`, `generated_tests`, `time_limit` and `memory_limit_bytes`.
        code: of the answer.
        language: of the code, a name of `aviato.languages.RECIPES`.

    Raises:
        AviatoValidationError: a row without tests, or with inputs and outputs of different numbers.
    """
    return problem(row, language).with_code(code)


@of_rows
def problem(row: Row, language: str = "python") -> Problem:
    """What the row asks for."""
    found = [pair for name in _TESTS for pair in _tests(name, row.get(name))]
    if not found:
        raise refused(_SCHEMA, "private_tests", "it has no tests")
    language = ALIASES.get(language.lower(), language.lower())
    if language not in RECIPES:
        raise refused(_SCHEMA, "language", f"the language is {language!r}, and not one of {', '.join(sorted(RECIPES))}")
    limit = _seconds(row.get("time_limit"))
    read, written = text(_SCHEMA, row, "input_file", blank=True), text(_SCHEMA, row, "output_file", blank=True)
    memory = row.get("memory_limit_bytes") or None
    cases = [
        ProgramCase(
            str(given),
            str(output),
            files={read: str(given).encode()} if read else {},
            judge=same_words,
            returncode=None,
            memory_limit_bytes=None if memory is None else int(memory),
        )
        for given, output in found
    ]
    task = Task(tests=cases, language=language, case_timeout_seconds=limit, timeout_seconds=limit * len(cases) + 60.0)
    return file_problem(_SCHEMA, task, written) if written else Problem(task, for_online_judge)


def same_words(case: Any, actual: Any) -> bool | str:
    """Word by word, whatever the case of ASCII letters; words that are numbers may differ by less than 0.00001.

    Words, numbers and letters are those of the harness, which is in C++: a form feed ends no word, and `0x10` is 16.
    """
    found, wanted = _words(actual), _words(expected_of(case))
    same = found == wanted or (len(found) == len(wanted) and all(map(_same_word, found, wanted)))
    return same or differs(case, actual)


def _words(printed: Any) -> list[bytes]:
    return _WORD.findall(as_bytes(printed).lower())


def _same_word(found: bytes, wanted: bytes) -> bool:
    left, right = _number(found), _number(wanted)
    return found == wanted if left is None or right is None else abs(left - right) < TOLERANCE


def _number(word: bytes) -> float | None:
    try:
        text = word.decode("ascii")
        return None if "_" in text else float.fromhex(text) if "0x" in text else float(text)
    except OverflowError:
        return inf
    except ValueError:
        return None


def _tests(name: str, value: Any) -> list[tuple[Any, Any]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        if not any(map(items, value.values())):
            return []
        return pairs(_SCHEMA, value.get("input"), value.get("output"))
    found = [mapping(_SCHEMA, name, test) for test in items(value) or []]
    return [(test.get("input", ""), test.get("output", "")) for test in found]


def _seconds(value: Any) -> float:
    if isinstance(value, Mapping):
        value = (value.get("seconds") or 0) + (value.get("nanos") or 0) / 1e9
    return float(value) if isinstance(value, (int, float)) and value > 0 else DEFAULT_TIMEOUT_SECONDS
