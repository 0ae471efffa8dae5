"""The one command that a sandbox is made for, on the loop thread: nobody reads along, so it has no handle and no streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.bridge.collection import Collection
from aviato.calls.exec_call import count, exec_request, output_limit, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.calls.sandbox_state import SandboxState
    from aviato.results import ProcessResult


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
    stdout, stderr = Collection(most), Collection(most)
    try:
        execution = Execution(state.handle(), request, stdout, stderr, only=True)
        ran = await run(execution, request, given, stdout, stderr)
    except BaseException as error:
        count(state, error=error)
        raise
    count(state, *ran)
    if ran.failure is not None:
        raise ran.failure
    return ran.result
