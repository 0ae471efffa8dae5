"""Memory shared with a server on this machine: contents of files and large output go by no socket. See `wire.shared_memory`.

A piece of it serves one sandbox and is kept for a moment, since new memory costs as much as sockets do: it begins with the
second large file of a sandbox. It is never mapped here, only read and written by calls: nobody who has it, too, can end this
process by shortening it.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from aviato.exceptions import SandboxUnavailableError
from aviato.transport.memory_connection import MemoryConnection
from aviato.wire.shared_memory import CONFIRMED_AT, MOST_BYTES, REFUSED, SEALS, SIZE, confirmation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEPT_SECONDS = 5.0
"""How long a piece is kept that nobody uses."""
ROOM_BYTES = 256 << 10
MOST_PIECES = 16
"""That one loop shares at a time."""
MOST_REFUSALS = 3
"""One after the other; then none is shared for a while."""
REFUSED_SECONDS = 60.0
REMEMBERED = 1024
"""Sandboxes that are known to have large files or output."""
MOST_UNUSED = 3
"""Requests of a sandbox, one after the other, that had no use for it: then it is known no more."""
F_ADD_SEALS = 1033


class Memory:
    """One piece, for one request at a time, which must `keep` or `drop` it.

    Args:
        owner: what shares it.
        use: what for, as `Memories.note` was told.
        sandbox_id: of the sandbox that it serves: what one can write to, no other reads.

    Attributes:
        name: for requests, see `wire.shared_memory`.
        used: whether the request has had a use for it.
        used_at: when it was, by the loop's clock.

    Raises:
        OSError: there is no more.
    """

    def __init__(self, owner: Memories, use: str, sandbox_id: str) -> None:
        self._secret = secrets.token_bytes(16)
        self._fd = os.memfd_create("aviato", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Whoever has it in the sandbox cannot make it more than it is here.
            os.ftruncate(self._fd, SIZE)
            fcntl.fcntl(self._fd, F_ADD_SEALS, SEALS)
        except BaseException:
            self.close()
            raise
        self.name = self._secret.hex()
        self.use = use
        self.sandbox_id = sandbox_id
        self.used = False
        self.used_at = 0.0
        self._owner = owner

    def put(self, content: Sequence[bytes]) -> None:
        """Write to it.

        Raises:
            SandboxUnavailableError: it takes no more.
        """
        position = 0
        with _told():
            for piece in content:
                view = memoryview(piece)
                while view:
                    count = os.pwrite(self._fd, view, position)
                    position, view = position + count, view[count:]

    def get(self, size: int) -> bytes:
        """What was put into it by the sandbox's side.

        Raises:
            SandboxUnavailableError: there is less.
        """
        self.used = True
        with _told():
            content = os.pread(self._fd, min(size, MOST_BYTES), 0)
        if len(content) != size:
            raise _missing(size - len(content))
        return content

    def pieces(self, position: int, size: int) -> Iterator[memoryview]:
        """What lies in it from there on, in pieces that are good until the next.

        Raises:
            SandboxUnavailableError: there is less.
        """
        self.used = True
        room = self._owner.room
        if position + size > CONFIRMED_AT:
            raise _missing(size)
        while size:
            with _told():
                count = os.preadv(self._fd, [room[:size]], position)
            if not count:
                raise _missing(size)
            position, size = position + count, size - count
            yield room[:count]

    def confirm(self, offset: int) -> None:
        """Say in it how much of an output is here, see `wire.shared_memory`.

        Raises:
            SandboxUnavailableError: it cannot be said.
        """
        with _told():
            os.pwrite(self._fd, confirmation(offset), CONFIRMED_AT)

    def keep(self) -> None:
        """The request is over, and nobody else has it any more or does anything with it."""
        self._owner.kept(self)

    def drop(self) -> None:
        """Nobody knows who may still use it: it serves no other request. Idempotent."""
        self._owner.dropped(self)

    def close(self) -> None:
        """Let go of it; it is of no use from then on."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def share(self, connection: MemoryConnection) -> bool:
        """Have the server know it; False where that cannot be done."""
        return connection.share(self._secret, self._fd)

    def unshare(self, connection: MemoryConnection) -> None:
        """Have the server forget it."""
        connection.forget(self._secret)


