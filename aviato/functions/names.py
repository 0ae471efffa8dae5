"""What code reads, by name: globals, attributes, modules."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from cloudpickle import cloudpickle

from aviato.functions.travel import module_travels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NOT_SENT = {"__annotations__", "__builtins__", "__class__", "__loader__", "__spec__"}
_RUN_AT_ONCE = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "__annotate__"}
_READS = (
    "LOAD_GLOBAL",
    "STORE_GLOBAL",
    "DELETE_GLOBAL",
    "LOAD_NAME",
    "LOAD_FROM_DICT_OR_GLOBALS",
)


@functools.lru_cache(4096)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Names of globals that a function reads or writes, its nested functions and classes included."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in _READS}
    return frozenset(names).union(*(global_names(nested) for nested in code.co_consts if isinstance(nested, types.CodeType)))


@functools.lru_cache(4096)
def attribute_names(code: types.CodeType) -> frozenset[str]:
    """All names that a function uses, attributes among them, its nested functions and classes included."""
    nested = [attribute_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return frozenset(code.co_names).union(*nested)


def _with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            yield from _with_nested(nested)


def submodules(code: types.CodeType, values: Iterable[Any]) -> list[types.ModuleType]:
    """Modules that a function reaches by the names of those above them, such as `os.path` by `os`."""
    packages = [one for one in values if isinstance(one, types.ModuleType) and not module_travels(one)]
    return [found for one in _with_nested(code) for found in cloudpickle._find_imported_submodules(one, packages)]


def own_imports(code: types.CodeType) -> list[types.ModuleType]:
    """The user's own modules that a function imports, with those above them, as far as they are loaded here."""
    names = {one.argval for each in _with_nested(code) for one in dis.get_instructions(each) if one.opname == "IMPORT_NAME"}
    paths = {".".join(parts[:count]) for parts in (name.split(".") for name in names) for count in range(1, len(parts) + 1)}
    found = [sys.modules[path] for path in sorted(paths) if path in sys.modules]
    return [module for module in found if module_travels(module)]


def module_parts(values: Iterable[Any], names: frozenset[str]) -> dict[str, dict[str, Any]]:
    """What a class statement can read of the user's modules among these values, when it runs."""
    found: dict[str, dict[str, Any]] = {}
    pending = list(values)
    while pending:
        one = pending.pop()
        if isinstance(one, types.ModuleType) and module_travels(one) and one.__name__ not in found:
            found[one.__name__] = {name: value for name, value in vars(one).items() if name in names}
            pending += found[one.__name__].values()
    return found


def class_names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Names that a class statement reads when it runs, and those that its methods read when they run."""
    now = {one.argval for one in dis.get_instructions(code) if one.opname in _READS}
    later: set[str] = set()
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            if nested.co_flags & inspect.CO_OPTIMIZED and nested.co_name not in _RUN_AT_ONCE:
                later |= global_names(nested)
            else:
                more_now, more_later = class_names(nested)
                now, later = now | more_now, later | more_later
    return now, later
