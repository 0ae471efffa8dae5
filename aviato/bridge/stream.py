"""Streams: written on an event loop, read in any thread or on any loop, bounded in memory.

A stream that nobody iterates feeds only its collection and never stalls the writer. A live iterator sees every byte, and
the writer waits for it above the high mark; one that is dropped detaches, and the stream is as before.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aviato.bridge.collection import DEFAULT_MAX_OUTPUT_BYTES, Collection
from aviato.bridge.loop import SLICE_SECONDS, check_blocking
from aviato.exceptions import SandboxExecutionError
from aviato.values.handles import Handle

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T", str, bytes)

HIGH_MARK_BYTES = 1 << 20
MAX_LINE = 1 << 20
"""A longer line comes in pieces: characters of text, or bytes."""


class StreamReader(Handle, Collection, Generic[T]):
    """Output as it arrives: `for` in any thread, `async for` on any loop; `.lines()` line by line.

    Yields what arrived, decoded incrementally if it is a text stream; `.raw()` yields bytes in any case. One iterator at a
    time; a new one replays what was collected and goes on live.

    Attributes:
        offset: where in the command's output it begins.
        reading: whether an iterator is alive.
    """

    _for_all_of_it = "iterate while the command runs, or raise max_output_bytes"
    _instead = "; it is a stream: iterate it, or take the outcome of its command, which has all of it"
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(
        self,
        name: str,
        *,
        text: bool = True,
        of: str = "",
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        offset: int = 0,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """A stream of which nothing has come.

        Args:
            name: for messages.
            text: whether it yields text.
            of: whose it is, for messages.
            max_output_bytes: how much is kept.
            offset: where it begins.
            loop: of the caller's, if it is written there: who blocks that one would wait for ever.
        """
        super().__init__(max_output_bytes, offset)
        if loop is not None:
            self._loop = loop
        self._name = name
        self._of = of
        self._text = text
        self._pid = os.getpid()
        self._lock = threading.RLock()
        # Made when a thread waits for the first time: most streams are never iterated, and it is as large as the rest.
        self._arrival: threading.Condition | None = None
        self._ended = False
        self._error: BaseException | None = None
        # The active iterator is held weakly: dropping it is how a reader leaves.
        self._active: weakref.ref[StreamIterator[T]] | None = None
        self._live: list[bytes] = []
        self._live_bytes = 0
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._room: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    # -- the writer's side, on its loop

    def feed(self, data: bytes | memoryview, offset: int) -> None:
        """Append bytes that begin at `offset`; what came before is skipped. A view need not be good afterwards.

        Raises:
            ValueError: bytes between the end so far and `offset` are missing.
        """
        with self._lock:
            skip = self.total_bytes - offset
            if skip < 0:
                raise ValueError(f"{self._name}: {-skip} bytes before offset {offset} are missing")
            if skip:
                data = data[skip:]
            if not data or self._ended:
                return
            self._add(data)
            if self.reading:
                self._live.append(bytes(data))
                self._live_bytes += len(data)
                self._notify()

    def skip(self, offset: int) -> bool:
        """Leave out the bytes before `offset`, which will never come; False where someone would miss them."""
        with self._lock:
            return not self.reading and super().skip(offset)

    async def ready(self) -> None:
        """Wait until a live iterator has read enough; at once if there is none."""
        while True:
            with self._lock:
                if not self.reading or self._live_bytes <= HIGH_MARK_BYTES:
                    return
                loop = asyncio.get_running_loop()
                room = loop.create_future()
                self._room = (loop, room)
            await room

    def finish(self, error: BaseException | None = None) -> None:
        """No more bytes; an error is raised to readers after the last of them. Only the first call counts."""
        with self._lock:
            if not self._ended:
                self._ended, self._error = True, error
                if self._arrival is not None or self._waiter is not None:
                    self._notify()
                if self._room is not None:
                    self._make_room()

    def __repr__(self) -> str:
        state = "open" if not self._ended else "ended" if self._error is None else f"ended by {type(self._error).__name__}"
        of = f" of {self._of}" if self._of else ""
        return f"<StreamReader {self._name}{of}: {self.total_bytes} bytes, {state}>"

    # -- the reader's side

    def __contains__(self, piece: object) -> bool:
        raise TypeError(f"`in` would compare each piece as it arrived with {type(piece).__name__!r}{self._instead}")

    def __iter__(self) -> StreamIterator[T]:
        return StreamIterator(self, lines=False)

    def __aiter__(self) -> StreamIterator[T]:
        return StreamIterator(self, lines=False)

    def lines(self) -> StreamIterator[T]:
        r"""Lines without their end (`\n` or `\r\n`), for `for` and `async for`; a line over 1 MiB in pieces."""
        return StreamIterator(self, lines=True)

    def raw(self) -> StreamIterator[bytes]:
        """The bytes as they arrive, not decoded, for `for` and `async for`."""
        stream: Any = self
        return StreamIterator(stream, lines=False, text=False)

    def detach_own(self) -> None:
        """Detach an iterator that this very thread or task holds half read, so that waiting here cannot wait for itself.

        One whose reader has ended is detached too: nobody is about to read on.
        """
        iterator = None if self._active is None else self._active()
        if iterator is not None and (iterator.reader() is _reader() or iterator.abandoned()):
            self._detach(iterator)

    def _attach(self, iterator: StreamIterator[T], position: int) -> None:
        if self._pid != os.getpid() and not self._ended:
            raise RuntimeError(f"{self._name} is written by process {self._pid}; only that process can iterate it live")
        with self._lock:
            active = None if self._active is None else self._active()
            if active is iterator:
                return
            if active is not None and not active.left:
                raise RuntimeError(f"{self._name} is being iterated already; one iterator at a time")
            if self._dropped and position < self.total_bytes:
                missing = f"{self._dropped} of {self.total_bytes} bytes were left out of the collection"
                raise SandboxExecutionError(
                    f"{self._name} cannot be iterated from byte {position} any more: {missing}; {self._for_all_of_it}",
                    reason="output_gap",
                )
            self._active, self.reading = weakref.ref(iterator), True
            begin = position - self.offset
            data = self.collected().data[begin:] if position < self.total_bytes else b""
            self._live = [data] if data else []
            self._live_bytes = len(data)

    def _detach(self, iterator: StreamIterator[T]) -> None:
        with self._lock:
            active = None if self._active is None else self._active()
            if active is iterator or active is None:
                self._active, self.reading = None, False
                self._live.clear()
                self._live_bytes = 0
                self._make_room()

    def _take(self) -> tuple[list[bytes], bool, BaseException | None]:
        """Everything that has arrived, and how it ended if that was all. Call with the lock held."""
        chunks = list(self._live)
        self._live.clear()
        self._live_bytes = 0
        self._make_room()
        return chunks, self._ended, self._error

    def _await_arrival(self) -> None:
        """Wait a moment for the writer. Call with the lock held."""
        self._arrival = self._arrival or threading.Condition(self._lock)
        self._arrival.wait(SLICE_SECONDS)

    def _notify(self) -> None:
        if self._arrival is not None:
            self._arrival.notify_all()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not _resolve_on(waiter):
            # The reader's loop has closed: it is gone, which is no error of the writer's.
            self._active, self.reading = None, False
            self._live.clear()
            self._live_bytes = 0

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            _resolve_on(room)


class StreamIterator(Generic[T]):
    """One reading of a stream; an iterator for both worlds.

    Attributes:
        left: whether its last wait was cancelled. What was raised then may keep it alive for long, and nobody may come back to
            it: another one can begin. Until then it holds the writer back, for whoever asks with a time limit and reads on.
    """

    def __init__(self, stream: StreamReader[T], *, lines: bool, text: bool | None = None) -> None:
        self._stream: StreamReader[T] = stream
        self._cutter: _Cutter[T] = _Cutter(text=stream._text if text is None else text, lines=lines)
        self._ready: deque[T] = deque()
        self._position = stream.offset
        self._over = False
        self._error: BaseException | None = None
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.left = False
        # Who made it holds it, until somebody reads.
        self._reader = weakref.ref(_reader())
        stream._attach(self, self._position)

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._ready:
            return self._ready.popleft()
        self._reader = weakref.ref(_reader())
        self.left = False
        stream = self._stream
        while not self._ready:
            if self._over:
                self._end()
                raise StopIteration
            stream._attach(self, self._position)
            with stream._lock:
                if not stream._live and not stream._ended:
                    if stream._loop is not None and stream._loop is asyncio._get_running_loop():
                        raise RuntimeError(f"iterating {stream._name} would block the loop it comes on; use `async for` here")
                    check_blocking(f"iterating {stream._name}")
                    while not stream._live and not stream._ended and self._attached():
                        stream._await_arrival()
                if self._attached():
                    self._receive(*stream._take())
        return self._ready.popleft()

    async def __anext__(self) -> T:
        if self._ready:
            return self._ready.popleft()
        stream = self._stream
        if self._waiter is not None and not self._waiter[0].is_closed():
            raise RuntimeError(f"{stream._name} is being read by another task with this iterator; read it in one task")
        self._reader = weakref.ref(_reader())
        self.left = False
        while not self._ready:
            if self._over:
                self._end()
                raise StopAsyncIteration
            stream._attach(self, self._position)
            with stream._lock:
                if stream._live or stream._ended:
                    self._receive(*stream._take())
                    continue
                loop = asyncio.get_running_loop()
                self._waiter = stream._waiter = (loop, loop.create_future())
            try:
                await self._waiter[1]
            except BaseException:
                self.left = True
                with stream._lock:
                    if stream._waiter is self._waiter:  # Its loop may close, which the next reader would be taken for.
                        stream._waiter = None
                raise
            finally:
                self._waiter = None
        return self._ready.popleft()

    def reader(self) -> asyncio.Task[Any] | threading.Thread | None:
        """The thread or task that read last; None if it is gone."""
        return self._reader()

    def abandoned(self) -> bool:
        """Whether the thread or task that read last has ended, or was cancelled and has not come back."""
        reader = self.reader()
        if reader is None or self.left:
            return True
        return not reader.is_alive() if isinstance(reader, threading.Thread) else reader.done()

    def close(self) -> None:
        """Leave the stream."""
        self._over = True
        self._error = None
        self._ready.clear()
        self._stream._detach(self)

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:
            stream._detach(self)

    def _attached(self) -> bool:
        active = self._stream._active
        return active is not None and active() is self

    def _receive(self, chunks: list[bytes], ended: bool, error: BaseException | None) -> None:
        for chunk in chunks:
            self._position += len(chunk)
            self._cutter.add(chunk, self._ready)
        if ended:
            self._cutter.finish(self._ready)
            self._over, self._error = True, error

    def _end(self) -> None:
        self._stream._detach(self)
        error, self._error = self._error, None
        if error is not None:
            raise error


class _Cutter(Generic[T]):
    """Turns chunks into what an iterator yields: decoded pieces, or lines."""

    def __init__(self, *, text: bool, lines: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if text else None
        self._lines = lines
        self._empty: Any = "" if text else b""
        self._rest: list[Any] = []
        self._rest_length = 0
        self._newline: Any = "\n" if text else b"\n"
        self._return: Any = "\r" if text else b"\r"

    def add(self, chunk: bytes, out: deque[T]) -> None:
        piece: Any = chunk if self._decoder is None else self._decoder.decode(chunk)
        if self._lines:
            self._cut(piece, out)
        elif piece:
            out.append(piece)

    def finish(self, out: deque[T]) -> None:
        piece: Any = self._empty if self._decoder is None else self._decoder.decode(b"", final=True)
        if self._lines:
            self._cut(piece, out)
            if self._rest:
                out.append(self._empty.join(self._rest))
                self._keep(self._empty)
        elif piece:
            out.append(piece)

    def _cut(self, piece: Any, out: deque[T]) -> None:
        # The pieces of a line are joined once it is whole: a progress bar would otherwise be copied at each of its steps.
        if self._newline not in piece and self._rest_length + len(piece) <= MAX_LINE:
            if piece:
                self._rest.append(piece)
                self._rest_length += len(piece)
            return
        lines = self._empty.join((*self._rest, piece)).split(self._newline)
        rest = lines.pop()
        for line in lines:
            out.append(_emit_pieces(line.removesuffix(self._return), out))
        self._keep(_emit_pieces(rest, out))

    def _keep(self, rest: Any) -> None:
        self._rest = [rest] if rest else []
        self._rest_length = len(rest)


def _emit_pieces(line: Any, out: deque[Any]) -> Any:
    while len(line) > MAX_LINE:
        out.append(line[:MAX_LINE])
        line = line[MAX_LINE:]
    return line


def _reader() -> asyncio.Task[Any] | threading.Thread:
    """Who reads: the running task, or the thread where there is none."""
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    return task if task is not None else threading.current_thread()


def _resolve_on(waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]) -> bool:
    """Wake who waits; False if its loop has closed."""
    loop, future = waiting
    try:
        loop.call_soon_threadsafe(_set, future)
    except RuntimeError:
        return False
    return True


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
