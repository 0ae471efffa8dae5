"""The one command that a sandbox is made for, on the loop thread: nobody reads along, so it has no handle and no streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aviato.bridge.collection import Kept
from aviato.exceptions import AviatoError
from aviato.process import class_of, class_of_end, count, exec_request, failure, feed, output_limit, process_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.policy.metrics import Outcome
    from aviato.results import ProcessResult
    from aviato.sandbox_state import SandboxState


async def run_only(
    state: SandboxState,
    command: Sequence[str],
    *,
    stdin: bytes | str | bool = False,
    timeout_seconds: float | None = None,
    max_output_bytes: int | None = None,
    cases: dict[str, Any] | None = None,
) -> ProcessResult:
    """Make a sandbox that is not started yet, run its command and have it ended, by one request.

    Args:
        state: of the sandbox.
        command: as of `Sandbox.exec`, and so are the others.
        stdin: as there.
        timeout_seconds: as there.
        max_output_bytes: as there.
        cases: see `aviato.grading.driver`.

    Raises:
        AviatoError: as from the handle of `Sandbox.exec`.
    """
    from aviato.core.execution import Execution

    default = state.config.exec_timeout_seconds
    request, given = exec_request(command, default_timeout_seconds=default, stdin=stdin, timeout_seconds=timeout_seconds)
    if cases is not None:
        request["cases"] = cases
    most = output_limit(max_output_bytes)
    state.used = True
    stdout, stderr = Kept(most), Kept(most)
    outcome: Outcome = "error"
    error: AviatoError | None = None
    result: ProcessResult | None = None
    feeding: asyncio.Task[None] | None = None
    try:
        execution = Execution(state.handle(), request, stdout, stderr, only=True)
        if given is not None:
            feeding = asyncio.get_running_loop().create_task(feed(execution, given))
        ended = await execution.run()
        result = process_result(request["command"], ended, stdout, stderr)
        outcome = class_of_end(ended)
        error = failure(result, request, state.handle(), check=False, cancelled=ended.cancelled)
    except AviatoError as failed:
        outcome, error = class_of(failed, state), failed
        raise
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    finally:
        if feeding is not None:
            feeding.cancel()
        count(state, outcome, error, result)
    if error is not None:
        raise error
    return result
