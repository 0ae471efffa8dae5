"""What is told to a server in the background. How it travels with commands is in `test_execution.py`."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from aviato.core.acknowledgements import Acknowledger
from aviato.exceptions import SandboxUnavailableError
from aviato.wire.execution import ACKNOWLEDGED_AT_ONCE, Acknowledgements

pytestmark = pytest.mark.anyio


async def test_what_is_too_much_for_one_request_is_told_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviato.core.acknowledgements.AGAIN_SECONDS", 0.01)
    told: list[Acknowledgements] = []
    failures = [1, 3]

    async def send(acknowledgements: Acknowledgements) -> None:
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
    await acknowledger.flushed()
    assert len(told) == 3
    assert [sandbox_id for one in told for sandbox_id in one.let_go] == sandboxes
    assert sorted((ack.sandbox_id, ack.exec_id) for one in told for ack in one.execs) == sorted(execs)


async def test_what_came_over_a_stream_is_told_there_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviato.core.acknowledgements.AFTER_EXIT_SECONDS", 0.01)
    told: list[Acknowledgements] = []
    by_stream: list[str] = []
    lives = True

    async def send(acknowledgements: Acknowledgements) -> None:
        told.append(acknowledgements)

    def confirm(exec_id: str) -> bool:
        if lives:
            by_stream.append(exec_id)
        return lives

    acknowledger = Acknowledger(send)
    for name in ("1", "2"):
        acknowledger.received_by_stream(f"sb-{name}", f"ex-{name}", partial(confirm, f"ex-{name}"))
    assert acknowledger.results_of("sb-1") == ["ex-1"] and not by_stream
    await asyncio.sleep(0.1)
    assert by_stream == ["ex-1", "ex-2"] and not told and not acknowledger.results_of("sb-1")

    # A stop says it, and one that closes waits for no timer.
    for name in ("3", "4"):
        acknowledger.received_by_stream(f"sb-{name}", f"ex-{name}", partial(confirm, f"ex-{name}"))
    acknowledger.stopped("sb-3")
    await acknowledger.flushed()
    assert by_stream == ["ex-1", "ex-2", "ex-4"] and not told

    lives = False
    acknowledger.received_by_stream("sb-5", "ex-5", partial(confirm, "ex-5"))
    acknowledger.received("sb-6", "ex-6", 1, 2, done=True)
    await acknowledger.flushed()
    assert [(ack.sandbox_id, ack.exec_id, ack.done) for ack in told[0].execs] == [
        ("sb-6", "ex-6", True),
        ("sb-5", "ex-5", True),
    ]
    assert len(told) == 1 and len(by_stream) == 3


async def test_what_comes_while_a_request_is_on_its_way_is_told_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviato.core.acknowledgements.AFTER_EXIT_SECONDS", 0.01)
    on_its_way, arrived = asyncio.Event(), asyncio.Event()
    by_stream: list[bool] = []

    async def send(_: Acknowledgements) -> None:
        on_its_way.set()
        await arrived.wait()

    def confirm() -> bool:
        by_stream.append(True)
        return True

    acknowledger = Acknowledger(send)
    acknowledger.received("sb-1", "ex-1", 1, 2, done=True)
    await on_its_way.wait()
    acknowledger.received_by_stream("sb-2", "ex-2", confirm)
    arrived.set()
    async with asyncio.timeout(2):
        while not by_stream:
            await asyncio.sleep(0.01)
