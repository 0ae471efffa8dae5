"""Tests that share no process with the code: which names of theirs are the code's, and how they are run."""

from __future__ import annotations

import ast
import asyncio
import builtins
import symtable
from dataclasses import replace
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.grading.inside import program
from aviato.grading.link import check_linkable, linked
from aviato.grading.places import directory_of, together
from aviato.rl.grading import grader_failed
from aviato.rl.in_process import grade_in_process
from aviato.rl.task import TestCase
from aviato.text import encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.rl.outcome import Outcome
    from aviato.rl.task import Task
    from aviato.sandbox import Sandbox

CODE_PATH = "/.aviato-grading/solution.py"
_BUILT_IN = frozenset(dir(builtins)) | {"__name__", "__builtins__", "__file__"}


async def grade_separate(grader: Sandbox, solution: Sandbox, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """The tests run in the one sandbox and the code in the other; arguments and values cross as data."""
    await together([lambda: grader, lambda: solution])
    check_linkable(await grader._state.handle().wait_running())
    code = encode(task.code or "")
    for path, content in task.files.items():
        await grader.write_file(path, content)
        await solution.write_file(path, content)
    await solution.write_file(CODE_PATH, code)
    grading, solving = grader._state.handle(), solution._state.handle()
    directory, _ = await asyncio.gather(directory_of(solving), directory_of(grading))
    async with linked(grading, solving, directory) as broken:
        outcome = await grade_in_process(
            grader._state, replace(task, code=_stand_ins(code_names(task)), grading="in_process"), timeout_seconds, attempts
        )
        if broken.done():
            raise broken.result()
    for case in outcome.cases:
        # Said by the grader's own process, in which no code of the solution is.
        if case.reason == "not_separable":
            why = f"{case.name} cannot be graded with grading='separate': {case.message.partition(': ')[2]}"
            return grader_failed(why, outcome.result, attempts)
    return replace(outcome, grading_mode="separate")


def code_names(task: Task) -> list[str]:
    """The names that tests use and the code defines: those that the task states, or the one that no test defines.

    Raises:
        AviatoValidationError: a test that cannot be graded apart from the code, or does not tell what the code's part is.
    """
    cases = [case for case in task.tests if isinstance(case, TestCase)]
    if not cases:
        raise _wrong("tests", "grading='separate' needs tests: without any there is nothing to compare")
    labels = [case.name or f"test_{number}" for number, case in enumerate(cases, 1)]
    looks = [_look(label, case.source) for label, case in zip(labels, cases, strict=True)]
    defined = {name for _, own, _ in looks for name in own}
    stated = set(task.code_names)
    free = {name for used, _, _ in looks for name in used} - defined - _BUILT_IN
    if stated:
        if unknown := sorted(free - stated):
            raise _wrong(
                "tests", f"the tests use {_listed(unknown)}, which neither they nor code_names define; import it in the test"
            )
    elif len(free) > 1:
        message = (
            f"the tests use {_listed(sorted(free))} and define none of them; import in the test what is the test's, "
            "and state in code_names what is the code's"
        )
        raise _wrong("code_names", message)
    names = stated or free
    for label, (used, own, tree) in zip(labels, looks, strict=True):
        asserts = any(isinstance(node, (ast.Assert, ast.Raise)) for node in ast.walk(tree))
        if asserts and not (used & names or (used & defined) - own):
            message = "it asserts something and uses no name of the code; if a built-in name is meant, state it in code_names"
            raise _refused(label, message)
        _check_uses(label, tree, names)
    return sorted(names)


def _look(label: str, source: str) -> tuple[set[str], set[str], ast.Module]:
    """The global names that a test uses, those that it defines, and its tree."""
    try:
        tree = ast.parse(source)
        table = symtable.symtable(source, label, "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _refused(label, f"it is no Python: {error}") from None
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        raise _refused(label, "it imports *, so nobody can tell its names from the code's")
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return _globals_of(table, top=True), own, tree


def _globals_of(table: symtable.SymbolTable, top: bool) -> set[str]:
    found = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced()
        and (symbol.is_global() or top)
        and not (top and (symbol.is_assigned() or symbol.is_imported()))
    }
    for child in table.get_children():
        found |= _globals_of(child, top=False)
    return found


def _check_uses(label: str, tree: ast.Module, names: Iterable[str]) -> None:
    """Refuse what could only be answered by the code itself, or cannot be given to it."""
    known = set(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            name = f"{node.value.id}.{node.attr}"
            raise _refused(label, f"it uses {name}; of the code only calls can be graded. What the test needs, it must import")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            given = [*node.args, *[keyword.value for keyword in node.keywords]]
            if any(isinstance(value, ast.Lambda) for value in given):
                raise _refused(label, f"it gives {node.func.id}() a function, and only data can cross")
        dropped = node.value if isinstance(node, ast.Expr) else None
        if isinstance(dropped, ast.Call) and isinstance(dropped.func, ast.Name) and dropped.func.id in known:
            name = dropped.func.id
            if any(isinstance(value, ast.Name) for value in dropped.args):
                raise _refused(label, f"it calls {name}() for what that does to an argument, and only a copy of it crosses")


def _stand_ins(names: list[str]) -> str:
    """Source that defines names whose calls run in the solution's sandbox."""
    source = program("packing", "crossing", "standin")
    lines = [f"_aviato = {{'__name__': 'aviato_solution'}}\nexec(compile({source!r}, 'aviato_solution', 'exec'), _aviato)"]
    lines += [f"{name} = _aviato['Remote']({CODE_PATH!r}, {name!r})" for name in names]
    return "\n".join([*lines, "del _aviato"])


def _listed(names: list[str]) -> str:
    return " and ".join(repr(name) for name in names[:5])


def _refused(label: str, message: str) -> AviatoValidationError:
    return _wrong("tests", f"{label} cannot be graded with grading='separate': {message}")


def _wrong(name: str, message: str) -> AviatoValidationError:
    return AviatoValidationError(message, field_violations={name: message})
