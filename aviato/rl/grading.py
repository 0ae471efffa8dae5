"""How one item is run in a sandbox and how its verdict is read: what all kinds of tasks share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aviato.calls.one_command import run_only
from aviato.exceptions import SandboxCommandTimeoutError, SandboxError, SandboxExecutionError
from aviato.grading.remedies import with_remedy
from aviato.results import CaseStatus
from aviato.rl.outcome import CaseOutcome, Outcome, Verdict
from aviato.values.text import encode, is_unicode, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from aviato.calls.sandbox_state import SandboxState
    from aviato.results import ProcessResult
    from aviato.rl.task import Task

    class Fresh(Protocol):
        """Gives sandboxes of one kind."""

        def __call__(self, files: Mapping[str, bytes] | None = None) -> AbstractAsyncContextManager[SandboxState]:
            """A new one with these files, for one command; it ends with the context."""


STATUSES = {
    "passed": CaseStatus.PASSED,
    "timed_out": CaseStatus.TIMED_OUT,
    "out_of_memory": CaseStatus.OUT_OF_MEMORY,
    "skipped": CaseStatus.SKIPPED,
    "not_checked": CaseStatus.NOT_RUN,
    "not_run": CaseStatus.NOT_RUN,
    "not_compiled": CaseStatus.ERROR,
}
"""By reasons; any other is `failed`."""
NOT_STARTED = (126, 127)
LONGEST_ARGUMENT_BYTES = 128 << 10
MOST_ARGUMENTS_BYTES = 1 << 20
"""Less than any Linux takes, beside an environment."""


async def grade_command(state: SandboxState, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """A command passes by its returncode."""
    assert task.command is not None
    unusable = unusable_command(task.command)
    if unusable is not None:
        return unusable
    stdin = task.stdin if task.stdin is not None else False
    try:
        result = await run_only(state, task.command, stdin=stdin, timeout_seconds=timeout_seconds)
    except SandboxError as error:
        return of_error(error, (), "command", attempts)
    verdict, message = Verdict.PASSED, ""
    if result.oom_killed:
        verdict, message = Verdict.OUT_OF_MEMORY, "killed at the memory limit"
    elif result.returncode != 0:
        verdict, message = Verdict.FAILED, f"returncode {result.returncode}"
    return outcome(verdict, message, (), result, "command", attempts)


def unusable_command(command: Sequence[str]) -> Outcome | None:
    """The outcome of a command that no system can start, whoever wrote its words; None for any other."""
    sizes = [len(encode(word)) + 1 for word in command]
    if max(sizes) > LONGEST_ARGUMENT_BYTES or sum(sizes) > MOST_ARGUMENTS_BYTES:
        return grader_failed(
            f"the command has {sum(sizes)} bytes; a system takes {MOST_ARGUMENTS_BYTES} in all and {LONGEST_ARGUMENT_BYTES} "
            "a word: give what is long as stdin or as a file"
        )
    if "" in command[:1] or any("\0" in word or not is_unicode(word) for word in command):
        why = "its program has no name" if "" in command[:1] else "a word of it holds a NUL or a lone surrogate"
        return Outcome(verdict=Verdict.FAILED, message=f"no system can start the command: {why}")
    return None


def case_of(name: str, reason: str, message: str = "", **rest: object) -> CaseOutcome:
    """The outcome of a case by its reason."""
    status = STATUSES.get(reason, CaseStatus.FAILED)
    passed, message = reason == "passed", with_remedy(shown(message))
    return CaseOutcome(name=name, passed=passed, reason=reason, message=message, status=status, **rest)  # type: ignore[arg-type]


def not_run(names: Sequence[str]) -> tuple[CaseOutcome, ...]:
    """Outcomes of cases that did not begin."""
    return tuple(case_of(name, "not_run", "not run") for name in names)


def verdict_of(cases: Sequence[CaseOutcome], result: ProcessResult | None) -> tuple[Verdict, str]:
    """The verdict, and one line on why."""
    if result is not None and result.oom_killed:
        return Verdict.OUT_OF_MEMORY, "killed at the memory limit"
    first = next((case for case in cases if not case.passed), None)
    if first is None:
        return Verdict.PASSED, ""
    verdict = {CaseStatus.TIMED_OUT: Verdict.TIMED_OUT, CaseStatus.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY}
    return verdict.get(first.status, Verdict.FAILED), f"{first.name}: {first.message}"


def too_late(
    done: tuple[CaseOutcome, ...], names: Sequence[str], result: ProcessResult | None, seconds: float, mode: str, attempts: int
) -> Outcome:
    """Of an item that ran longer than it may: the case that was under way is the one that timed out."""
    message = f"ran longer than {seconds:g} s"
    left = names[len(done) :]
    cases = (*done, *(case_of(name, "timed_out", message) for name in left[:1]), *not_run(left[1:]))
    return outcome(Verdict.TIMED_OUT, message, cases, result, mode, attempts)


def of_error(error: SandboxError, cases: tuple[CaseOutcome, ...], mode: str, attempts: int) -> Outcome:
    """A failure that the code may have brought about is its verdict; any other is raised, to be tried again."""
    if error.is_infrastructure or not error.started:
        raise error
    result = getattr(error, "exec_result", None)
    timed_out = isinstance(error, SandboxCommandTimeoutError)
    verdict = Verdict.TIMED_OUT if timed_out else Verdict.FAILED
    return outcome(verdict, str(error), cases, result, mode, attempts)


def grader_failed(message: str, result: ProcessResult | None = None, attempts: int = 1) -> Outcome:
    """The outcome where what decides cannot run, whatever the code is: that is no verdict on it."""
    message = shown(message)
    error = SandboxExecutionError(message, exec_result=result, reason="grader_failed", is_infrastructure=True, retryable=False)
    return Outcome(verdict=Verdict.INFRASTRUCTURE, message=message, error=error, result=result, attempts=attempts)


def outcome(
    verdict: Verdict, message: str, cases: tuple[CaseOutcome, ...], result: ProcessResult | None, mode: str, attempts: int
) -> Outcome:
    """An outcome with what its command tells."""
    return Outcome(
        verdict=verdict,
        message=shown(message),
        cases=cases,
        result=result,
        duration_seconds=None if result is None else result.duration_seconds,
        grading_mode=mode,
        attempts=attempts,
    )
