"""Packing a call: the function with what it reads, and its arguments, as the driver loads them.

Two forms: by cloudpickle, for a Python that loads the caller's code objects, and as source for any other. Which Python an
image has is known only inside, unless it is named `python:3.N`; then both are sent and the driver chooses.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import io
import json
import linecache
import os
import pickle
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudpickle import cloudpickle as _cloudpickle

from aviato.exceptions import FunctionSerializationError
from aviato.functions import source
from aviato.functions.names import attribute_names, global_names, own_imports
from aviato.functions.options import shown
from aviato.functions.pickler import Pickler
from aviato.functions.travel import NotPortable, module_travels, plain, reduced_cache, travels
from aviato.options import Serialization

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROTOCOL = 4
_IMAGE = re.compile(r"python:3\.(\d{1,2})")


def forms_for(function: types.FunctionType, image: str | None) -> tuple[str, ...]:
    """The forms that the Python of an image may need."""
    if "_pytest" in sys.modules and _is_rewritten(function):
        return ("source",)
    named = _IMAGE.fullmatch(image or "")
    if named is None or os.environ.get("AVIATO_IMAGE_FALLBACK"):
        return "pickled", "source"
    return ("pickled",) if int(named[1]) == sys.version_info.minor else ("source",)


def _is_rewritten(function: types.FunctionType) -> bool:
    """Whether pytest has put calls to itself into the assertions of the function, or of one that it calls."""
    pending, seen = [function], set()
    while pending:
        one = pending.pop()
        seen.add(one)
        names = global_names(one.__code__)
        if "@pytest_ar" in names:
            return True
        read = [plain(one.__globals__.get(name)) for name in names]
        pending += [more for more in read if isinstance(more, types.FunctionType) and travels(more) and more not in seen]
    return False


def pack_function(
    function: types.FunctionType, forms: Sequence[str], serialization: Serialization, result_types: Sequence[type]
) -> bytes:
    """The part of a call that does not depend on its arguments: the driver, and the function with all it reads.

    Raises:
        FunctionSerializationError: something that it reads cannot be sent, or its source cannot be had where that is needed.
    """
    name = shown(function)
    call: dict[str, Any] = {
        "python": (sys.implementation.name, importlib.util.MAGIC_NUMBER),
        "serialization": str(serialization),
        "result_types": [(kind.__module__, kind.__qualname__) for kind in result_types],
        "lines": {},
        "modules": [],
    }
    if "pickled" in forms:
        noted = _Noted()
        call["pickled"] = _try(lambda: _by_value(function, noted), name, lambda: _culprit(function, _by_value))
        call["lines"] = {file: sorted(pieces) for file, pieces in noted.lines.items()}
        call["modules"] = sorted(noted.modules - {"__main__"})
        call["cloudpickle"], call["cloudpickle_file"] = _cloudpickle_code()
    if "source" in forms:
        try:
            call["source"] = _try(lambda: source.pack(function), name, lambda: _culprit(function, source.pack))
            call["rebuild"] = _program("rebuild.py")
            definitions = pickle.loads(call["source"])["definitions"]
            for one in definitions if not call["lines"] else ():
                call["lines"].setdefault(one["file"], []).append((one["line"], one["text"]))
        except FunctionSerializationError:
            if "pickled" not in forms:
                raise
    driver = _program("driver.py").encode()
    return b"%d\n" % len(driver) + driver + pickle.dumps(call, PROTOCOL)


def pack_arguments(
    function: types.FunctionType,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    forms: Sequence[str],
    serialization: Serialization,
) -> bytes:
    """The other part.

    Raises:
        TypeError: the function does not take these arguments.
        FunctionSerializationError: one of them cannot be sent; the message names it.
    """
    signature = inspect.signature(function, follow_wrapped=False)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{shown(function)}: {error}") from None
    both = (list(args), dict(kwargs))
    named = _named(signature, args, kwargs)
    packed: dict[str, Any] = {}
    if serialization is Serialization.JSON:
        packed["json"] = _pack_each(json.dumps, both, named, function, "; use serialization=Serialization.PICKLE")
    else:
        if "pickled" in forms:
            packed["pickled"] = _pack_each(_by_value, both, named, function)
        if "source" in forms:
            try:
                packed["source"] = _pack_each(source.pack, both, named, function)
            except FunctionSerializationError:
                if "pickled" not in forms:
                    raise
    return pickle.dumps(packed, PROTOCOL)


def why_no_source(function: types.FunctionType) -> str:
    """Why a function could not be sent as source."""
    try:
        _try(lambda: source.pack(function), shown(function), lambda: None)
    except FunctionSerializationError as error:
        return str(error)
    return "its arguments could not be sent as source"


def _named(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    names = [name for name, one in signature.parameters.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    positions = [names[n] if n < len(names) else f"number {n + 1}" for n in range(len(args))]
    return [*zip(positions, args, strict=True), *kwargs.items()]


def _pack_each(
    pack: Callable[[Any], Any], both: Any, named: list[tuple[str, Any]], function: types.FunctionType, remedy: str = ""
) -> Any:
    try:
        return pack(both)
    except Exception as whole:
        for name, value in named:
            try:
                pack(value)
            except Exception as error:
                raise FunctionSerializationError(
                    f"argument {name!r} of {shown(function)} cannot be serialized: {_said(error)}{remedy}"
                ) from error
        raise FunctionSerializationError(f"the arguments of {shown(function)} cannot be serialized: {_said(whole)}") from whole


def _try(pack: Callable[[], bytes], name: str, culprit: Callable[[], str | None]) -> bytes:
    try:
        return pack()
    except NotPortable as error:
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise FunctionSerializationError(
            f"{name} has to be sent as source to an image with another Python than {here}, and cannot be: {error}"
        ) from None
    except Exception as error:
        raise FunctionSerializationError(f"{name} cannot be serialized: {culprit() or _said(error)}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _culprit(function: types.FunctionType, pack: Callable[[Any], bytes], seen: frozenset[Any] = frozenset()) -> str | None:
    """Which of the things that a function reads cannot be pickled; where that is a function too, what that one reads."""
    seen |= {function}
    read: dict[str, Any] = {
        f"the global {name!r}": function.__globals__[name]
        for name in sorted(global_names(function.__code__))
        if name in function.__globals__
    }
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        read[f"the variable {name!r}"] = _content(cell)
    names = [
        name
        for name, one in inspect.signature(function, follow_wrapped=False).parameters.items()
        if one.default is not one.empty
    ]
    for name, value in zip(names, [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()], strict=False):
        read[f"the default of {name!r}"] = value
    for what, value in read.items():
        try:
            pack(value)
        except NotPortable:
            pass
        except Exception as error:
            value = plain(value)
            deeper = _culprit(value, pack, seen) if isinstance(value, types.FunctionType) and value not in seen else None
            return deeper or f"{what} that {shown(function)} reads: {_said(error)}"
    return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


# -- by cloudpickle


class _Noted:
    """Which source lines went along, and of which modules of the user's."""

    def __init__(self) -> None:
        self.lines: dict[str, set[tuple[int, str]]] = {}
        self.modules: set[str] = set()


