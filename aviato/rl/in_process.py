"""Test cases and calls: the code as a module, and its cases after it in the same process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aviato.calls.one_command import run_only
from aviato.exceptions import SandboxCommandTimeoutError, SandboxError
from aviato.grading import driver
from aviato.grading.inside.packing import unpack
from aviato.languages import limited
from aviato.rl.cases import CallCase, TestCase
from aviato.rl.grading import case_of, grader_failed, not_run, of_error, outcome, too_late, verdict_of
from aviato.rl.judges import is_ours
from aviato.rl.judging import AT_ONCE_BYTES, JudgeFailed, judged
from aviato.rl.outcome import Verdict
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.calls.sandbox_state import SandboxState
    from aviato.results import ProcessResult
    from aviato.rl.outcome import CaseOutcome, Outcome
    from aviato.rl.task import Task

LEAST_VALUE_BYTES = 1 << 20
LEAST_JUDGED_BYTES = 4 << 20
"""Of a value that a judge of the caller's reads."""
MOST_VALUE_BYTES = 64 << 20
MOST_VALUES_BYTES = 128 << 20
"""Of all cases of a task together."""
LEAST_PRINTED_BYTES = 2 << 10
MOST_PRINTED_BYTES = 8 << 20
"""Of each stream of all cases together."""
RECORD_BYTES = 72 << 10
"""Of a record, beside what was printed and reported."""


async def grade_in_process(state: SandboxState, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """Tests: the code passes if each has written its own record."""
    cases = test_cases(task)
    command = driver.command(
        task.code or "", cases, prelude=task.prelude, packages_later=True, output_bytes=_printed_bytes(len(cases))
    )
    return await _graded(state, task, command, timeout_seconds, "in_process", attempts)


async def grade_calls(state: SandboxState, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """Calls: the code passes if each has returned what is expected; that is compared here."""
    cases = [case for case in task.cases if isinstance(case, CallCase)]
    command = driver.command(
        task.code or "",
        [_call(case, name, task.limit_of(case)) for case, name in zip(cases, task.case_names, strict=True)],
        prelude=task.prelude,
        packages_later=True,
        reports=True,
        output_bytes=_printed_bytes(len(cases)),
        report_bytes=_value_bytes(cases),
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
            task.limit_of(case),
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


def _printed_bytes(count: int) -> int:
    """How much is kept of what each of so many cases prints."""
    return max(LEAST_PRINTED_BYTES, min(driver.OUTPUT_BYTES, MOST_PRINTED_BYTES // count))


def _most(asked: dict[str, Any]) -> int:
    """Of all records; they are JSON, in which a character may take six."""
    texts = 2 * asked["output_bytes"] + asked.get("report_bytes", 0) + RECORD_BYTES
    return 6 * len(asked["timeout_seconds"]) * int(texts)


async def _cases(task: Task, result: ProcessResult) -> tuple[tuple[CaseOutcome, ...], bool]:
    """The outcomes of the cases that have a record, and whether the last line came after all of them."""
    lines = result.stdout_bytes[: result.stdout_head_bytes]
    records, whole = driver.records(lines) if len(lines) <= AT_ONCE_BYTES else await in_thread(driver.records, lines)
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
    return driver.Case("", name, limit, call=case.function, args=case.packed[0], kwargs=case.packed[1])


def _value_bytes(cases: Sequence[CallCase]) -> int:
    """How many bytes of a value are read: many times what is expected, and for all cases together what memory has."""
    sizes = [_size(case.expected) for case in cases]
    ours = all(is_ours(case.judge) for case in cases)
    room = max(LEAST_VALUE_BYTES if ours else LEAST_JUDGED_BYTES, 32 * max(sizes))
    return min(MOST_VALUE_BYTES, room, max(MOST_VALUES_BYTES // len(cases), 2 * max(sizes) + RECORD_BYTES))


def _size(expected: Any) -> int:
    """About how many bytes a value has as it crosses."""
    try:
        return len(repr(expected))
    except (RecursionError, ValueError):
        return LEAST_VALUE_BYTES


async def _compared(case: CallCase, found: CaseOutcome, reports: str) -> CaseOutcome:
    """What became of a call that has returned."""
    try:
        value = _value(reports) if len(reports) <= AT_ONCE_BYTES else await in_thread(_value, reports)
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError, IndexError) as error:
        return _failed(found, f"what it returned cannot be read: {error}")
    passed, message = await judged(case, value, len(reports))
    return found if passed else _failed(found, message)


def _value(reports: str) -> Any:
    lines = reports.splitlines()
    if len(lines) != 1:
        raise ValueError("it is no value")
    return unpack(json.loads(lines[0]), _unknown)


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
