"""Sandboxes of the real local backend, and a real server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real_backend import anyio_backend, backend, box, boxes, make_box

__all__ = ["anyio_backend", "backend", "box", "boxes", "make_box"]


@pytest.fixture
def served(server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The run's server is the one that `AVIATO_BASE_URL` names."""
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return server
