"""What is done to a command beside reading it: input, signals, cancelling."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoError, SandboxExecutionError
from aviato.log import logger
from aviato.wire.errors import ExecNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.core.client import Client
    from aviato.core.lifecycle import SandboxHandle
    from aviato.wire.execution import ExecExit

CANCEL_SECONDS = 10.0


class ExecCalls:
    """The calls of a command; `Execution` reads it."""

    exec_id: str
    outlives: bool
    handle: SandboxHandle
    _client: Client
    _path: str
    _request: dict[str, Any]
    _exit: ExecExit | None
    _resizing: asyncio.Lock | None = None

    async def is_running(self) -> bool:
        """Wait until the command has started; False if it ended instead."""
        raise NotImplementedError

    async def write_stdin(self, data: bytes, offset: int) -> None:
        """Send input that begins at `offset`; returns when the sandbox has room for it."""
        await self._send_stdin(data, offset, eof=False)

    async def end_stdin(self, offset: int) -> None:
        """Send the end of input. Of a command that has ended it has no effect."""
        with self._submitting():
            if not await self.is_running():
                return
            try:
                await self._send_stdin(b"", offset, eof=True)
            except SandboxExecutionError as error:
                # That it has ended may be known there and not here.
                if self._exit is None and not (error.reason == "stdin_closed" and self._request.get("stdin")):
                    raise

    async def _send_stdin(self, data: bytes, offset: int, *, eof: bool) -> None:
        path = f"{self._path}/{self.exec_id}/stdin?offset={offset}&eof={int(eof)}"

        async def attempt() -> None:
            response = await self._client.transport.open(
                "POST", path, data, content_type="application/octet-stream", silence_seconds=float("inf")
            )
            await response.read()

        with self._submitting():
            if not await self.is_running():
                raise self._closed()
            try:
                await self._client.repeat(attempt, f"write to command {self.exec_id}")
            except ExecNotFoundError:
                if self._exit is None:
                    raise
                # It has ended and its result was taken, after an attempt whose answer was lost.
                raise self._closed() from None

    def _closed(self) -> SandboxExecutionError:
        return SandboxExecutionError(f"stdin of command {self.exec_id} is closed: it has ended", reason="stdin_closed")

    async def send_signal(self, signal: int) -> None:
        """Signal the command's process group, once it runs; of one that has ended a no-op."""
        if not await self.is_running():
            return
        try:
            body = b'{"signal":%d}' % signal
            await self._client.call("signal", "POST", f"{self._path}/{self.exec_id}/signal", body, once=True)
        except ExecNotFoundError:
            pass

    async def resize(self, width: int, height: int) -> None:
        """Give its terminal another size, once it runs; of one that has ended a no-op."""
        self._resizing = self._resizing or asyncio.Lock()
        async with self._resizing:  # or a size that is sent again could overtake a later one
            if not await self.is_running():
                return
            try:
                body = b'{"width":%d,"height":%d}' % (width, height)
                await self._client.call("resize", "POST", f"{self._path}/{self.exec_id}/resize", body)
            except ExecNotFoundError:
                pass

    async def cancel(self) -> None:
        """Kill the whole process tree and return when it is dead; bounded in time."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._client.call("cancel", "POST", f"{self._path}/{self.exec_id}/cancel")
        except (AviatoError, TimeoutError) as error:
            logger.debug("command %s could not be cancelled: %s", self.exec_id, error)

    # -- what a command that outlives its process needs before that goes

    def _submission(self) -> asyncio.Future[None] | None:
        """Keep this process from going before `_has_submitted`, if the command outlives it."""
        if not self.outlives or self.handle.leased:
            return None
        submitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handle.lease.submitting.add(submitted)
        return submitted

    def _has_submitted(self, submitted: asyncio.Future[None] | None) -> None:
        if submitted is not None and not submitted.done():
            self.handle.lease.submitting.discard(submitted)
            submitted.set_result(None)

    @contextmanager
    def _submitting(self) -> Iterator[None]:
        submitted = self._submission()
        try:
            yield
        finally:
            self._has_submitted(submitted)
