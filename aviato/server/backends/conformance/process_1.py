"""A running process 1, as the suite has it."""

from __future__ import annotations

import asyncio
import json
import select
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aviato.server.backends.conformance.peer import PATIENCE_SECONDS, Peer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


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

    @property
    def pid(self) -> int:
        """Its number here, where it may have been started by another process that waits for it."""
        pid = int(_line(Path(f"/proc/self/fdinfo/{self._pidfd}"), "Pid")[0])
        while _line(Path(f"/proc/{pid}/status"), "NSpid")[-1] != "1":
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return pid

    async def connect(self) -> Peer:
        """Another connection, once it is the one that counts."""
        sock = await asyncio.to_thread(self._dial)
        assert sock is not None
        peer = Peer(sock)
        self._made.append(peer)
        await peer.ready()
        return peer

    async def last_words(self) -> list[dict[str, Any]]:
        """Once it is gone: the lines of its note."""
        assert await asyncio.to_thread(_is_gone, self._pidfd), "it lives on"
        return [json.loads(line) for line in self._note.read_text().splitlines()]

    def close(self) -> None:
        """Let go of all connections."""
        for peer in (self.peer, *self._made):
            peer.close()


def _is_gone(pidfd: int) -> bool:
    """Whether it ends while somebody is patient."""
    return bool(select.select([pidfd], [], [], PATIENCE_SECONDS)[0])


def _line(path: Path, name: str) -> list[str]:
    """The words behind a name in a file of `/proc`."""
    return next(line.split()[1:] for line in path.read_text().splitlines() if line.startswith(f"{name}:"))


class Make(Protocol):
    """What makes one: the fixture `make`."""

    def __call__(self, **options: Any) -> AbstractAsyncContextManager[Process1]:
        """One with these fields of `SandboxSpec`, ended with the context."""
