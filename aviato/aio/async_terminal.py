"""AsyncTerminal: a command on a screen and a keyboard of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aviato.bridge.stream import StreamReader
from aviato.calls.terminal_call import terminal_execution, terminal_result, terminal_size
from aviato.exceptions import OperationCancelledError
from aviato.values.representation import beginning

if TYPE_CHECKING:
    from collections.abc import Generator

    from aviato.core.lifecycle import SandboxHandle
    from aviato.results import TerminalResult


class AsyncTerminal:
    """A command on a terminal, of an `AsyncSandbox`: `await` it for its result, iterate `output` with `async for`."""

    def __init__(self, handle: SandboxHandle, request: dict[str, Any]) -> None:
        self.exec_id: str = request["exec_id"]
        self.command: tuple[str, ...] = tuple(request["command"])
        self.output: StreamReader[bytes] = StreamReader(name="output", text=False, of=self.exec_id)
        self._sent = 0
        self._execution = terminal_execution(handle, request, self.output)
        self._task = asyncio.get_running_loop().create_task(terminal_result(self._execution))
        self._task.add_done_callback(self._finish)

    def __await__(self) -> Generator[Any, None, TerminalResult]:
        self.output.detach_own()
        return self._task.__await__()

    def done(self) -> bool:
        """Whether it has ended, its clean-up included."""
        return self._task.done()

    def cancel(self) -> None:
        """Kill its process tree; `await` it to know that it is dead."""
        self._task.cancel()

    async def write_stdin(self, data: bytes) -> None:
        """Type; one write at a time."""
        await self._execution.write_stdin(data, self._sent)
        self._sent += len(data)

    async def close_stdin(self) -> None:
        """Type Ctrl-D, as the last key."""
        await self._execution.end_stdin(self._sent)

    async def resize(self, width: int, height: int) -> None:
        """Give the terminal another size in characters; of one that has ended a no-op."""
        await self._execution.resize(**terminal_size(width, height))

    def __repr__(self) -> str:
        state = "running" if not self.done() else "done"
        return f"<AsyncTerminal {self.exec_id} {beginning(' '.join(self.command))}: {state}>"

    def _finish(self, task: asyncio.Task[TerminalResult]) -> None:
        cancelled = OperationCancelledError(f"terminal {self.exec_id} was cancelled")
        self.output.finish(cancelled if task.cancelled() else task.exception())
