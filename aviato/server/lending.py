"""Memory that clients on this machine lend: its descriptors are taken here and passed on, and nothing here looks into it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import socket
import struct
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.wire.memory import MOST_PIECES, NUMBER, REFUSED

if TYPE_CHECKING:
    from aviato.server.callers import Caller
    from aviato.server.supervisor.link import SupervisorLink
    from aviato.server.supervisor.subscription import Subscription

F_GET_SEALS = 1034
MOST_AT_ONCE = 4 * MOST_PIECES
"""Numbers that are taken in one turn of the loop: who sends more than a client has gets others no less of the server."""
_FD = struct.Struct("=i")
_ONE = socket.CMSG_LEN(_FD.size)


class Memory:
    """A piece of it.

    Attributes:
        fd: of it; -1 once it was taken back.
        borrower: the sandbox that has it: what one can write to, no other reads.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.borrower: str | None = None
        self._links: dict[SupervisorLink, asyncio.Task[int]] = {}

    async def number(self, link: SupervisorLink, output: tuple[Subscription, int] | None = None) -> int:
        """By which the supervisor knows it, which is given it the first time; an `output` is then kept there."""
        passed = self._links.get(link)
        if passed is None or (passed.done() and (passed.cancelled() or passed.exception() is not None)):
            if self.fd < 0:
                raise refused("it was taken back")
            passed = self._links[link] = asyncio.get_running_loop().create_task(self._pass(link, output))
        return await asyncio.shield(passed)

    async def _pass(self, link: SupervisorLink, output: tuple[Subscription, int] | None) -> int:
        # Of its own: the other is closed when the memory is taken back meanwhile, and its number may be another file's then.
        try:
            fd = os.dup(self.fd)
        except OSError as error:
            raise refused(f"it cannot be passed on: {error}") from None
        try:
            number = await link.lend(fd, output)
        finally:
            os.close(fd)
        if self.fd < 0:
            link.give_back(number)
            raise refused("it was taken back")
        return number

    def close(self) -> None:
        """It was taken back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            for link, passed in self._links.items():
                if passed.done() and not passed.cancelled() and passed.exception() is None:
                    link.give_back(passed.result())
            self._links.clear()


class Lender:
    """One connection of a client that lends.

    Args:
        sock: of it; owned.
        caller: whose it is.
    """

    def __init__(self, sock: socket.socket, caller: Caller) -> None:
        self.name = secrets.token_hex(16)
        self.caller = caller
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sock = sock
        self._lent: dict[int, Memory] = {}
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self.take)

    def find(self, number: int) -> Memory | None:
        """The piece of this number."""
        self.take()
        return self._lent.get(number)

    def take(self) -> None:
        """What has come: a client asks over another connection as soon as it has sent it."""
        for _ in range(MOST_AT_ONCE):
            if self._sock.fileno() < 0:
                return
            try:
                data, ancillary, _, _ = self._sock.recvmsg(NUMBER.size, _ONE, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            fds = [_FD.unpack(found[: _FD.size])[0] for _, kind, found in ancillary if kind == socket.SCM_RIGHTS]
            if len(data) < NUMBER.size:
                for fd in fds:
                    os.close(fd)
                self.close()
                return
            (number,) = NUMBER.unpack(data)
            if (older := self._lent.pop(number, None)) is not None:
                older.close()
            for fd in fds:
                if len(self._lent) < MOST_PIECES and _is_memory(fd):
                    self._lent[number] = Memory(fd)
                else:
                    os.close(fd)

    def close(self) -> None:
        """The client has gone."""
        if self._sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
        for memory in self._lent.values():
            memory.close()
        self._lent.clear()
        if not self.over.done():
            self.over.set_result(None)


class Lenders:
    """All of them."""

    def __init__(self) -> None:
        self._by_name: dict[str, Lender] = {}

    def add(self, lender: Lender) -> None:
        """It begins."""
        self._by_name[lender.name] = lender

    def remove(self, lender: Lender) -> None:
        """It is over."""
        self._by_name.pop(lender.name, None)
        lender.close()

    def close(self) -> None:
        """End them all."""
        for lender in self._by_name.values():
            lender.close()

    def memory(self, name: str, sandbox_id: str, caller: Caller) -> Memory:
        """What a request names.

        Raises:
            AviatoValidationError: there is none of this name for this caller and this sandbox.
        """
        lender_name, _, number = name.partition(".")
        lender = self._by_name.get(lender_name)
        memory = None
        if lender is not None and lender.caller.tenant == caller.tenant and number.isdecimal():
            memory = lender.find(int(number))
        if memory is None or memory.borrower not in (None, sandbox_id):
            raise refused("no memory of this name was lent to this sandbox")
        memory.borrower = sandbox_id
        return memory


def refused(message: str) -> AviatoValidationError:
    """What tells a client to send by the socket."""
    return AviatoValidationError(message, reason=REFUSED, field_violations={"memory": message})


def _is_memory(fd: int) -> bool:
    """Whether it is memory and nothing else: no file, device or directory of this machine goes into a sandbox."""
    try:
        fcntl.fcntl(fd, F_GET_SEALS)
    except OSError:
        return False
    return os.fstat(fd).st_nlink == 0
