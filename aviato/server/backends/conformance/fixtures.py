"""What the rows of the suite ask for, on top of a backend's own fixture `make`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.backends.conformance.peer import Peer
    from aviato.server.backends.conformance.process_1 import Make, Process1


@pytest.fixture
async def process_1(make: Make) -> AsyncIterator[Process1]:
    """One of the row's own."""
    async with make() as made:
        yield made


@pytest.fixture
async def peer(process_1: Process1) -> Peer:
    """Its first connection."""
    return process_1.peer


__all__ = ["peer", "process_1"]
