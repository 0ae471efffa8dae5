"""What an exec asks for and gives, for every client: arguments checked, the run, its result, and the error in place of it."""

from __future__ import annotations

import asyncio
import binascii
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from aviato import defaults
from aviato.core.command_input import CommandInput
from aviato.exceptions import (
    AviatoError,
    AviatoValidationError,
    OperationCancelledError,
    SandboxCommandTimeoutError,
    SandboxError,
    SandboxExecutionError,
    SandboxNotRunningError,
)
from aviato.results import ProcessResult, ResourceUsage
from aviato.values.representation import beginning
from aviato.values.text import encode
from aviato.wire.frames import INPUT_BYTES
from aviato.wire.ids import new_exec_id

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from aviato.bridge.collection import Collection
    from aviato.calls.sandbox_state import SandboxState
    from aviato.core.execution import Execution
    from aviato.core.lifecycle import SandboxHandle
    from aviato.policy.metrics import Outcome
    from aviato.wire.execution import ExecExit

DEFAULT_MAX_OUTPUT_BYTES = 16 << 20
SHOWN_CHARACTERS = 60
"""Of a command, where it is told of."""
TIMED_OUT_RETURNCODE = 137


class Ran(NamedTuple):
    """How a command ended: its end, its result, and the error that its caller gets in place of that."""

    ended: ExecExit
    result: ProcessResult
    failure: AviatoError | None


async def run(
    execution: Execution,
    request: dict[str, Any],
    given: bytes | None,
    stdout: Collection,
    stderr: Collection,
    *,
    check: bool = False,
) -> Ran:
    """Run a command to its end.

    Args:
        execution: of it, not begun yet.
        request: that begins it.
        given: input that was given whole and is too long for the request.
        stdout: where that is collected.
        stderr: where that is.
        check: whether a returncode other than 0 is raised.

    Raises:
        AviatoError: it came to no end, and why.
    """
    ended = await (execution.run() if given is None else _fed(execution, given))
    result = process_result(execution.command or tuple(request["command"]), ended, stdout, stderr)
    if ended.returncode == 0 and not (ended.cancelled or ended.timed_out):
        return Ran(ended, result, None)
    return Ran(ended, result, failure(result, request, execution.handle, check=check, cancelled=ended.cancelled))


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
    user: str | int | None
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
    if user is not None:
        request["user"] = defaults.user("user", user)
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
    """What is raised in place of a result that is not all well, if anything.

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
            f"{shown(result.command)} ran longer than {limit} and was killed",
            exec_result=result,
            sandbox_id=handle.sandbox_id,
            started=True,
        )
    from aviato.calls import network_remedy

    remedy = network_remedy.said(result, handle)
    if check:
        return SandboxExecutionError(
            f"{shown(result.command)} ended with returncode {result.returncode}{_last_words(result)}{remedy}",
            exec_result=result,
            sandbox_id=handle.sandbox_id,
            started=True,
            reason="returncode",
        )
    return None


def process_result(command: tuple[str, ...], ended: ExecExit, stdout: Collection, stderr: Collection) -> ProcessResult:
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


async def _fed(execution: Execution, content: bytes) -> ExecExit:
    """Run a command with input that was given whole.

    One whose input cannot be sent is killed: it would wait for the rest until its time limit, and that is
    told as its own.
    """
    task = asyncio.current_task()
    assert task is not None
    failure: AviatoError | None = None

    async def feed() -> None:
        nonlocal failure
        given = CommandInput(execution.write_stdin, execution.end_stdin, name="stdin")
        try:
            await given.write(content)
            await given.end()
        except AviatoError as error:
            # Else it does not read it all, which is no failure, or its sandbox has ended, which is told of the command.
            if error.is_infrastructure or not isinstance(error, SandboxError):
                failure = error
                task.cancel()

    feeding = asyncio.get_running_loop().create_task(feed())
    try:
        return await execution.run()
    except asyncio.CancelledError:
        if failure is None or task.uncancel() > 0:
            raise
        raise failure from None
    finally:
        feeding.cancel()


def count(
    state: SandboxState,
    ended: ExecExit | None = None,
    result: ProcessResult | None = None,
    error: BaseException | None = None,
    *,
    begun_here: bool = True,
) -> Outcome:
    """Count a command that is over, before anyone learns of its end; what it counts as.

    Args:
        state: of its sandbox. What ends by the caller's own `stop()` was cancelled.
        ended: how it ended; None if it came to no end.
        result: of it.
        error: that its caller gets.
        begun_here: else it is counted where it was begun.
    """
    outcome: Outcome = "error"
    if ended is not None:
        if not ended.timed_out or ended.cancelled:
            outcome = "cancelled" if ended.cancelled else "ok" if ended.returncode == 0 else "nonzero"
    elif isinstance(error, (asyncio.CancelledError, OperationCancelledError)) or (
        isinstance(error, SandboxNotRunningError) and state.stopped
    ):
        outcome = "cancelled"
    if not begun_here:
        return outcome
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
    return outcome


def shown(command: tuple[str, ...]) -> str:
    """A command, where it is told of."""
    return beginning(" ".join(command), SHOWN_CHARACTERS)


def _last_words(result: ProcessResult) -> str:
    lines = result.stderr.strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""