class _Pickler(Pickler):
    """Takes the user's own modules by value, which the image does not have."""

    def __init__(self, file: io.BytesIO, noted: _Noted, read: frozenset[str]) -> None:
        super().__init__(file, PROTOCOL)
        self._noted = noted
        self._read = read
        self.read_now: frozenset[str] = frozenset()
        self.has_modules = False

    def reducer_override(self, value: Any) -> Any:
        value = plain(value)
        if (cached := reduced_cache(value)) is not None:
            return cached
        if isinstance(value, types.FunctionType) and travels(value):
            self._noted.modules.add(value.__globals__.get("__name__") or "__main__")
            _note_lines(value.__code__, self._noted.lines)
            self.read_now |= attribute_names(value.__code__)
            made, parts, (state, slots), *rest = self._dynamic_function_reduce(value)
            # Nobody reads annotations, but each would be imported inside.
            kept = {name: kind for name, kind in slots["__annotations__"].items() if _is_harmless(kind)}
            # cloudpickle's own leave out what class statements in the function read.
            names = global_names(value.__code__)
            scope = {name: value.__globals__[name] for name in names if name in value.__globals__ and name != "__builtins__"}
            submodules = [*slots["_cloudpickle_submodules"], *own_imports(value.__code__)]
            slots = {**slots, "__annotations__": kept, "__globals__": scope, "_cloudpickle_submodules": submodules}
            return (made, parts, (state, slots), *rest)
        if isinstance(value, types.ModuleType):
            if not module_travels(value):
                return _cloudpickle.subimport, (value.__name__,)
            self.has_modules = True
            content = {name: one for name, one in vars(value).items() if name in self._read}
            return _cloudpickle.dynamic_subimport, (value.__name__, {}), content
        if isinstance(value, type) and travels(value):
            return _cloudpickle._dynamic_class_reduce(value)
        return super().reducer_override(value)


def _by_value(value: Any, noted: _Noted | None = None) -> bytes:
    read: frozenset[str] = frozenset()
    while True:
        file = io.BytesIO()
        pickler = _Pickler(file, noted or _Noted(), read)
        pickler.dump(value)
        if not pickler.has_modules or pickler.read_now <= read:
            return file.getvalue()
        # Of the user's modules goes along what the functions read, some of which are met in these modules only.
        read |= pickler.read_now


def _is_harmless(kind: Any) -> bool:
    return isinstance(kind, str) or kind is None or (isinstance(kind, type) and kind.__module__ == "builtins")


def _note_lines(code: types.CodeType, lines: dict[str, set[tuple[int, str]]]) -> None:
    text = linecache.getlines(code.co_filename)
    if text:
        first = code.co_firstlineno
        lines.setdefault(code.co_filename, set()).add((first, "".join(text[first - 1 : _last_line(code)])))


def _last_line(code: types.CodeType) -> int:
    nested = [_last_line(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return max([code.co_firstlineno, *(line for _, _, line in code.co_lines() if line is not None), *nested])


@functools.cache
def _cloudpickle_code() -> tuple[bytes, str]:
    import marshal

    loader: Any = _cloudpickle.__loader__
    code = loader.get_code(_cloudpickle.__name__)
    return marshal.dumps(code), code.co_filename


@functools.cache
def _program(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
