"""A proxy that hurts connections at chosen bytes, as a program of its own: `python -m tests.faults.proxy --help`.

What happens to a connection is drawn from the seed and the connection's number alone. Each fault writes a line of JSON: its
connection, kind, direction and byte.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvloop

from aviato.wire.frames import HEAD

PIECE_BYTES = 1 << 18
LONGEST_DELAY_SECONDS = 1.5
REORDER_SECONDS = 0.5
REPLAY_SECONDS = 1.0
RECORDED_BYTES = 64 << 10
FARTHEST_BIT = 20
"""Faults lie at most 2 ** so many bytes behind the last one, most of them much nearer."""
KINDS = {"cut": 18, "delay": 3, "duplicate": 3, "reorder": 2, "garbage": 3}
UP, DOWN = "up", "down"
"""From the client to the server, and back."""
ANSWER = b"HTTP/1.1 "
BEGUN = b"HTTP/1.1 101 "
CALM, WILD = signal.SIGUSR1, signal.SIGUSR2
"""By these signals a proxy hurts nothing any more, and does so again."""


def garbage(draw: random.Random) -> bytes:
    """What comes in place of an answer: noise, somebody else's answer, or a broken head."""
    return draw.choice(
        [
            draw.randbytes(draw.randrange(1, 4096)),
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 12\r\n\r\n<h1>hi!</h1>",
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno\n",
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n" + draw.randbytes(20),
            b"",
        ]
    )


class Frames:
    """Tells where frames end in what passes."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the next byte begins a frame."""
        return not (self._head or self._left)

    def feed(self, data: bytes) -> None:
        """So much has passed."""
        while data:
            if self._left:
                size = min(self._left, len(data))
                self._left, data = self._left - size, data[size:]
                continue
            size = HEAD.size - len(self._head)
            self._head, data = self._head + data[:size], data[size:]
            if len(self._head) == HEAD.size:
                self._left, self._head = HEAD.unpack(self._head)[3], b""


class Ended(Exception):
    """The connection is over."""


