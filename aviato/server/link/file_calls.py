"""What a server asks of the files of a sandbox: the calls of a link that move or describe them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError, SandboxFileError
from aviato.server.link.channels import ReadChannel, ReplyChannel
from aviato.server.link.connection import Connection
from aviato.server.link.payload import as_json
from aviato.wire.frames import FrameType, head
from aviato.wire.shared_memory import REFUSED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from aviato.server.shared_memory import Memory
    from aviato.wire.files import FilePart

FILE_PIECE_BYTES = 256 << 10
UPLOAD_WINDOW_BYTES = 1 << 20
ANSWER_SECONDS = 45.0
"""A file operation that stands still for so long is held up by what is inside. Less than a client's patience (60 s)."""


class InTime:
    """Context of a wait for a file operation.

    Raises:
        SandboxFileError: reason `timeout`. The client hears it before its own patience is over, which would look like a
            failure of the server's; what is inside can make itself slow.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._timeout = asyncio.timeout(ANSWER_SECONDS)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
            if not isinstance(error, TimeoutError):
                return
        except TimeoutError:
            pass
        why = f"no answer in {ANSWER_SECONDS:g} s; the file system inside is held up, or the tree is very large"
        raise SandboxFileError(f"{self._path!r}: {why}", filepath=self._path, reason="timeout") from None


@dataclass(slots=True)
class _Writing:
    """A file on its way into a sandbox; `begun` once that knows of it."""

    path: str
    payload: bytes
    size_bytes: int | None
    reply: ReplyChannel
    channel: int
    begun: bool = False


class FileCalls(Connection):
    """What a link asks of files."""

    async def stat(self, path: str) -> dict[str, Any]:
        """What is at a path, links not followed at its end.

        Raises:
            SandboxFileError: of every file call, with the reasons that class lists.
            SandboxGone: of every call.
        """
        return dict(json.loads(await self._call({"op": "stat", "path": path})))

    async def list_files(self, path: str) -> list[dict[str, Any]]:
        """The entries of a directory, sorted by name; more than 100,000 are refused (`too_large`)."""
        return list(json.loads(await self._call({"op": "list", "path": path})))

    async def make_directory(self, path: str, mode: int = 0o755) -> None:
        """Make a directory and its parents; fine if it exists."""
        await self._call({"op": "mkdir", "path": path, "mode": mode})

    async def remove(self, path: str, recursive: bool = False, key: str | None = None) -> None:
        """Remove a file, an empty directory, or with `recursive` a tree; never `/`. Nothing if a call of this key was done."""
        await self._call({"op": "remove", "path": path, "recursive": recursive, "key": key})

    @property
    def knows_again(self) -> bool:
        """Whether it tells calls that are repeated, and takes files in parts."""
        return "again" in self.hello["features"]

    def read_file(
        self,
        path: str,
        *,
        max_bytes: int | None = None,
        offset: int = 0,
        version: str | None = None,
        memory: Memory | None = None,
    ) -> ReadChannel:
        """A regular file, in pieces. `aclose()` it when leaving early.

        Args:
            path: absolute, or counted from the sandbox's directory.
            max_bytes: refuse a longer file with reason `too_large`.
            offset: from where on.
            version: that its description had; if it has another one now it is refused with reason `changed`.
            memory: where it may be put. If it was, its description has `memory_bytes`, and there are no pieces.
        """
        request = {"op": "read", "path": path, "max_bytes": max_bytes, "offset": offset, "version": version}
        return self._read(request, memory)

    def read_tree(self, path: str, exact: bool = False) -> ReadChannel:
        """A directory and all that is in it as an archive, in pieces. `aclose()` it when leaving early.

        Args:
            path: absolute, or counted from the sandbox's directory.
            exact: with owners, all bits of modes and hard links; it may be one file.
        """
        return self._read({"op": "read_tree", "path": path, **self._exactly(exact)})

    def _exactly(self, exact: bool) -> dict[str, bool]:
        if exact and "exact_trees" not in self.hello["features"]:
            message = "the sandbox was made by a version that copies no owners"
            raise AviatoValidationError(message, field_violations={"exact": "not available"})
        return {"exact": True} if exact else {}

    @property
    def knows_layers(self) -> bool:
        """Whether it can send the sandbox's layer. That it has one is known once it is asked for."""
        return "layer" in self.hello["features"]

    def read_layer(self) -> ReadChannel:
        """What the sandbox has written over its image, as a layer's tar, in pieces. `aclose()` it when leaving early.

        All commands stand still from before the first piece until the last one, or until it is left, however it is: `opened()`
        comes once they do.

        Raises:
            AviatoValidationError: from `opened()` and the iteration; reason `no_layer`: it has none.
            SandboxFileError: reason `name`: something in it has a name that no layer can have; `too_large`; `timeout`: its
                commands did not come to a standstill.
            SandboxUnavailableError: reason `ending`: it ends.
        """
        return self._read({"op": "read_layer"})

    async def write_file(
        self,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        mode: int | None = None,
        size_bytes: int | None = None,
        part: FilePart | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Write a file whole or not at all: into a new file beside it, then renamed over it. Parents are made.

        Args:
            path: absolute, or counted from the sandbox's directory; a link at its end is followed.
            chunks: the contents; an exception from it leaves the old file as it was.
            mode: None keeps the mode of a file that exists, and is 0644 for a new one.
            size_bytes: if given, contents of another length are refused.
            part: what of the file this is, by a key that makes repeats harmless; None is all of it.
            memory: where the contents lie, too.
        """
        request = {"op": "write", "path": path, "mode": mode, "size": size_bytes}
        if part is not None and self.knows_again:
            request |= {"key": part.key, "offset": part.offset, "last": part.last}
        try:
            await self._write(request, chunks, size_bytes, memory)
        except AviatoValidationError as error:
            if memory is None or error.reason != REFUSED:
                raise
            await self._write(request, chunks, size_bytes)  # It got no descriptor.

    async def write_tree(self, path: str, chunks: AsyncIterator[bytes], key: str | None = None, exact: bool = False) -> None:
        """Put a tree in its place once all of its archive has come: a new directory, or merged into one that is there.

        Nothing happens if a call of this key was done.
        """
        await self._write({"op": "write_tree", "path": path, "key": key, **self._exactly(exact)}, chunks, None)

    def _read(self, request: dict[str, Any], memory: Memory | None = None) -> ReadChannel:
        channel = 0

        def is_open() -> bool:  # Else the number may be another request's.
            return self._channels.get(channel) is reader

        def credit(taken: int) -> None:
            if is_open():
                self._send(FrameType.CREDIT, channel=channel, offset=taken)

        reader = ReadChannel(self._loop, credit, lambda: self._give_up(channel) if is_open() else None)
        channel = self._open(reader)
        payload = as_json({**request, "window": ReadChannel.WINDOW_BYTES})
        if not self._send_with(memory, payload, channel):
            self._send(FrameType.REQUEST, payload, channel=channel)
        return reader

    async def _write(
        self, request: dict[str, Any], chunks: AsyncIterator[bytes], size_bytes: int | None, memory: Memory | None = None
    ) -> None:
        reply = ReplyChannel(self._loop)
        # Whoever gives up, as at a cut, does not ask how it ended.
        reply.reply.add_done_callback(lambda future: future.cancelled() or future.exception())
        writing = _Writing(request["path"], as_json(request), size_bytes, reply, self._open(reply))
        try:
            if memory is not None and self._send_with(memory, writing.payload, writing.channel):
                writing.begun = True
                await memory.filled()
                self._end(writing, request["size"])
            else:
                self._begin(writing)
                self._end(writing, await self._upload(writing, chunks))
            async with InTime(writing.path):
                await asyncio.shield(reply.reply)
        except BaseException:
            if self._channels.get(writing.channel) is reply:
                if writing.begun:
                    self._give_up(writing.channel)
                else:
                    del self._channels[writing.channel]
            raise

    def _begin(self, writing: _Writing) -> None:
        writing.begun = True
        self._send(FrameType.REQUEST, writing.payload, channel=writing.channel)

    def _end(self, writing: _Writing, sent: int) -> None:
        if not writing.reply.reply.done():
            self._check_size(writing, sent)
            self._send(FrameType.END, channel=writing.channel, offset=sent)

    def _check_size(self, writing: _Writing, sent: int) -> None:
        if writing.size_bytes is not None and sent != writing.size_bytes:
            cut = f"{writing.path!r}: {sent} bytes arrived where {writing.size_bytes} were announced; nothing was written"
            raise SandboxFileError(cut, filepath=writing.path, sandbox_id=self.sandbox_id)

    async def _upload(self, writing: _Writing, chunks: AsyncIterator[bytes]) -> int:
        sent, reply, channel = 0, writing.reply, writing.channel
        async for chunk in chunks:
            view = memoryview(chunk)
            for start in range(0, len(chunk), FILE_PIECE_BYTES):
                while sent - reply.credit >= UPLOAD_WINDOW_BYTES and not reply.reply.done():
                    reply.moved.clear()
                    async with InTime(writing.path):
                        await reply.moved.wait()
                if reply.reply.done():
                    return sent
                piece = view[start : start + FILE_PIECE_BYTES]
                if self._transport is not None and not self._transport.is_closing():
                    # Not joined: for a large file the copy would show.
                    self._transport.writelines([head(FrameType.DATA, len(piece), channel=channel, offset=sent), piece])
                sent += len(piece)
                await self._writable.wait()
        return sent
