"""What commands of an `AsyncSandbox` have in common, on a terminal or not."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aviato.core.command_input import CommandInput
from aviato.values.handles import Handle

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator

    from aviato.bridge.stream import StreamReader
    from aviato.core.execution import Execution

T = TypeVar("T")


class AsyncCommand(Handle, Generic[T]):
    """A command under way."""

    _instead = "; `await` it first"

    _execution: Execution
    _task: asyncio.Task[T]
    _streams: tuple[StreamReader[Any], ...]

    def __await__(self) -> Generator[Any, None, T]:
        for stream in self._streams:
            stream.detach_own()
        return self._task.__await__()

    def done(self) -> bool:
        """Whether it has ended, its clean-up included."""
        return self._task.done()

    def cancel(self) -> None:
        """Kill its process tree; `await` it to know that it is dead."""
        self._execution.outlives = False
        self._task.cancel()

    @cached_property
    def _input(self) -> CommandInput:
        return CommandInput(self._execution.write_stdin, self._execution.end_stdin, name="stdin")

    async def write_stdin(self, data: bytes) -> None:
        """Send input to a command begun with `stdin=True`, or type; writes of several tasks follow each other.

        After one that was cancelled or failed nobody knows what of it has arrived, and no more can be written.

        Raises:
            SandboxExecutionError: the command has ended, or an earlier write came to no end (reason `stdin_closed`).
        """
        await self._input.write(bytes(memoryview(data)))

    async def close_stdin(self) -> None:
        """End its input; at a terminal Ctrl-D, as the last key."""
        await self._input.end()
