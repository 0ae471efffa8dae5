"""Each implementation of process 1, in a sandbox of the local backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.matrices import deep
from tests.protocol.implementations import IMPLEMENTATIONS, Process1
from tests.protocol.peer import Peer
from tests.real_backend import anyio_backend, backend

__all__ = ["anyio_backend", "backend"]

Make = Callable[..., AbstractAsyncContextManager[Process1]]


FIRST, *OTHERS = IMPLEMENTATIONS


@pytest.fixture(params=[FIRST, *deep(OTHERS)])
def make(request: pytest.FixtureRequest, backend: Any) -> Make:
    """Makes one, with these fields of `SandboxSpec`."""
    return lambda **options: IMPLEMENTATIONS[request.param](backend, options)


@pytest.fixture
async def process_1(make: Make) -> AsyncIterator[Process1]:
    async with make() as made:
        yield made


@pytest.fixture
async def peer(process_1: Process1) -> Peer:
    """Its first connection."""
    return process_1.peer
