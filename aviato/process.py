"""Process: one command, from the call to its result, with its streams."""

from __future__ import annotations

import asyncio
import binascii
import math
from typing import TYPE_CHECKING, Any, TypedDict

from aviato import defaults
from aviato.bridge.operation import OperationRef
from aviato.bridge.stream import StreamReader
from aviato.bridge.writer import StreamWriter
from aviato.exceptions import (
    AviatoError,
    AviatoValidationError,
    OperationCancelledError,
    SandboxCommandTimeoutError,
    SandboxExecutionError,
    SandboxNotRunningError,
)
from aviato.parameters import Suggesting
from aviato.representation import beginning
from aviato.results import ProcessResult, ResourceUsage
from aviato.text import encode
from aviato.wire.frames import INPUT_BYTES
from aviato.wire.ids import new_exec_id

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from aviato.bridge.collection import Collection
    from aviato.core.execution import Execution
    from aviato.core.lifecycle import SandboxHandle
    from aviato.policy.metrics import Outcome
    from aviato.sandbox_state import SandboxState
    from aviato.wire.execution import ExecExit

DEFAULT_MAX_OUTPUT_BYTES = 16 << 20
SHOWN_CHARACTERS = 60
"""Of a command, where it is told of."""
TIMED_OUT_RETURNCODE = 137


class Process(OperationRef[ProcessResult], Suggesting):
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
        self.stdout, self.stderr = streams(text=True, max_bytes=max_bytes, offsets=attach or (0, 0), of=self.exec_id)
        self.stdin: StreamWriter | None = None
        if writer:
            self.stdin = StreamWriter(self._write, self._write_eof, name="stdin", of=self.exec_id)
        self._state = state
        self._given = given
        self._check = check
        self._attached = attach is not None
        self._command: tuple[str, ...] = tuple(request["command"])
        self._outlives: bool = self._attached or request.get("detach", False)
        self._execution: Execution | None = None
        self._counted = False
        self._returncode: int | None = None
        what = f"attach to {self.exec_id}" if self._attached else f"exec {_shown(self.command)}"
        self._start(self._run(request), name=f"{what} in {state.sandbox_id}")

    @property
    def command(self) -> tuple[str, ...]:
        """As given; of one that is attached to, as the server tells it, and empty before that."""
        return (self._execution and self._execution.command) or self._command

    # -- looking

    def poll(self) -> int | None:
        """The returncode once it has ended, else None.

        Never raises: it is 137 after a timeout, and None after an infrastructure error.
        """
        return self._returncode if self.done() else None

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
        if self._returncode is not None:
            return self._returncode
        assert error is not None
        raise error

    def on_wait(self) -> None:
        """Whoever waits here cannot also go on reading: let go of the iterators that this thread or task holds half read."""
        self.stdout.detach_own()
        self.stderr.detach_own()

    def send_signal(self, signal: int) -> OperationRef[None]:
        """Send a signal to the command's process group, once it runs; of one that has ended a no-op."""
        number = int(signal)
        if not 1 <= number <= 64:
            raise AviatoValidationError(f"signal must be 1 to 64, got {number}", field_violations={"signal": "out of range"})
        return OperationRef.start(self._signal(number), name=f"signal {number} to {self.exec_id}")

    def _state_shown(self) -> str:
        returncode = self.poll()
        if returncode is None:
            return super()._state_shown()
        failed = self._future.exception()
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

        feeding: asyncio.Task[None] | None = None
        try:
            execution = self._execution = Execution(
                self._state.handle(), request, self.stdout, self.stderr, attached=self._attached
            )
            if self._given is not None:
                feeding = asyncio.get_running_loop().create_task(feed(execution, self._given))
                self._given = None
            ended = await execution.run()
        except AviatoError as error:
            self._settle(error, class_of(error, self._state))
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
        result = process_result(self.command, ended, self.stdout, self.stderr)
        self._returncode = result.returncode
        failed = failure(result, request, self._state.handle(), check=self._check, cancelled=ended.cancelled)
        # The streams of a command that ended by itself end without an error.
        by_itself = failed is None or isinstance(failed, SandboxExecutionError)
        self._settle(None if by_itself else failed, class_of_end(ended), result)
        if failed is not None:
            raise failed
        return result

    def _finish(self, task: asyncio.Task[ProcessResult]) -> None:
        if task.cancelled():
            # Also where it was cancelled before its first step.
            self._settle(OperationCancelledError(f"{self._name} was cancelled"), "cancelled")
        elif (error := task.exception()) is not None:
            self._settle(error, "error")
        super()._finish(task)

    def _settle(self, error: BaseException | None, outcome: Outcome, result: ProcessResult | None = None) -> None:
        """End the streams and count the command, once, before anyone learns of its end."""
        if self._counted:
            return
        self._counted = True
        self._seen = self._seen or outcome == "cancelled"
        self.stdout.finish(error)
        self.stderr.finish(error)
        if self.stdin is not None:
            self.stdin.mark_closed("the command has ended")
        if self._attached:
            return  # It is counted where it was begun.
        count(self._state, outcome, error, result)

    async def _write(self, data: bytes, offset: int) -> None:
        await self._executing().write_stdin(data, offset)

    async def _write_eof(self, offset: int) -> None:
        await self._executing().end_stdin(offset)

    async def _signal(self, number: int) -> None:
        if not self.done():
            await self._executing().send_signal(number)

    def _executing(self) -> Execution:
        if self._execution is None:
            raise SandboxExecutionError(f"command {self.exec_id} did not start", reason="stdin_closed")
        return self._execution

    def _timeout_error(self, timeout: float) -> Exception:
        error = super()._timeout_error(timeout)
        if isinstance(error, AviatoError):
            # Before its start nothing inside can be to blame for the wait.
            error.is_infrastructure = self._execution is None or not self._execution.started
        return error


