"""Pickling a `RemoteFunction` for another process of the user's: by name where it has one, else by value."""

from __future__ import annotations

import functools
import io
import sys
import uuid
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weakref import WeakKeyDictionary

    from aviato.functions.remote import RemoteFunction

_tokens: WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_copies: dict[str, Any] = {}


def reduced(function: RemoteFunction[..., Any]) -> Any:
    """What `__reduce__` gives: the name under which a module has it, or itself with its function's code.

    In another process a copy's session is a new one with the same defaults, one for all copies, and is closed at exit.
    """
    if function.__module__ != "__main__" and _named(function.__module__, function.__qualname__) is function:
        return function.__qualname__
    from aviato.functions.pickler import Pickler

    file, kind = io.BytesIO(), type(function)

    class ByValue(Pickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, kind):
                session = value._session
                token = _tokens.setdefault(session, uuid.uuid4().hex)
                state = value.__wrapped__, value._options, token, type(session), session._defaults, value._before
                # The state comes second: a function that calls itself leads back here.
                return kind.__new__, (kind,), state, None, None, _fill
            return super().reducer_override(value)

    ByValue(file).dump(function)
    return _load, (file.getvalue(),)


def _load(content: bytes) -> Any:
    import pickle

    return pickle.loads(content)


def _fill(function: RemoteFunction[..., Any], state: tuple[Any, ...]) -> None:
    wrapped, options, token, kind, defaults, before = state
    functools.update_wrapper(function, wrapped)
    function._options, function._before = options, before
    if token not in _copies:
        _copies[token] = kind(defaults)
    function._session = _copies[token]


def _named(module: str, path: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
