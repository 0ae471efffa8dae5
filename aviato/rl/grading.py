"""How one item is run in a sandbox and how its verdict is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxCommandTimeoutError, SandboxError
from aviato.grading import driver
from aviato.one_command import run_only
from aviato.rl.outcome import CaseOutcome, Outcome, Verdict
from aviato.rl.task import Task, TestCase

if TYPE_CHECKING:
    from aviato.results import ProcessResult
    from aviato.sandbox_state import SandboxState


async def grade_command(state: SandboxState, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """A command passes by its returncode."""
    assert task.command is not None
    stdin = task.stdin if task.stdin is not None else False
    try:
        result = await run_only(state, task.command, stdin=stdin, timeout_seconds=timeout_seconds)
    except SandboxError as error:
        return _of_error(error, (), "command", attempts)
    verdict, message = Verdict.PASSED, ""
    if result.oom_killed:
        verdict, message = Verdict.OUT_OF_MEMORY, "killed at the memory limit"
    elif result.returncode != 0:
        verdict, message = Verdict.FAILED, f"returncode {result.returncode}"
    return _outcome(verdict, message, (), result, "command", attempts)


async def grade_in_process(state: SandboxState, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """Code passes if each of its cases has written its own record; without cases, if it runs to its end."""
    cases = [case for case in task.tests if isinstance(case, TestCase)]
    names = [case.name or f"test_{number}" for number, case in enumerate(cases, 1)] or ["runs"]
    limit = task.case_timeout_seconds
    told = [driver.Case("", names[0], limit, as_main=True)]
    if cases:
        told = [driver.Case(case.source, name, case.timeout_seconds or limit) for case, name in zip(cases, names, strict=True)]
    command, given, asked = driver.command(task.code or "", told, packages_later=True)
    most = driver.MAX_OUTPUT_BYTES
    try:
        result = await run_only(
            state, command, stdin=given, timeout_seconds=timeout_seconds, max_output_bytes=most, cases=asked
        )
    except SandboxCommandTimeoutError as error:
        assert error.exec_result is not None
        found, _ = _records(error.exec_result, names)
        message = f"ran longer than {timeout_seconds:g} s"
        return _outcome(Verdict.TIMED_OUT, message, _filled(found, names), error.exec_result, "in_process", attempts)
    except SandboxError as error:
        return _of_error(error, _filled([], names), "in_process", attempts)
    found, whole = _records(result, names)
    done = _filled(found, names)
    verdict, message = _verdict(done, whole, result)
    return _outcome(verdict, message, done, result, "in_process", attempts)


def _records(result: ProcessResult, names: list[str]) -> tuple[list[CaseOutcome], bool]:
    """The outcomes of the cases that have a record, and whether the last line came after all of them."""
    found, whole = driver.records(result.stdout_bytes)
    return [_case(name, record) for name, record in zip(names, found, strict=False)], whole


def _case(name: str, record: dict[str, Any]) -> CaseOutcome:
    return CaseOutcome(
        name=name,
        passed=record.get("passed") is True,
        reason=str(record.get("reason", "")),
        message=str(record.get("message", "")),
        traceback=str(record.get("traceback", "")),
        duration_seconds=float(record.get("duration_seconds", 0.0)),
        stdout=str(record.get("stdout", "")),
        stderr=str(record.get("stderr", "")),
    )


def _filled(found: list[CaseOutcome], names: list[str]) -> tuple[CaseOutcome, ...]:
    missing = [CaseOutcome(name=name, passed=False, reason="not_run", message="not run") for name in names[len(found) :]]
    return (*found, *missing)


def _verdict(cases: tuple[CaseOutcome, ...], whole: bool, result: ProcessResult) -> tuple[Verdict, str]:
    if result.oom_killed:
        return Verdict.OUT_OF_MEMORY, "killed at the memory limit"
    first = next((case for case in cases if not case.passed), None)
    if first is not None:
        verdict = {"timed_out": Verdict.TIMED_OUT, "out_of_memory": Verdict.OUT_OF_MEMORY}.get(first.reason, Verdict.FAILED)
        return verdict, f"{first.name}: {first.message}"
    if not whole:
        return Verdict.FAILED, f"the last record is missing (returncode {result.returncode})"
    return Verdict.PASSED, ""


def _of_error(error: SandboxError, cases: tuple[CaseOutcome, ...], mode: str, attempts: int) -> Outcome:
    """A failure that the code may have brought about is its verdict; any other is raised, to be tried again."""
    if error.is_infrastructure or not error.started:
        raise error
    result = getattr(error, "exec_result", None)
    timed_out = isinstance(error, SandboxCommandTimeoutError)
    verdict = Verdict.TIMED_OUT if timed_out else Verdict.FAILED
    return _outcome(verdict, str(error), cases, result, mode, attempts)


def _outcome(
    verdict: Verdict, message: str, cases: tuple[CaseOutcome, ...], result: ProcessResult | None, mode: str, attempts: int
) -> Outcome:
    return Outcome(
        verdict=verdict,
        message=message,
        cases=cases,
        result=result,
        duration_seconds=None if result is None else result.duration_seconds,
        grading_mode=mode,
        attempts=attempts,
    )
