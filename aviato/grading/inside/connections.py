"""Runs in a grader's sandbox, as a part of `broker.py`: connections of processes of tests to the solutions of their tasks.

What comes from a solution is of hostile code: it is cut into messages by lengths, and no content is looked at.
"""

from __future__ import annotations

import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.grading.inside.broker import Task
    from aviato.grading.inside.loop import READ, WRITE, Loop

MOST_BYTES = 8 << 20
HEAD_BYTES = 32
PIECE_BYTES = 1 << 20
HIGH_MARK_BYTES = 4 << 20
"""Of answers that no test has taken: from so much on no more of them are to come."""
MOST_STRAY_MESSAGES = 256
"""Of a solution, that answer nothing which was asked."""


def listen(loop: Loop, path: str, accept: Callable[[socket.socket], None]) -> None:
    """Hear whoever connects to a path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)  # Who finds it can connect, and who cannot connect need not wait.
    loop.watch(listener.fileno(), READ, lambda events: accept(listener.accept()[0]))


class Connections:
    """Of processes of one task, to its solution."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.loop = task.loop
        self.open = True
        self.peers: dict[int, Peer] = {}
        self.early: list[bytes] = []
        """Answers to calls that were given ahead, until somebody asks for them."""
        self.last = 1
        """The first is for the first process of the tests: the solution has its calls, or has begun to load for it."""
        self.first_is_free = True
        self.stray = 0
        self.owed: dict[int, int] = {}
        """By connections that are gone: how many answers to what they have asked may be on their way."""
        self.data = b""
        self.waiting_bytes = 0
        """Of answers that no test has taken: what is asked ahead is answered before it is read."""
        self.paused = False

    def accept(self, sock: socket.socket) -> None:
        if not self.open:
            sock.close()
            return
        if self.first_is_free and not self.task.done:
            self.peers[1] = Peer(self, sock, 1, sum(map(len, self.task.told.get("calls", ()))))
        else:
            self.last += 1
            self.peers[self.last] = Peer(self, sock, self.last)
        self.first_is_free = False
        if self.early:
            early, self.early = self.early, []
            for message in early:
                self.wait_with(-len(message))
                self.deliver(1, message)

    def ask(self, data: bytes) -> None:
        self.task.broker.say(self.task.number, b"c", data)

    def answered(self, data: bytes) -> None:
        """Cut what has come from the solution."""
        self.data += data
        while self.open:
            end = self.data.find(b"\n", 0, HEAD_BYTES)
            if end < 0:
                if len(self.data) >= HEAD_BYTES:
                    self.close()
                return
            words = self.data[:end].split(b" ")
            if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()) or int(words[1]) > MOST_BYTES:
                self.close()
                return
            number, size = map(int, words)
            if len(self.data) < end + 1 + size:
                return
            message, self.data = self.data[end + 1 : end + 1 + size], self.data[end + 1 + size :]
            self.deliver(number, message)

    def deliver(self, number: int, message: bytes) -> None:
        peer = self.peers.get(number)
        if number == 1 and self.first_is_free and len(self.early) < sum(map(len, self.task.told.get("calls", ()))):
            self.early.append(message)
            self.wait_with(len(message))
            return
        if peer is not None and peer.asked:
            peer.answer(message)
            return
        if self.owed.get(number):
            self.owed[number] -= 1
            return
        self.stray += 1
        if self.stray > MOST_STRAY_MESSAGES:
            self.close()

    def wait_with(self, size: int) -> None:
        """So many bytes more wait for tests, or fewer."""
        self.waiting_bytes += size
        if self.paused != (self.waiting_bytes > HIGH_MARK_BYTES):
            self.paused = not self.paused
            self.task.broker.say(self.task.number, b"p", b"%d" % self.paused)

    def close(self) -> None:
        """No solution is there any more: who asks hears it."""
        self.open = False
        for peer in list(self.peers.values()):
            peer.close()
        self.data = b""
        self.early.clear()
        self.wait_with(-self.waiting_bytes)


class Peer:
    """A process of a test."""

    def __init__(self, connections: Connections, sock: socket.socket, number: int, asked: int = 0) -> None:
        self.connections = connections
        self.socket = sock
        self.number = number
        self.asked = asked
        self.data = b""
        self.unsent = bytearray()
        """Answers that its socket has no room for: a test reads what it has asked ahead as late as it likes."""
        sock.setblocking(False)
        connections.loop.watch(sock.fileno(), READ, self.ready)

    def ready(self, events: int) -> None:
        if events & WRITE and self.unsent:
            self.send()
            if not self.unsent:
                self.connections.loop.change(self.socket.fileno(), READ)
        if events & ~WRITE:
            self.forward()

    def forward(self) -> None:
        """Pass on what has come whole."""
        try:
            chunk = self.socket.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self.data += chunk
        while True:
            head, line, rest = self.data.partition(b"\n")
            if not line or len(rest) < int(head):
                break
            size = int(head)
            self.asked += 1
            self.connections.ask(b"%d %d\n" % (self.number, size) + rest[:size])
            self.data = rest[size:]
        if not chunk:
            self.connections.ask(b"%d 0\n" % self.number)
            self.close()

    def answer(self, message: bytes) -> None:
        self.asked -= 1
        framed = b"%d\n" % len(message) + message
        was_empty = not self.unsent
        self.unsent += framed
        self.connections.wait_with(len(framed))
        if was_empty:
            self.send()
            if self.unsent:
                self.connections.loop.change(self.socket.fileno(), READ | WRITE)

    def send(self) -> None:
        """Send as much as its socket takes."""
        try:
            sent = self.socket.send(self.unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self.unsent)  # It has gone; what comes from it says so.
        del self.unsent[:sent]
        self.connections.wait_with(-sent)

    def close(self) -> None:
        self.connections.wait_with(-len(self.unsent))
        self.connections.loop.forget(self.socket.fileno())
        self.socket.close()
        del self.connections.peers[self.number]
        if self.asked:
            self.connections.owed[self.number] = self.asked
