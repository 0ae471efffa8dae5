"""Every public name of sections 1 to 4 of the contract has a check against a real server, and each check was seen red.

`names.py` lists the names; `sync_*.py` and `async_*.py` have the checks. The second test of each pair breaks one name, so that
it raises, and expects the very same check to fail.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.surface import (
    async_client_checks,
    async_facade_checks,
    error_checks,
    function_checks,
    grade_checks,
    harness,
    image_checks,
    limit_checks,
    names,
    operation_checks,
    port_checks,
    sandbox_checks,
    secret_checks,
    session_checks,
    snapshot_checks,
    terminal_checks,
)

assert all((async_client_checks, async_facade_checks, error_checks, function_checks, operation_checks, sandbox_checks))
assert all(
    (grade_checks, image_checks, snapshot_checks, limit_checks, port_checks, secret_checks, session_checks, terminal_checks)
)

SYNC = harness.pairs(harness.SYNC)
ASYNC = harness.pairs(harness.ASYNC)


def ids(table: list[tuple[str, Any]]) -> list[str]:
    return [f"{name}-{function.__name__}" for name, function in table]


@pytest.fixture
def place(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_server: Any) -> Iterator[harness.Place]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    session = aviato.Session()
    yield harness.Place(server, session, tmp_path, monkeypatch, make_server)
    session.close().result(60)


def test_every_name_has_a_check() -> None:
    checked = set(harness.SYNC) | set(harness.ASYNC)
    assert sorted(names.NAMES - checked - names.LATER) == []
    assert sorted(names.ASYNC_TOO - set(harness.ASYNC) - names.LATER) == []
    assert sorted(checked & names.LATER) == [], "built by now: take these off the list"
    assert sorted(checked - names.NAMES) == []


def test_every_public_attribute_has_a_name() -> None:
    """What a class shows beyond the contract must be private, or stand in the list of the bridge's own."""
    known = {name.partition("(")[0] for name in names.NAMES} | names.PLUMBING
    found = set()
    for name in aviato.__all__:
        value = getattr(aviato, name)
        if isinstance(value, type) and not issubclass(value, (BaseException, str)):
            found |= {f"{name}.{attribute}" for attribute in vars(value) if not attribute.startswith("_")}
    assert sorted(found - known) == []


@pytest.mark.parametrize(("name", "function"), SYNC, ids=ids(SYNC))
def test_sync(name: str, function: Any, place: harness.Place) -> None:
    function(place)


def see_red(name: str, run: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        # What the broken name interrupts half-way, such as a coroutine that is never awaited, is the breaking's doing.
        warnings.simplefilter("ignore")
        try:
            with harness.broken(name):
                run()
        except (Exception, harness.Broken, pytest.fail.Exception) as error:
            error.__traceback__ = None
        else:
            pytest.fail(f"the check passes although {name} raises")
        gc.collect(0)


@pytest.mark.deep
@pytest.mark.parametrize(("name", "function"), SYNC, ids=ids(SYNC))
def test_sync_red(name: str, function: Any, place: harness.Place) -> None:
    see_red(name, lambda: function(place))


@pytest.mark.parametrize(("name", "function"), ASYNC, ids=ids(ASYNC))
def test_async(name: str, function: Any, place: harness.Place) -> None:
    asyncio.run(function(place))


@pytest.mark.deep
@pytest.mark.parametrize(("name", "function"), ASYNC, ids=ids(ASYNC))
def test_async_red(name: str, function: Any, place: harness.Place) -> None:
    see_red(name, lambda: asyncio.run(function(place)))
