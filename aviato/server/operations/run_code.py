"""Code in, result out, for clients that know SandboxFusion's or open-r1's router's interface."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.server.operations.reply import Reply, answer
from aviato.server.operations.table import Operation
from aviato.server.service.one_shot import busy_error
from aviato.system.threads import in_thread
from aviato.wire.run_code import BatchResult, ExecuteBatch, RouterHealth, RunCode, RunCodeResult

if TYPE_CHECKING:
    from aviato.server.operations.call import Call

LARGE_BYTES = 64 << 10


async def run_code(call: Call) -> Reply:
    """Run code in a fresh sandbox."""
    try:
        await call.service.ready()
        result = await call.service.code.run(call.body, call.caller.tenant or "")
    except SandboxUnavailableError as error:
        # 504 is the one status after which the clients of this interface try again.
        raise busy_error(0.0) from error
    return await _answer(result)


async def execute_batch(call: Call) -> Reply:
    """Run scripts, each in a fresh sandbox."""
    with suppress(SandboxUnavailableError):
        await call.service.ready()
    return await in_thread(answer, await call.service.batches.run(call.body))


async def health(_: Call) -> Reply:
    """Say that the server is there."""
    return answer(RouterHealth())


async def _answer(result: RunCodeResult) -> Reply:
    """JSON, made in a thread where it is much: what was printed is up to the code that ran."""
    run = result.run_result
    size = sum(map(len, result.files.values())) + (len(run.stdout or "") + len(run.stderr or "") if run is not None else 0)
    if size < LARGE_BYTES:
        return answer(result)
    return await in_thread(answer, result)


OPERATIONS = (
    Operation(
        method="POST",
        path="/run_code",
        handler=run_code,
        summary="Run code in a fresh sandbox, as SandboxFusion does; 504 while there is no capacity: send it again",
        body=RunCode,
        answers={200: RunCodeResult},
        errors=(422, 504),
        waits=False,
        foreign_text=True,
    ),
    Operation(
        method="POST",
        path="/execute_batch",
        handler=execute_batch,
        summary="Run Python scripts for the values of their last expressions, a fresh sandbox each, as open-r1's router does",
        body=ExecuteBatch,
        answers={200: BatchResult},
        waits=False,
        foreign_text=True,
    ),
    Operation(
        method="GET",
        path="/health",
        handler=health,
        summary="How the server is, as open-r1's router says it",
        answers={200: RouterHealth},
        waits=False,
    ),
)
