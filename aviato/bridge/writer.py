"""Standard input of a command as a writer."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from aviato.bridge.operation import OperationRef
from aviato.core.command_input import CommandInput
from aviato.exceptions import SandboxExecutionError
from aviato.values.text import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


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
        self._input = CommandInput(send, send_eof, name=name)
        self._of = of
        self._pid = os.getpid()
        self._name = name
        self._closed: str | None = None
        self._closing: OperationRef[None] | None = None
        # Held while an operation is handed to the loop, so that writes begin in the order of the calls; the input keeps it.
        self._order = threading.Lock()

    def __repr__(self) -> str:
        of = f" of {self._of}" if self._of else ""
        return f"<StreamWriter {self._name}{of}: {self._input.offset} bytes, {'closed' if self.closed else 'open'}>"

    @property
    def closed(self) -> bool:
        """Whether `close()` was called or the command has ended."""
        return self._why_closed is not None

    @property
    def _why_closed(self) -> str | None:
        return self._closed or self._input.broken

    def write(self, data: bytes) -> OperationRef[None]:
        """Write bytes; resolves when the command's pipe has room for them.

        Raises:
            TypeError: not bytes.
            SandboxExecutionError: closed, or the command has ended (reason `stdin_closed`).
            RuntimeError: the command was begun by another process, before a fork.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"write() takes bytes, not {type(data).__name__}; for text use writeline(), or encode it")
        content = bytes(data)
        self._check_process()
        with self._order:
            self._check()
            return OperationRef.start(self._input.write(content), name=f"write to {self._name}")

    def writeline(self, line: str) -> OperationRef[None]:
        r"""Write a line of text and `\n`."""
        if not isinstance(line, str):
            raise TypeError(f"writeline() takes str, not {type(line).__name__}; for bytes use write()")
        return self.write(encode(f"{line}\n"))

    def close(self) -> OperationRef[None]:
        """End of input, after all that was written; a second call joins the first.

        Raises:
            RuntimeError: the command was begun by another process, before a fork.
        """
        self._check_process()
        with self._order:
            if self._closing is None:
                # After a broken write the command still waits for the end of its input.
                ended = self._closed is not None and self._input.broken is None
                self._closed = self._why_closed or f"{self._name} is closed"
                self._closing = OperationRef.start(self._close(ended=ended), name=f"close {self._name}", shared=True)
            return self._closing

    def mark_closed(self, why: str) -> None:
        """The command has ended: later writes say so."""
        self._closed = self._closed or f"{self._name} is closed: {why}"

    def _check_process(self) -> None:
        # Each side would count its own bytes alone, so that what the other one writes next is taken for a repeat of them.
        if self._pid != os.getpid():
            raise RuntimeError(
                f"{self._name} is written by process {self._pid}, which began the command before the fork; "
                "only that process can write to it or close it"
            )

    def _check(self) -> None:
        if (why := self._why_closed) is not None:
            raise SandboxExecutionError(why, reason="stdin_closed")

    async def _close(self, *, ended: bool) -> None:
        if not ended:
            await self._input.end()
