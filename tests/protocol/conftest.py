"""Each implementation of process 1, in a sandbox of the local backend."""

from __future__ import annotations

from typing import Any

import pytest

from aviato.server.backends.conformance.fixtures import peer, process_1
from aviato.server.backends.conformance.process_1 import Make
from tests.matrices import deep
from tests.protocol.implementations import IMPLEMENTATIONS
from tests.real_backend import anyio_backend, backend

__all__ = ["anyio_backend", "backend", "peer", "process_1"]

FIRST, *OTHERS = IMPLEMENTATIONS


@pytest.fixture(scope="module", params=[FIRST, *deep(OTHERS)])
def make(request: pytest.FixtureRequest, backend: Any) -> Make:
    """Makes one, with these fields of `SandboxSpec`."""
    return lambda **options: IMPLEMENTATIONS[request.param](backend, options)
