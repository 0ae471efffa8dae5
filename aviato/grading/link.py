"""The connection between graders and solutions, each in a sandbox: bytes of one command's output are input of the other."""

from __future__ import annotations

import asyncio
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from aviato.bridge.collection import Collection
from aviato.calls.exec_call import exec_request, process_result
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxExecutionError
from aviato.grading import driver
from aviato.grading.inside import program, stand_ins
from aviato.grading.inside.paths import SOCKET_PATH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from aviato.core.execution import Execution
    from aviato.core.lifecycle import SandboxHandle
    from aviato.results import ProcessResult
    from aviato.wire.execution import ExecExit
    from aviato.wire.sandboxes import SandboxInfo

NO_GRADER = "grader_failed"
"""Reason of the error where the program that runs tests has never run."""
HIGH_MARK_BYTES = 1 << 20
PIECE_BYTES = 256 << 10
STDERR_BYTES = 64 << 10
HEAD_BYTES = 32
HOST = (
    *("late", "module", "unseen", "packing", "held", "kinds", "calls", "tasks", "uses", "process_state", "raising", "workers"),
    "host",
)
"""Of `grading/inside`: what runs beside the solution."""


class Feed:
    """Input of a command: what comes while a piece is on its way goes with the next."""

    def __init__(self) -> None:
        self._pieces = bytearray()
        self._ends = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, data: bytes | memoryview) -> None:
        """Pass this on."""
        self._pieces += data
        self._changed.set()
        if len(self._pieces) > HIGH_MARK_BYTES:
            self._room.clear()

    def end(self) -> None:
        """Nothing more will come."""
        self._ends = True
        self._changed.set()

    async def room(self) -> None:
        """Wait until most of it has been passed on."""
        await self._room.wait()

    async def pump(self, to: Execution) -> None:
        """Pass it on until its end."""
        sent = 0
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._pieces:
                piece = bytes(self._pieces[:PIECE_BYTES])
                del self._pieces[: len(piece)]
                await to.write_stdin(piece, sent)
                sent += len(piece)
                if len(self._pieces) <= HIGH_MARK_BYTES:
                    self._room.set()
            if self._ends:
                await to.end_stdin(sent)
                return


class _Heard:
    """Output that somebody takes as it comes, bounded in memory: who is not read is not read from."""

    reading = True

    def __init__(self, take: Callable[[bytes], None], room: Callable[[], Awaitable[None]] | None = None) -> None:
        self.total_bytes = 0
        self._take = take
        self._room = room

    def skip(self, offset: int) -> bool:
        """Every byte counts."""
        return False

    def feed(self, data: bytes | memoryview, offset: int) -> None:
        """Take what is new."""
        new = data[self.total_bytes - offset :]
        self.total_bytes += len(new)
        self._take(bytes(new))

    async def ready(self) -> None:
        """Wait until it has been passed on."""
        if self._room is not None:
            await self._room()


class Hearing(Protocol):
    """Hears a solution."""

    def say(self, kind: bytes, body: bytes = b"") -> None:
        """Take its output, `a`, or that it is gone, `l`."""

    async def room(self) -> None:
        """Wait until there is room for more."""


class Solution:
    """The solution's side: the program that loads it and answers calls, in a sandbox of its own.

    Args:
        handle: of that sandbox.
        directory: in which the solution's relative paths begin.
        code: the module `solution`, loaded at once; None if the solution is among the files.
        calls: that its first process is asked for at once.
        only: have the sandbox made, and ended, with this command.
        timeout_seconds: of all of it; None for none.
    """

    def __init__(
        self,
        handle: SandboxHandle,
        directory: str,
        code: bytes | None = None,
        *,
        calls: Sequence[bytes] = (),
        only: bool = False,
        timeout_seconds: float | None = None,
    ) -> None:
        from aviato.core.execution import Execution

        self.calls = Feed()
        self._link: Hearing | None = None
        self._is_linked = asyncio.Event()
        self._early: list[tuple[bytes, bytes]] = []
        """What it has said before it was linked."""
        self.has_answered = False
        """Whether it has said anything."""
        self.request = _request(timeout_seconds)
        self._stderr = Collection(STDERR_BYTES)
        self._execution = Execution(handle, self.request, _Heard(self._heard, self._room), self._stderr, only=only)
        literal = ascii({"directory": directory, "code": code, "calls": list(calls)}).encode()
        self.calls.put(b"%b%d\n%b" % (driver.sent(_host()), len(literal), literal))

    async def is_running(self) -> bool:
        """Wait until it has begun; False if it ended instead."""
        return await self._execution.is_running()

    async def run(self) -> ExecExit:
        """Run to the end of what is asked.

        Raises:
            AviatoError: it has no returncode, and why.
        """
        try:
            return await _fed(self._execution, self.calls)
        finally:
            self._say(b"l")

    def result(self, ended: ExecExit) -> ProcessResult:
        """What its command tells, without what has crossed."""
        return process_result(tuple(self.request["command"]), ended, Collection(1), self._stderr)

    def linked_by(self, link: Hearing) -> None:
        """From now on it is heard there."""
        self._link = link
        for kind, data in self._early:
            link.say(kind, data)
        self._early.clear()
        self._is_linked.set()

    def _say(self, kind: bytes, data: bytes = b"") -> None:
        if self._link is None:
            self._early.append((kind, data))
        else:
            self._link.say(kind, data)

    def _heard(self, data: bytes) -> None:
        self.has_answered = True
        self._say(b"a", data)

    async def _room(self) -> None:
        await self._is_linked.wait()
        if self._link is not None:
            await self._link.room()


