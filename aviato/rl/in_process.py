"""Test cases and calls: the code as a module, and its cases after it in the same process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxCommandTimeoutError, SandboxError
from aviato.grading import driver
from aviato.grading.inside.packing import unpack
from aviato.languages import limited
from aviato.one_command import run_only
from aviato.rl.grading import case_of, grader_failed, not_run, of_error, outcome, too_late, verdict_of
from aviato.rl.judging import JudgeFailed, judged
from aviato.rl.outcome import Verdict
from aviato.rl.task import CallCase, TestCase

if TYPE_CHECKING:
    from aviato.results import ProcessResult
    from aviato.rl.outcome import CaseOutcome, Outcome
    from aviato.rl.task import Task
    from aviato.sandbox_state import SandboxState

LEAST_VALUE_BYTES = 1 << 20
MOST_VALUE_BYTES = 64 << 20


async def grade_in_process(state: SandboxState, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """Tests: the code passes if each has written its own record."""
    command = driver.command(task.code or "", test_cases(task), prelude=task.prelude, packages_later=True)
    return await _graded(state, task, command, timeout_seconds, "in_process", attempts)


async def grade_calls(state: SandboxState, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """Calls: the code passes if each has returned what is expected; that is compared here."""
    cases = [case for case in task.cases if isinstance(case, CallCase)]
    command = driver.command(
        task.code or "",
        [_call(case, name, task.case_timeout_seconds) for case, name in zip(cases, task.case_names, strict=True)],
        prelude=task.prelude,
        packages_later=True,
        reports=True,
        output_bytes=max(_room(case) for case in cases),
    )
    limits = [case.memory_limit_bytes for case in cases if case.memory_limit_bytes is not None]
    if limits:
        command = command._replace(argv=limited(tuple(command.argv), max(limits)))
    return await _graded(state, task, command, timeout_seconds, "separate", attempts)


def test_cases(task: Task) -> list[driver.Case]:
    """The test cases of a task, as the program inside takes them."""
    cases = [case for case in task.cases if isinstance(case, TestCase)]
    return [
        driver.Case(
            look.instrumented,
            name,
            case.timeout_seconds or task.case_timeout_seconds,
            counts=look.counts_checks,
            collect=look.kind if look.kind != "statements" else "",
            left_out=look.already_run,
        )
        for case, name, look in zip(cases, task.case_names, task.looks, strict=True)
    ]


async def _graded(
    state: SandboxState, task: Task, command: driver.Command, timeout_seconds: float, mode: str, attempts: int
) -> Outcome:
    argv, given, asked = command
    try:
        result = await run_only(
            state, argv, stdin=given, timeout_seconds=timeout_seconds, max_output_bytes=_most(asked), cases=asked
        )
    except SandboxCommandTimeoutError as error:
        assert error.exec_result is not None
        try:
            done, _ = await _cases(task, error.exec_result)
        except JudgeFailed as failed:
            return grader_failed(str(failed), error.exec_result, attempts)
        return too_late(done, task.case_names, error.exec_result, timeout_seconds, mode, attempts)
    except SandboxError as error:
        return of_error(error, not_run(task.case_names), mode, attempts)
    try:
        found, whole = await _cases(task, result)
    except JudgeFailed as failed:
        return grader_failed(str(failed), result, attempts)
    done = (*found, *not_run(task.case_names[len(found) :]))
    verdict, message = verdict_of(done, result)
    if (verdict is Verdict.PASSED and not whole) or (verdict is Verdict.FAILED and not found):
        verdict, message = Verdict.FAILED, f"the last record is missing (returncode {result.returncode})"
    return outcome(verdict, message, done, result, mode, attempts)


def _most(asked: dict[str, Any]) -> int:
    """Of the records; they are JSON, in which a character may take six."""
    return int(max(driver.MAX_OUTPUT_BYTES, 8 * asked["output_bytes"]))


async def _cases(task: Task, result: ProcessResult) -> tuple[tuple[CaseOutcome, ...], bool]:
    """The outcomes of the cases that have a record, and whether the last line came after all of them."""
    records, whole = driver.records(result.stdout_bytes)
    found = []
    for case, name, record in zip(task.cases, task.case_names, records, strict=False):
        one = case_of_record(name, record)
        if isinstance(case, CallCase) and one.passed:
            one = await _compared(case, one, str(record.get("reports", "")))
        found.append(one)
    return tuple(found), whole


def case_of_record(name: str, record: dict[str, Any]) -> CaseOutcome:
    """The outcome of a case by its record."""
    reason = "passed" if record.get("passed") is True else str(record.get("reason", ""))
    return case_of(
        name,
        reason if reason != "passed" or record.get("passed") is True else "ended_early",
        str(record.get("message", "")),
        traceback=str(record.get("traceback", "")),
        duration_seconds=float(record.get("duration_seconds", 0.0)),
        stdout=str(record.get("stdout", "")),
        stderr=str(record.get("stderr", "")),
    )


def _call(case: CallCase, name: str, limit: float | None) -> driver.Case:
    return driver.Case("", name, case.timeout_seconds or limit, call=case.function, args=case.packed[0], kwargs=case.packed[1])


def _room(case: CallCase) -> int:
    """How many bytes of a value are read: many times what is expected."""
    try:
        size = len(repr(case.expected))
    except (RecursionError, ValueError):
        size = LEAST_VALUE_BYTES
    return min(MOST_VALUE_BYTES, max(LEAST_VALUE_BYTES, 32 * size))


async def _compared(case: CallCase, found: CaseOutcome, reports: str) -> CaseOutcome:
    """What became of a call that has returned."""
    lines = reports.splitlines()
    try:
        value = unpack(json.loads(lines[0]), _unknown) if len(lines) == 1 else None
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError, IndexError) as error:
        return _failed(found, f"what it returned cannot be read: {error}")
    if len(lines) != 1:
        return _failed(found, "what it returned cannot be read")
    passed, message = await judged(case, value, len(reports))
    return found if passed else _failed(found, message)


def _failed(found: CaseOutcome, message: str) -> CaseOutcome:
    return case_of(
        found.name,
        "wrong_answer",
        message,
        duration_seconds=found.duration_seconds,
        stdout=found.stdout,
        stderr=found.stderr,
    )


def _unknown(form: object) -> Any:
    raise ValueError("an unknown form")
