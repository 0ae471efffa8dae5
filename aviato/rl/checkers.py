"""Checkers: programs that decide about what other programs printed, in a sandbox of their own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from aviato import defaults as checks
from aviato.calls.one_command import run_only
from aviato.grading import programs
from aviato.grading.programs import Program, Ran
from aviato.languages import RECIPES
from aviato.log import logger
from aviato.rl import judges
from aviato.rl.judging import JudgeFailed
from aviato.system.threads import in_thread
from aviato.values.text import encode, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.rl.cases import ProgramCase
    from aviato.rl.grading import Fresh
    from aviato.rl.judges import Checker

_works: set[bytes] = set()
"""Checkers that have taken an answer: what they refuse they mean to refuse."""

COMPILE_SECONDS = 120.0
SLACK_SECONDS = 60.0
MOST_KNOWN = 65_536
PORTION_BYTES = 64 << 20
ACCEPTED, REFUSED = 0, (1, 2, 4, 7, 8)
"""Returncodes of testlib's: wrong answer, presentation, dirt at the end, points, an end too early."""
PARTIAL = range(16, 118)
"""The same: a part of the points."""
ALL_POINTS = (1, 100)
"""Of a checker by open-r1's convention, as its harness has it."""


async def checked(fresh: Fresh, checker: Checker, answers: Sequence[tuple[ProgramCase, bytes]]) -> list[tuple[bool, str]]:
    """Whether each answer is right, and one line on why not.

    Args:
        fresh: gives the checker's sandbox.
        checker: which one.
        answers: cases, and what was printed for each.

    Raises:
        JudgeFailed: the checker does not work: it cannot be built, or fails on what is expected too.
        SandboxError: there was no sandbox for it.
    """
    if not answers:
        return []
    found = [None if one is None else _answer(checker, one) for one in await _run(fresh, checker, answers)]
    unsure = [number for number, one in enumerate(found) if one is None]
    known = hashlib.sha256(repr((checker, checker.source, checker.files)).encode(errors="surrogatepass")).digest()
    if any(one is not None and one[0] for one in found):
        _know(known)
    refused = [number for number, one in enumerate(found) if one is not None and not one[0]]
    if known not in _works and refused:
        unsure.append(refused[0])
    if unsure:
        await _check_works(fresh, checker, [answers[number][0] for number in unsure])
        _know(known)
    return [(False, "the checker cannot read the answer") if one is None else one for one in found]


def _know(checker: bytes) -> None:
    if len(_works) >= MOST_KNOWN:
        _works.clear()
    _works.add(checker)


async def _check_works(fresh: Fresh, checker: Checker, cases: list[ProgramCase]) -> None:
    """Raise if the checker does not take what is expected either."""
    expected = [(case, judges.as_bytes(case.expected_stdout)) for case in cases if case.expected_stdout is not None]
    if not expected:
        logger.warning("a checker refused or failed, for cases that expect nothing; that counts as a wrong answer")
        return
    for one in await _run(fresh, checker, expected):
        if one is None or (_answer(checker, one) or (False,))[0] is not True:
            text = b"it cannot be run" if one is None else one.stderr or one.stdout
            why = "it ran too long" if one and one.timed_out else shown(text.decode(errors="replace").strip()[-500:])
            raise JudgeFailed(f"the checker does not work: it does not take the expected answer either: {why}")


async def _run(fresh: Fresh, checker: Checker, answers: Sequence[tuple[ProgramCase, bytes]]) -> list[Ran | None]:
    """How the checker ended for each, as many at a time as can be sent; None where its sandbox could not take the answer."""
    ran: list[Ran | None] = []
    portion: list[tuple[ProgramCase, bytes]] = []
    size = 0
    for answer in answers:
        own = len(answer[1]) + len(judges.as_bytes(answer[0].stdin)) + len(judges.as_bytes(answer[0].expected_stdout or ""))
        if portion and size + own > PORTION_BYTES:
            ran += await _run_those_it_can(fresh, checker, portion)
            portion, size = [], 0
        portion.append(answer)
        size += own
    return ran + await _run_those_it_can(fresh, checker, portion)


async def _run_those_it_can(
    fresh: Fresh, checker: Checker, answers: list[tuple[ProgramCase, bytes]], *, works: bool = False
) -> list[Ran | None]:
    """The same of a portion. Answers are as large as the code likes, and a sandbox may have limits that they reach.

    Raises:
        JudgeFailed: it cannot be run with what is expected either.
    """
    ran, why = await _run_portion(fresh, checker, answers)
    if ran is not None:
        return [*ran]
    if not works:
        case = answers[0][0]
        ran, _ = await _run_portion(fresh, checker, [(case, judges.as_bytes(case.expected_stdout or ""))])
        if ran is None:
            raise JudgeFailed(f"the checker cannot be run: {why}")
    if len(answers) == 1:
        return [None]
    half = len(answers) // 2
    first = await _run_those_it_can(fresh, checker, answers[:half], works=True)
    return first + await _run_those_it_can(fresh, checker, answers[half:], works=True)


async def _run_portion(
    fresh: Fresh, checker: Checker, answers: Sequence[tuple[ProgramCase, bytes]]
) -> tuple[list[Ran] | None, str]:
    """How it ended for each, or why it did not come to that."""
    recipe = RECIPES[checker.language]
    files = {recipe.file: encode(checker.source), **checker.files}
    for number, (case, printed) in enumerate(answers):
        files[f"{number}.in"] = judges.as_bytes(case.stdin)
        files[f"{number}.expected"] = judges.as_bytes(case.expected_stdout or "")
        files[f"{number}.out"] = printed
    made = [programs.writer(files)]
    if recipe.compile is not None:
        made.append(Program(command=recipe.compile, timeout_seconds=COMPILE_SECONDS, required=True))
    before = len(made)
    order = ("in", "out", "expected") if checker.convention == "testlib" else ("in", "expected", "out")
    made += [
        Program(
            command=[*recipe.run, *(f"{number}.{name}" for name in order)],
            timeout_seconds=checks.limit(checker.timeout_seconds),
        )
        for number in range(len(answers))
    ]
    limit = COMPILE_SECONDS + len(answers) * checker.timeout_seconds + SLACK_SECONDS
    argv, given, asked, most = programs.command(made)
    async with fresh() as state:
        result = await run_only(state, argv, stdin=given, timeout_seconds=limit, max_output_bytes=most, cases=asked)
    ran = await in_thread(programs.records, result)
    if len(ran) != len(made):
        last = ran[-1].stderr if ran else result.stderr_bytes
        return None, shown(last.decode(errors="replace").strip()[-500:])
    return ran[before:], ""


def _answer(checker: Checker, ran: Ran) -> tuple[bool, str] | None:
    """The verdict; None if it gave none."""
    if not ran.started or ran.timed_out or ran.oom_killed or ran.signal is not None:
        return None
    said = shown((ran.stderr or ran.stdout).decode(errors="replace").strip(), 200)
    if checker.convention == "testlib":
        if ran.returncode == ACCEPTED:
            return True, ""
        return (False, f"the checker says: {said}") if ran.returncode in REFUSED or ran.returncode in PARTIAL else None
    text = ran.stdout.strip()
    if ran.returncode != 0 or not text:
        return None
    try:
        points = float(text)
    except ValueError:
        # Whatever number ends it: words may name what was printed.
        return False, f"the checker says: {shown(text.decode(errors='replace'), 200)}"
    if points in ALL_POINTS:
        return True, ""
    return False, f"the checker gives {points:g}" + (" of 1" if points < 1 else ": neither 1 nor 100")
