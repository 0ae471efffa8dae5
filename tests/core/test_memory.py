"""When a call by memory counts, and what becomes of the memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aviato.core import shared_memory
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxFileError, SandboxUnavailableError
from aviato.wire.shared_memory import REFUSED

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Memories:
    """Of one piece, which is its own."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def take(self, use: str, sandbox_id: str) -> Any:
        return self

    def keep(self) -> None:
        self.said.append("kept")

    def drop(self) -> None:
        self.said.append("dropped")

    def refused(self) -> None:
        self.said.append("refused")


def handle(memories: Memories) -> Any:
    return SimpleNamespace(sandbox_id="sb", client=SimpleNamespace(transport=SimpleNamespace(memories=memories)))


async def test_memory_with_an_answer_is_kept() -> None:
    memories = Memories()

    async def call(memory: Any) -> str:
        return "done"

    assert await shared_memory.attempt(handle(memories), call) == "done"
    assert memories.said == ["kept"]


@pytest.mark.parametrize(
    ("error", "goes_up", "said"),
    [
        (SandboxUnavailableError("cut"), False, ["dropped"]),
        (AviatoValidationError("no", reason=REFUSED, field_violations={"memory_bytes": "no"}), False, ["dropped", "refused"]),
        (AviatoValidationError("?", field_violations={"memory_bytes": "unknown"}), False, ["dropped", "refused"]),
        (AviatoValidationError("mode", field_violations={"mode": "no"}), True, ["dropped"]),
        (SandboxFileError("full", reason="disk_full"), True, ["dropped"]),
        (asyncio.CancelledError(), True, ["dropped"]),
    ],
)
async def test_memory_of_which_nobody_knows_who_uses_it_serves_nobody_else(
    error: BaseException, goes_up: bool, said: list[str]
) -> None:
    """A request that was given up may still be read by process 1 when the next content would lie there."""
    memories = Memories()

    async def call(memory: Any) -> str:
        raise error

    if goes_up:
        with pytest.raises((AviatoError, asyncio.CancelledError)):
            await shared_memory.attempt(handle(memories), call)
    else:
        assert await shared_memory.attempt(handle(memories), call) is None
    assert memories.said == said