def streams(
    *, text: bool, max_bytes: int, offsets: tuple[int, int], of: str = ""
) -> tuple[StreamReader[Any], StreamReader[Any]]:
    """The streams of the command `of`, from these offsets on."""
    stdout, stderr = offsets
    return (
        StreamReader(name="stdout", text=text, of=of, max_output_bytes=max_bytes, offset=stdout),
        StreamReader(name="stderr", text=text, of=of, max_output_bytes=max_bytes, offset=stderr),
    )


def attach_request(exec_id: str, stdout_offset: int, stderr_offset: int) -> tuple[dict[str, Any], tuple[int, int]]:
    """Check the arguments of an attach.

    Returns:
        What stands for the request, and the offsets.

    Raises:
        TypeError, AviatoValidationError: an argument that cannot be meant.
    """
    if not isinstance(exec_id, str):
        raise TypeError(f"exec_id must be a str, not {type(exec_id).__name__}")
    for name, offset in (("stdout_offset", stdout_offset), ("stderr_offset", stderr_offset)):
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"{name} must be an int, not {type(offset).__name__}")
        if not 0 <= offset < 1 << 63:
            raise AviatoValidationError(f"{name} must be 0 or more, got {offset}", field_violations={name: "out of range"})
    return {"exec_id": exec_id, "command": []}, (stdout_offset, stderr_offset)


class ExecOptions(TypedDict, total=False):
    """The parameters of `AsyncSandbox.spawn`, for the calls that pass them on."""

    cwd: str | None
    env: Mapping[str, str] | None
    stdin: bool | bytes | str
    check: bool
    timeout_seconds: float | None
    max_output_bytes: int | None
    detach: bool
    text: bool


def exec_request(
    command: Sequence[str | os.PathLike[str]],
    *,
    default_timeout_seconds: float,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | int | None = None,
    stdin: bool | bytes | str = False,
    timeout_seconds: float | None = None,
    detach: bool = False,
) -> tuple[dict[str, Any], bytes | None]:
    """Check the arguments of an exec.

    Returns:
        The fields of the request, and input that was given whole and is too long for it.

    Raises:
        TypeError, AviatoValidationError: an argument that cannot be meant.
    """
    arguments = defaults.texts("command", command)
    if not arguments:
        raise AviatoValidationError("command must not be empty", field_violations={"command": "empty"})
    if not arguments[0]:
        raise AviatoValidationError("command[0], the program, must not be empty", field_violations={"command": "no program"})
    if user not in (None, "root", 0) or isinstance(user, bool):
        raise AviatoValidationError(f"user must be None, 'root' or 0, got {user!r}", field_violations={"user": "unknown"})
    if not isinstance(stdin, (bool, bytes, str)):
        raise TypeError(f"stdin must be True, False, bytes or str, not {type(stdin).__name__}")
    if not isinstance(detach, bool):
        raise TypeError(f"detach must be a bool, not {type(detach).__name__}")
    limit = math.inf if detach else default_timeout_seconds
    if timeout_seconds is not None:
        limit = defaults.seconds("timeout_seconds", timeout_seconds)
    request: dict[str, Any] = {"exec_id": new_exec_id(), "command": arguments}
    request["timeout_seconds"] = None if math.isinf(limit) else limit
    if cwd is not None:
        request["working_dir"] = defaults.absolute("cwd", cwd)
    if env:
        request["environment_variables"] = defaults.environment(env)
    given = encode(stdin) if isinstance(stdin, str) else stdin
    if given is not False:
        request["stdin"] = True
    if isinstance(given, bytes) and len(given) <= INPUT_BYTES:
        request["input"] = binascii.b2a_base64(given, newline=False).decode()
    if detach:
        request["detach"] = True
    return request, None if "input" in request or not isinstance(given, bytes) else given


