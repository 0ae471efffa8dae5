"""Program cases: the code as a program of its own, once a case. What it printed is compared here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aviato.calls.one_command import run_only
from aviato.exceptions import SandboxCommandTimeoutError, SandboxError
from aviato.grading import programs
from aviato.grading.programs import Program, Ran
from aviato.languages import DEEP, RECIPES, limited
from aviato.rl import judges
from aviato.rl.cases import ProgramCase
from aviato.rl.checkers import checked
from aviato.rl.grading import case_of, grader_failed, not_run, of_error, outcome, too_late, verdict_of
from aviato.rl.judges import Checker
from aviato.rl.judging import JudgeFailed, judged
from aviato.rl.outcome import Outcome, Verdict
from aviato.system.threads import in_thread
from aviato.values.text import encode, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.results import ProcessResult
    from aviato.rl.grading import Fresh
    from aviato.rl.outcome import CaseOutcome
    from aviato.rl.task import Task

COMPILE_SECONDS = 60.0
REPORTED_BYTES = 64 << 10
"""Of output that nobody compares."""
SHOWN_BYTES = 1 << 20
"""Of the output of the program that decided."""
PORTION_BYTES = 64 << 20
LEAST_SECONDS = 0.1
NOT_FOUND = 127
"""The returncode of a shell that could not find a program."""
LEAST_COMPARED_BYTES = 256 << 10
LEAST_JUDGED_BYTES = 4 << 20
"""Of output that a judge of the caller's, or a checker, reads."""
MOST_COMPARED_BYTES = 160 << 20
MOST_GIVEN_BYTES = 256 << 20
MESSAGE_BYTES = 4096


@dataclass(frozen=True)
class Plan:
    """The programs of a task, and which of them are its cases."""

    programs: list[Program]
    compiles: bool
    cases: dict[int, int]
    """Number of the program → number of the case."""
    runner: str
    """What runs the code: an interpreter's name, or a path."""

    @property
    def first_run(self) -> int:
        """The number of the first program that is the code itself."""
        return min(self.cases)


@dataclass(frozen=True)
class _Ended:
    """What came of one command: of the cases of a portion, or an outcome of the whole."""

    cases: tuple[CaseOutcome, ...] = ()
    result: ProcessResult | None = None
    late: bool = False
    whole: Outcome | None = None


