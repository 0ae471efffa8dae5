"""What travels by value: the user's own functions and classes. What is installed is imported inside."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

from aviato.functions.wrapper import Wrapper

if TYPE_CHECKING:
    import types


class NotPortable(Exception):
    """There is no source to send."""


def travels(value: Any) -> bool:
    """Whether a function or class goes along, rather than being imported inside."""
    return "<locals>" in value.__qualname__ or _is_own(value.__module__) or find_module(value) is None


def find_module(value: Any) -> Any:
    """The module that a function or class says it is of."""
    return sys.modules.get(value.__module__ or "__main__")


def module_travels(module: types.ModuleType) -> bool:
    """Whether a module goes along, as far as it is read, rather than being imported inside."""
    return _is_own(module.__name__)


def plain(value: Any) -> Any:
    """Inside, a remote function is the function that it was made of."""
    return value.__wrapped__ if isinstance(value, Wrapper) else value


def reduced_cache(value: Any) -> Any:
    """How a function under `functools.cache` or `lru_cache` is pickled: with an empty cache of the usual size.

    None: it is no such function.
    """
    if isinstance(value, functools._lru_cache_wrapper) and travels(value.__wrapped__):
        parameters = value.cache_parameters()
        if parameters["maxsize"] is None:
            return functools.cache, (value.__wrapped__,)
        return functools.lru_cache, (value.__wrapped__, parameters["typed"])
    return None


def _is_own(name: str | None) -> bool:
    """Whether a module is the user's own code, and not of the standard library, installed, or built in."""
    if name in (None, "__main__", "__mp_main__"):
        return True
    assert name is not None
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "aviato" or name not in sys.modules:
        return name not in sys.modules
    module = sys.modules[name]
    file = getattr(module, "__file__", None)
    # A folder without an `__init__.py` has a path alone.
    places = [file] if file is not None else [str(one) for one in getattr(module, "__path__", ())]
    return any(map(_is_own_file, places))


@functools.lru_cache(4096)
def _is_own_file(file: str) -> bool:
    path = os.path.realpath(file)
    if {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return False
    installed = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(path.startswith(folder + os.sep) for folder in installed)