def output_limit(value: int | None) -> int:
    """How much of each stream a result keeps."""
    if value is None:
        return DEFAULT_MAX_OUTPUT_BYTES
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_output_bytes must be an int, not {type(value).__name__}")
    if value <= 0:
        raise AviatoValidationError(
            f"max_output_bytes must be more than 0, got {value}", field_violations={"max_output_bytes": "not positive"}
        )
    return value


def failure(
    result: ProcessResult, request: dict[str, Any], handle: SandboxHandle, *, check: bool, cancelled: bool
) -> AviatoError | None:
    """What is raised in place of a result, if anything.

    Args:
        result: of the command.
        request: that began it.
        handle: of its sandbox.
        check: whether a returncode other than 0 is raised.
        cancelled: whether it was.
    """
    if cancelled:
        return OperationCancelledError(f"command {request['exec_id']} was cancelled")
    if result.timed_out:
        seconds = request.get("timeout_seconds")
        limit = "its time limit" if seconds is None else f"{seconds:g} s"
        return SandboxCommandTimeoutError(
            f"{_shown(result.command)} ran longer than {limit} and was killed",
            exec_result=result,
            sandbox_id=handle.sandbox_id,
            started=True,
        )
    if result.returncode == 0:
        return None
    from aviato import network_remedy

    remedy = network_remedy.said(result, handle)
    if check:
        return SandboxExecutionError(
            f"{_shown(result.command)} ended with returncode {result.returncode}{_last_words(result)}{remedy}",
            exec_result=result,
            sandbox_id=handle.sandbox_id,
            started=True,
            reason="returncode",
        )
    return None


def process_result(
    command: tuple[str, ...], ended: ExecExit, stdout: Collection | StreamReader[str], stderr: Collection | StreamReader[str]
) -> ProcessResult:
    """The result from what the server said at the end and what was collected on the way."""
    out, err = stdout.collected(), stderr.collected()
    return ProcessResult(
        returncode=ended.returncode,
        command=command,
        stdout_bytes=out.data,
        stderr_bytes=err.data,
        stdout_offset=stdout.offset,
        stderr_offset=stderr.offset,
        stdout_bytes_total=out.total,
        stderr_bytes_total=err.total,
        stdout_head_bytes=out.head_bytes,
        stderr_head_bytes=err.head_bytes,
        duration_seconds=ended.duration_seconds,
        timed_out=ended.timed_out,
        signal=ended.signal,
        oom_killed=ended.oom_killed,
        usage=ResourceUsage(
            cpu_seconds=ended.cpu_seconds,
            max_rss_bytes=ended.max_rss_bytes,
            memory_peak_bytes=ended.memory_peak_bytes,
            processes_peak=ended.processes_peak,
        ),
    )


async def feed(execution: Execution, content: bytes) -> None:
    """Send input that was given whole, and its end. A command that does not read it all has not failed."""
    step = 256 << 10
    try:
        for start in range(0, len(content), step):
            await execution.write_stdin(content[start : start + step], start)
        await execution.end_stdin(len(content))
    except AviatoError:
        pass


def count(state: SandboxState, outcome: Outcome, error: BaseException | None, result: ProcessResult | None) -> None:
    """Count a command that has ended, before anyone learns of its end."""
    state.stats.exec_ended(outcome)
    if state.metrics is not None:
        state.metrics.exec_ended(
            state.sandbox_id,
            outcome,
            None if result is None else result.duration_seconds,
            timed_out=result is not None and result.timed_out,
            infrastructure=isinstance(error, AviatoError) and error.is_infrastructure,
            truncated=result is not None and (result.stdout_truncated or result.stderr_truncated),
        )


def class_of(error: AviatoError, state: SandboxState) -> Outcome:
    """What a command without an end counts as: by the caller's own `stop()` as cancelled."""
    return "cancelled" if isinstance(error, SandboxNotRunningError) and state.stopped else "error"


def class_of_end(ended: ExecExit) -> Outcome:
    """What a command that has ended counts as."""
    if ended.cancelled:
        return "cancelled"
    if ended.timed_out:
        return "error"
    return "ok" if ended.returncode == 0 else "nonzero"


def _shown(command: tuple[str, ...]) -> str:
    return beginning(" ".join(command), SHOWN_CHARACTERS)


def _last_words(result: ProcessResult) -> str:
    lines = result.stderr.strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""
