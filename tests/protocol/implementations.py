"""Programs that speak the protocol. A new one is a function here: from options to a running process 1."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from aviato.server.backends.base import SandboxSpec
from aviato.server.backends.local import backend as local
from aviato.server.backends.local import native
from aviato.server.supervisor.link import Configuration
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_sandbox_id
from tests.protocol.peer import PATIENCE_SECONDS, Peer


class Process1:
    """A running one.

    Args:
        peer: its first connection, after HELLO.
        dial: makes another one; None where it listens no more.
        note: the file of its last words.
        pidfd: of it.
    """

    def __init__(self, peer: Peer, dial: Callable[[], socket.socket | None], note: Path, pidfd: int) -> None:
        self.peer = peer
        self._dial = dial
        self._note = note
        self._pidfd = pidfd
        self._made: list[Peer] = []

    async def connect(self) -> Peer:
        """Another connection, once it is the one that counts."""
        sock = await asyncio.to_thread(self._dial)
        assert sock is not None
        peer = Peer(sock, forms=self.peer.forms)
        self._made.append(peer)
        await peer.ready()
        return peer

    async def last_words(self) -> list[dict[str, Any]]:
        """Once it is gone: the lines of its note."""
        gone = await asyncio.to_thread(select.select, [self._pidfd], [], [], PATIENCE_SECONDS)
        assert gone[0], "it lives on"
        return [json.loads(line) for line in self._note.read_text().splitlines()]

    def close(self) -> None:
        """Let go of all connections."""
        for peer in (self.peer, *self._made):
            peer.close()


class _Link:
    """What the backend holds in the place of its own end."""

    peer: Peer
    forms: bool

    @classmethod
    async def connect(cls, sandbox_id: str, sock: socket.socket, configuration: Configuration) -> _Link:
        """See `SupervisorLink`."""
        link = cls()
        link.peer = Peer(sock, forms=cls.forms)
        payload = configuration.payload
        form = configuration.form
        if not cls.forms and form:
            payload, form = payload[int.from_bytes(payload[:4], "little") :], 0
        await link.peer.send(FrameType.REQUEST, payload, stream=form)
        await link.peer.ready()
        assert link.peer.hello, "it ended before HELLO"
        return link

    def ended(self) -> None:
        """Whether it has: nobody asks here."""

    def detach(self) -> None:
        """See `SupervisorLink`."""
        self.peer.close()


@asynccontextmanager
async def _of_the_backend(backend: Any, compiled: bool, options: dict[str, Any]) -> AsyncIterator[Process1]:
    if compiled and not native.wanted():
        pytest.skip("no C compiler was there when aviato was installed")
    spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=backend.resolve_image(None), **options)
    kind = type("Link", (_Link,), {"forms": compiled})
    usual, backend._native = backend._native, compiled
    made: Process1 | None = None
    try:
        with mock.patch.object(local, "SupervisorLink", kind):
            link = await backend.create(spec)
        places, pidfd = backend._places, backend._held[spec.sandbox_id].pidfd
        note = Path(places.path(spec.sandbox_id)) / "note"
        made = Process1(link.peer, lambda: places.connect(spec.sandbox_id), note, pidfd)
        yield made
    finally:
        backend._native = usual
        if made is not None:
            made.close()
        await backend.destroy(spec.sandbox_id)


def compiled(backend: Any, options: dict[str, Any]) -> AbstractAsyncContextManager[Process1]:
    """Begins in compiled code, and goes over to Python where that does not do."""
    return _of_the_backend(backend, True, options)


def python(backend: Any, options: dict[str, Any]) -> AbstractAsyncContextManager[Process1]:
    """Python from the beginning, asked in plain JSON."""
    return _of_the_backend(backend, False, options)


IMPLEMENTATIONS = {"compiled": compiled, "python": python}