class Memories:
    """What one loop shares with one server. A sandbox has one piece that is kept, and as many as it needs at a time.

    Args:
        name: of the server's socket, as `connect` takes it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._connection: MemoryConnection | None = None
        self.room = memoryview(mmap.mmap(-1, ROOM_BYTES))
        """Where a piece is read to: of this loop alone, and kept, since new memory for each would cost more than its bytes."""
        self._busy: set[Memory] = set()
        self._idle: dict[str, Memory] = {}
        self._large: dict[str, int] = {}
        """How many requests in a row had no use for it."""
        self._refusals = 0
        self._refused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        _all.add(self)

    def note(self, use: str) -> None:
        """There was a large file of this sandbox, or large output: for the next it is worth having memory."""
        self._large.pop(use, None)
        self._large[use] = 0
        while len(self._large) > REMEMBERED:
            del self._large[next(iter(self._large))]

    async def take(self, use: str, sandbox_id: str) -> Memory | None:
        """A piece for a request; None where the socket will do."""
        if use not in self._large or (self._refused_until and asyncio.get_running_loop().time() < self._refused_until):
            return None
        if self._connection is None:
            self._connection = MemoryConnection(self._name, self._over)
        connection = self._connection
        if not await connection.ready():
            return None
        memory = self._idle.pop(sandbox_id, None)
        if memory is None:
            if len(self._busy) + len(self._idle) >= MOST_PIECES:
                return None
            try:
                memory = Memory(self, use, sandbox_id)
            except (OSError, AttributeError):
                return None
            if not memory.share(connection):
                memory.close()
                return None
        memory.use, memory.used = use, False
        self._busy.add(memory)
        return memory

    def refused(self) -> None:
        """The server has not got what it was to have."""
        self._refusals += 1
        if self._refusals >= MOST_REFUSALS:
            self._refused_until = asyncio.get_running_loop().time() + REFUSED_SECONDS

    def kept(self, memory: Memory) -> None:
        """See `Memory`."""
        if memory not in self._busy:
            return
        self._busy.remove(memory)
        if memory.used:
            self._refusals, self._refused_until = 0, 0.0
            if memory.use in self._large:
                self._large[memory.use] = 0
        elif memory.use in self._large:
            self._large[memory.use] += 1
            if self._large[memory.use] >= MOST_UNUSED:
                del self._large[memory.use]
        if memory.sandbox_id in self._idle:
            self._close(memory)
            return
        loop = asyncio.get_running_loop()
        memory.used_at = loop.time()
        self._idle[memory.sandbox_id] = memory
        if self._timer is None:
            self._timer = loop.call_later(KEPT_SECONDS, self._look)

    def dropped(self, memory: Memory) -> None:
        """See `Memory`."""
        self._busy.discard(memory)
        self._close(memory)

    def close(self) -> None:
        """Let go of all of it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._close_all()

    def leave(self) -> None:
        """In a forked child: it would hold its parent's memory for as long as it lives."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave()
        self._close_all()

    def _over(self, is_refused: bool) -> None:
        """The server has let go of all of it. One of an earlier version takes none."""
        self._connection = None
        self._close_all()
        if is_refused:
            self._refused_until = asyncio.get_running_loop().time() + REFUSED_SECONDS

    def _close(self, memory: Memory) -> None:
        if self._connection is not None:
            memory.unshare(self._connection)
        memory.close()

    def _close_all(self) -> None:
        for memory in (*self._busy, *self._idle.values()):
            memory.close()
        self._busy.clear()
        self._idle.clear()

    def _look(self) -> None:
        """Let go of what nobody has used for a while."""
        self._timer = None
        loop = asyncio.get_running_loop()
        before = loop.time() - KEPT_SECONDS
        for memory in [one for one in self._idle.values() if one.used_at <= before]:
            del self._idle[memory.sandbox_id]
            self._close(memory)
        if self._idle:
            first = min(one.used_at for one in self._idle.values())
            self._timer = loop.call_later(max(0.0, first - before), self._look)


_all: WeakSet[Memories] = WeakSet()


def _leave_all() -> None:
    for memories in list(_all):
        memories.leave()


os.register_at_fork(after_in_child=_leave_all)


def _missing(size: int) -> SandboxUnavailableError:
    return SandboxUnavailableError(f"{size} bytes are missing in the shared memory", reason=REFUSED)


@contextmanager
def _told() -> Iterator[None]:
    """What the kernel refuses is for the socket to do."""
    try:
        yield
    except OSError as error:
        raise SandboxUnavailableError(f"shared memory is of no use: {error}", reason=REFUSED) from None
