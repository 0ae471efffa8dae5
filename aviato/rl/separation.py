"""Tests that share no process with the code: which names of theirs are the code's, and how they are run."""

from __future__ import annotations

import ast
import asyncio
import functools
import json
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato import defaults as checks
from aviato.calls.exec_call import count
from aviato.exceptions import AviatoError, SandboxExecutionError, SandboxResourceExhaustedError
from aviato.grading import driver
from aviato.grading.blame import LOADING
from aviato.grading.inside.host import ANSWER_BYTES
from aviato.grading.link import NO_GRADER, Solution
from aviato.grading.new_sandboxes import PATIENCE_SECONDS
from aviato.grading.own_process import seeded_in
from aviato.rl.calls_ahead import MODULE, calls_ahead
from aviato.rl.cases import TestCase
from aviato.rl.code_names import code_names, names_changing, names_of_classes
from aviato.rl.grading import grader_failed, not_run, outcome, too_late, verdict_of
from aviato.rl.in_process import case_of_record, test_cases
from aviato.rl.outcome import Verdict
from aviato.rl.plain import GONE, LARGEST_ANSWER_BYTES, Answers, NeedsGrader, compared, plain_cases
from aviato.values.parsing import parsed
from aviato.values.text import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aviato.calls.sandbox_state import SandboxState
    from aviato.grading.link import Link
    from aviato.results import ProcessResult
    from aviato.rl.graders import Graders, Place
    from aviato.rl.grading import Fresh
    from aviato.rl.outcome import Outcome
    from aviato.rl.plain import Statement
    from aviato.rl.task import Task
    from aviato.wire.execution import ExecExit

END_SECONDS = 2.0
"""So long the solution's side is waited for once there are verdicts: what it would tell is how much it used."""
MEMORY = "the tests ran out of the sandbox's memory"
REACHING = frozenset({"socket", "socketserver", "http", "xmlrpc", "wsgiref"})
"""Modules of what other processes of a sandbox may be in the way of."""


