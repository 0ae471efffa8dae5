"""Program cases: the code as a program of its own, once a case. What it printed is compared here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxCommandTimeoutError, SandboxError
from aviato.grading import programs
from aviato.grading.programs import Program, Ran
from aviato.languages import RECIPES, limited
from aviato.one_command import run_only
from aviato.rl import judges
from aviato.rl.checkers import checked
from aviato.rl.grading import case_of, grader_failed, not_run, of_error, outcome, too_late, verdict_of
from aviato.rl.judges import Checker
from aviato.rl.judging import JudgeFailed, judged
from aviato.rl.outcome import Outcome, Verdict
from aviato.rl.task import ProgramCase
from aviato.text import encode, shown

if TYPE_CHECKING:
    from aviato.results import ProcessResult
    from aviato.rl.grading import Fresh
    from aviato.rl.outcome import CaseOutcome
    from aviato.rl.task import Task

COMPILE_SECONDS = 60.0
REPORTED_BYTES = 64 << 10
"""Of output that nobody compares."""
LEAST_COMPARED_BYTES = 1 << 20
LEAST_JUDGED_BYTES = 16 << 20
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

    @property
    def first_run(self) -> int:
        """The number of the first program that is the code itself."""
        return min(self.cases)


async def grade_programs(fresh: Fresh, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """The code passes if each of its runs ended, and printed, as it has to."""
    plan = plan_of(task)
    mode = "separate" if any(case.expected_stdout is not None for case in _cases(task)) else "command"
    if sum(len(program.stdin) for program in plan.programs) > MOST_GIVEN_BYTES:
        return _too_large(len(encode(task.code or "")), attempts)
    argv, given, asked, most = programs.command(plan.programs)
    try:
        async with fresh() as state:
            result = await run_only(
                state, argv, stdin=given, timeout_seconds=timeout_seconds, max_output_bytes=most, cases=asked
            )
    except SandboxCommandTimeoutError as error:
        assert error.exec_result is not None
        result, late = error.exec_result, True
    except SandboxError as error:
        return of_error(error, not_run(task.case_names), mode, attempts)
    else:
        late = False
    ran = list(programs.records(result.stdout_bytes))
    fault = None if late else _fault(plan, ran, result)
    if fault is not None:
        return grader_failed(fault, result, attempts)
    try:
        cases = await _outcomes(task, plan, ran, fresh)
    except JudgeFailed as failed:
        return grader_failed(str(failed), result, attempts)
    shown_result = _as_program(plan, ran, cases, result)
    if late:
        return too_late(cases, task.case_names, shown_result, timeout_seconds, mode, attempts)
    cases = (*cases, *not_run(task.case_names[len(cases) :]))
    verdict, message = verdict_of(cases, result)
    return outcome(verdict, message, cases, shown_result, mode, attempts)


def _too_large(code_bytes: int, attempts: int) -> Outcome:
    """A task that cannot be sent whole: the code's own failure where it is most of it."""
    if code_bytes > MOST_GIVEN_BYTES // 4:
        return Outcome(verdict=Verdict.FAILED, message=f"the code has {code_bytes} bytes", attempts=attempts)
    return grader_failed(f"code, files and inputs of a task may have {MOST_GIVEN_BYTES >> 20} MiB together")


def plan_of(task: Task) -> Plan:
    """What has to run, in its order."""
    recipe = RECIPES[task.language]
    made = [programs.writer({recipe.file: encode(task.code or ""), **task.files})]
    if recipe.compile is not None:
        made.append(
            Program(command=recipe.compile, timeout_seconds=COMPILE_SECONDS, output_bytes=REPORTED_BYTES, required=True)
        )
    numbers = {}
    for number, case in enumerate(_cases(task)):
        if case.files:
            made.append(programs.writer(case.files))
        numbers[len(made)] = number
        made.append(
            Program(
                command=limited((*recipe.run, *case.args), case.memory_limit_bytes),
                stdin=judges.as_bytes(case.stdin),
                output_bytes=_compared_bytes(case),
                timeout_seconds=case.timeout_seconds or task.case_timeout_seconds,
                required=task.stop_at_first_failure and case.returncode == 0,
            )
        )
    return Plan(made, recipe.compile is not None, numbers)


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
    least = LEAST_COMPARED_BYTES if isinstance(case.judge, (judges.Floats, judges.Value)) else LEAST_JUDGED_BYTES
    return min(MOST_COMPARED_BYTES, 32 * size + least)


def _fault(plan: Plan, ran: list[Ran], result: ProcessResult) -> str | None:
    """Why nothing of the code could be run at all, by what came before its first instruction."""
    if result.oom_killed:
        return None
    if not ran:
        return f"nothing can be run in the sandbox: {_last_line(result.stderr_bytes) or f'returncode {result.returncode}'}"
    if ran[0].returncode != 0:
        return f"the files of the task could not be written: {_last_line(ran[0].stderr) or f'returncode {ran[0].returncode}'}"
    program = plan.programs[len(ran) - 1].command[0]
    if len(ran) <= plan.first_run + 1 and not ran[-1].started and "/" not in program:  # Another is of the code's own making.
        return f"the sandbox's image has no {program}: {_last_line(ran[-1].stderr)}"
    return None


async def _outcomes(task: Task, plan: Plan, ran: list[Ran], fresh: Fresh) -> tuple[CaseOutcome, ...]:
    """What became of the cases whose programs ended."""
    if plan.compiles and len(ran) > 1 and ran[1].returncode != 0:
        why = "the compiler ran too long" if ran[1].timed_out else f"it does not compile: {_first_error(ran[1].stderr)}"
        return tuple(
            case_of(name, "not_compiled", why, stderr=ran[1].stderr.decode(errors="replace")) for name in task.case_names
        )
    cases, names = _cases(task), task.case_names
    found = {number: await _of_run(cases[number], names[number], ran[at]) for at, number in plan.cases.items() if at < len(ran)}
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
        stdout=ran.stdout.decode(errors="replace"),
        stderr=ran.stderr.decode(errors="replace"),
        returncode=ran.returncode,
    )
    if ran.timed_out:
        return _but(one, "timed_out", "ran longer than its time limit")
    if ran.oom_killed or (case.memory_limit_bytes is not None and ran.returncode != 0 and _out_of_memory(ran)):
        return _but(one, "out_of_memory", "killed at the memory limit" if ran.oom_killed else "no memory left within its limit")
    if case.returncode is not None and ran.returncode != case.returncode:
        return _but(one, *_ended_badly(ran))
    if case.expected_stdout is None and case.judge is judges.text:
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
        stdout_bytes=one.stdout,
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
