"""A session by hand: what a client says and hears, frame by frame."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import socket
from urllib.parse import urlencode

from aviato.transport.shared_memory import F_ADD_SEALS
from aviato.wire.frames import FrameDecoder, FrameType, encode
from aviato.wire.ids import new_exec_id
from aviato.wire.session import UPGRADE, WHOLE, encode_head, parse_head
from aviato.wire.shared_memory import GONE, RECORD, SEALS, SHARED, SIZE
from aviato.wire.shared_memory import UPGRADE as MEMORY_UPGRADE
from aviato.wire.version import KEY_HEADER, WIRE_HEADER, WIRE_VERSION


def opening(headers=None):
    """What asks for a session, or for another protocol."""
    said = {"Host": "localhost", WIRE_HEADER: WIRE_VERSION, "Connection": "Upgrade", "Upgrade": UPGRADE, **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"GET /v1/session HTTP/1.1\r\n{lines}\r\n".encode()


async def connected(where):
    """A connection to a Unix socket, by its path, or to a host and port."""
    return await (asyncio.open_unix_connection(where) if isinstance(where, str) else asyncio.open_connection(*where))


async def asked_for(where, headers):
    """Status and error with which a session is refused, or 101."""
    reader, writer = await connected(where)
    writer.write(opening(headers))
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status = int(head.split(" ")[1])
    body = {} if status == 101 else json.loads(await reader.read())
    writer.close()
    return status, head, body


class Session:
    """One, to a socket.

    Args:
        where: see `connected`.
        headers: more, of the opening.

    Attributes:
        head: of the answer to its opening.
    """

    def __init__(self, where, headers=None):
        self._where = where
        self._headers = headers
        self._decoder = FrameDecoder()
        self._heard = {}
        self._last = 0
        self._reading = asyncio.Lock()

    async def __aenter__(self):
        self._reader, self.writer = await connected(self._where)
        self.writer.write(opening(self._headers))
        self.head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        assert self.head.startswith("HTTP/1.1 101 ")
        return self

    async def __aexit__(self, *exc):
        self.writer.transport.abort()

    def send(self, frame):
        self.writer.write(frame)

    def open(self, line, body=b"", *, headers=None, whole=True, channel=None):
        """Begin a request; returns its channel."""
        if channel is None:
            channel = self._last = self._last + 1
        head = encode_head(line, headers or {})
        self.send(encode(FrameType.OPEN, head + body, stream=WHOLE * whole, channel=channel, offset=len(head)))
        return channel

    def data(self, channel, content, offset=0):
        self.send(encode(FrameType.DATA, content, channel=channel, offset=offset))

    def end(self, channel):
        self.send(encode(FrameType.END, channel=channel))

    def credit(self, channel, taken):
        self.send(encode(FrameType.CREDIT, channel=channel, offset=taken))

    def cut(self, channel):
        self.send(encode(FrameType.CUT, channel=channel))

    async def next(self, channel, seconds=20):
        """The next frame of a channel; None at the end of the connection."""
        async with asyncio.timeout(seconds):
            while not self._heard.get(channel):
                async with self._reading:
                    if self._heard.get(channel):
                        break
                    piece = await self._reader.read(1 << 16)
                    if not piece:
                        return None
                    for frame in self._decoder.feed(piece):
                        self._heard.setdefault(frame.channel, []).append(frame)
        return self._heard[channel].pop(0)

    def pending(self, channel):
        """How many frames of it were read beside others'."""
        return len(self._heard.get(channel, ()))

    async def answer(self, channel, seconds=20):
        """Status, headers and body; raises where it is cut or the connection ends."""
        frame = await self.next(channel, seconds)
        while frame is not None and frame.type == FrameType.CREDIT:
            frame = await self.next(channel, seconds)
        if frame is None or frame.type == FrameType.CUT:
            raise ConnectionResetError
        assert frame.type == FrameType.ANSWER
        said = parse_head(frame.payload[: frame.offset])
        body, is_over = frame.payload[frame.offset :], frame.stream == WHOLE
        taken = 0
        while not is_over:
            frame = await self.next(channel, seconds)
            if frame is None or frame.type == FrameType.CUT:
                raise ConnectionResetError
            if frame.type == FrameType.DATA:
                assert frame.offset == taken
                body += frame.payload
                taken += len(frame.payload)
                self.credit(channel, taken)
            elif frame.type != FrameType.CREDIT:
                assert frame.type == FrameType.END
                is_over = True
        return int(said.first), dict(said.headers), body

    async def ask(self, line, body=b"", **more):
        return await self.answer(self.open(line, body, **more))


class Sharing:
    """A connection that shares memory."""

    def __init__(self, path):
        self.path = path

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.setblocking(False)
        await loop.sock_connect(self.sock, self.path)
        await loop.sock_sendall(self.sock, opening({"Upgrade": MEMORY_UPGRADE}))
        assert (await loop.sock_recv(self.sock, 4096)).startswith(b"HTTP/1.1 101 ")
        return self

    async def __aexit__(self, *exc):
        self.sock.close()

    def share(self, memory):
        socket.send_fds(self.sock, [RECORD.pack(SHARED, memory.secret)], [memory.fd])

    def gone(self, memory):
        self.sock.send(RECORD.pack(GONE, memory.secret))


class Shared:
    """Memory of this process, as one that may be shared is made."""

    def __init__(self, content=b"", size=SIZE, seals=SEALS):
        self.secret = secrets.token_bytes(16)
        self.name = self.secret.hex()
        self.fd = os.memfd_create("aviato", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, F_ADD_SEALS, seals)
        os.pwrite(self.fd, content, 0)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)


def exec_line(sandbox_id):
    return f"POST /v1/sandboxes/{sandbox_id}/execs"


def exec_body(*command, **fields):
    return json.dumps({"exec_id": new_exec_id(), "command": list(command), **fields}).encode()


def file_line(method, sandbox_id, path, **query):
    return f"{method} /v1/sandboxes/{sandbox_id}/files?{urlencode({'path': path, **query})}"


def keyed(key):
    return {KEY_HEADER: key}


def result_of(body):
    """What a command printed, and how it ended."""
    frames = FrameDecoder().feed(body)
    printed = b"".join(one.payload for one in frames if one.type == FrameType.DATA)
    assert frames[-1].type == FrameType.EXIT
    return printed, json.loads(frames[-1].payload)["returncode"]
