"""Rows of the data sets that people train and measure on, one call each: a row exactly as the hub gives it becomes a `Task`.

::

    from aviato.rl import evaluate
    from aviato.rl.datasets import livecodebench

    outcomes = evaluate([livecodebench(row, code) for row, code in zip(rows, codes)]).result()

Each follows the harness of its data set: what is imported before an answer, how inputs are split, how outputs are compared, how
long a case may take. A row that cannot be judged raises `AviatoValidationError` with what is missing, before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.rl.datasets import (
    apps_family,
    big_code_bench,
    deepmind_contests,
    google_mbpp,
    kod_code,
    live_code_bench,
    open_r1_codeforces,
    openai_humaneval,
    swe_family,
    synthetic_1,
)
from aviato.rl.datasets.apps_family import apps, prime, taco
from aviato.rl.datasets.big_code_bench import bigcodebench
from aviato.rl.datasets.deepmind_contests import code_contests
from aviato.rl.datasets.google_mbpp import mbpp
from aviato.rl.datasets.kod_code import kodcode
from aviato.rl.datasets.live_code_bench import livecodebench
from aviato.rl.datasets.open_r1_codeforces import codeforces
from aviato.rl.datasets.openai_humaneval import humaneval
from aviato.rl.datasets.rows import Problem, Row, data, mapping, plain_row
from aviato.rl.datasets.swe_family import swe
from aviato.rl.datasets.synthetic_1 import synthetic1

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.rl.task import Task

__all__ = [
    "NAMES",
    "Problem",
    "apps",
    "bigcodebench",
    "code_contests",
    "codeforces",
    "fields_missing",
    "humaneval",
    "kodcode",
    "livecodebench",
    "mbpp",
    "named",
    "prime",
    "problem_of",
    "recognise",
    "row_of",
    "swe",
    "synthetic1",
    "taco",
    "task_of",
]


@dataclass(frozen=True)
class _Schema:
    """One data set.

    Attributes:
        problem: of a row.
        fields: without which no row of it can be judged: of each group, one.
        marks: fields that together tell it from the others.
        hub: other names that it has, in lower case and without their owner.
    """

    problem: Callable[[Row], Problem]
    fields: tuple[tuple[str, ...], ...]
    marks: tuple[tuple[str, ...], ...]
    hub: tuple[str, ...] = ()


_SCHEMAS = {
    "livecodebench": _Schema(
        live_code_bench.problem,
        (("public_test_cases",), ("private_test_cases",)),
        (("public_test_cases", "private_test_cases"),),
        ("code_generation_lite", "code_generation", "lcb"),
    ),
    "code_contests": _Schema(
        deepmind_contests.problem,
        (("public_tests", "private_tests", "generated_tests"),),
        (("public_tests", "private_tests"), ("private_tests", "generated_tests")),
        ("codecontests",),
    ),
    "codeforces": _Schema(
        open_r1_codeforces.problem, (("official_tests",),), (("official_tests",),), ("codeforces-cots", "open-r1-codeforces")
    ),
    "synthetic1": _Schema(
        synthetic_1.problem,
        (("verification_info",),),
        (("verification_info",),),
        ("synthetic-1", "verifiable-coding-problems", "verifiable-coding-problems-python"),
    ),
    "bigcodebench": _Schema(
        big_code_bench.problem,
        (("test",), ("entry_point",), ("code_prompt",)),
        (("code_prompt", "test", "entry_point"),),
        ("bigcodebench-hard",),
    ),
    "humaneval": _Schema(
        openai_humaneval.problem,
        (("prompt",), ("test",), ("entry_point",)),
        (("prompt", "test", "entry_point"),),
        ("openai_humaneval", "humanevalplus", "human-eval"),
    ),
    "mbpp": _Schema(google_mbpp.problem, (("test_list", "test"),), (("test_list",),), ("mbppplus", "sanitized-mbpp")),
    "taco": _Schema(
        apps_family.taco_problem,
        (("input_output",),),
        (("input_output", "raw_tags"), ("input_output", "skill_types"), ("input_output", "Expected Time Complexity")),
        ("taco-verified",),
    ),
    "apps": _Schema(apps_family.apps_problem, (("input_output",),), (("input_output",),)),
    "kodcode": _Schema(
        kod_code.problem,
        (("test",),),
        (("question_id", "test"), ("question", "test"), ("test", "test_info")),
        ("kodcode-v1", "kodcode-light-rl-10k", "kodcode-v1-sft-r1"),
    ),
    "swe": _Schema(
        swe_family.problem,
        (("FAIL_TO_PASS", "expected_output_json"),),
        (("FAIL_TO_PASS", "PASS_TO_PASS"), ("expected_output_json",)),
        (
            "swe-bench",
            "swe-bench_lite",
            "swe-bench_verified",
            "swe-gym",
            "swe-gym-lite",
            "swe-smith",
            "r2e-gym-subset",
            "r2e-gym-lite",
        ),
    ),
    "prime": _Schema(
        apps_family.prime_problem,
        (("inputs", "assert_case"),),
        (("inputs", "outputs"), ("assert_case",)),
        ("eurus-2-rl-data", "verl", "prime_code"),
    ),
}
"""In the order in which their marks are looked for: the more telling ones first."""

NAMES = tuple(_SCHEMAS)
"""The names that `code_reward(dataset=)` and `task_of` take."""
_HUB = {hub: name for name, schema in _SCHEMAS.items() for hub in schema.hub}


def recognise(row: Row) -> str | None:
    """The name of the data set whose fields a row has; None if it is none that is known."""
    found = {name for name, value in plain_row(row).items() if value is not None}
    for name, schema in _SCHEMAS.items():
        if any(found.issuperset(marks) for marks in schema.marks):
            return name
    return None


def named(source: str) -> str | None:
    """The name of a data set by any of its names, such as `google-research-datasets/mbpp`; None if it is none that is known."""
    word = str(source).rsplit("/", 1)[-1].lower()
    return word if word in _SCHEMAS else _HUB.get(word)


def fields_missing(name: str, row: Row) -> list[str]:
    """Fields without which no row of a data set can be judged, and which a row does not have.

    Raises:
        AviatoValidationError: a name that is not known.
    """
    return [" or ".join(group) for group in _schema(name).fields if not any(field in row for field in group)]


def row_of(name: str, value: object) -> Row:
    """A row that stands whole in one field.

    Raises:
        AviatoValidationError: it is no dict, nor JSON of one.
    """
    return mapping(name, "row", data(name, "row", plain_row(value)))


def problem_of(name: str, row: Row) -> Problem:
    """What a row asks for, whatever code comes.

    Args:
        name: of the data set, one of `NAMES`.
        row: as the hub gives it.

    Raises:
        AviatoValidationError: a name that is not known, or a row that cannot be judged.
    """
    return _schema(name).problem(row)


def task_of(name: str, row: Row, code: str | None = None) -> Task:
    """The task of a row: as the function of that name.

    Raises:
        AviatoValidationError: a name that is not known, or a row that cannot be judged.
    """
    return problem_of(name, row).with_code(code)


def _schema(name: str) -> _Schema:
    if name not in _SCHEMAS:
        message = f"dataset must be one of {', '.join(NAMES)}, got {name!r}"
        raise AviatoValidationError(message, field_violations={"dataset": message})
    return _SCHEMAS[name]
