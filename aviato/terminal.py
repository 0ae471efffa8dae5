"""Terminals: a command on a screen and a keyboard of its own, as a handle and as an async object."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from aviato.bridge.operation import OperationRef
from aviato.bridge.stream import StreamReader
from aviato.bridge.writer import StreamWriter
from aviato.exceptions import AviatoError, AviatoValidationError, OperationCancelledError, SandboxExecutionError
from aviato.process import exec_request
from aviato.representation import beginning
from aviato.results import TerminalResult

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Mapping, Sequence

    from aviato.core.execution import Execution
    from aviato.core.lifecycle import SandboxHandle
    from aviato.sandbox_state import SandboxState

LARGEST_SIZE = 65535


class TerminalSession(OperationRef[TerminalResult]):
    r"""A command on a terminal of its own: a handle on its result, what its screen is sent, and its keyboard.

    `result()` and `await` give the `TerminalResult`; a returncode other than 0 is a result. Terminals have no time limit:
    `cancel()` kills the whole process tree. They are no executions in a session's metrics: the exit code of a shell says
    nothing about what was done in it.

    Attributes:
        exec_id: made by the client; the server runs an id at most once.
        command: as given.
        output: bytes as they arrive, escape sequences included.
        stdin: types. Control characters are keys: `b"\x03"` is Ctrl-C. `close()` types Ctrl-D.
    """

    def __init__(self, state: SandboxState, request: dict[str, Any]) -> None:
        self.exec_id: str = request["exec_id"]
        self.command: tuple[str, ...] = tuple(request["command"])
        self.output: StreamReader[bytes] = StreamReader(name="output", text=False, of=self.exec_id)
        self.stdin: StreamWriter = StreamWriter(self._write, self._write_eof, name="stdin", of=self.exec_id)
        self._state = state
        self._execution: Execution | None = None
        self._start(self._run(request), name=f"terminal {self.exec_id} in {state.sandbox_id}")

    def resize(self, width: int, height: int) -> OperationRef[None]:
        """Give the terminal another size in characters, once it runs; of one that has ended a no-op.

        Raises:
            TypeError, AviatoValidationError: not whole numbers from 1 to 65535.
        """
        size = terminal_size(width, height)
        return OperationRef.start(self._resize(**size), name=f"resize {self.exec_id}")

    def _state_shown(self) -> str:
        ended = self._future.done() and self._future.exception() is None
        return f"returncode {self._future.result().returncode}" if ended else super()._state_shown()

    def on_wait(self) -> None:
        """Whoever waits here cannot also go on reading: let go of the iterator that this thread or task holds half read."""
        self.output.detach_own()

    # -- on the loop thread

    async def _run(self, request: dict[str, Any]) -> TerminalResult:
        self._execution = _execution(self._state.handle(), request, self.output)
        result = await _result(self._execution)
        self._settle(None)
        return result

    def _finish(self, task: asyncio.Task[TerminalResult]) -> None:
        if task.cancelled():
            self._settle(OperationCancelledError(f"{self._name} was cancelled"))
        elif (error := task.exception()) is not None:
            self._settle(error)
        super()._finish(task)

    def _settle(self, error: BaseException | None) -> None:
        self.output.finish(error)
        self.stdin.mark_closed("the command has ended")

    async def _write(self, data: bytes, offset: int) -> None:
        await self._executing().write_stdin(data, offset)

    async def _write_eof(self, offset: int) -> None:
        await self._executing().end_stdin(offset)

    async def _resize(self, width: int, height: int) -> None:
        if not self.done():
            await self._executing().resize(width, height)

    def _executing(self) -> Execution:
        if self._execution is None:
            raise SandboxExecutionError(f"terminal {self.exec_id} did not start", reason="stdin_closed")
        return self._execution

    def _timeout_error(self, timeout: float) -> Exception:
        error = super()._timeout_error(timeout)
        if isinstance(error, AviatoError):
            # Before its start nothing inside can be to blame for the wait.
            error.is_infrastructure = self._execution is None or not self._execution.started
        return error


class AsyncTerminal:
    """A command on a terminal, of an `AsyncSandbox`: `await` it for its result, iterate `output` with `async for`."""

    def __init__(self, handle: SandboxHandle, request: dict[str, Any]) -> None:
        self.exec_id: str = request["exec_id"]
        self.command: tuple[str, ...] = tuple(request["command"])
        self.output: StreamReader[bytes] = StreamReader(name="output", text=False, of=self.exec_id)
        self._sent = 0
        self._execution = _execution(handle, request, self.output)
        self._task = asyncio.get_running_loop().create_task(_result(self._execution))
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


def terminal_request(
    command: Sequence[str | os.PathLike[str]], width: int, height: int, *, cwd: str | None, env: Mapping[str, str] | None
) -> dict[str, Any]:
    """Check the arguments of a terminal; the fields of its request.

    Raises:
        TypeError, AviatoValidationError: an argument that cannot be meant.
    """
    size = terminal_size(width, height)
    request, _ = exec_request(
        command,
        default_timeout_seconds=math.inf,
        cwd=cwd,
        env=env,
        user=None,
        stdin=True,
        timeout_seconds=None,
        detach=False,
    )
    request["terminal"] = size
    return request


def terminal_size(width: int, height: int) -> dict[str, int]:
    """Check a size.

    Raises:
        TypeError, AviatoValidationError: not whole numbers from 1 to 65535.
    """
    size = {"width": width, "height": height}
    for name, value in size.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if not 1 <= value <= LARGEST_SIZE:
            problem = f"{name} must be 1 to {LARGEST_SIZE}, got {value}"
            raise AviatoValidationError(problem, field_violations={name: "out of range"})
    return size


def _execution(handle: SandboxHandle, request: dict[str, Any], output: StreamReader[bytes]) -> Execution:
    from aviato.core.execution import Execution

    nothing: StreamReader[bytes] = StreamReader(name="stderr", text=False)
    return Execution(handle, request, output, nothing)


async def _result(execution: Execution) -> TerminalResult:
    ended = await execution.run()
    if ended.cancelled:
        raise OperationCancelledError(f"terminal {execution.exec_id} was cancelled")
    return TerminalResult(returncode=ended.returncode, signal=ended.signal, duration_seconds=ended.duration_seconds)
