"""Which checks exercise which public name, and how a name is broken so that its checks can be seen red."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aviato
from aviato import exceptions
from aviato.aio import async_process, async_sandbox, async_terminal
from aviato.api import sandbox_properties

SYNC: dict[str, list[Callable[..., Any]]] = {}
ASYNC: dict[str, list[Callable[..., Any]]] = {}


class Broken(BaseException):
    """What a broken name raises: nothing under test catches it by accident."""


@dataclasses.dataclass
class Place:
    """What a check may use."""

    server: Any
    session: aviato.Session
    path: Path
    monkeypatch: Any
    make_server: Callable[..., Any]

    @property
    def url(self) -> str:
        return str(self.server.url)

    def box(self, **options: Any) -> aviato.Sandbox:
        """A sandbox of the session."""
        return self.session.sandbox(**options)


def check(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function checks these names in sync form; each is broken by itself once, to see the check fail."""
    return _register(SYNC, names)


def acheck(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same in async form."""
    return _register(ASYNC, names)


def _register(table: dict[str, list[Callable[..., Any]]], names: tuple[str, ...]) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            table.setdefault(name, []).append(function)
        return function

    return add


def pairs(table: dict[str, list[Callable[..., Any]]]) -> list[tuple[str, Callable[..., Any]]]:
    """Each name with each of its checks."""
    return [(name, function) for name, functions in sorted(table.items()) for function in functions]


def owner_and_attribute(name: str) -> tuple[Any, str]:
    """Where a dotted name lives: a class and its attribute, or the package and its."""
    first, _, attribute = name.partition(".")
    if not attribute:
        return aviato, first
    for module in (aviato, exceptions, async_process, async_sandbox, async_terminal, sandbox_properties):
        if hasattr(module, first):
            return getattr(module, first), attribute
    raise LookupError(name)


@contextmanager
def broken(name: str) -> Iterator[None]:
    """While it lasts, the name raises when it is called, read, made or given.

    `Class.name` is a method, property or field; `Class.name(parameter=)` a parameter of it; `Class(parameter=)` one of the
    constructor; a bare name is a function of the package, or an error class, which then cannot be made.
    """
    target, _, parameter = name.partition("(")
    parameter = parameter.rstrip("=)")
    owner, attribute = owner_and_attribute(target)
    value = getattr(owner, attribute)
    if isinstance(value, type) and (parameter or issubclass(value, BaseException)):
        owner, attribute = value, "__init__"
    missing = object()
    before = vars(owner).get(attribute, missing)
    current = getattr(owner, attribute, None)

    def explode(*_: Any, **__: Any) -> Any:
        raise Broken(name)

    replacement: Any
    if parameter:

        @functools.wraps(current)
        def refuses(*arguments: Any, **options: Any) -> Any:
            if parameter in options:
                raise Broken(name)
            return current(*arguments, **options)

        kind = type(before)
        replacement = kind(_without_class(refuses)) if kind in (classmethod, staticmethod) else refuses
    elif isinstance(before, (classmethod, staticmethod)):
        replacement = type(before)(explode)
    elif callable(current) or owner is aviato:
        replacement = explode
    else:
        replacement = property(explode)
    setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, before)


def _without_class(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a classmethod: `current` is bound already."""

    @functools.wraps(function)
    def call(_: type, *arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    return call