async def grade_programs(fresh: Fresh, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """The code passes if each of its runs ended, and printed, as it has to."""
    mode = "separate" if any(_looks_at_output(case) for case in _cases(task)) else "command"
    cases: tuple[CaseOutcome, ...] = ()
    shown_result: ProcessResult | None = None
    left = timeout_seconds
    for numbers in portions_of(task):
        if (too_large := _too_large(task, numbers, attempts)) is not None:
            return too_large
        ended = await _ended(fresh, task, plan_of(task, numbers), left, mode, attempts)
        if ended.whole is not None:
            return ended.whole
        assert ended.result is not None
        if shown_result is None or all(case.passed for case in cases):
            shown_result = ended.result
        cases += ended.cases
        if ended.late:
            return too_late(cases, task.case_names, shown_result, timeout_seconds, mode, attempts)
        left = max(LEAST_SECONDS, left - ended.result.duration_seconds)
        if task.stop_at_first_failure and not all(case.passed for case in cases):
            break
    cases = (*cases, *not_run(task.case_names[len(cases) :]))
    verdict, message = verdict_of(cases, shown_result)
    return outcome(verdict, message, cases, shown_result, mode, attempts)


async def _ended(fresh: Fresh, task: Task, plan: Plan, seconds: float, mode: str, attempts: int) -> _Ended:
    argv, given, asked, most = programs.command(plan.programs)
    late = False
    try:
        async with fresh() as state:
            result = await run_only(state, argv, stdin=given, timeout_seconds=seconds, max_output_bytes=most, cases=asked)
    except SandboxCommandTimeoutError as error:
        assert error.exec_result is not None
        result, late = error.exec_result, True
    except SandboxError as error:
        return _Ended(whole=of_error(error, not_run(task.case_names), mode, attempts))
    ran = await in_thread(programs.records, result)
    fault = None if late else await _fault(plan, ran, result, fresh)
    if fault is not None:
        return _Ended(whole=grader_failed(fault, result, attempts))
    try:
        cases = await _outcomes(task, plan, ran, fresh)
    except JudgeFailed as failed:
        return _Ended(whole=grader_failed(str(failed), result, attempts))
    return _Ended(cases, _as_program(plan, ran, cases, result), late)


def _looks_at_output(case: ProgramCase) -> bool:
    return case.expected_stdout is not None or case.judge is not judges.text


def portions_of(task: Task) -> list[list[int]]:
    """Numbers of the cases, in the commands that run them: what each gives back fits the memory of whoever waits for it."""
    found: list[list[int]] = [[]]
    out = given = 0
    for number, case in enumerate(_cases(task)):
        size, input_size = _compared_bytes(case), _given_bytes(case)
        if found[-1] and (out + size > PORTION_BYTES or given + input_size > PORTION_BYTES):
            found.append([])
            out = given = 0
        found[-1].append(number)
        out, given = out + size, given + input_size
    return found


def _given_bytes(case: ProgramCase) -> int:
    return len(judges.as_bytes(case.stdin)) + sum(map(len, case.files.values()))


def _too_large(task: Task, numbers: list[int], attempts: int) -> Outcome | None:
    """The outcome of a task that cannot be sent whole: the code's own failure where all else could be."""
    code = len(encode(task.code or ""))
    cases = _cases(task)
    rest = sum(map(len, task.files.values())) + sum(_given_bytes(cases[number]) for number in numbers)
    if code + rest <= MOST_GIVEN_BYTES:
        return None
    if rest <= MOST_GIVEN_BYTES:
        return Outcome(verdict=Verdict.FAILED, message=f"the code has {code} bytes", attempts=attempts)
    return grader_failed(f"files and inputs of a task may have {MOST_GIVEN_BYTES >> 20} MiB together")


def plan_of(task: Task, numbers: Sequence[int]) -> Plan:
    """What has to run for some of its cases, in its order."""
    recipe = RECIPES[task.language]
    made = [programs.writer({recipe.file: encode(task.code or ""), **task.files})]
    if recipe.compile is not None:
        made.append(
            Program(command=recipe.compile, timeout_seconds=COMPILE_SECONDS, output_bytes=REPORTED_BYTES, required=True)
        )
    cases, places = _cases(task), {}
    for number in numbers:
        case = cases[number]
        if case.files:
            made.append(programs.writer(case.files))
        places[len(made)] = number
        made.append(
            Program(
                command=limited((*recipe.run, *case.args), case.memory_limit_bytes, deep=task.language in DEEP),
                stdin=judges.as_bytes(case.stdin),
                output_bytes=_compared_bytes(case),
                timeout_seconds=task.limit_of(case),
                required=task.stop_at_first_failure and case.returncode == 0,
            )
        )
    return Plan(made, recipe.compile is not None, places, recipe.run[0])


def _cases(task: Task) -> list[ProgramCase]:
    return [case for case in task.cases if isinstance(case, ProgramCase)]


def _compared_bytes(case: ProgramCase) -> int:
    """How much output is kept: more than any answer that is right can have."""
    ours = case.judge in (judges.exact, judges.text, judges.tokens, judges.unordered)
    if case.expected_stdout is None and ours:
        return REPORTED_BYTES
    size = len(judges.as_bytes(case.expected_stdout or ""))
    if ours:
        return min(MOST_COMPARED_BYTES, 2 * size + LEAST_COMPARED_BYTES)
    if isinstance(case.judge, (judges.Floats, judges.Value)):
        least = LEAST_COMPARED_BYTES
    else:
        reads = getattr(case.judge, "output_bytes", None)  # As judges of logs say.
        least = reads if isinstance(reads, int) else LEAST_JUDGED_BYTES
    return min(MOST_COMPARED_BYTES, 32 * size + least)


async def _fault(plan: Plan, ran: list[Ran], result: ProcessResult, fresh: Fresh) -> str | None:
    """Why nothing of the code could be run, by what came before its first instruction, or why a case could not begin."""
    if result.oom_killed:
        return None
    if not ran:
        return f"nothing can be run in the sandbox: {_last_line(result.stderr_bytes) or f'returncode {result.returncode}'}"
    last, program = ran[-1], plan.programs[len(ran) - 1]
    if program.writes and last.returncode != 0 and (len(ran) < plan.first_run or not await _can_write(fresh, program)):
        return f"the files of the task could not be written: {_last_line(last.stderr) or f'returncode {last.returncode}'}"
    name = program.command[0]
    if len(ran) <= plan.first_run + 1 and not last.started and "/" not in name:  # Another is of the code's own making.
        return _missing(name, _last_line(last.stderr))
    first = ran[plan.first_run] if len(ran) > plan.first_run else None
    if (
        first is not None
        and first.returncode == NOT_FOUND
        and "/" not in plan.runner
        and not await _is_there(fresh, plan.runner)
    ):
        return _missing(plan.runner, _last_line(first.stderr))
    return None


def _missing(name: str, why: str) -> str:
    told = "use an image with it, or install it below /usr, which is all that sandboxes without an image see of this machine"
    return f"the sandbox's image has no {name} ({why}): {told}"


async def _can_write(fresh: Fresh, program: Program) -> bool:
    """Whether the files of a case can be written where no code has run."""
    return await _ends_well(fresh, program)


async def _is_there(fresh: Fresh, name: str) -> bool:
    """Whether an interpreter is there: the shell that sets a limit says that it is not, and so can code."""
    return await _ends_well(fresh, Program(command=["/bin/sh", "-c", 'command -v -- "$0"', name]))


async def _ends_well(fresh: Fresh, program: Program) -> bool:
    argv, given, asked, most = programs.command([program])
    async with fresh() as state:
        result = await run_only(state, argv, stdin=given, timeout_seconds=COMPILE_SECONDS, max_output_bytes=most, cases=asked)
    return [one.returncode for one in programs.records(result)] == [0]


async def _outcomes(task: Task, plan: Plan, ran: list[Ran], fresh: Fresh) -> tuple[CaseOutcome, ...]:
    """What became of the cases whose programs ended."""
    if plan.compiles and len(ran) > 1 and ran[1].returncode != 0:
        why = "the compiler ran too long" if ran[1].timed_out else f"it does not compile: {_first_error(ran[1].stderr)}"
        return tuple(
            case_of(name, "not_compiled", why, stderr=ran[1].stderr.decode(errors="replace")) for name in task.case_names
        )
    cases, names = _cases(task), task.case_names
    found = {number: await _of_run(cases[number], names[number], ran[at]) for at, number in plan.cases.items() if at < len(ran)}
    if ran and plan.programs[len(ran) - 1].writes and ran[-1].returncode != 0 and len(ran) in plan.cases:
        number = plan.cases[len(ran)]
        found[number] = case_of(names[number], "returncode", f"its files could not be written: {_last_line(ran[-1].stderr)}")
    for judge in _checkers(cases):
        asked = {
            number: ran[at].stdout
            for at, number in plan.cases.items()
            if at < len(ran) and cases[number].judge == judge and found[number].passed
        }
        answers = await checked(fresh, judge, [(cases[number], printed) for number, printed in asked.items()])
        for number, (passed, message) in zip(asked, answers, strict=True):
            if not passed:
                found[number] = _but(found[number], "wrong_answer", message)
    return tuple(found[number] for number in sorted(found))


def _checkers(cases: list[ProgramCase]) -> list[Checker]:
    """Each of theirs once."""
    found: list[Checker] = []
    for case in cases:
        if isinstance(case.judge, Checker) and case.judge not in found:
            found.append(case.judge)
    return found


async def _of_run(case: ProgramCase, name: str, ran: Ran) -> CaseOutcome:
    """What became of one run; where a checker decides, as far as it gets to that."""
    one = case_of(
        name,
        "passed",
        duration_seconds=ran.duration_seconds,
        stdout=ran.stdout[:REPORTED_BYTES].decode(errors="replace"),
        stderr=ran.stderr.decode(errors="replace"),
        returncode=ran.returncode,
    )
    if ran.timed_out:
        return _but(one, "timed_out", "ran longer than its time limit")
    if ran.oom_killed or (case.memory_limit_bytes is not None and ran.returncode != 0 and _out_of_memory(ran)):
        return _but(one, "out_of_memory", "killed at the memory limit" if ran.oom_killed else "no memory left within its limit")
    if case.returncode is not None and ran.returncode != case.returncode:
        return _but(one, *_ended_badly(ran))
    if not _looks_at_output(case):
        return one
    if ran.stdout_bytes_total > len(ran.stdout):
        compared = f"printed {ran.stdout_bytes_total} bytes, of which no more than {len(ran.stdout)} are compared"
        return _but(one, "wrong_answer", compared)
    if isinstance(case.judge, Checker):
        return one
    passed, message = await judged(case, ran.stdout, len(ran.stdout))
    return one if passed else _but(one, "wrong_answer", message)


def _ended_badly(ran: Ran) -> tuple[str, str]:
    last = _last_line(ran.stderr)
    if ran.signal is not None:
        return "killed", f"killed by signal {ran.signal}"
    return "returncode", f"returncode {ran.returncode}" + (f": {last}" if last else "")


def _but(one: CaseOutcome, reason: str, message: str) -> CaseOutcome:
    other = case_of(one.name, reason, message)
    return replace(one, passed=False, reason=reason, message=other.message, status=other.status)


def _as_program(plan: Plan, ran: list[Ran], cases: tuple[CaseOutcome, ...], result: ProcessResult) -> ProcessResult:
    """The result as that of the program that decided: the first that has not passed, else the last."""
    numbers = [at for at in plan.cases if at < len(ran)]
    bad = [at for at in numbers if plan.cases[at] < len(cases) and not cases[plan.cases[at]].passed]
    at = bad[0] if bad else numbers[-1] if numbers else len(ran) - 1
    if at < 0:
        return result
    one = ran[at]
    return replace(
        result,
        command=tuple(plan.programs[at].command),
        returncode=one.returncode,
        signal=one.signal,
        timed_out=result.timed_out or one.timed_out,
        oom_killed=result.oom_killed or one.oom_killed,
        stdout_bytes=one.stdout[:SHOWN_BYTES],
        stderr_bytes=one.stderr,
        stdout_bytes_total=one.stdout_bytes_total,
        stderr_bytes_total=len(one.stderr),
        stdout_head_bytes=None,
        stderr_head_bytes=None,
    )


def _out_of_memory(ran: Ran) -> bool:
    """By its own words: it has failed in any case, and this only says of what."""
    words = (b"MemoryError", b"bad_alloc", b"OutOfMemory", b"out of memory", b"Cannot allocate memory")
    return any(word in ran.stderr[-MESSAGE_BYTES:] for word in words)


def _last_line(text: bytes) -> str:
    lines = text[-MESSAGE_BYTES:].decode(errors="replace").strip().splitlines()
    return shown(lines[-1]) if lines else ""


def _first_error(text: bytes) -> str:
    lines = text.decode(errors="replace").splitlines()
    return shown(next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message"))
