"""The tests of a task where no code is: what they fail for before they ask the code for anything is their own."""

from __future__ import annotations

import ast
import builtins
import functools
import symtable
from typing import TYPE_CHECKING

from aviato.values.parsing import parsed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MOST_KNOWN = 4096
STAND_INS = """
class _aviato_Asked(BaseException):
    pass
class _aviato_StandIn:
    def __init__(self, name):
        self.__dict__["__name__"] = name
    def __getattr__(self, name, *_):
        raise _aviato_Asked
def _aviato_asked(*_, **__):
    raise _aviato_Asked
for _aviato_name in dir(int) + dir(dict) + dir(list) + [
    "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__", "__await__", "__aiter__", "__next__", "__anext__",
    "__int__", "__float__", "__mro_entries__", "__set__", "__delete__", "__instancecheck__", "__subclasscheck__",
]:
    if _aviato_name.startswith("__") and _aviato_name not in dir(object) or _aviato_name in (
        "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__str__", "__format__", "__setattr__", "__delattr__",
    ):
        setattr(_aviato_StandIn, _aviato_name, _aviato_asked)
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _aviato_StandIn(name)
"""
"""In the place of the code: whatever is done with one of its names ends the test."""
_LATER = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Not evaluated, or not for certain."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PREPARING = ("setUp", "setUpClass", "asyncSetUp", "setup_method", "setup_class")
_OWN = ("solution", "__main__", "__future__")
_OTHERS = frozenset(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException) and not issubclass(ImportError, kind)
    if not issubclass(kind, ImportError)
)
"""Exceptions that no import which fails raises as a rule."""


@functools.lru_cache(maxsize=MOST_KNOWN)
def stand_ins(sources: tuple[str, ...], code_names: tuple[str, ...]) -> str:
    """Source in the place of the code.

    Args:
        sources: of the tests.
        code_names: names of the code's, beside those that the tests use and do not define.
    """
    names = {name for source in sources for name in _free(symtable.symtable(_text(source), "tests", "exec"), top=True)}
    own = [*sorted(names - frozenset(dir(builtins))), *code_names]
    return f"{STAND_INS}for _aviato_name in {own!r}:\n    globals()[_aviato_name] = _aviato_StandIn(_aviato_name)\n"


@functools.lru_cache(maxsize=MOST_KNOWN)
def certain_imports(sources: tuple[str, ...]) -> str:
    """Source that imports what tests import in each run that does not end before, and says of any failure that it is one."""
    found: dict[str, None] = {}
    for source in sources:
        tree = parsed(_text(source))
        for node in _imports(tree.body, called_names(tree)):
            if isinstance(node, ast.ImportFrom):
                if not node.level and (node.module or "").split(".")[0] not in _OWN:
                    found[ast.unparse(node)] = None
            elif kept := [alias for alias in node.names if alias.name.split(".")[0] not in _OWN]:
                found[ast.unparse(ast.Import(names=kept))] = None
    return "\n".join(map(_tried, found)) or "pass"


def imported_files(sources: tuple[str, ...], files: Collection[str]) -> bool:
    """Whether tests name a module that is one of the task's files."""
    roots = {path.removeprefix("./").split("/")[0].removesuffix(".py") for path in files if path.endswith(".py")}
    return any(root in source for root in roots for source in sources)


def called_names(tree: ast.Module) -> set[str]:
    """Functions that statements of a module call for certain."""
    simple = [node for node in tree.body if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and not _has_blocks(node)]
    return {
        part.func.id for node in simple for part in _now(node) if isinstance(part, ast.Call) if isinstance(part.func, ast.Name)
    }


def _tried(statement: str) -> str:
    why = f"raise ImportError(f'{{type(error).__name__}} in {statement}: {{error}}') from None"
    known = "except _aviato_Asked:\n    pass\nexcept (ImportError, SyntaxError):\n    raise"
    return f"try:\n    {statement}\n{known}\nexcept BaseException as error:\n    {why}"


def _imports(
    body: list[ast.stmt], called: set[str], owner: ast.ClassDef | None = None
) -> Iterator[ast.Import | ast.ImportFrom]:
    """Those of a block that are made whenever it is run to its end."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _imports(node.body, called, node)
        elif isinstance(node, _FUNCTIONS):
            if node.name.startswith("test") or (node.name in called if owner is None else node.name in _PREPARING):
                yield from _imports(node.body, called)
        elif isinstance(node, (ast.Try, ast.TryStar)):
            if not any(_catches_imports(handler) for handler in node.handlers):
                yield from _imports(node.body, called)
            yield from _imports(node.finalbody, called)
        elif not _has_blocks(node):
            yield from (ast.Import(names=[ast.alias(name)]) for part in _now(node) if (name := _imported_by_call(part)))
        if isinstance(node, (ast.Return, ast.Raise)):
            return


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    """Whether it may catch an ImportError: it does unless it names others alone."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return not all(isinstance(kind, ast.Name) and kind.id in _OTHERS for kind in kinds)


def _now(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that are evaluated whenever it is run to its end."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _LATER):
            yield from _now(child)


def _has_blocks(node: ast.stmt) -> bool:
    return hasattr(node, "body") or hasattr(node, "cases")


def _imported_by_call(node: ast.AST) -> str:
    """The module that `importlib.import_module("…")` or `__import__("…")` asks for."""
    match node:
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ) if all(part.isidentifier() for part in name.split(".")):
            return name
    return ""


def _free(table: symtable.SymbolTable, top: bool) -> Iterator[str]:
    """Global names that are used and not defined."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (top or symbol.is_global()) and not (top and _is_defined(symbol)):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _free(child, top=False)


def _is_defined(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _text(source: str) -> str:
    return source.removeprefix("\ufeff")
