"""Which calls of the code a test makes, where its text says that: they go to the code's sandbox at once, not one by one."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Any, TypeGuard

from aviato.grading.inside.crossing import call_of
from aviato.grading.inside.packing import pack
from aviato.values.parsing import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "solution.py"
MOST_BYTES = 256 << 10
"""Of all such calls of a task."""
_BUILT_IN = frozenset(
    ("abs", "bool", "float", "int", "len", "list", "max", "min", "repr", "round", "set", "sorted", "str", "sum", "tuple")
)
"""Functions that call nothing of the code, whatever they are given."""
_DISPLAYS = (ast.List, ast.Tuple, ast.Set)


class NotKnown(Exception):
    """What is called depends on more than the text of this expression."""


@functools.lru_cache(maxsize=4096)
def calls_ahead(sources: tuple[str, ...], names: tuple[str, ...]) -> tuple[tuple[bytes, ...], ...]:
    """The calls of each case, in order, up to the first case of which they are not known.

    A case makes fewer of them only if it fails; the cases after it then begin with another process of the code.

    Args:
        sources: of the cases.
        names: of the code.
    """
    found: list[tuple[bytes, ...]] = []
    left = MOST_BYTES
    for source in sources:
        try:
            calls = tuple(call for statement in parsed(source).body for call in _of_statement(statement, names))
        except (NotKnown, SyntaxError, ValueError, TypeError, RecursionError, OverflowError):
            break
        left -= sum(map(len, calls))
        if not calls or left < 0:
            break
        found.append(calls)
    return tuple(found)


def imports_names(node: ast.stmt) -> bool:
    """Whether it imports names of the code and calls nothing."""
    return isinstance(node, ast.ImportFrom) and node.module == "solution" and not any(alias.asname for alias in node.names)


def _of_statement(node: ast.stmt, names: tuple[str, ...]) -> Iterator[bytes]:
    if imports_names(node):
        return
    if not isinstance(node, ast.Assert) or not (node.msg is None or isinstance(node.msg, ast.Constant)):
        raise NotKnown
    yield from _of(node.test, names)


def _of(node: ast.expr, names: tuple[str, ...]) -> Iterator[bytes]:
    """Those of an expression, in the order of Python's evaluation."""
    if isinstance(node, ast.Compare) and len(node.comparators) == 1:
        yield from _of(node.left, names)
        yield from _of(node.comparators[0], names)
    elif isinstance(node, ast.BinOp):
        yield from _of(node.left, names)
        yield from _of(node.right, names)
    elif isinstance(node, ast.UnaryOp):
        yield from _of(node.operand, names)
    elif isinstance(node, _DISPLAYS):
        for item in node.elts:
            yield from _of(item, names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield from _of_call(node, node.func.id, names)
    else:
        ast.literal_eval(node)


def _of_call(node: ast.Call, name: str, names: tuple[str, ...]) -> Iterator[bytes]:
    if is_call(node, names):
        yield call_in(node)
    elif name in _BUILT_IN and name not in names and not node.keywords:
        for value in node.args:
            yield from _of(value, names)
    else:
        raise NotKnown


def is_call(node: ast.AST, names: tuple[str, ...]) -> TypeGuard[ast.Call]:
    """Whether it calls a function of the code; what has a capital letter may be a class, whose objects are no data."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in names
        and not node.func.id[:1].isupper()
    )


def call_in(node: ast.Call) -> bytes:
    """The call, as what stands for the code would send it.

    Raises:
        NotKnown, ValueError, TypeError: its arguments are no data, or not told by its text.
    """
    assert isinstance(node.func, ast.Name)
    args = tuple(_data(value) for value in node.args)
    if any(keyword.arg is None for keyword in node.keywords):
        raise NotKnown
    kwargs = {str(keyword.arg): _data(keyword.value) for keyword in node.keywords}
    return call_of(MODULE, node.func.id, pack({"args": args, "kwargs": kwargs}, _refused))


def _data(node: ast.expr) -> Any:
    """The value of a literal; of sets the order is another in each process."""
    if any(isinstance(each, ast.Set) for each in ast.walk(node)):
        raise NotKnown
    return ast.literal_eval(node)


def _refused(value: Any) -> Any:
    raise NotKnown
