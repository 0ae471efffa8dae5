"""Whose failure it was: what fails without the code is not the code's.

Whether something needs a look may be said by text that the code can write. What is found is not: it is found in a new sandbox
in which the code never was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.calls.one_command import run_only
from aviato.exceptions import SandboxCommandTimeoutError
from aviato.grading import driver, programs
from aviato.grading.blame import LOADING
from aviato.grading.programs import Program
from aviato.grading.remedies import with_remedy
from aviato.languages import RECIPES, TRIAL
from aviato.rl.cases import TestCase
from aviato.rl.grading import NOT_STARTED, grader_failed
from aviato.rl.in_process import test_cases
from aviato.rl.outcome import Verdict
from aviato.rl.separation import plainly
from aviato.rl.without_code import certain_imports, imported_files, stand_ins
from aviato.values.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.rl.grading import Fresh
    from aviato.rl.outcome import Outcome
    from aviato.rl.task import Task

TRIAL_SECONDS = 60.0
MOST_SUSPECTS = 16
"""Cases of a task that are tried again."""
MOST_KNOWN = 4096
MESSAGE_CHARACTERS = 500


_works: set[tuple[str, str, str]] = set()


class Blame:
    """Looks again at failures, for sandboxes of one kind; what has been seen to work there is not tried again.

    Args:
        fresh: gives such sandboxes.
        where: tells their kind from others.
    """

    def __init__(self, fresh: Fresh, where: str) -> None:
        self._fresh = fresh
        self._where = where

    async def settled(self, task: Task, found: Outcome, attempts: int) -> Outcome:
        """An outcome, or that the grader could not run, if it was that."""
        if found.verdict is not Verdict.FAILED:
            return found
        fault = await self._fault(task, found)
        return found if fault is None else grader_failed(fault, found.result, attempts)

    async def _fault(self, task: Task, found: Outcome) -> str | None:
        if task.kind == "command":
            return await self._of_command(task, found)
        if task.kind == "program":
            unsure = any(case.reason == "not_compiled" or case.returncode in NOT_STARTED for case in found.cases)
            return await self._of_language(task.language) if unsure else None
        suspects = [number for number, case in enumerate(found.cases) if LOADING.search(case.message)][:MOST_SUSPECTS]
        began = any(case.reason != "not_run" for case in found.cases)
        if began and not suspects and not task.prelude and not _import_files(task):
            return None
        return await self._of_tests(task, suspects, found.grading_mode)

    async def _of_command(self, task: Task, found: Outcome) -> str | None:
        """A program that the image does not have."""
        assert task.command is not None
        name = task.command[0]
        if found.result is None or found.result.returncode not in NOT_STARTED or "/" in name:
            return None
        try:
            async with self._fresh() as state:
                result = await run_only(state, [name, "--version"], timeout_seconds=TRIAL_SECONDS)
        except SandboxCommandTimeoutError:
            return None  # It was started.
        if result.returncode in NOT_STARTED and not result.stdout_bytes:
            return f"the sandbox's image cannot run {name!r}: {shown(result.stderr.strip())}"
        return None

    async def _of_language(self, language: str) -> str | None:
        """A compiler that does not even compile its trial."""
        if (self._where, "language", language) in _works:
            return None
        recipe = RECIPES[language]
        made = [programs.writer({recipe.file: recipe.trial.encode()})]
        made += [Program(command=recipe.compile, required=True)] if recipe.compile is not None else []
        argv, given, asked, most = programs.command([*made, Program(command=recipe.run)])
        try:
            async with self._fresh() as state:
                result = await run_only(
                    state, argv, stdin=given, timeout_seconds=TRIAL_SECONDS, max_output_bytes=most, cases=asked
                )
        except SandboxCommandTimeoutError:
            return f"{language} does not work in the sandbox's image: {recipe.trial!r} took longer than {TRIAL_SECONDS:g} s"
        ran = programs.records(result)
        if len(ran) == len(asked["programs"]) and ran[-1].stdout.strip() == TRIAL.encode():
            self._know("language", language)
            return None
        why = shown((ran[-1].stderr if ran else result.stderr_bytes).decode(errors="replace").strip()[-MESSAGE_CHARACTERS:])
        return f"{language} does not work in the sandbox's image; not even {recipe.trial!r}: {why}"

    async def _of_tests(self, task: Task, suspects: Sequence[int], mode: str | None) -> str | None:
        """Why the tests, or the prelude, fail without ever asking the code for anything.

        Args:
            task: the task.
            suspects: numbers of the cases that may.
            mode: in which it was graded.
        """
        tests = test_cases(task) if task.kind == "test" else []
        sources = tuple(case.source for case in task.cases if isinstance(case, TestCase))
        key = repr((task.prelude, sources, suspects, hash(tuple(task.files.items()))))
        if (self._where, "tests", key) in _works:
            return None
        tried = [driver.Case("pass", "the prelude")] if task.prelude else []
        tried += [tests[number]._replace(timeout_seconds=None) for number in suspects if number < len(tests)]
        tried.append(driver.Case(certain_imports(sources), "the tests' imports"))
        code = stand_ins(sources, tuple(task.code_names))
        command, given, asked = driver.command(code, tried, prelude=task.prelude)
        async with self._fresh(task.files) as state:
            try:
                result = await run_only(state, command, stdin=given, timeout_seconds=TRIAL_SECONDS, cases=asked)
            except SandboxCommandTimeoutError:
                return None
        found, _ = driver.records(result.stdout_bytes)
        if not found:
            return f"no test can be run in the sandbox: {shown(result.stderr.strip()) or f'returncode {result.returncode}'}"
        if task.prelude and not found[0]["passed"]:
            return with_remedy(f"the prelude fails, whatever the code is: {found[0]['message']}")
        is_plain = (
            task.kind == "test" and mode == "separate" and plainly(task) is not None
        )  # What tests import is of no use to any right answer.
        for said in (str(one["message"]) for one in found if not one["passed"] and not is_plain):
            if LOADING.match(said) and "'solution'" not in said:
                return with_remedy(f"the tests cannot be loaded, whatever the code is: {said}")
        self._know("tests", key)
        return None

    def _know(self, kind: str, what: str) -> None:
        if len(_works) >= MOST_KNOWN:
            _works.clear()
        _works.add((self._where, kind, what))


def _import_files(task: Task) -> bool:
    """Whether tests import files of the task, which may fail in ways of their own."""
    return imported_files(tuple(case.source for case in task.cases if isinstance(case, TestCase)), task.files)
