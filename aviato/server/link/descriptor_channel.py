"""The server's end of a sandbox's second connection, on which descriptors travel: see `init/src/ports.rs`."""

from __future__ import annotations

import array
import asyncio
import errno
import json
import os
import socket
from typing import Any

ANSWER_SECONDS = 5.0
DIAL_SECONDS = 15.0
"""More than a process 1 takes to give up a connection that nobody accepts."""
MAX_MESSAGE_BYTES = 4096
MAX_DESCRIPTORS = 128


class DescriptorChannel:
    """A `PortChannel` on which sockets themselves travel.

    Args:
        sock: SOCK_SEQPACKET, connected; the channel owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.open = True
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[tuple[dict[str, Any], list[socket.socket]]]] = {}
        self._number = 0
        self._loop.add_reader(sock.fileno(), self._readable)

    async def dial(self, port: int) -> socket.socket:
        """A connection to a port inside, at 127.0.0.1 or ::1. The sandbox is in use until it is told of the end by `release`.

        Raises:
            ConnectionRefusedError: nobody listens.
            TimeoutError: whoever listens does not accept, or the sandbox does not answer.
            OSError: it cannot be reached.
        """
        _, socks = await self._ask({"op": "dial", "port": port}, seconds=DIAL_SECONDS)
        if not socks:
            self.release()
            raise OSError(errno.EMFILE, "the server has no room for another descriptor")
        return socks[0]

    def release(self) -> None:
        """Say that a connection is over."""
        if not self.open:
            return
        try:
            self._sock.send(b'{"id":0,"op":"release"}')
        except BlockingIOError:
            self._loop.call_later(0.01, self.release)
        except OSError:
            self.close()

    async def keep(self, port: int, listener: socket.socket) -> None:
        """Leave a listening socket with the sandbox, for the next server.

        Raises:
            OSError: it cannot be kept.
        """
        await self._ask({"op": "keep", "port": port}, listener)

    async def kept(self) -> dict[int, socket.socket]:
        """The listening sockets that an earlier server left, by the port inside.

        Raises:
            OSError: the sandbox does not answer.
        """
        answer, socks = await self._ask({"op": "kept"})
        return dict(zip(answer["ports"], socks, strict=False))

    async def listen(self, port: int) -> socket.socket:
        """A listening socket at 127.0.0.1 inside: a new one, or the one that an earlier server asked for.

        Raises:
            OSError: it cannot be had.
        """
        _, socks = await self._ask({"op": "listen", "port": port})
        if not socks:
            raise OSError(errno.EMFILE, "the server has no room for another descriptor")
        return socks[0]

    def close(self) -> None:
        """Let go of it; who waits for an answer gets a `ConnectionResetError`."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError(errno.ECONNRESET, "the sandbox has ended"))
        self._asked.clear()

    async def _ask(
        self, request: dict[str, Any], fd: socket.socket | None = None, *, seconds: float = ANSWER_SECONDS
    ) -> tuple[dict[str, Any], list[socket.socket]]:
        self._number += 1
        number = self._number
        answer: asyncio.Future[tuple[dict[str, Any], list[socket.socket]]] = self._loop.create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(seconds):
                await self._send(json.dumps({"id": number, **request}).encode(), fd)
                value, socks = await answer
        except BaseException:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._refuse(*answer.result())
            raise
        finally:
            self._asked.pop(number, None)
        if value.get("errno"):
            raise OSError(value["errno"], os.strerror(value["errno"]))
        return value, socks

    async def _send(self, message: bytes, fd: socket.socket | None) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd.fileno()]))] if fd is not None else []
        while self.open:
            try:
                self._sock.sendmsg([message], ancillary)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):  # Many at once: they are taken one after another.
                    raise
            else:
                return
            await asyncio.sleep(0.002)
        raise ConnectionResetError(errno.ECONNRESET, "the sandbox has ended")

    def _refuse(self, value: dict[str, Any], socks: list[socket.socket]) -> None:
        """An answer that nobody waits for any more."""
        for sock in socks:
            sock.close()
        if socks and "ports" not in value:
            self.release()

    def _readable(self) -> None:
        while self.open:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            socks = [socket.socket(fileno=fd) for fd in fds]
            if not data:
                self.close()
                return
            value = json.loads(data)
            answer = self._asked.get(value["id"])
            if answer is None or answer.done():
                self._refuse(value, socks)
            else:
                answer.set_result((value, socks))
