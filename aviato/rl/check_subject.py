"""What of a test source the code under test can have a part in: told by the names that it uses."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import TYPE_CHECKING

from aviato.rl import check_terms as terms
from aviato.rl.check_scopes import Scopes, bound_by

if TYPE_CHECKING:
    from collections.abc import Collection

_SEEING = frozenset(
    {
        *("__main__", "atexit", "bdb", "builtins", "cProfile", "code", "codeop", "ctypes", "decimal", "dis"),
        *("doctest", "fileinput", "gc", "glob", "importlib", "inspect", "io", "linecache", "logging", "mmap"),
        *("multiprocessing", "os", "pathlib", "pdb", "pickle", "pkgutil", "posix", "profile", "resource", "runpy"),
        *("shelve", "shutil", "signal", "site", "socket", "sqlite3", "subprocess", "sys", "sysconfig", "tempfile"),
        *("threading", "timeit", "trace", "tracemalloc", "urllib", "warnings", "zipfile"),
    }
)
"""Modules of Python's own by which a test may find what the code is or did."""
_PLAIN = (frozenset(sys.stdlib_module_names) - _SEEING) | {"numpy", "pytest", "hypothesis"}
_MODULES = ("solution", "__main__")
"""What a text begins with that names something of the code, as in `patch("solution.f")`."""
_LOOKING = frozenset(
    {
        *("open", "input", "eval", "exec", "globals", "locals", "vars", "dir", "getattr", "breakpoint", "help", "memoryview"),
        *("__import__", "__loader__", "__spec__"),
    }
)
"""Built-in functions by which a test may find what the code is or did."""
_KINDS = frozenset(
    {
        *(name for name, value in vars(builtins).items() if isinstance(value, type)),
        *("print", "repr", "isinstance", "issubclass", "callable", "hasattr", "iter", "next", "id", "hash", "compile"),
        *("NotImplemented", "Ellipsis", "__name__", "__debug__", "__file__", "__doc__"),
    }
) - {"memoryview"}
"""Built-in names that no code under test is likely to give to something of its own."""


class Subject:
    """Of one source.

    Args:
        tree: the source.
        code_names: names of the code under test. Where some are stated, all built-in names but these are Python's own.
    """

    def __init__(self, tree: ast.Module, code_names: Collection[str]) -> None:
        self._code_names = frozenset(code_names)
        self._bound: set[str] = set()
        """Names that are given anywhere."""
        self._scopes = Scopes(tree)
        self._plain: set[str] = set()
        self._plain_in: set[tuple[ast.AST, str]] = set()
        """The same with the scope of each."""
        self._foreign = False
        for node in ast.walk(tree):
            self._take(node)
        self.called = frozenset(
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        )
        """Names that the source calls."""
        self.is_there = self._foreign or any(self._is_codes(node) for node in ast.walk(tree))
        """Whether the source uses anything that can be the code's."""

    def is_bound(self, name: str) -> bool:
        """Whether the source gives something that name."""
        return name in self._bound or name in self._plain

    def has_part(self, *nodes: ast.AST) -> bool:
        """Whether parts of the source use anything that can be the code's, or that the source has made of it."""
        return any(
            isinstance(part, ast.Name)
            and (part.id in self._code_names or not (part.id in self._plain or self._is_pythons(part.id)))
            for node in nodes
            for part in ast.walk(node)
        )

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                if (module or alias.name).partition(".")[0] in _PLAIN and not getattr(node, "level", 0) and alias.name != "*":
                    self._plain.add(name)
                    self._plain_in.add((self._scopes.around(node)[0], name))
                else:
                    self._foreign = True
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._foreign = self._foreign or node.value.startswith(_MODULES)
        elif (given := bound_by(node)) is not None:
            self._bound.add(given)

    def _is_codes(self, node: ast.AST) -> bool:
        """Whether it is a name that the source has not given before."""
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            return False
        begin = self._scopes.begin(node)
        if node.id in self._code_names and begin is None:
            return True
        plain = any((scope, node.id) in self._plain_in for scope in self._scopes.around(node))
        if plain or self._is_pythons(node.id):
            return False
        # In `f = cached(f)` the name on the right is the code's, though it stands behind the other one.
        return begin is None or (node.lineno, node.col_offset) < begin or node.lineno == begin[0]

    def _is_pythons(self, name: str) -> bool:
        if name in self._bound or name in self._code_names or name in _LOOKING:
            return False
        return name in _KINDS or (bool(self._code_names) and hasattr(builtins, name))


def asserted(call: ast.Call) -> ast.expr | None:
    """What a method such as `assertEqual` asserts, as what would stand behind `assert`; None where that is no such."""
    operator: type[ast.cmpop]
    name = terms.dotted(call.func).rpartition(".")[2]
    values = [value for value in call.args if not isinstance(value, ast.Starred)]
    if len(values) < len(call.args):
        return None
    if name in ("assertTrue", "assert_") and values:
        return values[0]
    if name == "assertFalse" and values:
        return ast.copy_location(ast.UnaryOp(ast.Not(), values[0]), values[0])
    if name in ("assertIsNone", "assertIsNotNone") and values:
        values, operator = [values[0], ast.Constant(None)], ast.Is if name == "assertIsNone" else ast.IsNot
    elif name in _COMPARING and len(values) > 1:
        operator = _COMPARING[name]
    else:
        return None
    return ast.copy_location(ast.Compare(values[0], [operator()], [values[1]]), values[0])


_COMPARING: dict[str, type[ast.cmpop]] = {
    **dict.fromkeys(("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual"), ast.Eq),
    **dict.fromkeys(("assertSetEqual", "assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual"), ast.Eq),
    **dict.fromkeys(("assertAlmostEqual", "assertAlmostEquals"), ast.Eq),
    "assertNotEqual": ast.NotEq,
    "assertIs": ast.Is,
    "assertIsNot": ast.IsNot,
    "assertIn": ast.In,
    "assertNotIn": ast.NotIn,
    "assertGreater": ast.Gt,
    "assertGreaterEqual": ast.GtE,
    "assertLess": ast.Lt,
    "assertLessEqual": ast.LtE,
}
