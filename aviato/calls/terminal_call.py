"""What a terminal asks for and gives, for both clients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aviato.bridge.stream import StreamReader
from aviato.calls.exec_call import exec_request
from aviato.exceptions import AviatoValidationError, OperationCancelledError
from aviato.results import TerminalResult

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from aviato.core.execution import Execution
    from aviato.core.lifecycle import SandboxHandle

LARGEST_SIZE = 65535


def terminal_request(
    command: Sequence[str | os.PathLike[str]],
    width: int,
    height: int,
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str | int | None = None,
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
        user=user,
        stdin=True,
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


def terminal_execution(handle: SandboxHandle, request: dict[str, Any], output: StreamReader[bytes]) -> Execution:
    """The command of a terminal, whose stderr is its screen."""
    from aviato.core.execution import Execution

    nothing: StreamReader[bytes] = StreamReader(name="stderr", text=False)
    return Execution(handle, request, output, nothing)


async def terminal_result(execution: Execution) -> TerminalResult:
    """Run it to its end.

    Raises:
        OperationCancelledError: it was cancelled.
        AviatoError: it came to no end, and why.
    """
    ended = await execution.run()
    if ended.cancelled:
        raise OperationCancelledError(f"terminal {execution.exec_id} was cancelled")
    return TerminalResult(returncode=ended.returncode, signal=ended.signal, duration_seconds=ended.duration_seconds)
