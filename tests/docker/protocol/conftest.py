"""Process 1 in a container, for the contract's suite."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from aviato.server.backends.base import SandboxSpec
from aviato.server.backends.conformance.fixtures import peer, process_1
from aviato.server.backends.conformance.process_1 import Make, Process1
from aviato.server.backends.docker import backend as docker
from aviato.server.backends.docker.containers import name_of
from aviato.wire.ids import new_sandbox_id
from tests.docker.engines import Engine
from tests.matrices import deep
from tests.protocol.implementations import _Link

__all__ = ["peer", "process_1"]


@asynccontextmanager
async def carried(backend: Any, engine: Engine, image: str, options: dict[str, Any]) -> AsyncIterator[Process1]:
    """`aviato-init serve --place`, as the backend has it run."""
    spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=backend.resolve_image(image), **options)
    made: Process1 | None = None
    pidfd = -1
    try:
        with mock.patch.object(docker, "Process1Link", _Link):
            link: Any = await backend.create(spec)
        places = backend._directories
        pidfd = os.pidfd_open(engine.inspect(name_of(spec.sandbox_id))["State"]["Pid"])
        note = Path(places.path(spec.sandbox_id)) / "note"
        made = Process1(link.peer, lambda: places.connect(spec.sandbox_id), note, pidfd)
        yield made
    finally:
        if made is not None:
            made.close()
        if pidfd >= 0:
            os.close(pidfd)
        await backend.destroy(spec.sandbox_id)


@pytest.fixture(scope="module", params=deep(["a container"]))
def make(backend: Any, engine: Engine, python_image: str) -> Make:
    """Makes one, with these fields of `SandboxSpec`."""
    return lambda **options: carried(backend, engine, python_image, options)
