"""The sandboxes of a grade: made for it, and gone after it."""

from __future__ import annotations

import asyncio
import posixpath
import weakref
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxFileError, SandboxResourceExhaustedError
from aviato.wire.ids import new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from aviato.core.lifecycle import SandboxHandle

PATIENCE_SECONDS = 120.0
"""How long the rest of a grade's sandboxes wait for capacity that others hold, once the first has come."""

_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()


async def together(starts: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Start sandboxes of which the one is of no use without the other, and return once all run.

    One group at a time: where many groups had one sandbox each and waited for the second, a full server would stand still.

    Raises:
        SandboxResourceExhaustedError: there is no room for them.
    """
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    async with turn:
        starting = [asyncio.ensure_future(start()) for start in starts]
        try:
            # Whoever has none holds nothing that others wait for, and may wait for its turn like any other.
            await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*starting)
        except TimeoutError:
            message = f"no room for the {len(starts)} sandboxes of a grade within {PATIENCE_SECONDS:g} s; grade fewer at a time"
            raise SandboxResourceExhaustedError(message, reason="no_room_to_grade", is_infrastructure=True) from None
        finally:
            for one in starting:
                one.cancel()
            await asyncio.gather(*starting, return_exceptions=True)


@asynccontextmanager
async def new_sandboxes(like: SandboxHandle, create: dict[str, Any], count: int) -> AsyncIterator[list[SandboxHandle]]:
    """New sandboxes on the server of another one, running; they end with the context."""
    from aviato.core.lifecycle import SandboxHandle

    made = [SandboxHandle(new_sandbox_id(), like.client, like.lease, create) for _ in range(count)]
    try:
        await together([handle.wait_running for handle in made])
        yield made
    finally:
        # Whoever waits for the verdict need not wait for the end; what cannot be stopped ends with this process's lease.
        for handle in made:
            _stop_later(handle)


@contextmanager
def nobody_there() -> Iterator[None]:
    """What a new sandbox is asked while no code of the policy is in it: where that stands still, the machine does."""
    try:
        yield
    except SandboxFileError as error:
        if error.reason == "timeout":
            error.is_infrastructure = True
        raise


async def directory_of(handle: SandboxHandle) -> str:
    """Where commands start; it is made if it is not there, as in the sandbox that this one is like somebody had made it."""
    from aviato.core import files

    try:
        found = await files.stat(handle, ".")
    except SandboxFileError:
        await files.make_directory(handle, ".")
        found = await files.stat(handle, ".")
    return posixpath.normpath(found.path)


_stopping: set[asyncio.Task[None]] = set()


def _stop_later(handle: SandboxHandle) -> None:
    async def stop() -> None:
        try:
            await handle.stop(0, missing_ok=True)
        except Exception:
            return

    task = asyncio.get_running_loop().create_task(stop(), name=f"stop {handle.sandbox_id}")
    _stopping.add(task)
    task.add_done_callback(_stopping.discard)
