"""What is told to a server in the background. How it travels with commands is in `test_execution.py`."""

from __future__ import annotations

import asyncio

import pytest

from aviato.core.acknowledgements import Acknowledger, Told
from aviato.exceptions import SandboxUnavailableError
from aviato.wire.execution import ACKNOWLEDGED_AT_ONCE

pytestmark = pytest.mark.anyio


async def test_what_is_too_much_for_one_request_is_told_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviato.core.acknowledgements.AGAIN_SECONDS", 0.01)
    told: list[Told] = []
    failures = [1, 3]

    async def send(acknowledgements: Told) -> None:
        assert max(len(acknowledgements.execs), len(acknowledgements.let_go)) <= ACKNOWLEDGED_AT_ONCE
        if failures and failures.pop(0) < 3:
            raise SandboxUnavailableError("not now")
        told.append(acknowledgements)

    acknowledger = Acknowledger(send)
    sandboxes = [f"sb-{number}" for number in range(ACKNOWLEDGED_AT_ONCE + 10)]
    execs = [(f"sb-{number % 7}", f"ex-{number}") for number in range(2 * ACKNOWLEDGED_AT_ONCE + 10)]
    for sandbox_id in sandboxes:
        acknowledger.let_go(sandbox_id)
    for sandbox_id, exec_id in execs:
        acknowledger.received(sandbox_id, exec_id, 1, 2, done=True)
    for sandbox_id in sandboxes:
        await acknowledger.told_of(sandbox_id)
    assert len(told) == 3
    assert [sandbox_id for one in told for sandbox_id in one.let_go] == sandboxes
    assert sorted((ack.sandbox_id, ack.exec_id) for one in told for ack in one.execs) == sorted(execs)


async def test_a_stop_says_what_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviato.core.acknowledgements.AFTER_EXIT_SECONDS", 60.0)
    told: list[Told] = []

    async def send(acknowledgements: Told) -> None:
        told.append(acknowledgements)

    acknowledger = Acknowledger(send)
    for name in ("1", "2"):
        acknowledger.received(f"sb-{name}", f"ex-{name}", 1, 2, done=True)
    assert acknowledger.results_of("sb-1") == ["ex-1"] and not told
    acknowledger.settled("sb-1", acknowledger.results_of("sb-1"))
    # One that closes waits for no timer.
    await acknowledger.told_of("sb-2")
    assert [(ack.sandbox_id, ack.exec_id, ack.done) for one in told for ack in one.execs] == [("sb-2", "ex-2", True)]


async def test_what_comes_while_a_request_is_on_its_way_is_told_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviato.core.acknowledgements.AFTER_EXIT_SECONDS", 0.01)
    on_its_way, arrived = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def send(acknowledgements: Told) -> None:
        on_its_way.set()
        await arrived.wait()
        told.extend(ack.exec_id for ack in acknowledgements.execs)

    acknowledger = Acknowledger(send)
    acknowledger.received("sb-1", "ex-1", 1, 2, done=True)
    await on_its_way.wait()
    acknowledger.received("sb-2", "ex-2", 1, 2, done=True)
    arrived.set()
    async with asyncio.timeout(2):
        while told != ["ex-1", "ex-2"]:
            await asyncio.sleep(0.01)


async def test_what_has_arrived_whole_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads along may say last what he had read before the end."""
    told: list[Told] = []

    async def send(acknowledgements: Told) -> None:
        told.append(acknowledgements)

    acknowledger = Acknowledger(send)
    acknowledger.received("sb-1", "ex-1", 1, 0)
    acknowledger.received("sb-1", "ex-1", 9, 2, done=True)
    acknowledger.received("sb-1", "ex-1", 9, 0)
    await acknowledger.told_of("sb-1")
    assert [(ack.stdout, ack.stderr, ack.done) for one in told for ack in one.execs] == [(9, 2, True)]
