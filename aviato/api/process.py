"""Process: one command, from the call to its result, with its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.api.command_handle import CommandHandle
from aviato.bridge.operation import OperationRef
from aviato.bridge.stream import StreamReader
from aviato.bridge.writer import StreamWriter
from aviato.calls.exec_call import DEFAULT_MAX_OUTPUT_BYTES, count, run, shown
from aviato.exceptions import AviatoValidationError, SandboxExecutionError
from aviato.results import ProcessResult

if TYPE_CHECKING:
    from aviato.calls.exec_call import Ran
    from aviato.calls.sandbox_state import SandboxState


class Process(CommandHandle[ProcessResult]):
    """A command in a sandbox: a handle on its result, and its streams while it runs.

    `result()` and `await` give the `ProcessResult`; a returncode other than 0 is a result. They raise
    `SandboxCommandTimeoutError` (with `exec_result`) when the command ran too long, `SandboxExecutionError` with
    `check=True`, and otherwise only what kept the command from having a returncode.

    Attributes:
        exec_id: made by the client; the server runs an id at most once.
        stdout, stderr: text as it arrives.
        stdin: a writer with `stdin=True`, else None.

    A command begun with `detach=True` lives on when this handle is let go, by a cancelled `await`, Ctrl-C or the end of the
    process; only `cancel()`, its own time limit and the end of its sandbox end it. The same holds for one that is attached to.
    """

    def __init__(
        self,
        state: SandboxState,
        request: dict[str, Any],
        *,
        given: bytes | None = None,
        writer: bool = False,
        check: bool = False,
        max_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        attach: tuple[int, int] | None = None,
    ) -> None:
        self.exec_id: str = request["exec_id"]
        out, err = attach or (0, 0)
        self.stdout: StreamReader[str] = StreamReader("stdout", of=self.exec_id, max_output_bytes=max_bytes, offset=out)
        self.stderr: StreamReader[str] = StreamReader("stderr", of=self.exec_id, max_output_bytes=max_bytes, offset=err)
        self._streams = (self.stdout, self.stderr)
        self.stdin: StreamWriter | None = None
        if writer:
            self.stdin = StreamWriter(self._write, self._write_eof, name="stdin", of=self.exec_id)
        self._state = state
        state.used = True
        self._given = given
        self._check = check
        self._attached = attach is not None
        self._command: tuple[str, ...] = tuple(request["command"])
        self._outlives: bool = self._attached or request.get("detach", False)
        self._ran: Ran | None = None
        self._start(self._run(request), name=self.exec_id)

    @property
    def command(self) -> tuple[str, ...]:
        """As given; of one that is attached to, as the server tells it, and empty before that."""
        return (self._execution and self._execution.command) or self._command

    # -- looking

    def poll(self) -> int | None:
        """The returncode once it has ended, else None.

        Never raises: it is 137 after a timeout, and None after an infrastructure error.
        """
        return self._ran.result.returncode if self._ran is not None and self.done() else None

    @property
    def returncode(self) -> int | None:
        """As `poll()`."""
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the returncode, whatever it is.

        Raises:
            OperationTimeoutError: `timeout` seconds were not enough; the command goes on.
            AviatoError: there is no returncode, and why.
        """
        error = self.exception(timeout)
        if self._ran is not None:
            return self._ran.result.returncode
        assert error is not None
        raise error

    def send_signal(self, signal: int) -> OperationRef[None]:
        """Send a signal to the command's process group, once it runs; of one that has ended a no-op."""
        number = int(signal)
        if not 1 <= number <= 64:
            raise AviatoValidationError(f"signal must be 1 to 64, got {number}", field_violations={"signal": "out of range"})
        return OperationRef.start(self._signal(number), name=f"signal {number} to {self.exec_id}")

    def _title(self) -> str:
        what = f"attach to {self.exec_id}" if self._attached else f"exec {shown(self._command)}"
        return f"{what} in {self._state.sandbox_id}"

    def _state_shown(self) -> str:
        returncode = self.poll()
        if returncode is None:
            return super()._state_shown()
        failed = self._outcome.error
        return f"returncode {returncode}" if failed is None else f"returncode {returncode}, {type(failed).__name__}"

    @property
    def _outlives_waiters(self) -> bool:
        return self._outlives

    def _cancel_task(self) -> None:
        if self._execution is not None:
            self._execution.outlives = False  # This is `cancel()`, and not the end of the process.
        super()._cancel_task()

    # -- on the loop thread

    async def _run(self, request: dict[str, Any]) -> ProcessResult:
        from aviato.core.execution import Execution

        handle = self._state.handle()
        execution = self._execution = Execution(handle, request, self.stdout, self.stderr, attached=self._attached)
        given, self._given = self._given, None
        ran = self._ran = await run(execution, request, given, self.stdout, self.stderr, check=self._check)
        if ran.failure is not None:
            raise ran.failure
        return ran.result

    def _settle(self, error: BaseException | None) -> None:
        """End the streams and count the command."""
        # The streams of a command that ended by itself end without an error.
        of_streams = None if self._ran is not None and isinstance(error, SandboxExecutionError) else error
        self.stdout.finish(of_streams)
        self.stderr.finish(of_streams)
        if self.stdin is not None:
            self.stdin.mark_closed("the command has ended")
        ended, result = (None, None) if self._ran is None else self._ran[:2]
        if count(self._state, ended, result, error, begun_here=not self._attached) == "cancelled":
            self._seen = True

    async def _signal(self, number: int) -> None:
        if not self.done():
            await self._executing().send_signal(number)
