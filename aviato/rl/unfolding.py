"""The assertions that a test source makes, in order, where it makes nothing but assertions, however they are written.

They may stand at the top, in functions that a runner collects (`def test_f(): …`), or in one that is called (`check(f)`).
"""

from __future__ import annotations

import ast
import copy
import sys
from typing import TYPE_CHECKING, NamedTuple

from aviato.rl.calls_ahead import NotKnown, imports_names
from aviato.values.parsing import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUNNERS = frozenset(sys.stdlib_module_names) | {"pytest"}


class Assertion(NamedTuple):
    """One that is made.

    Attributes:
        node: an `assert`, or a `with pytest.raises(…):`; the code's functions have their own names in it.
        test: the collected test that makes it; empty for one that the source itself makes.
    """

    node: ast.Assert | ast.With
    test: str


def assertions(source: str, names: tuple[str, ...]) -> list[Assertion]:
    """What a source asserts.

    Args:
        source: of a case.
        names: of the code.

    Raises:
        NotKnown: it does anything else.
        SyntaxError, ValueError, RecursionError: as of `ast.parse`.
    """
    return _Source(names).of(parsed(source))


class _Source:
    """One source.

    Args:
        names: of the code.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._functions: dict[str, ast.FunctionDef] = {}
        self._unused: set[str] = set()
        """Names of data and modules, of which the assertions must have none."""

    def of(self, tree: ast.Module) -> list[Assertion]:
        found: list[Assertion] = []
        called = set()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self._define(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                function = self._called(node.value)
                called.add(function.name)
                found += self._made(function, node.value, "")
            elif not self._is_nothing(node):
                found.append(Assertion(_assertion(node), ""))
        for function in self._functions.values():
            if function.name not in called:
                if not function.name.startswith("test") or function.args.args:
                    raise NotKnown
                found += self._made(function, None, function.name)
        if any(isinstance(node, ast.Name) and node.id in self._unused for one in found for node in ast.walk(one.node)):
            raise NotKnown
        return found

    def _is_nothing(self, node: ast.stmt) -> bool:
        """Whether it only says what things are called."""
        if imports_names(node) or _is_text(node):
            return True
        if isinstance(node, ast.Import):
            if any(alias.asname or alias.name not in _RUNNERS for alias in node.names):
                return False
            self._unused |= {alias.name for alias in node.names} - {"pytest"}
            return True
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            ast.literal_eval(node.value)
            self._unused.add(name)
            return not name.startswith(("_", "pytest"))
        return False

    def _define(self, node: ast.FunctionDef) -> None:
        given = node.args
        most = given.posonlyargs or given.vararg or given.kwonlyargs or given.kwarg or given.defaults or len(given.args) > 1
        if most or node.decorator_list or node.name in self._functions or node.name in self._names:
            raise NotKnown
        self._functions[node.name] = node

    def _called(self, node: ast.Call) -> ast.FunctionDef:
        """The function of the source that it calls, with a function of the code."""
        function = self._functions.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if function is None or node.keywords or len(node.args) != len(function.args.args):
            raise NotKnown
        if not all(isinstance(value, ast.Name) and value.id in self._names for value in node.args):
            raise NotKnown
        return function

    def _made(self, function: ast.FunctionDef, call: ast.Call | None, test: str) -> Iterator[Assertion]:
        renaming = {}
        if call is not None and call.args:
            (parameter,), (value,) = function.args.args, call.args
            assert isinstance(value, ast.Name)
            if parameter.arg != value.id and parameter.arg in self._names:
                raise NotKnown
            renaming[parameter.arg] = value.id
        nodes = [_assertion(node) for node in function.body if not (imports_names(node) or _is_text(node))]
        if not nodes:
            raise NotKnown
        for node in nodes:
            node = copy.deepcopy(node)
            for part in ast.walk(node):
                if isinstance(part, ast.Name):
                    part.id = renaming.get(part.id, part.id)
            yield Assertion(node, test)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _assertion(node: ast.stmt) -> ast.Assert | ast.With:
    if isinstance(node, ast.With) or (
        isinstance(node, ast.Assert) and (node.msg is None or isinstance(node.msg, ast.Constant))
    ):
        return node
    raise NotKnown
