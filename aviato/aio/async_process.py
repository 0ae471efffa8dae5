"""AsyncProcess: a command of an `AsyncSandbox`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aviato.aio.async_command import AsyncCommand
from aviato.bridge.stream import StreamReader
from aviato.calls.exec_call import run
from aviato.exceptions import OperationCancelledError
from aviato.results import ProcessResult
from aviato.values.representation import beginning

if TYPE_CHECKING:
    from aviato.core.lifecycle import SandboxHandle


class AsyncProcess(AsyncCommand[ProcessResult]):
    """A command under way: `await` it for its result, iterate `stdout` and `stderr` with `async for`.

    A cancelled `await` kills the command, but lets go of one begun with `detach=True` or attached to.
    """

    def __init__(
        self,
        handle: SandboxHandle,
        request: dict[str, Any],
        given: bytes | None,
        *,
        check: bool,
        max_bytes: int,
        text: bool,
        attach: tuple[int, int] | None = None,
    ) -> None:
        from aviato.core.execution import Execution

        self.exec_id: str = request["exec_id"]
        out, err = attach or (0, 0)
        loop = asyncio.get_running_loop()
        kept: dict[str, Any] = {"text": text, "of": self.exec_id, "max_output_bytes": max_bytes, "loop": loop}
        self.stdout: StreamReader[Any] = StreamReader("stdout", offset=out, **kept)
        self.stderr: StreamReader[Any] = StreamReader("stderr", offset=err, **kept)
        self._command: tuple[str, ...] = tuple(request["command"])
        self._sandbox_id = handle.sandbox_id
        self._handle = handle
        self._request = request
        self._given = given
        self._check = check
        self._streams = (self.stdout, self.stderr)
        self._execution = Execution(handle, request, self.stdout, self.stderr, attached=attach is not None)

    def _begin(self) -> None:
        """Run it in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._finish)

    @property
    def command(self) -> tuple[str, ...]:
        """As given; of one that is attached to, as the server tells it, and empty before that."""
        return self._execution.command or self._command

    async def started(self) -> bool:
        """Wait until it runs; False if it came to an end without."""
        return await self._execution.is_running()

    async def send_signal(self, signal: int) -> None:
        """Send a signal to its process group."""
        await self._execution.send_signal(signal)

    def __repr__(self) -> str:
        command = beginning(" ".join(self.command))
        return f"<AsyncProcess {self.exec_id} {command} in {self._sandbox_id}: {self._state_shown()}>"

    def _state_shown(self) -> str:
        if not self.done():
            return "running"
        if self._task.cancelled():
            return "cancelled"
        error = self._task.exception()
        return f"returncode {self._task.result().returncode}" if error is None else type(error).__name__

    async def _run(self) -> ProcessResult:
        """Run it in the task that calls: for one that nobody reads along."""
        given, self._given = self._given, None
        ran = await run(self._execution, self._request, given, self.stdout, self.stderr, check=self._check)
        if ran.failure is not None:
            raise ran.failure
        return ran.result

    def _finish(self, task: asyncio.Task[ProcessResult]) -> None:
        cancelled = OperationCancelledError(f"command {self.exec_id} was cancelled")
        error = cancelled if task.cancelled() else task.exception()
        self.stdout.finish(error)
        self.stderr.finish(error)
