"""The connection between a grader and a solution in two sandboxes: bytes of one command's output are input of the other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.grading.inside import program
from aviato.process import exec_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.core.execution import Execution
    from aviato.core.lifecycle import SandboxHandle
    from aviato.wire.sandboxes import SandboxInfo

SOCKET_PATH = "/.aviato-grading/solution.sock"
HIGH_MARK_BYTES = 1 << 20
PIECE_BYTES = 256 << 10


class Dropped:
    """Output that nobody wants."""

    reading = False

    def __init__(self) -> None:
        self.total_bytes = 0

    def skip(self, offset: int) -> bool:
        """Nothing is missed."""
        self.total_bytes = max(self.total_bytes, offset)
        return True

    def feed(self, data: bytes | memoryview, offset: int) -> None:
        """Count."""
        self.total_bytes = max(self.total_bytes, offset + len(data))

    async def ready(self) -> None:
        """At once."""


class Forwarded:
    """Output that is another command's input, bounded in memory: who is not read is not read from."""

    reading = True

    def __init__(self) -> None:
        self.total_bytes = 0
        self._pieces = bytearray()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def skip(self, offset: int) -> bool:
        """Every byte counts."""
        return False

    def feed(self, data: bytes | memoryview, offset: int) -> None:
        """Keep what is new."""
        new = data[self.total_bytes - offset :]
        self.total_bytes += len(new)
        self._pieces += new
        self._changed.set()
        if len(self._pieces) > HIGH_MARK_BYTES:
            self._room.clear()

    async def ready(self) -> None:
        """Wait until most of it has been passed on."""
        await self._room.wait()

    async def pump(self, to: Execution) -> None:
        """Pass it on, for ever."""
        sent = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._pieces:
                piece = bytes(self._pieces[:PIECE_BYTES])
                await to.write_stdin(piece, sent)
                sent += len(piece)
                del self._pieces[: len(piece)]
                if len(self._pieces) <= HIGH_MARK_BYTES:
                    self._room.set()


def check_linkable(info: SandboxInfo) -> None:
    """Refuse early what would only look like a failure of the solution.

    Raises:
        AviatoValidationError: no program inside can connect to the solution's side.
    """
    if not info.local_sockets:
        why = "'separate' needs sockets inside, which this server's backend refuses; use 'in_process', which promises less"
        raise AviatoValidationError(f"grading mode: {why}", field_violations={"mode": why})


@asynccontextmanager
async def linked(grader: SandboxHandle, solution: SandboxHandle, directory: str) -> AsyncIterator[asyncio.Future[AviatoError]]:
    """Within it, programs of the grader's sandbox reach the solution in the other one.

    Args:
        grader: where the tests are.
        solution: where the solution's files are.
        directory: in which the solution's relative paths begin.

    Raises:
        AviatoValidationError: they cannot be linked there.

    Yields:
        What is set once the infrastructure has failed.
    """
    from aviato.core.execution import Execution

    check_linkable(await grader.wait_running())
    calls, answers = Forwarded(), Forwarded()
    relay = Execution(grader, _command("relay", SOCKET_PATH), calls, Dropped())
    host = Execution(solution, _command("host", directory, "packing", "crossing"), answers, Dropped())
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[AviatoError] = loop.create_future()
    commands = [loop.create_task(relay.run()), loop.create_task(host.run())]
    pumps = [loop.create_task(calls.pump(host)), loop.create_task(answers.pump(relay))]

    def over(task: asyncio.Task[object]) -> None:
        # Without the one the other means nothing, and a grader that waits for an answer must not wait for ever.
        for other in (*commands, *pumps):
            other.cancel()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AviatoError) and error.is_infrastructure and not broken.done():
            broken.set_result(error)

    for task in (*commands, *pumps):
        task.add_done_callback(over)
    try:
        yield broken
    finally:
        for task in (*commands, *pumps):
            task.remove_done_callback(over)
            task.cancel()
        await asyncio.gather(*commands, *pumps, return_exceptions=True)


def _command(name: str, argument: str, *before: str) -> dict[str, object]:
    source = program(*before, name) + "\nmain()\n"
    request, _ = exec_request(
        ["python3", "-I", "-c", source, argument],
        default_timeout_seconds=float("inf"),
        cwd=None,
        env=None,
        user=None,
        stdin=True,
        timeout_seconds=None,
        detach=False,
    )
    return request


__all__ = ["SOCKET_PATH", "Dropped", "Forwarded", "linked"]
