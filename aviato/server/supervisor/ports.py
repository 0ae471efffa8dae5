"""Ports: sockets of the inside for the server, and its own listening ones kept over its restarts. Standard library only.

The server speaks over a SOCK_SEQPACKET connection of its own, since descriptors travel on it: a message is one request or one
answer in JSON. What it gets is a connected socket, so no byte of a connection passes through this process.
"""

from __future__ import annotations

import array
import errno
import json
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.grading.inside.loop import HANGUP, READ, WRITE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.grading.inside.loop import Loop, Timer

BACKLOG = 16
LISTEN_BACKLOG = 128
DIAL_SECONDS = 10.0
"""For a program that listens and never accepts: its queue is full, and the kernel drops what comes."""
MAX_DIALS = 1024
MAX_MESSAGE_BYTES = 4096
RETRY_SECONDS = 0.05
LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class _Answer(NamedTuple):
    data: bytes
    fds: list[int]
    ours: bool
    """Whether the descriptors stay open here once they are sent."""


class Ports:
    """What the server can ask for on its second connection, where a newer one replaces the older.

    `dial` makes a connection inside, and `release` says that one of them is over; `keep` leaves a listening socket here, and
    `kept` gives those back; `listen` makes a listening socket inside, once, and gives it out each time.

    Args:
        loop: of the supervisor.
        listener: where the server connects.
        used: called when a connection begins or ends.
    """

    def __init__(self, loop: Loop, listener: int, used: Callable[[], None]) -> None:
        self.connections = 0
        """How many the server holds, as far as it has told."""
        self._loop = loop
        self._used = used
        self._kept: dict[int, int] = {}
        self._listening: dict[int, int] = {}
        self._dials: set[_Dial] = set()
        self._answers: deque[_Answer] = deque()
        self._waiting = False
        self._sock: socket.socket | None = None
        self._listener = socket.socket(fileno=listener)
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._watch_listener()

    def _watch_listener(self) -> None:
        self._loop.watch(self._listener.fileno(), READ, self._accept)

    def _accept(self, events: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._loop.forget(self._listener.fileno())
            self._loop.after(1.0, self._watch_listener)
            return
        self._close()
        sock.setblocking(False)
        self._sock = sock
        self._loop.watch(sock.fileno(), READ, self._ready)

    def _close(self) -> None:
        if self._sock is None:
            return
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        self._sock = None
        for dial in list(self._dials):
            dial.stop()
        self._dials.clear()
        for answer in self._answers:
            _discard(answer)
        self._answers.clear()
        self._waiting = False
        if self.connections:
            self.connections = 0
            self._used()

    def _ready(self, events: int) -> None:
        sock = self._sock
        if sock is None:
            return
        if events & WRITE:
            self._waiting = False
            self._loop.change(sock.fileno(), READ)
            self._flush()
        if self._sock is sock and events & (READ | HANGUP):
            self._receive(sock)

    def _receive(self, sock: socket.socket) -> None:
        try:
            data, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(payload)
        if not data:
            self._close()
            return
        try:
            self._do(json.loads(data), list(fds))
        except (KeyError, TypeError, ValueError):
            self._close()

    def _do(self, request: dict[str, Any], fds: list[int]) -> None:
        number, operation = request["id"], request["op"]
        if operation == "keep":
            self._keep(number, request["port"], fds)
        elif operation == "kept":
            self.answer(number, {"ports": list(self._kept)}, list(self._kept.values()), ours=True)
        elif operation == "listen":
            self._listen(number, int(request["port"]))
        elif operation == "release":
            self.connections -= 1
            self._used()
        elif len(self._dials) >= MAX_DIALS:
            self.answer(number, {"errno": errno.EAGAIN})
        else:
            self._used()
            dial = _Dial(self._loop, self, number, int(request["port"]))
            self._dials.add(dial)
            dial.go_on()

    def _keep(self, number: int, port: int, fds: list[int]) -> None:
        if not fds:  # There was no room for it in the table of this process.
            self.answer(number, {"errno": errno.EMFILE})
            return
        older = self._kept.get(port)
        if older is not None:
            os.close(older)
        self._kept[port] = fds[0]
        self.answer(number, {})

    def _listen(self, number: int, port: int) -> None:
        """At the loopback inside. No option lets a program of the inside have the port as well."""
        if port not in self._listening:
            try:
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError as error:
                self.answer(number, {"errno": error.errno or errno.EIO})
                return
            try:
                sock.bind((LOOPBACK[0][1], port))
                sock.listen(LISTEN_BACKLOG)
            except OSError as error:
                sock.close()
                self.answer(number, {"errno": error.errno or errno.EIO})
                return
            self._listening[port] = sock.detach()
        self.answer(number, {"ports": [port]}, [self._listening[port]], ours=True)

    def dialled(self, dial: _Dial, number: int, sock: socket.socket | None, error: int) -> None:
        """A connection came about, or did not."""
        self._dials.discard(dial)
        if sock is not None:
            self.connections += 1
            self.answer(number, {}, [sock.detach()])
        else:
            self.answer(number, {"errno": error})

    def answer(self, number: int, value: dict[str, Any], fds: list[int] | None = None, *, ours: bool = False) -> None:
        """Send an answer as soon as there is room."""
        self._answers.append(_Answer(json.dumps({"id": number, **value}).encode(), fds or [], ours))
        self._flush()

    def _flush(self) -> None:
        while self._sock is not None and self._answers and not self._waiting:
            answer = self._answers[0]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", answer.fds))] if answer.fds else []
            try:
                self._sock.sendmsg([answer.data], ancillary)
            except BlockingIOError:
                self._waiting = True
                self._loop.change(self._sock.fileno(), READ | WRITE)
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # Of this user, too many descriptors are on their way.
                    self._loop.after(RETRY_SECONDS, self._flush)
                    return
                self._close()
                return
            self._answers.popleft()
            _discard(answer)


class _Dial:
    """One connection on its way: first to 127.0.0.1, then to ::1."""

    def __init__(self, loop: Loop, ports: Ports, number: int, port: int) -> None:
        self._loop = loop
        self._ports = ports
        self._number = number
        self._port = port
        self._addresses = iter(LOOPBACK)
        self._sock: socket.socket | None = None
        self._error = 0
        self._timer: Timer = loop.after(DIAL_SECONDS, self._too_late)

    def go_on(self) -> None:
        """Try the next address."""
        for family, host in self._addresses:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError as error:
                self._error = self._error or error.errno or errno.EIO
                continue
            error_number = sock.connect_ex((host, self._port))
            if error_number in (0, errno.EINPROGRESS):
                self._sock = sock
                self._loop.watch(sock.fileno(), WRITE, self._ready)
                return
            sock.close()
            self._error = self._error or error_number
        self._end(None)

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._timer.cancel()
        sock = self._take()
        if sock is not None:
            sock.close()

    def _ready(self, events: int) -> None:
        sock = self._take()
        if sock is None:
            return
        error_number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error_number == 0 and not _to_itself(sock):
            self._end(sock)
            return
        sock.close()
        self._error = self._error or error_number or errno.ECONNREFUSED
        self.go_on()

    def _too_late(self) -> None:
        sock = self._take()
        if sock is not None:
            sock.close()
        self._error = errno.ETIMEDOUT
        self._end(None)

    def _take(self) -> socket.socket | None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.forget(sock.fileno())
        return sock

    def _end(self, sock: socket.socket | None) -> None:
        self._timer.cancel()
        self._ports.dialled(self, self._number, sock, self._error)


def _to_itself(sock: socket.socket) -> bool:
    """Whether it has met itself: where nobody listens, the kernel may give a connection the very port that it goes to."""
    try:
        return bool(sock.getsockname()[:2] == sock.getpeername()[:2])
    except OSError:
        return True


def _discard(answer: _Answer) -> None:
    if not answer.ours:
        for fd in answer.fds:
            os.close(fd)