async def grade_separate(graders: Graders, fresh: Fresh, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """The code runs in a sandbox of its own; arguments and values cross as data.

    The tests run in a grader's sandbox. Cases that only compare what calls return need none, see `plain`.
    """
    cases = plainly(task)
    if cases is not None:
        try:
            async with fresh(task.files or None) as state:
                return await _compared(state, task, cases, timeout_seconds, attempts)
        except NeedsGrader:
            pass
    try:
        found = None
        if shares_grader(task):
            found = await _in_a_grader(graders, fresh, task, timeout_seconds, attempts, own=False)
        if found is None:
            found = await _in_a_grader(graders, fresh, task, timeout_seconds, attempts, own=True)
        assert found is not None
    except SandboxExecutionError as error:
        if error.reason != NO_GRADER:
            raise
        return grader_failed(str(error), attempts=attempts)  # Another attempt would fail likewise.
    for case in found.cases:
        # Said by the grader's own process, in which no code of the solution is.
        if case.reason == "not_separable":
            why = f"{case.name} cannot be graded with grading='separate': {case.message}"
            return grader_failed(why, found.result, attempts)
    if cases is not None and any(LOADING.search(case.message) for case in found.cases):
        # What no right answer needs is missing there. It was the answers that led there, and they choose no verdict.
        async with fresh(task.files or None) as state:
            return await _compared(state, task, cases, timeout_seconds, attempts, no_grader=True)
    return found


def plainly(task: Task) -> tuple[tuple[Statement, ...], ...] | None:
    """What a task asserts, if all of it is compared without its tests being run anywhere; else None."""
    sources = tuple(case.source for case in task.tests if isinstance(case, TestCase))
    return None if _has_limits(task) or names_changing(task) else plain_cases(sources, tuple(code_names(task)))


def _has_limits(task: Task) -> bool:
    """Whether a case has a clock, which is not to be kept here, as far away as this is."""
    return any(task.limit_of(case) is not None for case in task.cases)


async def _compared(
    state: SandboxState,
    task: Task,
    cases: tuple[tuple[Statement, ...], ...],
    timeout_seconds: float,
    attempts: int,
    *,
    no_grader: bool = False,
) -> Outcome:
    calls = [call for case in cases for statement in case for call in statement.calls]
    code = encode(task.code or "")
    solution = Solution(state.handle(), ".", code, calls=calls, only=True, timeout_seconds=timeout_seconds)
    answers = Answers(solution, len(calls), ANSWER_BYTES if no_grader else LARGEST_ANSWER_BYTES)
    async with _running(state, solution) as running:
        done = tuple(await compared(answers, cases, task.case_names, no_grader=no_grader))
        solution.calls.end()
        await asyncio.wait({running}, timeout=END_SECONDS)
        if running.done() and (error := running.exception()) is not None:
            _raise_if_infrastructure(error)
        result = await _result(state, solution, running)
    if result is not None and result.timed_out:
        begun = next((at for at, case in enumerate(done) if not case.passed and case.message == GONE), len(done))
        return too_late(done[:begun], task.case_names, result, timeout_seconds, "separate", attempts)
    verdict, message = verdict_of(done, result)
    if verdict is Verdict.FAILED and done[0].message == GONE:
        # It may be that nothing can be run there, whatever the code is: `Blame` looks at what has not begun.
        done, message = not_run(task.case_names), f"the code's side has ended{'' if result is None else _end(result)}"
    return outcome(verdict, message, done, result, "separate", attempts)


def _end(result: ProcessResult) -> str:
    return f" with returncode {result.returncode}: {result.stderr.strip()[-500:]}".rstrip(": ")


@asynccontextmanager
async def _running(state: SandboxState, solution: Solution) -> AsyncIterator[asyncio.Task[ExecExit]]:
    """The solution's side, which ends with the context."""
    state.used = True
    running = asyncio.get_running_loop().create_task(solution.run(), name=f"solution {state.sandbox_id}")
    try:
        yield running
    except (AviatoError, asyncio.CancelledError) as error:
        count(state, error=error)
        raise
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _in_a_grader(
    graders: Graders, fresh: Fresh, task: Task, timeout_seconds: float, attempts: int, *, own: bool
) -> Outcome | None:
    """The outcome; None if its tests were killed in a grader that others had too, who may have brought it about."""
    async with graders.place(own=own) as place, fresh(task.files or None) as state:
        is_shared, solution = place.is_shared, _solution(state, task)
        try:
            found = await _graded(place, state, task, solution, timeout_seconds, attempts)
            killed = any(case.reason == "killed" for case in found.cases)
            if not killed or is_shared:
                return None if killed else found
            out_of_memory = await place.was_out_of_memory()
        except SandboxExecutionError:
            if not place.grader.out_of_memory:
                raise
            if is_shared:
                return None
            found, out_of_memory = None, True
        if not solution.has_answered:
            why = MEMORY if out_of_memory else "they were killed"
            return grader_failed(f"the tests cannot be run, whatever the code is: {why}", attempts=attempts)
        if found is None:
            return outcome(Verdict.OUT_OF_MEMORY, MEMORY, not_run(task.case_names), None, "separate", attempts)
        return replace(found, verdict=Verdict.OUT_OF_MEMORY, message=MEMORY) if out_of_memory else found


def _solution(state: SandboxState, task: Task) -> Solution:
    calls = [call for each in _ahead(task) for call in each]
    return Solution(state.handle(), ".", encode(task.code or ""), calls=calls, only=True)


def _ahead(task: Task) -> tuple[tuple[bytes, ...], ...]:
    if names_changing(task):
        return ()
    return calls_ahead(tuple(case.source for case in task.tests if isinstance(case, TestCase)), tuple(code_names(task)))


async def _graded(
    place: Place, state: SandboxState, task: Task, solution: Solution, timeout_seconds: float, attempts: int
) -> Outcome:
    link: Link | None = None
    async with _running(state, solution) as running:
        try:
            await _begun(place, solution, running)
            told = _told(task, timeout_seconds, _ahead(task), own=not place.is_shared)
            link = place.begin(told, solution, b"".join(task.files.values()))
            both: set[asyncio.Future[Any]] = {link.verdicts, running}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and (error := running.exception()) is not None:
                _raise_if_infrastructure(error)
            records = await link.verdicts
        finally:
            place.moved_at = asyncio.get_running_loop().time()
            if link is not None and not link.verdicts.done():
                link.say(b"x")
        result = await _result(state, solution, running)
        # By then it is known as a rule, so that the caller's next task has no grader that this one has changed.
        await asyncio.wait({link.left}, timeout=END_SECONDS)
    return _outcome(task, records, result, timeout_seconds, attempts)


async def _begun(place: Place, solution: Solution, running: asyncio.Task[ExecExit]) -> None:
    """Wait until the solution's side has begun: what comes before is not a matter of the code.

    Raises:
        SandboxResourceExhaustedError: there is no room for it, while the grader's sandbox takes some.
        AviatoError: it could not be had.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    starting = loop.create_task(solution.is_running())
    both: set[asyncio.Future[Any]] = {starting, running}
    try:
        while True:
            await asyncio.wait(both, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and starting.result():
                place.moved_at = loop.time()
                return
            if running.done():
                await running  # raises
                return
            if not place.grader.links and loop.time() - max(begin, place.moved_at) >= PATIENCE_SECONDS:
                message = f"no room for the two sandboxes of a grade within {PATIENCE_SECONDS:g} s; grade fewer at a time"
                raise SandboxResourceExhaustedError(message, reason="no_room_to_grade", is_infrastructure=True)
    finally:
        starting.cancel()


def _told(task: Task, timeout_seconds: float, ahead: Sequence[Sequence[bytes]], own: bool) -> dict[str, Any]:
    """What the program in the grader's sandbox is told."""
    cases = test_cases(task)
    names = [f"{name} = _aviato.stand_in({MODULE!r}, {name!r})" for name in code_names(task)]
    lines = ["import aviato_solution as _aviato", "_aviato.anew()", *names, "del _aviato"]
    if classes := names_of_classes(task):
        lines.insert(1, f"_aviato.heed_classes({classes})")
    if changing := names_changing(task):
        lines.insert(1, f"_aviato.heed_changes({changing})")
    if seeded := seeded_in(case.source for case in task.tests if isinstance(case, TestCase)):
        lines.insert(1, f"_aviato.heed_seeds({seeded})")
    return {
        "payload": driver.payload("\n".join(lines), cases),
        "limits": [case.timeout_seconds for case in cases],
        "output_bytes": driver.OUTPUT_BYTES,
        "timeout_seconds": checks.limit(timeout_seconds),
        "files": [(path, len(content)) for path, content in task.files.items()],
        "own": own,
        "calls": [list(each) for each in ahead],
    }


async def _result(state: SandboxState, solution: Solution, running: asyncio.Task[ExecExit]) -> ProcessResult | None:
    """What the solution's command tells, if it ends as it should."""
    solution.calls.end()
    await asyncio.wait({running}, timeout=END_SECONDS)
    if not running.done() or running.exception() is not None:
        count(state)
        return None
    ended = running.result()
    result = solution.result(ended)
    count(state, ended, result)
    return result


def _outcome(task: Task, records: bytes, result: ProcessResult | None, seconds: float, attempts: int) -> Outcome:
    found, _ = driver.records(records)
    last = json.loads(records.splitlines()[-1])
    names = task.case_names
    done = tuple(case_of_record(name, record) for name, record in zip(names, found, strict=False) if "passed" in record)
    if "error" in last:
        return grader_failed(f"the tests could not be run: {last['error']}", result, attempts)
    if "late" in last:
        return too_late(done, names, result, seconds, "separate", attempts)
    done = (*done, *not_run(names[len(done) :]))
    verdict, message = verdict_of(done, result)
    return outcome(verdict, message, done, result, "separate", attempts)


def _raise_if_infrastructure(error: BaseException) -> None:
    if isinstance(error, AviatoError) and (error.is_infrastructure or not getattr(error, "started", True)):
        raise error


def shares_grader(task: Task) -> bool:
    """Whether tests may be run beside others: they seem to touch nothing but their own directory."""
    if task.fresh_grader or any(os.path.isabs(path) or ".." in path.split("/") for path in task.files):
        return False
    return not any(_reaches_out(case.source) for case in task.tests if isinstance(case, TestCase))


@functools.lru_cache(maxsize=4096)
def _reaches_out(source: str) -> bool:
    """Whether a test names something that all processes of a sandbox share: a file outside of its directory, or a port."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if text.startswith(("/", "~")) or "../" in text:
                return True
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.split(".")[0] in REACHING for name in names):
            return True
    return False
