"""What came of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from aviato.results import CaseStatus
from aviato.values.representation import Hidden, named, short
from aviato.values.text import line, printable

if TYPE_CHECKING:
    from aviato.exceptions import AviatoError
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
class CaseOutcome:
    """What became of one case.

    Attributes:
        name: of the case.
        passed: whether its status is `passed`; of a test, its own record was written after its last statement.
        status: `passed`, `failed` (an assertion or another exception, a wrong answer, a returncode that is not the expected
            one, an early end), `error` (the code did not compile), `timed_out`, `out_of_memory`, `skipped` or `not_run`. Where
            it is not given, `passed` or `failed` as `passed` says.
        reason: `passed`, `assertion`, `exception`, `wrong_answer`, `returncode`, `ended_early`, `timed_out`, `killed`,
            `out_of_memory`, `not_compiled`, `skipped`, `not_checked` (nothing was compared) or `not_run`.
        message: one printable line.
        traceback: of an assertion or exception, with what is no printable character escaped.
        duration_seconds: of this case.
        stdout, stderr: what it printed, as it is. Of a test up to 64 KiB each; of a program all that is compared of stdout.
        returncode: of a program that came to its end.
    """

    name: str
    passed: bool
    reason: str
    message: str = ""
    traceback: str = field(default="", repr=False)
    duration_seconds: float = 0.0
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)
    status: CaseStatus = None  # type: ignore[assignment]  # only until __post_init__ has looked at `passed`
    returncode: int | None = None

    __repr__ = short

    def __post_init__(self) -> None:
        if self.status is None:
            object.__setattr__(self, "status", CaseStatus.PASSED if self.passed else CaseStatus.FAILED)
        object.__setattr__(self, "message", line(self.message))
        object.__setattr__(self, "traceback", printable(self.traceback))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one item.

    Attributes:
        verdict: see `Verdict`.
        message: one printable line on why it did not pass.
        cases: one for each test case, in their order.
        result: of the command that ran inside; None where none came to an end.
        duration_seconds: of that command.
        grading_mode: `separate` (nothing that decides ran where the code ran, and only data crossed), `in_process` (cases share
            a process with the code: an early end or a missing record fails, more is not promised), `command` (the returncode),
            or None where nothing ran.
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

    def __repr__(self) -> str:
        shown: dict[str, object] = {"verdict": Hidden(repr(str(self.verdict))), "message": self.message}
        if self.cases:
            shown["cases"] = Hidden(f"<{sum(case.passed for case in self.cases)} of {len(self.cases)} passed>")
        shown |= {
            name: value for name in ("duration_seconds", "grading_mode", "error") if (value := getattr(self, name)) is not None
        }
        return named(type(self).__name__, {**shown, "attempts": self.attempts})

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", line(self.message))

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
