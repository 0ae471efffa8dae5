"""Which names tests use and the code defines, where the two run apart from each other."""

from __future__ import annotations

import ast
import builtins
import functools
import symtable
from typing import TYPE_CHECKING, NamedTuple

from aviato.exceptions import AviatoValidationError
from aviato.grading.separable import changing, obstacle, used_as_classes
from aviato.rl.cases import TestCase
from aviato.values.parsing import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.rl.task import Task

_BUILT_IN = frozenset(dir(builtins)) | {"__name__", "__builtins__", "__file__"}
_REPLACED = frozenset(("input", "print", "open"))
"""Built-in functions that tests replace."""


def code_names(task: Task) -> list[str]:
    """The names that tests use and the code defines: those that the task states, or the one that no test defines.

    Raises:
        AviatoValidationError: a test that cannot be graded apart from the code, or does not tell what the code's part is.
    """
    cases = [case for case in task.tests if isinstance(case, TestCase)]
    if not cases:
        raise _wrong("tests", "grading='separate' needs tests: without any there is nothing to compare")
    labelled = tuple((case.name or f"test_{number}", case.source) for number, case in enumerate(cases, 1))
    return list(_names(labelled, tuple(task.code_names), tuple(task.files)))


def names_of_classes(task: Task) -> list[str]:
    """Those of them that tests may mean as classes."""
    sources = tuple(case.source for case in task.tests if isinstance(case, TestCase))
    return sorted(_classes(sources).intersection(code_names(task)))


@functools.lru_cache(maxsize=4096)
def _classes(sources: tuple[str, ...]) -> set[str]:
    return set().union(*[used_as_classes(parsed(source)) for source in sources])


def names_changing(task: Task) -> list[str]:
    """Functions and methods of the code after whose calls tests look at what they have given."""
    sources = tuple(case.source for case in task.tests if isinstance(case, TestCase))
    return sorted(_changing(sources, tuple(code_names(task))))


@functools.lru_cache(maxsize=4096)
def _changing(sources: tuple[str, ...], names: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    for source in sources:
        tree = parsed(source)
        local, modules = _parts(dict(_imported(tree)))
        found |= changing(tree, {*names, *local}, modules)
    return found


@functools.lru_cache(maxsize=4096)
def _names(labelled: tuple[tuple[str, str], ...], named: tuple[str, ...], files: tuple[str, ...]) -> tuple[str, ...]:
    """The same for labels and sources of cases; a model is asked about the same tests again and again."""
    looks = [_look(label, source) for label, source in labelled]
    defined = {name for look in looks for name in look.own}
    explicit = {name for look in looks for name in look.named}
    stated = set(named) | explicit
    if wrong := sorted(name for name in stated if not name.isidentifier()):
        raise _wrong("code_names", f"{_listed(wrong)} cannot be the name of a function")
    free = {name for look in looks for name in look.used} - defined - _BUILT_IN
    if stated:
        if unknown := sorted(free - stated):
            raise _wrong(
                "tests", f"the tests use {_listed(unknown)}, which neither they nor code_names define; import it in the test"
            )
    elif len(free) > 1:
        message = (
            f"the tests use {_listed(sorted(free))} and define none of them; import in the test what is the test's, "
            "and state in code_names what is the code's, or import it from solution"
        )
        raise _wrong("code_names", message)
    names = stated or free
    for (label, _), look in zip(labelled, looks, strict=True):
        asserts = any(isinstance(node, (ast.Assert, ast.Raise)) for node in ast.walk(look.tree))
        if asserts and not (look.used & names or look.imported or (look.used & defined) - look.own):
            message = "it asserts something and uses no name of the code; if a built-in name is meant, state it in code_names"
            raise _refused(label, message)
        local, modules = _parts(look.imported)
        if (why := _replaced(look.tree) or obstacle(look.tree, names | local, modules, files)) is not None:
            raise _refused(label, why)
    return tuple(sorted(names))


def _replaced(tree: ast.Module) -> str | None:
    """Which function that code uses a test has another one for: in one process its names would be the code's too."""
    for node in tree.body:
        name = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ""
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            made = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
            name = target.id if isinstance(node.value, ast.Lambda) or made.endswith("Mock") else ""
        if name in _REPLACED:
            return f"line {node.lineno}: it has a function {name} of its own for the code, which runs in another process"
    return None


class _Look(NamedTuple):
    """What the text of a test says.

    Attributes:
        used: global names that it uses and does not define.
        own: those that it defines.
        imported: name in the test → name in the module `solution`, from which it imports it; for that module itself, empty.
        named: names of that module that it imports or uses.
        tree: of its source.
    """

    used: set[str]
    own: set[str]
    imported: dict[str, str]
    named: set[str]
    tree: ast.Module


def _look(label: str, source: str) -> _Look:
    try:
        tree = parsed(source)
        table = symtable.symtable(source, "test", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _refused(label, f"it is no Python: {error}") from None
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        raise _refused(label, "it imports *, so nobody can tell its names from the code's")
    imported = dict(_imported(tree))
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()} - set(imported)
    named = {name for name in imported.values() if name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and imported.get(node.value.id) == "":
            named.add(node.attr)
    return _Look(_globals_of(table, top=True) - set(imported), own, imported, named, tree)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "solution" and not node.level:
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, "") for alias in node.names if alias.name == "solution")


def _parts(imported: dict[str, str]) -> tuple[set[str], set[str]]:
    """Of what a test imports of the code: names of it, and the module itself."""
    modules = {name for name, of in imported.items() if not of}
    return set(imported) - modules, modules


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


def _listed(names: list[str]) -> str:
    return " and ".join(repr(name) for name in names[:5])


def _refused(label: str, message: str) -> AviatoValidationError:
    return _wrong("tests", f"{label} cannot be graded with grading='separate': {message}")


def _wrong(name: str, message: str) -> AviatoValidationError:
    return AviatoValidationError(message, field_violations={name: message})
