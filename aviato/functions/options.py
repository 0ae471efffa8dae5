"""The arguments of `session.function()`, checked when the function is decorated."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from aviato import defaults as checks
from aviato.calls import sandbox_config
from aviato.calls.sandbox_config import SandboxOptions
from aviato.exceptions import AsyncFunctionError, AviatoValidationError, FunctionError
from aviato.options import Serialization

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aviato.defaults import SandboxDefaults


@dataclass(frozen=True, kw_only=True)
class FunctionOptions:
    """How a remote function is called.

    Attributes:
        image: of its sandboxes; None is the server's default.
        temp_dir: where the files of a call are inside.
        sandbox: parameters of its sandboxes.
    """

    serialization: Serialization = Serialization.JSON
    temp_dir: str = "/tmp"
    result_types: tuple[type, ...] = ()
    image: str | None = None
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)


def check_options(
    serialization: Serialization | str,
    temp_dir: str | None,
    result_types: Iterable[type],
    sandbox: SandboxOptions,
    defaults: SandboxDefaults | None,
) -> FunctionOptions:
    """The options as they are meant.

    Raises:
        TypeError, AviatoValidationError: an argument that cannot be meant; it is named.
    """
    try:
        chosen = Serialization(serialization)
    except ValueError as error:
        raise AviatoValidationError(f"{error}", field_violations={"serialization": "unknown"}) from None
    found = _types(result_types)
    if found and chosen is Serialization.JSON:
        raise AviatoValidationError(
            "result_types= needs serialization=Serialization.PICKLE: JSON has no classes",
            field_violations={"result_types": "with JSON"},
        )
    merged: Any = {**sandbox, "defaults": sandbox.get("defaults") or defaults}
    create = sandbox_config.config(merged).create or {}
    folder = (merged["defaults"] or sandbox_config.BUILT_IN).temp_dir if temp_dir is None else temp_dir
    return FunctionOptions(
        serialization=chosen,
        temp_dir=checks.absolute("temp_dir", folder).rstrip("/"),
        result_types=found,
        image=create.get("image"),
        sandbox=sandbox,
    )


def shown(function: Callable[..., Any]) -> str:
    """A function in messages: its name, without the function that it was defined in."""
    return f"{function.__qualname__.rpartition('<locals>.')[2]}()"


def check_function(function: Callable[..., Any]) -> None:
    """Refuse what cannot be called in one go and give one value back.

    Raises:
        AsyncFunctionError: an `async def`.
        FunctionError: a generator function.
        TypeError: no function.
    """
    name = shown(function) if isinstance(function, types.FunctionType) else repr(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise AsyncFunctionError(f"{name} is an `async def`; a remote function must be a plain one (it may call asyncio.run)")
    if inspect.isgeneratorfunction(function):
        raise FunctionError(
            f"{name} is a generator; a remote function must return one value, such as a list", reason="generator"
        )
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"a remote function is made of a function written in Python, not of {function!r}")


def _types(value: Iterable[type]) -> tuple[type, ...]:
    if isinstance(value, type):
        raise TypeError(f"result_types must be a list of classes, not one class: write [{value.__name__}]")
    found = tuple(dict.fromkeys(value))
    names = set()
    for kind in found:
        if not isinstance(kind, type) or not (is_dataclass(kind) or issubclass(kind, Enum)):
            raise TypeError(f"result_types must be dataclasses and enums, got {kind!r}")
        key = kind.__module__, kind.__qualname__
        if key in names:
            raise _wrong(f"two classes are named {key[0]}.{key[1]}")
        names.add(key)
        if not issubclass(kind, Enum):
            try:
                object.__new__(kind)
            except TypeError as error:
                raise _wrong(f"{kind.__qualname__} cannot be made from its fields alone: {error}") from None
    return found


def _wrong(why: str) -> AviatoValidationError:
    return AviatoValidationError(f"result_types: {why}", field_violations={"result_types": why})
