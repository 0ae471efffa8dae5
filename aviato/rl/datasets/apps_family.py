"""APPS, TACO, and the inputs and outputs that PRIME and verl have in their ground truths: one form, three harnesses."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aviato.rl.cases import CallCase, ProgramCase, TestCase
from aviato.rl.datasets import returned
from aviato.rl.datasets.printed import close_lines, loose_lines, stripped
from aviato.rl.datasets.rows import Problem, Row, data, items, lines, listed, mapping, of_rows, pairs, put, refused
from aviato.rl.datasets.sources import program_with, with_prelude
from aviato.rl.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.rl.judges import Judge

APPS_PRELUDE = """\
import sys
import time
import itertools
from itertools import accumulate, product, permutations, combinations
import collections
from collections import Counter, OrderedDict, deque, defaultdict, ChainMap
from functools import lru_cache
import math
from math import sqrt, sin, cos, tan, ceil, fabs, floor, gcd, exp, log, log2
import fractions
from typing import List, Tuple
import random
import heapq
from heapq import *
"""
"""What APPS and TACO import before an answer; they also have `NUMPY`, which is imported for code that names `np`."""
NUMPY = 'exec("try:\\n import numpy as np\\nexcept ImportError: pass")\n'
"""Where it is missing only an answer that has use for it fails, not one that has another `np`."""
STREAMS = "stdin = sys.stdin\nstdout = sys.stdout\n"
"""What they define before a program."""

_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools"),
    *("functools", "operator", "io", "sys", "json"),
)
IMPORTS = "".join(
    [
        *(f"from {name} import *\n" for name in (*_MODULES, "builtins", "typing")),
        *(f"import {name}\n" for name in _MODULES),
    ]
)
"""What LiveCodeBench, PRIME and verl import before an answer."""
PRIME_PRELUDE = IMPORTS + "sys.setrecursionlimit(6*10**5)\n"


@dataclass(frozen=True)
class _Harness:
    """How one of them goes about it.

    Attributes:
        schema: its name.
        program_judge: of programs.
        prelude: before functions.
        program_prelude: before programs.
        with_numpy: whether `NUMPY` belongs to both.
        case_timeout_seconds: of each case.
        json_lines: whether calls have their arguments as JSON, one a line, and what is expected as JSON.
    """

    schema: str
    program_judge: Judge
    prelude: str
    program_prelude: str
    with_numpy: bool
    case_timeout_seconds: float
    json_lines: bool


_APPS = _Harness("apps", loose_lines, APPS_PRELUDE, APPS_PRELUDE + STREAMS, True, 4.0, False)
_TACO = _Harness("taco", stripped, APPS_PRELUDE, APPS_PRELUDE + STREAMS, True, 4.0, False)
_PRIME = _Harness("prime", close_lines, PRIME_PRELUDE, PRIME_PRELUDE + STREAMS, False, 10.0, True)


def apps(row: Row, code: str | None = None) -> Task:
    """A row of `codeparrot/apps`.

    With `fn_name` in `input_output` each input is a call, of a function or of a method of `class Solution`; else each is a run
    of a program. Both have the imports that APPS has. APPS compares words and lines as sets in the end, which passes wrong
    answers, and is not followed there: see `loose_lines`.

    Args:
        row: with `input_output`, as text or as a dict.
        code: of the answer.

    Raises:
        AviatoValidationError: a row without tests, or with inputs and outputs of different numbers.
    """
    return apps_problem(row).with_code(code)


def taco(row: Row, code: str | None = None) -> Task:
    """A row of `BAAI/TACO`: as `apps`, but what a program prints has to be equal but for blank space at both ends.

    Args:
        row: with `input_output`, as text or as a dict.
        code: of the answer.

    Raises:
        AviatoValidationError: a row without tests, or with inputs and outputs of different numbers.
    """
    return taco_problem(row).with_code(code)


def prime(row: Row, code: str | None = None) -> Task:
    """A ground truth of PRIME's and verl's: `{"inputs", "outputs"}`, with `"fn_name"` for functions, or `{"assert_case"}`.

    A program's output is compared as `close_lines` has it. A call has its arguments as JSON, one a line, or in a list; an
    output that is no JSON is compared with what `print` shows.

    Args:
        row: the ground truth.
        code: of the answer.

    Raises:
        AviatoValidationError: one without tests, or with inputs and outputs of different numbers.
    """
    return prime_problem(row).with_code(code)


@of_rows
def apps_problem(row: Row) -> Problem:
    """What a row of APPS asks for."""
    return _of(_APPS, _tests(_APPS, row))


@of_rows
def taco_problem(row: Row) -> Problem:
    """What a row of TACO asks for."""
    return _of(_TACO, _tests(_TACO, row))


@of_rows
def prime_problem(row: Row) -> Problem:
    """What a ground truth asks for."""
    asserts = [str(case) for case in listed("prime", row, "assert_case") if str(case).strip()]
    if asserts:
        return Problem(Task(tests=[TestCase(source=case) for case in asserts], case_timeout_seconds=10.0))
    return _of(_PRIME, row)


def _tests(harness: _Harness, row: Row) -> Mapping[str, Any]:
    field = row.get("input_output")
    if field is None or (isinstance(field, str) and not field.strip()):
        raise refused(harness.schema, "input_output", "it has no tests in 'input_output'")
    return mapping(harness.schema, "input_output", data(harness.schema, "input_output", field))


def _of(harness: _Harness, tests: Mapping[str, Any]) -> Problem:
    found = pairs(harness.schema, tests.get("inputs"), tests.get("outputs"))
    name = tests.get("fn_name")
    limit = harness.case_timeout_seconds
    whole = limit * len(found) + 5.0
    if not name:
        runs = [ProgramCase(lines(given), lines(output), judge=harness.program_judge) for given, output in found]
        compose = _program_with_numpy if harness.with_numpy else program_with(harness.program_prelude)
        return Problem(Task(tests=runs, case_timeout_seconds=limit, timeout_seconds=whole), compose)
    calls = [_call(harness, str(name), given, output) for given, output in found]
    task = Task(tests=calls, prelude=harness.prelude, case_timeout_seconds=limit, timeout_seconds=whole)
    return Problem(task, _call_with_numpy) if harness.with_numpy else Problem(task)


def _call(harness: _Harness, name: str, given: Any, output: Any) -> CallCase:
    judge = returned.same_or_wrapped
    if harness.json_lines and isinstance(given, str):
        texts = [line for line in given.split("\n") if line.strip()]
        args: Any = [data(harness.schema, "inputs", line) for line in texts]
        try:
            output = json.loads(output) if isinstance(output, str) else output
        except ValueError:
            output, judge = output.rstrip("\n"), returned.same_printed
    else:
        args = items(given)
    if args is None:
        raise refused(harness.schema, "inputs", f"an input of a call is no list of arguments but {type(given).__name__}")
    return CallCase(name, [*map(_int_keys, args[:1]), *args[1:]], _keyed(output), judge=judge)


def _keyed(output: Any) -> Any:
    """Keys that JSON made of integers are integers again, in a dict and in the first item of a list."""
    if isinstance(output, list) and output and isinstance(output[0], dict):
        return [_int_keys(output[0]), *output[1:]]
    return _int_keys(output)


def _int_keys(one: Any) -> Any:
    if not isinstance(one, dict):
        return one
    try:
        return {int(key): value for key, value in one.items()}
    except (TypeError, ValueError):
        return one


def _program_with_numpy(task: Task, code: str) -> Task:
    return put(task, with_prelude(_numpy(code) + APPS_PRELUDE + STREAMS, code))


def _call_with_numpy(task: Task, code: str) -> Task:
    return replace(task, code=code, prelude=_numpy(code) + task.prelude)


def _numpy(code: str) -> str:
    return NUMPY if re.search(r"\bnp\b", code) else ""
