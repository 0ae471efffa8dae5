"""Memory lent to a server on the same machine, so that contents of files go by no socket. See `wire.memory`.

A piece of it serves one sandbox and is kept for a moment, since new memory costs as much as sockets do: it begins with the
second large file of a sandbox. It is never mapped here, only read and written by calls: nobody who has it, too, can end this
process by shortening it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.transport.answers import parse_head
from aviato.wire.memory import CONFIRMED, CONFIRMED_AT, MOST_BYTES, MOST_PIECES, NAME_HEADER, NUMBER, REFUSED, UPGRADE
from aviato.wire.version import WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEPT_SECONDS = 5.0
"""How long a piece is kept that nobody uses."""
CONNECT_SECONDS = 1.0
ROOM_BYTES = 256 << 10
MOST_REFUSALS = 3
"""One after the other."""
REMEMBERED = 1024
"""Sandboxes that are known to have large files."""


class Memory:
    """One piece, for one request at a time.

    Args:
        lender: it belongs to.
        use: the sandbox that it serves, or the command.
        number: of it.
        fd: of it.

    Attributes:
        name: for requests.
        used_at: when it was, by the loop's clock.
    """

    def __init__(self, lender: Lender, use: str, number: int, fd: int) -> None:
        self.name = f"{lender.name}.{number}"
        self.use = use
        self.number = number
        self.busy = True
        self.used_at = 0.0
        self._lender = lender
        self._fd = fd

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
        room = self._lender.room()
        while size:
            with _told():
                count = os.preadv(self._fd, [room[:size]], position)
            if not count:
                raise _missing(size)
            position, size = position + count, size - count
            yield room[:count]

    def confirm(self, offset: int) -> None:
        """Say in it how much of an output is here, see `wire.memory`.

        Raises:
            SandboxUnavailableError: it cannot be said.
        """
        with _told():
            os.pwrite(self._fd, CONFIRMED.pack(offset), CONFIRMED_AT)

    def keep(self) -> None:
        """The request has its answer."""
        self.busy = False
        self._lender.kept(self)

    def drop(self) -> None:
        """Nobody knows who may still use it: it serves no other request."""
        self._lender.drop(self)

    def close(self) -> None:
        """Let go of it; it is of no use from then on."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _missing(size: int) -> SandboxUnavailableError:
    return SandboxUnavailableError(f"{size} bytes are missing in the memory that was lent", reason=REFUSED)


@contextmanager
def _told() -> Iterator[None]:
    """What the kernel refuses is for the socket to do."""
    try:
        yield
    except OSError as error:
        raise SandboxUnavailableError(f"memory that was lent is of no use: {error}", reason=REFUSED) from None


class Lender:
    """What one loop lends to one server.

    Args:
        address: of the server's socket, as `connect` takes it.
    """

    def __init__(self, address: str) -> None:
        self.name = ""
        self._address = address
        self._sock: socket.socket | None = None
        self._able = True
        self._room: memoryview | None = None
        self._refusals = 0
        self._connecting = False
        self._pieces: dict[str, Memory] = {}
        self._large: dict[str, None] = {}
        self._last = 0
        self._timer: asyncio.TimerHandle | None = None
        """Looks for what nobody uses."""

    def room(self) -> memoryview:
        """Where a piece is read to: of this loop alone, and kept, since new memory for each would cost more than its bytes."""
        if self._room is None:
            self._room = memoryview(mmap.mmap(-1, ROOM_BYTES))
        return self._room

    def noted(self, what: str) -> None:
        """A large file of this sandbox went by the socket, or large output of it came."""
        self._large[what] = None
        while len(self._large) > REMEMBERED:
            del self._large[next(iter(self._large))]

    def is_noted(self, what: str) -> bool:
        """Whether `noted` was told this."""
        return what in self._large

    async def memory(self, sandbox_id: str) -> Memory | None:
        """A piece for a request, which must `keep` or `drop` it; None where the socket will do."""
        return await self._piece(sandbox_id) if sandbox_id in self._large else None

    async def output(self, exec_id: str) -> Memory | None:
        """A piece for what a command prints, which must be dropped at its end; None where the socket will do."""
        return await self._piece(exec_id)

    async def _piece(self, use: str) -> Memory | None:
        found = self._pieces.get(use)
        if found is not None:
            if found.busy:
                return None
            found.busy = True
            return found
        if not self._able or len(self._pieces) >= MOST_PIECES:
            return None
        if self._sock is None and not await self._connect():
            return None
        return None if use in self._pieces else self._new(use)

    def refused(self) -> None:
        """The server did not know what was lent: it is another one, or what is between here and there loses descriptors."""
        self.close()
        self._refusals += 1
        self._able = self._refusals < MOST_REFUSALS

    def kept(self, memory: Memory) -> None:
        """It is free again."""
        self._refusals = 0
        loop = asyncio.get_running_loop()
        memory.used_at = loop.time()
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is None and self._sock is not None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._look)

    def drop(self, memory: Memory) -> None:
        """Take a piece back."""
        if self._pieces.get(memory.use) is memory:
            del self._pieces[memory.use]
            memory.close()
            self._send(NUMBER.pack(memory.number), None)
            self._look_later()

    def close(self) -> None:
        """Take all of it back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for memory in self._pieces.values():
            memory.close()
        self._pieces.clear()
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _new(self, use: str) -> Memory | None:
        try:
            fd = os.memfd_create("aviato", os.MFD_CLOEXEC)
        except (OSError, AttributeError):
            self._able = False
            return None
        self._last += 1
        memory = self._pieces[use] = Memory(self, use, self._last, fd)
        if not self._send(NUMBER.pack(memory.number), fd):
            return None
        return memory

    def _send(self, data: bytes, fd: int | None) -> bool:
        """At once or not at all; then the connection is of no use, nor is what was lent over it."""
        if self._sock is None:
            return False
        try:
            socket.send_fds(self._sock, [data], [] if fd is None else [fd])
        except OSError:
            self.close()
            return False
        return True

    async def _connect(self) -> bool:
        if self._connecting:
            return False
        self._connecting = True
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._able = await self._upgrade(sock)
            if self._able:
                self._sock = sock
            return self._able
        except (OSError, ValueError, TimeoutError):
            return False  # Whoever asks over the usual connections learns what is wrong with this server.
        finally:
            self._connecting = False
            if self._sock is not sock:
                sock.close()

    async def _upgrade(self, sock: socket.socket) -> bool:
        """Whether the server takes memory."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        await loop.sock_connect(sock, self._address)
        head = f"POST /v1/memory HTTP/1.1\r\nHost: localhost\r\n{WIRE_HEADER}: {WIRE_VERSION}\r\n"
        head += f"Connection: Upgrade\r\nUpgrade: {UPGRADE}\r\nContent-Length: 0\r\n\r\n"
        await loop.sock_sendall(sock, head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = await loop.sock_recv(sock, 4096)
            if not piece:
                return False
            answer += piece
        protocol, status, rest = answer.partition(b"\r\n\r\n")[0].split(b" ", 2)
        if status != b"101":
            return False
        # Those that it reads are never so low: the rest is a head like any other.
        self.name = parse_head(b"%b 200 %b" % (protocol, rest)).headers.get(NAME_HEADER, "")
        return bool(self.name)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        before = loop.time() - KEPT_SECONDS
        for memory in [one for one in self._pieces.values() if not one.busy and one.used_at <= before]:
            self.drop(memory)
        if self._pieces:
            self._timer = loop.call_later(KEPT_SECONDS, self._look)
        else:
            self.close()  # Else a server that ends when nobody needs it would stay for this connection.
