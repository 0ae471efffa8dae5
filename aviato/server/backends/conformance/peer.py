"""A server of process 1 by the page and nothing else: one socket, frames in and out."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass, field
from typing import Any

from aviato.server.link.link import ExecSpec
from aviato.wire.frames import Frame, FrameDecoder, FrameType, encode
from aviato.wire.ids import new_exec_id

PATIENCE_SECONDS = 30.0
LAST = frozenset({FrameType.EXIT, FrameType.ERROR, FrameType.REPLY, FrameType.END})


class Refused(Exception):
    """An ERROR frame."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body["message"])
        self.code: str = body["code"]
        self.reason: str | None = body.get("reason")


@dataclass
class Seen:
    """All that came on the channel of a command."""

    types: list[int] = field(default_factory=list)
    streams: dict[int, bytes] = field(default_factory=lambda: {1: b"", 2: b""})
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def stdout(self) -> str:
        return self.streams[1].decode()

    @property
    def stderr(self) -> str:
        return self.streams[2].decode()


class Peer:
    """One connection.

    Args:
        sock: connected.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.hello: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self.closed = asyncio.Event()
        self.takes_descriptors = asyncio.Event()
        self._ready = asyncio.Event()
        self._socket = sock
        self._channels: dict[int, asyncio.Queue[Frame]] = {}
        self._last = 0
        self._loop = asyncio.get_running_loop()
        self._reading = self._loop.create_task(self._read())

    async def ready(self) -> None:
        """HELLO has come."""
        await asyncio.wait_for(self._ready.wait(), PATIENCE_SECONDS)

    async def gone(self) -> None:
        """The other side has closed."""
        await asyncio.wait_for(self.closed.wait(), PATIENCE_SECONDS)

    def close(self) -> None:
        """Say no more."""
        if self._socket.fileno() >= 0:
            # Else the loop takes whatever has its number next for something that it waits for already.
            self._loop.remove_reader(self._socket)
        self._reading.cancel()
        self._socket.close()
        self.closed.set()

    async def send(self, type: int, payload: bytes = b"", **head: int) -> None:
        """One frame."""
        await self.send_bytes(encode(type, payload, **head))

    async def send_bytes(self, data: bytes) -> None:
        """Whatever it is."""
        await asyncio.wait_for(self._loop.sock_sendall(self._socket, data), PATIENCE_SECONDS)

    async def send_with(self, fd: int, type: int, payload: bytes = b"", **head: int) -> None:
        """One frame, and a descriptor beside it, once the other side has said that it takes them."""
        await asyncio.wait_for(self.takes_descriptors.wait(), PATIENCE_SECONDS)
        data = encode(type, payload, **head)
        assert socket.send_fds(self._socket, [data], [fd]) == len(data)

    def open(self) -> int:
        """A channel that is free."""
        self._last += 1
        self._channels[self._last] = asyncio.Queue()
        return self._last

    async def next(self, channel: int) -> Frame:
        """The next frame of a channel.

        Raises:
            Refused: it is an ERROR.
        """
        frame = await asyncio.wait_for(self._channels[channel].get(), PATIENCE_SECONDS)
        if frame.type == FrameType.ERROR:
            raise Refused(json.loads(frame.payload))
        return frame

    def silent(self, channel: int) -> bool:
        """Whether nothing more has come on it."""
        return self._channels[channel].empty()

    async def begin(self, op: str, body: bytes | None = None, **fields: Any) -> int:
        """A request; its channel."""
        channel = self.open()
        await self.send(FrameType.REQUEST, json.dumps({"op": op, **fields}).encode(), channel=channel)
        if body is not None:
            await self.send(FrameType.DATA, body, channel=channel)
        return channel

    async def begin_with(self, fd: int, op: str, **fields: Any) -> int:
        """A request with a descriptor; its channel."""
        channel = self.open()
        await self.send_with(fd, FrameType.REQUEST, json.dumps({"op": op, **fields}).encode(), channel=channel)
        return channel

    async def ask(self, op: str, body: bytes | None = None, **fields: Any) -> dict[str, Any]:
        """What is replied."""
        frame = await self.next(await self.begin(op, body, **fields))
        assert frame.type == FrameType.REPLY, frame
        return dict(json.loads(frame.payload))

    async def put(self, path: str, content: bytes, piece: int = 64 << 10, **fields: Any) -> dict[str, Any]:
        """Write a file."""
        given = {"path": path, "mode": None, "size": len(content), **fields}
        channel = await self.begin("write", **given)
        for at in range(0, len(content), piece):
            await self.send(FrameType.DATA, content[at : at + piece], channel=channel, offset=at)
        await self.send(FrameType.END, channel=channel)
        return await self.reply(channel)

    async def put_tree(self, path: str, archive: bytes, **fields: Any) -> None:
        """A tree by its archive."""
        channel = await self.begin("write_tree", path=path, key=None, **fields)
        await self.send(FrameType.DATA, archive, channel=channel)
        await self.send(FrameType.END, channel=channel)
        await self.reply(channel)

    async def reply(self, channel: int) -> dict[str, Any]:
        """The REPLY, credits left aside."""
        while (frame := await self.next(channel)).type == FrameType.CREDIT:
            pass
        assert frame.type == FrameType.REPLY, frame
        return dict(json.loads(frame.payload))

    async def get(self, path: str, op: str = "read", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """A file, or a tree as an archive, with what is said of it."""
        given = {"path": path, "window": 1 << 20, **({"max_bytes": None} if op == "read" else {}), **fields}
        channel = await self.begin(op, **given)
        said = json.loads((await self.next(channel)).payload)
        return said, await self.rest(channel)

    async def rest(self, channel: int) -> bytes:
        """DATA up to END."""
        found = b""
        while (frame := await self.next(channel)).type == FrameType.DATA:
            assert frame.offset in (len(found), 0)
            found += frame.payload
            await self.send(FrameType.CREDIT, channel=channel, offset=len(found))
        assert frame.type == FrameType.END, frame
        return found

    def spec(self, *command: str, exec_id: str | None = None, **fields: Any) -> ExecSpec:
        """A command as the page has it."""
        usual: dict[str, Any] = {"environment": {}, "working_dir": None, "stdin": False, "timeout_seconds": None}
        return ExecSpec(exec_id=exec_id or new_exec_id(), command=list(command), **{**usual, **fields})

    async def start(
        self, spec: ExecSpec | None, exec_id: str | None = None, stdout: int = 0, stderr: int = 0, **further: Any
    ) -> int:
        """Start a command, or listen to it; its channel."""
        named = exec_id or (spec.exec_id if spec is not None else "")
        fields: dict[str, Any] = {"op": "exec", "exec_id": named, "stdout": stdout, "stderr": stderr, **further}
        if spec is not None:
            fields["spec"] = spec.fields()
        channel = self.open()
        await self.send(FrameType.REQUEST, json.dumps(fields).encode(), channel=channel)
        return channel

    async def finish(self, channel: int) -> Seen:
        """All of a command."""
        seen = Seen()
        while True:
            frame = await self.next(channel)
            seen.types.append(frame.type)
            if frame.type == FrameType.DATA:
                assert frame.stream in seen.streams
                seen.streams[frame.stream] += frame.payload
            elif frame.type == FrameType.GAP:
                said = json.loads(frame.payload)
                seen.gaps.append((frame.stream, said["from_offset"], said["to_offset"]))
            elif frame.type == FrameType.EXIT:
                seen.result = json.loads(frame.payload)
                return seen

    async def run(self, *command: str, **fields: Any) -> Seen:
        """A command from its start to its end, and nothing confirmed."""
        return await self.finish(await self.start(self.spec(*command, **fields)))

    async def sh(self, script: str, **fields: Any) -> Seen:
        """The same, by a shell."""
        return await self.run("sh", "-c", script, **fields)

    async def confirm(self, exec_id: str, stdout: int, stderr: int = 0, *, done: bool = False) -> None:
        """ACK."""
        said = {"exec_id": exec_id, "stdout": stdout, "stderr": stderr, "done": done}
        await self.send(FrameType.ACK, json.dumps(said).encode())

    async def _read(self) -> None:
        decoder = FrameDecoder()
        while True:
            try:
                data = await self._loop.sock_recv(self._socket, 1 << 16)
            except OSError:
                data = b""
            if not data:
                self.closed.set()
                self._ready.set()
                return
            for frame in decoder.feed(data):
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        if frame.type == FrameType.HELLO:
            self.hello = json.loads(frame.payload)
            self._ready.set()
        elif frame.type == FrameType.DESCRIPTORS:
            self.takes_descriptors.set()
        elif frame.type == FrameType.ENDED:
            self.ended = json.loads(frame.payload)
        elif frame.channel in self._channels:
            self._channels[frame.channel].put_nowait(frame)
