"""What is evaluated, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from aviato import defaults as checks
from aviato.exceptions import AviatoError, AviatoValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aviato.results import ProcessResult, ResourceUsage


class Verdict(StrEnum):
    """What became of one item."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    INFRASTRUCTURE = "infrastructure"
    """The sandbox could not be had or was lost: no verdict on the code."""
    SKIPPED = "skipped"
    """There was nothing to run."""


@dataclass(frozen=True, kw_only=True)
class TestCase:
    """One case: Python source that runs after the code, in the code's names, and raises if it is not satisfied.

    Attributes:
        source: such as `"assert double(2) == 4"`.
        name: for its outcome; None is `test_1` and so on.
        timeout_seconds: of this case alone; None is the task's `case_timeout_seconds`.
    """

    __test__ = False  # no test of pytest's

    source: str
    name: str | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """One item to evaluate: code with test cases, or a command.

    Attributes:
        code: Python source; None or blank is skipped.
        tests: cases, or their sources.
        command: in place of code and tests; a returncode of 0 passes.
        stdin: given to the command.
        files: path → content, written before.
        timeout_seconds: of the whole item, counted from its start inside; None is that of `evaluate`.
        case_timeout_seconds: of each case.
        grading: `"in_process"`: the tests run in the process of the code, after it. `"separate"`: they run in a sandbox of
            their own, where the code's names stand for calls into the code's sandbox; arguments and values cross as data.
        code_names: for `"separate"`: what the tests use and the code defines. It need not be stated where that is one name.
    """

    code: str | None = None
    tests: Sequence[TestCase | str] = ()
    command: Sequence[str] | None = None
    stdin: str | bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    timeout_seconds: float | None = None
    case_timeout_seconds: float | None = None
    grading: str = "in_process"
    code_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.command is not None:
            if self.code is not None or self.tests:
                raise _wrong("command", "a task has code and tests, or a command, not both")
            object.__setattr__(self, "command", checks.texts("command", self.command))
        elif self.code is not None and not isinstance(self.code, str):
            raise TypeError(f"code must be a str or None, not {type(self.code).__name__}")
        if isinstance(self.tests, (str, TestCase)):
            raise TypeError("tests must be a list of cases, not one: write [case]")
        cases = [case if isinstance(case, TestCase) else TestCase(source=case) for case in self.tests]
        object.__setattr__(self, "tests", tuple(cases))
        for name in ("timeout_seconds", "case_timeout_seconds"):
            if (value := getattr(self, name)) is not None:
                checks.seconds(name, value)
        object.__setattr__(self, "code_names", checks.texts("code_names", self.code_names))
        if self.grading not in ("in_process", "separate"):
            raise _wrong("grading", f"grading must be 'in_process' or 'separate', got {self.grading!r}")
        if self.grading == "separate":
            self._check_separable()

    def _check_separable(self) -> None:
        from aviato.rl.separation import code_names

        if self.command is not None:
            raise _wrong("grading", "grading='separate' is for code with tests; a command decides by its returncode")
        code_names(self)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return self.command is None and not (self.code or "").strip()


@dataclass(frozen=True, kw_only=True)
class CaseOutcome:
    """What became of one test case.

    Attributes:
        name: of the case.
        passed: its own record was written after its last statement.
        reason: `passed`, `assertion`, `exception`, `ended_early`, `timed_out`, `killed`, `out_of_memory` or `not_run`.
        message: one line.
        traceback: of an assertion or exception.
        duration_seconds: of this case.
        stdout, stderr: what it printed, up to 64 KiB each.
    """

    name: str
    passed: bool
    reason: str
    message: str = ""
    traceback: str = field(default="", repr=False)
    duration_seconds: float = 0.0
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one item.

    Attributes:
        verdict: see `Verdict`.
        message: one line on why it did not pass.
        cases: one for each test case, in their order.
        result: of the command that ran inside; None where none came to an end.
        duration_seconds: of that command.
        grading_mode: `separate` (no process of the tests ran the code), `in_process` (cases share a process with the code: an
            early end or a missing record fails, more is not promised), `command` (the returncode), or None where nothing ran.
        error: what went wrong with the infrastructure.
        attempts: sandboxes used, the failed ones included.
    """

    verdict: Verdict
    message: str = ""
    cases: tuple[CaseOutcome, ...] = ()
    result: ProcessResult | None = field(default=None, repr=False)
    duration_seconds: float | None = None
    grading_mode: str | None = None
    error: AviatoError | None = None
    attempts: int = 0

    @property
    def passed(self) -> bool:
        """Whether the verdict is `passed`."""
        return self.verdict is Verdict.PASSED

    @property
    def is_infrastructure(self) -> bool:
        """Whether there is no verdict on the code."""
        return self.verdict is Verdict.INFRASTRUCTURE

    @property
    def usage(self) -> ResourceUsage | None:
        """What it used."""
        return None if self.result is None else self.result.usage

    @property
    def pass_rate(self) -> float | None:
        """Share of the cases that passed; None without cases."""
        return sum(case.passed for case in self.cases) / len(self.cases) if self.cases else None

    def reward(
        self,
        passed: float = 1.0,
        failed: float = 0.0,
        infrastructure: float | None = None,
        skipped: float | None = 0.0,
    ) -> float | None:
        """The reward; timed out and out of memory count as failed, and an infrastructure failure as no reward at all."""
        if self.verdict is Verdict.PASSED:
            return passed
        if self.verdict is Verdict.INFRASTRUCTURE:
            return infrastructure
        return skipped if self.verdict is Verdict.SKIPPED else failed


def _wrong(name: str, message: str) -> AviatoValidationError:
    return AviatoValidationError(message, field_violations={name: message})
