"""Section 3: functions whose calls run in sandboxes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import aviato
from tests.surface.harness import Place, acheck, check


@dataclasses.dataclass
class Point:
    x: int


def double(n: Any) -> Any:
    return n * 2


@check("Session.function", "RemoteFunction.remote", "RemoteFunction.__call__", "RemoteFunction.map", "RemoteFunction.local")
def calls(place: Place) -> None:
    function = place.session.function()(double)
    assert isinstance(function, aviato.RemoteFunction)
    assert (function.remote(2).result(), function("ab").result(), function.local(4)) == (4, "abab", 8)
    assert [call.result() for call in function.map([(1,), (2,)])] == [2, 4]
    assert place.session.get_metrics()["aviato/exec_completed_ok"] == 4


@check("Serialization")
def serialization(place: Place) -> None:
    as_json, as_pickle = (place.session.function(serialization=one)(double) for one in aviato.Serialization)
    assert as_json((1,)).result() == [1, 1] and as_pickle((1,)).result() == (1, 1)
    assert [aviato.Serialization("json"), aviato.Serialization.PICKLE] == ["json", "pickle"]
    made = place.session.function(serialization=aviato.Serialization.PICKLE, result_types=[Point])(lambda: Point(1))
    assert made().result() == Point(1)


@check("SandboxExecutionError.exception_type", "SandboxExecutionError.exception_message")
def remote_exception(place: Place) -> None:
    with pytest.raises(aviato.SandboxExecutionError) as caught:
        place.session.function()(lambda: int("no number"))().result()
    assert (caught.value.exception_type, caught.value.exception_message) == (
        "ValueError",
        "invalid literal for int() with base 10: 'no number'",
    )


@check("FunctionError")
def generator(place: Place) -> None:
    def values() -> Any:
        yield 1

    with pytest.raises(aviato.FunctionError, match="generator"):
        place.session.function()(values)


@check("AsyncFunctionError")
def coroutine(place: Place) -> None:
    async def value() -> None: ...

    with pytest.raises(aviato.AsyncFunctionError, match="async def") as caught:
        place.session.function()(value)
    assert isinstance(caught.value, aviato.FunctionError) and not caught.value.is_infrastructure


@check("FunctionSerializationError")
def argument(place: Place) -> None:
    with pytest.raises(aviato.FunctionSerializationError, match="argument 'n'") as caught:
        place.session.function()(double)(object())
    assert isinstance(caught.value, aviato.FunctionError) and not caught.value.is_infrastructure


@acheck("RemoteFunction.remote", "RemoteFunction.map", "RemoteFunction.__call__")
async def awaited(place: Place) -> None:
    function = place.session.function()(double)
    assert (await function.remote(2), await function(3)) == (4, 6)
    assert [await call for call in function.map([(1,), (2,)])] == [2, 4]
