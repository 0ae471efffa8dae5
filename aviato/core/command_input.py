"""What a command is given to read, piece by piece: in the order of the calls, and no byte twice or in place of another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxExecutionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PIECE_BYTES = 256 << 10


class CommandInput:
    """The input of one command. On one loop.

    Args:
        send: sends bytes that begin at an offset, and returns once they were taken.
        send_eof: says that there are no more than so many.
        name: for messages.

    Attributes:
        offset: how many bytes were taken.
        broken: why no more can be written; None: nothing keeps from that.
    """

    def __init__(
        self, send: Callable[[bytes, int], Awaitable[None]], send_eof: Callable[[int], Awaitable[None]], *, name: str
    ) -> None:
        self._send = send
        self._send_eof = send_eof
        self._name = name
        self._turn = asyncio.Lock()
        self.offset = 0
        self.broken: str | None = None

    async def write(self, content: bytes) -> None:
        """Send bytes, after those of earlier calls; returns once they were taken.

        Raises:
            SandboxExecutionError: the command has ended, or an earlier write came to no end (reason `stdin_closed`).
        """
        async with self._turn:
            if self.broken is not None:
                raise SandboxExecutionError(self.broken, reason="stdin_closed")
            for start in range(0, len(content), PIECE_BYTES):
                piece = content[start : start + PIECE_BYTES]
                try:
                    await self._send(piece, self.offset)
                except BaseException as error:
                    # Nobody knows whether the piece arrived: what followed it at this offset could be taken for a repeat.
                    what = "was cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
                    self.broken = f"{self._name} is closed: a write {what} before the sandbox had confirmed it"
                    raise
                self.offset += len(piece)

    async def end(self) -> None:
        """Say that there is no more, after all that was written. Also after a write that came to no end: the command waits."""
        async with self._turn:
            await self._send_eof(self.offset)