class Link:
    """One task of a grader, and the way to its solution.

    Attributes:
        verdicts: what is known of its cases, as `driver.records` reads it, or the failure of the infrastructure.
        left: set once nothing of it runs in the grader's sandbox; whether nothing else of it is there either.
    """

    def __init__(self, grader: Grader, number: int, solution: Solution) -> None:
        loop = asyncio.get_running_loop()
        self.grader = grader
        self.solution = solution
        self.verdicts: asyncio.Future[bytes] = loop.create_future()
        self.left: asyncio.Future[bool] = loop.create_future()
        self._number = number
        self._has_room = asyncio.Event()
        self._has_room.set()

    def say(self, kind: bytes, body: bytes = b"") -> None:
        """Tell the grader something about this task."""
        if not self.left.done():
            self.grader.feed.put(b"%d %b %d\n%b" % (self._number, kind, len(body), body))

    async def room(self) -> None:
        """Wait until most of what was said has been passed on, and taken by the tests."""
        await self._has_room.wait()
        await self.grader.feed.room()

    def heard(self, kind: bytes, body: bytes) -> None:
        """Take what it says."""
        if kind == b"c" and not self.verdicts.done():
            self.solution.calls.put(body)
        elif kind == b"r" and not self.verdicts.done():
            self.verdicts.set_result(body)
            self._has_room.set()
        elif kind == b"p" and body == b"1" and not self.verdicts.done():
            self._has_room.clear()
        elif kind == b"p":
            self._has_room.set()
        elif kind == b"d" and not self.left.done():
            self.left.set_result(body == b"1")

    def lose(self, error: AviatoError) -> None:
        """The grader is gone."""
        self._has_room.set()
        if not self.verdicts.done():
            self.verdicts.set_exception(error)
            self.verdicts.exception()  # Not everybody waits for it.
        if not self.left.done():
            self.left.set_result(False)


