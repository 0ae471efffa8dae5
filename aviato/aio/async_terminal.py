"""AsyncTerminal: a command on a screen and a keyboard of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aviato.aio.async_command import AsyncCommand
from aviato.bridge.stream import StreamReader
from aviato.calls.terminal_call import terminal_execution, terminal_result, terminal_size
from aviato.exceptions import OperationCancelledError
from aviato.results import TerminalResult
from aviato.values.representation import beginning

if TYPE_CHECKING:
    from aviato.core.lifecycle import SandboxHandle


class AsyncTerminal(AsyncCommand[TerminalResult]):
    """A command on a terminal, of an `AsyncSandbox`: `await` it for its result, iterate `output` with `async for`."""

    def __init__(self, handle: SandboxHandle, request: dict[str, Any]) -> None:
        self.exec_id: str = request["exec_id"]
        self.command: tuple[str, ...] = tuple(request["command"])
        loop = asyncio.get_running_loop()
        self.output: StreamReader[bytes] = StreamReader(name="output", text=False, of=self.exec_id, loop=loop)
        self._streams = (self.output,)
        self._execution = terminal_execution(handle, request, self.output)
        self._task = loop.create_task(terminal_result(self._execution))
        self._task.add_done_callback(self._finish)

    async def resize(self, width: int, height: int) -> None:
        """Give the terminal another size in characters; of one that has ended a no-op."""
        await self._execution.resize(**terminal_size(width, height))

    def __repr__(self) -> str:
        state = "running" if not self.done() else "done"
        return f"<AsyncTerminal {self.exec_id} {beginning(' '.join(self.command))}: {state}>"

    def _finish(self, task: asyncio.Task[TerminalResult]) -> None:
        cancelled = OperationCancelledError(f"terminal {self.exec_id} was cancelled")
        self.output.finish(cancelled if task.cancelled() else task.exception())
