"""The requests that share one connection to process 1, told apart by their channel."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Protocol

from aviato.server.link.ended import Ended, SandboxGone
from aviato.wire.errors import ErrorBody, from_wire
from aviato.wire.frames import Frame, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.exceptions import AviatoError


class Channel(Protocol):
    """One open request."""

    def frame(self, frame: Frame) -> bool:
        """Take a frame; True when it was the last and the channel is free. DATA comes in pieces, good until this returns."""

    def gone(self, ended: Ended) -> None:
        """The sandbox ended or the connection is lost."""


def error_of(frame: Frame) -> AviatoError:
    """The exception that an ERROR frame carries."""
    return from_wire(ErrorBody.model_validate_json(frame.payload))


class ReplyChannel:
    """A request with one reply, maybe in pieces: the future gets the whole payload.

    `credit` holds how much of an upload process 1 has taken; `moved` is set when it changes or the reply has come.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reply: asyncio.Future[bytes] = loop.create_future()
        self.credit = 0
        self.moved = asyncio.Event()
        self._pieces: list[bytes] = []

    def frame(self, frame: Frame) -> bool:
        """See `Channel`."""
        if frame.type == FrameType.CREDIT:
            self.credit = frame.offset
            self.moved.set()
            return False
        if frame.type == FrameType.DATA:
            self._pieces.append(bytes(frame.payload))
            return False
        if not self.reply.done():
            if frame.type == FrameType.ERROR:
                self.reply.set_exception(error_of(frame))
            else:
                self.reply.set_result(b"".join(self._pieces) if frame.type == FrameType.END else frame.payload)
        self.moved.set()
        return True

    def gone(self, ended: Ended) -> None:
        """See `Channel`."""
        if not self.reply.done():
            self.reply.set_exception(SandboxGone(ended))
        self.moved.set()


class ReadChannel:
    """A file on its way out: an async iterator of its pieces.

    The first item, or `opened()`, comes only after the open succeeded. `aclose()` ends it early.

    Raises:
        SandboxFileError: from the iteration.
        SandboxGone: the sandbox ended.
    """

    WINDOW_BYTES = 1 << 20

    def __init__(self, loop: asyncio.AbstractEventLoop, credit: Callable[[int], None], close: Callable[[], None]) -> None:
        self._opened: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._opened.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._pieces: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        self._taken = 0
        self._credited = 0
        self._credit = credit
        self._close = close
        self._over = False

    async def opened(self) -> dict[str, Any]:
        """What `stat` says of the open file."""
        return await asyncio.shield(self._opened)

    def __aiter__(self) -> ReadChannel:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        item = await self._pieces.get()
        if isinstance(item, bytes):
            self._taken += len(item)
            if self._taken - self._credited >= self.WINDOW_BYTES // 4:
                self._credited = self._taken
                self._credit(self._taken)
            return item
        self._over = True
        if item is None:
            raise StopAsyncIteration
        raise item

    async def aclose(self) -> None:
        """Stop reading."""
        if not self._over:
            self._over = True
            self._close()

    def frame(self, frame: Frame) -> bool:
        """See `Channel`."""
        if frame.type == FrameType.REPLY:
            self._opened.set_result(json.loads(frame.payload))
            return False
        if frame.type == FrameType.DATA:
            self._pieces.put_nowait(bytes(frame.payload))
            return False
        self._end(error_of(frame) if frame.type == FrameType.ERROR else None)
        return True

    def gone(self, ended: Ended) -> None:
        """See `Channel`."""
        self._end(SandboxGone(ended))

    def _end(self, error: Exception | None) -> None:
        if not self._opened.done():
            self._opened.set_exception(error or RuntimeError("a file ended before it was open"))
        self._pieces.put_nowait(error)


class ClosingChannel:
    """A request that was given up: the channel is free once process 1 has answered CLOSE, whatever came before."""

    def frame(self, frame: Frame) -> bool:
        """See `Channel`."""
        return frame.type == FrameType.CLOSE

    def gone(self, ended: Ended) -> None:
        """See `Channel`."""
