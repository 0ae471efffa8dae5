"""Standard input of a command as a writer."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from aviato.bridge.operation import OperationRef
from aviato.exceptions import SandboxExecutionError
from aviato.values.text import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PIECE_BYTES = 256 << 10


class StreamWriter:
    """Writes bytes in order; each call gives a handle that resolves when the sandbox has taken them."""

    def __init__(
        self,
        send: Callable[[bytes, int], Awaitable[None]],
        send_eof: Callable[[int], Awaitable[None]],
        *,
        name: str,
        of: str = "",
    ) -> None:
        self._send = send
        self._of = of
        self._send_eof = send_eof
        self._name = name
        self._offset = 0
        self._closed: str | None = None
        self._broken: str | None = None
        self._closing: OperationRef[None] | None = None
        # Held while an operation is handed to the loop, so that writes begin in the order of the calls; the turn keeps it.
        self._order = threading.Lock()
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        of = f" of {self._of}" if self._of else ""
        return f"<StreamWriter {self._name}{of}: {self._offset} bytes, {'closed' if self.closed else 'open'}>"

    @property
    def closed(self) -> bool:
        """Whether `close()` was called or the command has ended."""
        return self._closed is not None

    def write(self, data: bytes) -> OperationRef[None]:
        """Write bytes; resolves when the command's pipe has room for them.

        Raises:
            TypeError: not bytes.
            SandboxExecutionError: closed, or the command has ended (reason `stdin_closed`).
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"write() takes bytes, not {type(data).__name__}; for text use writeline(), or encode it")
        content = bytes(data)
        with self._order:
            self._check()
            return OperationRef.start(self._write(content), name=f"write to {self._name}")

    def writeline(self, line: str) -> OperationRef[None]:
        r"""Write a line of text and `\n`."""
        if not isinstance(line, str):
            raise TypeError(f"writeline() takes str, not {type(line).__name__}; for bytes use write()")
        return self.write(encode(f"{line}\n"))

    def close(self) -> OperationRef[None]:
        """End of input, after all that was written; a second call joins the first."""
        with self._order:
            if self._closing is None:
                # After a broken write the command still waits for the end of its input.
                ended = self._closed is not None and self._broken is None
                self._closed = self._closed or f"{self._name} is closed"
                self._closing = OperationRef.start(self._close(ended=ended), name=f"close {self._name}", shared=True)
            return self._closing

    def mark_closed(self, why: str) -> None:
        """The command has ended: later writes say so."""
        self._closed = self._closed or f"{self._name} is closed: {why}"

    def _check(self) -> None:
        if self._closed is not None:
            raise SandboxExecutionError(self._closed, reason="stdin_closed")

    async def _write(self, content: bytes) -> None:
        async with self._turn:
            if self._broken is not None:
                raise SandboxExecutionError(self._broken, reason="stdin_closed")
            for start in range(0, len(content), PIECE_BYTES):
                piece = content[start : start + PIECE_BYTES]
                try:
                    await self._send(piece, self._offset)
                except BaseException as error:
                    # Nobody knows whether the piece arrived: what followed it at this offset could be taken for a repeat.
                    what = "was cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
                    self._broken = f"{self._name} is closed: a write {what} before the sandbox had confirmed it"
                    self._closed = self._closed or self._broken
                    raise
                self._offset += len(piece)

    async def _close(self, *, ended: bool) -> None:
        async with self._turn:
            if not ended:
                await self._send_eof(self._offset)
