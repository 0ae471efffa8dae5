"""What goes along with a remote function, beyond plain functions and values, in this Python and in another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import io
import logging.handlers
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import Sandbox, Session
from aviato.server.images.interpreters import find_interpreters
from tests.end_to_end import own_package
from tests.end_to_end.own_package import limited
from tests.end_to_end.own_package.folder import deep

OTHERS = [f"python:3.{one.minor}" for one in find_interpreters() if one.minor >= 10 and one.minor != sys.version_info.minor]
LIMIT = 2
LOCK = threading.Lock()
STREAM = io.TextIOWrapper(io.BytesIO())


@pytest.fixture(params=[None, *OTHERS[-1:]], ids=str)
def image(request: Any) -> dict[str, Any]:
    return {} if request.param is None else {"container_image": request.param}


class Child(own_package.Base):
    more = own_package.LOCK_FREE + 1


async def double(n: int) -> int:
    return 2 * n


@limited
def bounded(n: int) -> int:
    return n + LIMIT


def by_module(n: int) -> Any:
    return [own_package.weighted(n), own_package.Base().scaled(), own_package.folder.deep.below(), deep.DEPTH]


def by_own_import(n: int) -> Any:
    import tests.end_to_end.own_package.folder.deep as found
    from tests.end_to_end.own_package import weighted

    return [weighted(n), found.below()]


def by_submodule(n: int) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return [pool.submit(int, n).result(), logging.handlers.DEFAULT_TCP_LOGGING_PORT]


def by_class_statement(n: int) -> Any:
    @dataclasses.dataclass
    class Made:
        n: int
        limit: int = LIMIT
        own: int = own_package.LOCK_FREE

    return dataclasses.astuple(Made(n))


def by_inheritance(n: int) -> Any:
    return [Child().scaled(), Child.more, Child.factor]


def by_coroutine(n: int) -> Any:
    return asyncio.run(double(n))


WAYS: dict[Callable[[int], Any], Any] = {
    by_module: [25 + 20 + 15 + 10 + 5, 15, 7, 2],
    by_own_import: [75, 7],
    by_submodule: [5, 9020],
    by_class_statement: [5, 2, 5],
    by_inheritance: [15, 6, 3],
    by_coroutine: 10,
    bounded: [1, 7],
}


def test_what_is_reached_by_other_ways_travels(session: Session, image: dict[str, Any]) -> None:
    calls = {way: session.function(**image)(way)(5) for way in WAYS}
    for way, expected in WAYS.items():
        assert calls[way].result() == expected, way.__name__


def test_a_class_with_a_base_of_the_same_function(session: Session, image: dict[str, Any]) -> None:
    class Above:
        def name(self) -> str:
            return "above"

    class Below(Above):
        def name(self) -> str:
            return "below " + super().name()

    assert session.function(**image)(lambda: Below().name())().result() == "below above"


def test_a_method_takes_its_object_along(session: Session, image: dict[str, Any]) -> None:
    class Scorer:
        def __init__(self, weight: int) -> None:
            self.weight = weight

        @session.function(serialization="pickle", **image)
        def score(self, n: int) -> int:
            return self.weight * n

        @staticmethod
        @session.function(**image)
        def plain(n: int) -> int:
            return n + 1

    scorer = Scorer(3)
    assert (scorer.score(2).result(), scorer.score.remote(n=3).result(), scorer.score.local(4)) == (6, 9, 12)
    assert [call.result() for call in scorer.score.map([(1,), (2,)])] == [3, 6]
    assert (Scorer.score(scorer, 5).result(), scorer.plain(1).result()) == (15, 2)


def test_what_cannot_travel_is_named_however_deep(session: Session, image: dict[str, Any]) -> None:
    held = {"lock": threading.Lock()}

    def inner() -> Any:
        return held

    def reads_a_file(stream: Any = STREAM) -> None: ...

    cases = {
        "the variable 'held' that inner": lambda: inner(),
        "the global 'LOCK' that <lambda>": lambda: LOCK,
        "the default of 'stream' that reads_a_file": reads_a_file,
    }
    for text, function in cases.items():
        with pytest.raises(aviato.FunctionSerializationError, match=text):
            session.function(**image)(function)()
    assert session.get_metrics()["aviato/sandboxes_created"] == 0


def test_a_module_that_the_image_lacks(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = types.ModuleType("absent")
    absent.__file__ = str(Path(functools.__file__).parent / "site-packages" / "absent.py")
    monkeypatch.setitem(sys.modules, "absent", absent)
    with pytest.raises(aviato.SandboxExecutionError, match=r"could not be loaded inside.*No module named 'absent'") as caught:
        session.function()(lambda: absent)().result()
    assert caught.value.exception_type == "ModuleNotFoundError" and not caught.value.is_infrastructure
    # Lazy packages are modules of a class of their own.
    with pytest.raises(aviato.SandboxExecutionError, match="No module named 'aviato'"):
        session.function()(lambda: aviato)().result()


def test_results_that_need_another_step_say_which(session: Session) -> None:
    for value, text in (("double(1)", r"a coroutine, .*asyncio\.run"), ("(n for n in [1])", "a generator, .*return a list")):
        namespace = {"double": double}
        with pytest.raises(aviato.FunctionSerializationError, match=text):
            session.function()(eval(f"lambda: {value}", namespace))().result()
    with pytest.raises(aviato.FunctionSerializationError, match="a bytearray, cannot be sent"):
        session.function(serialization="pickle")(lambda: bytearray(b"x"))().result()
    with pytest.raises(TypeError, match=r"write @session\.function\(\)"):
        session.function(double)


def test_calls_cancelled_before_their_turn_leave_nothing(served: Any) -> None:
    with Session(aviato.SandboxDefaults(tags=["cancelled-early"])) as session:
        calls = session.function()(by_submodule).map([(n,) for n in range(30)])
        for call in calls:
            call.cancel()
        for call in calls:
            with pytest.raises(aviato.OperationCancelledError):
                call.result()
        assert session.sandbox_count == 0
        assert Sandbox.list(tags=["cancelled-early"]).result() == []


def test_what_the_function_reads_is_held_once_for_all_calls(session: Session) -> None:
    content = "x" * (8 << 20)
    function = session.function()(lambda n: len(content) + n)
    function(0).result()
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    assert [call.result() - len(content) for call in function.map([(n,) for n in range(30)])] == list(range(30))
    # Joined to each call's own part it would be 240 MiB.
    assert status_bytes("VmHWM") - before < 100 << 20


def status_bytes(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10
