"""Runs beside the grader: passes messages between its processes and the solution's host, which is in another sandbox.

What the host writes comes from hostile code. It is cut into messages by lengths, and each goes to the connection that it names;
no content is looked at here. A host that breaks these rules is not listened to any more.
"""

from __future__ import annotations

import os
import select
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 8 << 20
HEAD_BYTES = 32


def main() -> None:
    path = sys.argv[1]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)  # Who finds it can connect, and who cannot connect need not wait.
    peers: dict[int, Peer] = {}
    listening: list[Any]
    last = 0
    buffer = b""
    while True:
        listening = [0, listener, *peers.values()]
        ready = select.select(listening, [], [])[0]
        for one in ready:
            if one is listener:
                last += 1
                peers[last] = Peer(listener.accept()[0], last)
            elif isinstance(one, Peer) and not one.forward():
                del peers[one.number]
                one.socket.close()
                write(b"%d 0\n" % one.number)
        if 0 in ready:
            chunk = os.read(0, 1 << 20)
            found = cut(buffer + chunk) if chunk else None
            if found is None:
                return  # and with it every connection
            messages, buffer = found
            for number, message in messages:
                peer = peers.get(number)
                if peer is not None:
                    peer.answer(message)


def cut(data: bytes) -> Any:
    """The whole messages and the rest; None if it breaks the rules."""
    messages: list[tuple[int, bytes]] = []
    while True:
        end = data.find(b"\n", 0, HEAD_BYTES)
        if end < 0:
            return None if len(data) >= HEAD_BYTES else (messages, data)
        words = data[:end].split(b" ")
        if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()) or int(words[1]) > MOST_BYTES:
            return None
        size = int(words[1])
        if len(data) < end + 1 + size:
            return messages, data
        messages.append((int(words[0]), data[end + 1 : end + 1 + size]))
        data = data[end + 1 + size :]


class Peer:
    """A process of the grader."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.socket = sock
        self.number = number
        self.data = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def forward(self) -> bool:
        """Pass on what has come whole; False at its end."""
        try:
            chunk = self.socket.recv(1 << 20)
        except OSError:
            return False
        self.data += chunk
        while True:
            head, line, rest = self.data.partition(b"\n")
            if not line or len(rest) < int(head):
                return bool(chunk)
            size = int(head)
            write(b"%d %d\n" % (self.number, size) + rest[:size])
            self.data = rest[size:]

    def answer(self, message: bytes) -> None:
        try:
            self.socket.sendall(b"%d\n" % len(message) + message)
        except OSError:
            pass


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
