"""Bytes between a sandbox and the caller's side: streams that begin when they are read, and sources.

Nothing of the caller's runs on the loop thread: a plain source is read on a thread of its own, an async one on its own loop.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from aviato.bridge.loop import SLICE_SECONDS
from aviato.bridge.operation import OperationRef
from aviato.bridge.stream import StreamReader
from aviato.system.own_thread import OwnThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from aviato.bridge.stream import StreamIterator
    from aviato.calls.sandbox_state import SandboxState
    from aviato.core.lifecycle import SandboxHandle

T = TypeVar("T", str, bytes)

CHUNK_BYTES = 1 << 20
_KEPT_BYTES = 1 << 16
"""A file's stream is read once; what is kept for a second reading is only so much."""

_END = object()


class LazyStream(StreamReader[T]):
    """A stream that is fetched while somebody reads it, and no faster; leaving the loop ends the fetching.

    It is fetched once. A second reading has what was kept if that is all of it, and fails otherwise.
    """

    _for_all_of_it = "it is fetched once; ask for it again"

    def __init__(
        self, state: SandboxState, name: str, fetch: Callable[[SandboxHandle], AsyncIterator[bytes]], *, text: bool
    ) -> None:
        super().__init__(name=name, text=text, max_output_bytes=_KEPT_BYTES)
        self._state = state
        self._fetch = fetch
        self._first: weakref.ref[StreamIterator[T]] | None = None

    def _attach(self, iterator: StreamIterator[T], position: int) -> None:
        super()._attach(iterator, position)  # type: ignore[arg-type]
        if self._first is None:
            fetching = OperationRef.start(self._fed(), name=self._name)
            self._first = weakref.ref(iterator)
            weakref.finalize(iterator, fetching.cancel).atexit = False
        elif self._first() is not iterator:
            self._end_early()  # The first one has left, else there would be no other.

    def _end_early(self) -> None:
        self.finish(RuntimeError(f"the reader of {self._name} left before its end; {self._for_all_of_it}"))

    async def _fed(self) -> None:
        try:
            await self._state.do(self._pump)
        except asyncio.CancelledError:
            self._end_early()
            raise
        except BaseException as error:
            self.finish(error)
            if not isinstance(error, Exception):
                raise

    async def _pump(self, handle: SandboxHandle) -> None:
        chunks = self._fetch(handle)
        try:
            async for chunk in chunks:
                self.feed(chunk, self.total_bytes)
                await self.ready()
                if not self.reading or self._ended:
                    return
            self.finish()
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]


def source(value: Any) -> AsyncGenerator[bytes, None]:
    """Chunks of what a caller gave: an iterable, a binary file, or an async iterable of the loop that runs now.

    What is iterable in both ways, such as a stream of another sandbox, is read as the caller would: async where a loop runs.

    Raises:
        TypeError: nothing of these, or an async iterable without a loop to run it on.
    """
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(f"the source must yield chunks of bytes; for one {type(value).__name__} use write_file()")
    if isinstance(value, AsyncIterable):
        if (loop := asyncio._get_running_loop()) is not None:
            return _from_loop(value, loop)
        if not isinstance(value, Iterable):
            raise TypeError("an async source needs a running event loop at the call; pass a plain iterable here")
    if hasattr(value, "read"):
        return _from_thread(iter(lambda: value.read(CHUNK_BYTES), b""))
    if isinstance(value, Iterable):
        return _from_thread(value)
    raise TypeError(f"the source must be an iterable of bytes or a binary file, not {type(value).__name__}")


async def written(writing: Awaitable[None], chunks: AsyncGenerator[bytes, None]) -> None:
    """Wait for what reads a source, then leave the source: an error would keep it, and its thread, for as long as itself."""
    try:
        await writing
    finally:
        await chunks.aclose()


async def _from_thread(chunks: Iterable[Any]) -> AsyncGenerator[bytes, None]:
    thread = OwnThread("aviato-source")
    try:
        iterator = await thread.run(iter, chunks)
        while (chunk := await thread.run(next, iterator, _END)) is not _END:
            yield _checked(chunk)
    finally:
        thread.end()


async def _from_loop(chunks: AsyncIterable[Any], loop: asyncio.AbstractEventLoop) -> AsyncGenerator[bytes, None]:
    iterator = aiter(chunks)
    broken: list[BaseException] = []

    async def take() -> Any:
        try:
            return await anext(iterator, _END)
        except (KeyboardInterrupt, SystemExit) as error:
            broken.append(error)  # It ends the caller's loop, which will then tell nobody.
            raise

    def check() -> None:
        if broken:
            raise broken[0]
        if loop.is_closed():
            raise RuntimeError("the event loop of the source has closed before the end of the source; await the write on it")

    while True:
        check()
        taking = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(take(), loop))
        try:
            while not (await asyncio.wait((taking,), timeout=SLICE_SECONDS))[0]:
                check()
        finally:
            if not loop.is_closed():
                taking.cancel()
        chunk = taking.result()
        if chunk is _END:
            return
        yield _checked(chunk)


def _checked(chunk: Any) -> bytes:
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise TypeError(f"the source must yield bytes, not {type(chunk).__name__}")
    return bytes(chunk)
