"""Sandboxes of each backend that this machine can have."""

from __future__ import annotations

import pytest

from aviato.server.backends.local import landlock_calls as calls
from tests.real_backend import anyio_backend, boxes, open_backend

__all__ = ["anyio_backend", "boxes", "carrier"]


@pytest.fixture(scope="module", params=["local", pytest.param("landlock", marks=pytest.mark.deep)])
async def carrier(request, anyio_backend):
    """A backend, with its name."""
    if request.param == "landlock" and not calls.abi():
        pytest.skip("this kernel has no Landlock")
    async for opened in open_backend(request.param):
        yield request.param, opened