class Grader:
    """The grader's side: the program that runs tests and passes on their calls, in a sandbox that only tests ever see.

    Attributes:
        again: set once it is ready: whether it can have several tasks, at once and one after the other.
        out_of_memory: whether it was killed at the limit of its sandbox's memory.
    """

    def __init__(self, handle: SandboxHandle) -> None:
        from aviato.core.execution import Execution

        self.out_of_memory = False
        self.feed = Feed()
        self.again: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.links: dict[int, Link] = {}
        self._lost: AviatoError | None = None
        self._last = 0
        self._data = bytearray()
        self._sandbox_id = handle.sandbox_id
        self._stderr = Collection(STDERR_BYTES)
        self._execution = Execution(handle, _request(), _Heard(self._heard), self._stderr)
        literal = ascii({"link": stand_ins().encode()}).encode()
        self.feed.put(b"%b%d\n%b" % (driver.sent(_broker()), len(literal), literal))

    def begin(self, told: Mapping[str, Any], solution: Solution, contents: bytes = b"") -> Link:
        """Give it a task.

        Args:
            told: see `inside.broker.Task`.
            solution: on what.
            contents: of the files that it is told of.
        """
        self._last += 1
        link = Link(self, self._last, solution)
        if self._lost is not None:
            link.lose(self._lost)
            solution.linked_by(link)
            return link
        self.links[self._last] = link
        literal = ascii(dict(told)).encode()
        link.say(b"t", b"%d\n%b%b" % (len(literal), literal, contents))
        solution.linked_by(link)
        return link

    async def run(self) -> None:
        """Run until it ends, or for ever.

        Raises:
            AviatoError: it was lost.
        """
        try:
            ended = await _fed(self._execution, self.feed)
        except BaseException as error:
            if isinstance(error, AviatoError) and error.is_infrastructure:
                self._lose(error)
            else:
                self.lose(str(error))
            raise
        self.out_of_memory = ended.oom_killed
        text = self._stderr.collected().data.decode(errors="replace").strip()
        why = "killed at the memory limit" if ended.oom_killed else text
        self.lose(why or f"returncode {ended.returncode}")

    @property
    def lost(self) -> AviatoError | None:
        """Why it gives no verdict any more; None while it may."""
        return self._lost

    def lose(self, why: str) -> None:
        """Give up all of its tasks: no verdict will come."""
        self._lose(self._failure(why))

    def _failure(self, why: str) -> AviatoError:
        """No verdict, whatever the solution is. Where it has never run another one would not either."""
        known = self.again.done() and self.again.exception() is None
        message = f"the grader was lost: {why}" if known else f"no test can be run in the sandbox: {why}"
        return SandboxExecutionError(
            message,
            sandbox_id=self._sandbox_id,
            reason="grader_lost" if known else NO_GRADER,
            is_infrastructure=True,
            retryable=known,
        )

    def _lose(self, error: AviatoError) -> None:
        self._lost = error
        if not self.again.done():
            self.again.set_exception(error)
            self.again.exception()
        for link in self.links.values():
            link.lose(error)
        self.links.clear()

    def _heard(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\n", 0, HEAD_BYTES)) >= 0:
            number, kind, size = bytes(self._data[:end]).split(b" ")
            if len(self._data) < end + 1 + int(size):
                return
            body = bytes(self._data[end + 1 : end + 1 + int(size)])
            del self._data[: end + 1 + int(size)]
            if kind == b"h":
                self.again.set_result(body == b"1")
                continue
            link = self.links.get(int(number))
            if link is not None:
                link.heard(kind, body)
                if link.left.done():
                    del self.links[int(number)]


async def _fed(execution: Execution, feed: Feed) -> ExecExit:
    """A command with its input: who cannot be told anything any more is given up."""
    loop = asyncio.get_running_loop()
    feeding, running = loop.create_task(feed.pump(execution)), loop.create_task(execution.run())
    both: set[asyncio.Task[Any]] = {feeding, running}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        error = None if running.done() else feeding.exception()
        if error is not None and getattr(error, "reason", None) != "stdin_closed":
            raise error
        return await running
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


def check_linkable(info: SandboxInfo) -> None:
    """Refuse early what would only look like a failure of the solution.

    Raises:
        AviatoValidationError: no program inside can connect to the solution's side.
    """
    if not info.local_sockets:
        why = "'separate' needs 'local_sockets', sockets inside, which this server's backend does not have"
        why += "; use 'in_process', which promises less"
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
    check_linkable(await grader.wait_running())
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[AviatoError] = loop.create_future()
    solving, grading = Solution(solution, directory), Grader(grader)
    grading.begin({"listen": SOCKET_PATH}, solving)
    runs: list[asyncio.Task[Any]] = [loop.create_task(grading.run()), loop.create_task(solving.run())]

    def over(task: asyncio.Task[Any]) -> None:
        # Without the one the other means nothing, and a grader that waits for an answer must not wait for ever.
        for other in runs:
            other.cancel()
        error = None if task.cancelled() else task.exception()
        if task is runs[0] and not task.cancelled():
            error = grading.lost  # However it ended: the tests would ask nobody, and be taken for failed.
        if isinstance(error, AviatoError) and error.is_infrastructure and not broken.done():
            broken.set_result(error)

    for task in runs:
        task.add_done_callback(over)
    try:
        yield broken
    finally:
        for task in runs:
            task.remove_done_callback(over)
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


@functools.cache
def _host() -> tuple[bytes, bytes]:
    return driver.compiled(program(*HOST))


@functools.cache
def _broker() -> tuple[bytes, bytes]:
    made_of = ("late", "module", "unseen", "cases", "loop", "leftover", "verdicts", "connections", "place", "paths", "broker")
    return driver.compiled(program(*made_of))


def _request(timeout_seconds: float | None = None) -> dict[str, Any]:
    request, _ = exec_request(
        ["python3", "-I", "-S", "-c", driver.LOADER],
        default_timeout_seconds=float("inf"),
        stdin=True,
        timeout_seconds=timeout_seconds,
    )
    return request


__all__ = ["NO_GRADER", "Grader", "Link", "Solution", "check_linkable", "linked"]
