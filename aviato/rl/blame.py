"""Whose failure it was: what fails without the code is not the code's.

Whether something needs a look may be said by text that the code can write. What is found is not: it is found in a new sandbox
in which the code never was.
"""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxCommandTimeoutError
from aviato.grading import driver, programs
from aviato.grading.programs import Program
from aviato.grading.remedies import with_remedy
from aviato.languages import RECIPES, TRIAL
from aviato.one_command import run_only
from aviato.rl.grading import NOT_STARTED, grader_failed
from aviato.rl.outcome import Verdict
from aviato.rl.task import TestCase
from aviato.text import shown

if TYPE_CHECKING:
    from aviato.rl.grading import Fresh
    from aviato.rl.outcome import Outcome
    from aviato.rl.task import Task

LOADING = ("ModuleNotFoundError", "ImportError", "SyntaxError", "IndentationError")
TRIAL_SECONDS = 60.0
HERE = "import os, sys\nsys.path.insert(0, os.getcwd())\n"
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
        began = any(case.reason != "not_run" for case in found.cases)
        if began and not any(word in case.message for case in found.cases for word in LOADING):
            return None
        return await self._of_tests(task)

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

    async def _of_tests(self, task: Task) -> str | None:
        """What the tests, or the prelude, import that is not there."""
        source = imports_of(tuple(case.source for case in task.cases if isinstance(case, TestCase)))
        key = f"{task.prelude}\0{source}\0{hash(tuple(task.files.items()))}"
        if (self._where, "tests", key) in _works:
            return None
        command, given, asked = driver.command("", [driver.Case(HERE + source, "the tests' imports")], prelude=task.prelude)
        async with self._fresh(task.files) as state:
            try:
                result = await run_only(state, command, stdin=given, timeout_seconds=TRIAL_SECONDS, cases=asked)
            except SandboxCommandTimeoutError:
                return None
        found, _ = driver.records(result.stdout_bytes)
        if not found:
            return f"no test can be run in the sandbox: {shown(result.stderr.strip()) or f'returncode {result.returncode}'}"
        said = str(found[0]["message"])
        if found[0]["passed"] or not said.startswith(LOADING) or "'solution'" in said:
            self._know("tests", key)
            return None
        return with_remedy(f"the tests cannot be loaded, whatever the code is: {said}")

    def _know(self, kind: str, what: str) -> None:
        if len(_works) >= MOST_KNOWN:
            _works.clear()
        _works.add((self._where, kind, what))


@functools.lru_cache(maxsize=MOST_KNOWN)
def imports_of(sources: tuple[str, ...]) -> str:
    """The import statements of tests that they cannot do without and that the code has no part in."""
    own = {"solution", "__main__", "__future__"}
    found: dict[str, None] = {}
    for source in sources:
        for node in _imports(ast.parse(source.removeprefix("\ufeff"))):
            if isinstance(node, ast.ImportFrom):
                if not node.level and (node.module or "").split(".")[0] not in own:
                    found[ast.unparse(node)] = None
            elif kept := [alias for alias in node.names if alias.name.split(".")[0] not in own]:
                found[ast.unparse(ast.Import(names=kept))] = None
    return "\n".join(found) or "pass"


def _imports(node: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Those that are not tried: a test may do without what it tries to import."""
    found: list[ast.Import | ast.ImportFrom] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            found.append(child)
        elif not isinstance(child, (ast.Try, ast.TryStar)):
            found += [ast.Import(names=[ast.alias(name)]) for name in [_imported_by_call(child)] if name]
            found += _imports(child)
    return found


def _imported_by_call(node: ast.AST) -> str:
    """The module that `importlib.import_module("…")` or `__import__("…")` asks for."""
    match node:
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ) if all(part.isidentifier() for part in name.split(".")):
            return name
    return ""