class Connection:
    """One client's connection and ours to the server behind it."""

    def __init__(self, proxy: Proxy, number: int, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self.number = number
        self._proxy = proxy
        self._draw = random.Random(f"{proxy.seed}/{number}")
        self._client = client
        self._passed = {UP: 0, DOWN: 0}
        self._recorded: bytearray | None = bytearray()
        self._spoil = False
        self._frames: Frames | None = None
        """Those that come down, once it is a session."""
        self._next()

    def _next(self) -> None:
        """Choose the next fault: what, in which direction, and at which byte."""
        self.kind = self._draw.choices(list(self._proxy.kinds), list(self._proxy.kinds.values()))[0]
        self.direction = {"duplicate": UP, "reorder": UP, "garbage": UP}.get(self.kind) or self._draw.choice([UP, DOWN])
        self.at = self._passed[self.direction] + int(2 ** self._draw.uniform(0, FARTHEST_BIT))

    async def run(self) -> None:
        """Pass bytes on in both directions until one ends."""
        writers = [self._client[1]]
        try:
            server = await self._proxy.connect()
            writers.append(server[1])
            up = asyncio.create_task(self._pass(UP, self._client[0], server[1]))
            down = asyncio.create_task(self._pass(DOWN, server[0], self._client[1]))
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        except OSError:
            pass  # No server now: the client finds out by its closed connection.
        finally:
            for writer in writers:
                if self._draw.random() < 0.5:
                    _reset(writer)
                writer.transport.abort()

    async def _pass(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, Ended):
            while data := await reader.read(PIECE_BYTES):
                while data:
                    data = await self._step(direction, data, writer)

    async def _step(self, direction: str, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """Pass on up to the next fault's byte and let it happen; returns what is left."""
        if self._spoil and direction == DOWN and self._is_at_answer(data):
            self._spoil = False
            self._proxy.note(self, "garbage", DOWN, self._passed[DOWN])
            writer.write(garbage(self._draw))
            await writer.drain()
            await asyncio.sleep(0.01)
            raise Ended
        here = direction == self.direction
        size = min(len(data), max(0, self.at - self._passed[direction])) if here else len(data)
        head, rest = data[:size], data[size:]
        if head:
            self._passed[direction] += len(head)
            if direction == UP and self._recorded is not None:
                self._recorded += head
                if len(self._recorded) > RECORDED_BYTES:
                    self._recorded = None
            writer.write(head)
            await writer.drain()
            if direction == DOWN:
                self._follow(head)
        if here and self._passed[direction] >= self.at:
            kind, at = self.kind, self.at
            if self._proxy.may(kind):
                await self._happen(kind, direction, at)
            self._next()
        return rest

    def _is_at_answer(self, data: bytes) -> bool:
        """Whether an answer, or a frame, begins here: what comes in the middle of one would be taken for its bytes."""
        return data.startswith(ANSWER) if self._frames is None else self._frames.is_at_end

    def _follow(self, data: bytes) -> None:
        if self._frames is not None:
            self._frames.feed(data)
        elif data.startswith(BEGUN):
            self._frames = Frames()
            self._frames.feed(data.partition(b"\r\n\r\n")[2])

    async def _happen(self, kind: str, direction: str, at: int) -> None:
        if kind == "garbage":
            self._spoil = True
            return
        if kind == "duplicate" and self._recorded is None:
            kind = "cut"
        self._proxy.note(self, kind, direction, at)
        if kind == "cut":
            raise Ended
        if kind == "delay":
            await asyncio.sleep(self._draw.uniform(0, LONGEST_DELAY_SECONDS))
        elif kind == "reorder":
            await self._proxy.overtaken(self.number, REORDER_SECONDS)
        elif kind == "duplicate":
            assert self._recorded is not None
            self._proxy.spawn(self._replay(bytes(self._recorded), self._draw.uniform(0, REPLAY_SECONDS)))

    async def _replay(self, data: bytes, delay_seconds: float) -> None:
        """Send again what the client has sent so far, on another connection."""
        await asyncio.sleep(delay_seconds)
        with suppress(OSError, TimeoutError):
            reader, writer = await self._proxy.connect()
            try:
                writer.write(data)
                async with asyncio.timeout(REPLAY_SECONDS):
                    while await reader.read(PIECE_BYTES):
                        pass
            finally:
                writer.transport.abort()


class Proxy:
    """Listens at one address for the server at another.

    Args:
        server: where the server is.
        seed: of every draw.
        every_seconds: how long faults are apart, on the average.
        kinds: faults by name, with their weights.
        note: takes each fault.
    """

    def __init__(
        self, server: str, seed: int, every_seconds: float, kinds: dict[str, int], note: Callable[[dict[str, Any]], None]
    ) -> None:
        self.seed = seed
        self.kinds = kinds
        self._server = server
        self._every_seconds = every_seconds
        self.is_calm = False
        """Nothing happens meanwhile."""
        self._next_fault = 0.0
        self._draw = random.Random(seed)
        self._note = note
        self._count = 0
        self._came = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server."""
        return await (asyncio.open_unix_connection if self._server.startswith("/") else _open_tcp)(self._server)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client has come."""
        self._count += 1
        number = self._count
        async with self._came:
            self._came.notify_all()
        await Connection(self, number, (reader, writer)).run()

    async def overtaken(self, number: int, most_seconds: float) -> None:
        """Wait until a later connection has come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_seconds), self._came:
                await self._came.wait_for(lambda: self._count > number + 1)

    def may(self, kind: str) -> bool:
        """Whether it is time for a fault."""
        now = time.monotonic()
        if self.is_calm or now < self._next_fault:
            return False
        self._next_fault = now + self._every_seconds * self._draw.uniform(0.2, 1.8)
        return True

    def note(self, connection: Connection, kind: str, direction: str, at: int) -> None:
        """A fault happened."""
        self._note({"connection": connection.number, "kind": kind, "direction": direction, "byte": at})

    def spawn(self, coroutine: Any) -> None:
        """Do something beside."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _open_tcp(server: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def _reset(writer: asyncio.StreamWriter) -> None:
    """Let the other side see a reset and not an end."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _main(options: argparse.Namespace) -> None:
    with open(options.log, "a", buffering=1) as log:
        proxy = Proxy(
            options.server,
            options.seed,
            options.every,
            json.loads(options.kinds),
            lambda fault: print(json.dumps(fault), file=log, flush=True),
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(CALM, setattr, proxy, "is_calm", True)
        loop.add_signal_handler(WILD, setattr, proxy, "is_calm", False)
        if options.listen.startswith("/"):
            listening = await asyncio.start_unix_server(proxy.accept, options.listen, limit=PIECE_BYTES)
        else:
            host, _, port = options.listen.rpartition(":")
            listening = await asyncio.start_server(proxy.accept, host, int(port), limit=PIECE_BYTES)
        name = listening.sockets[0].getsockname()
        print(name if isinstance(name, str) else f"{name[0]}:{name[1]}", flush=True)
        async with listening:
            await listening.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True, help="/path or host:port")
    parser.add_argument("--server", required=True, help="/path or host:port")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--every", type=float, default=0.0, help="seconds between faults, on the average")
    parser.add_argument("--kinds", default=json.dumps(KINDS), help="weights of the kinds of faults, in JSON")
    parser.add_argument("--log", required=True, help="file for a line a fault")
    uvloop.run(_main(parser.parse_args()))
