"""Sandboxes that the server itself makes for one piece of code and ends right after it, so many at a time."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from aviato.exceptions import (
    AviatoError,
    SandboxFileError,
    SandboxRequestTimeoutError,
    SandboxResourceExhaustedError,
    SandboxUnavailableError,
)
from aviato.server.link.ended import SandboxGone
from aviato.server.peers import Peer, open_process
from aviato.server.service.commands_of_server import MAX_OUTPUT_BYTES, run_to_end
from aviato.server.service.registry import error_of_gone, running
from aviato.wire.ids import new_lease_id, new_sandbox_id
from aviato.wire.sandboxes import CreateSandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from typing import Any

    from aviato.server.link.link import Process1Link
    from aviato.server.service.commands_of_server import Ran
    from aviato.server.service.files import Files
    from aviato.server.service.leases import Leases
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.long_polls import LongPolls
    from aviato.server.service.registry import Registry
    from aviato.server.service.sandboxes import Sandboxes

log = logging.getLogger(__name__)

RUNS_PER_CORE = 2
LEAST_RUNS = 8
SLACK_SECONDS = 60.0
"""How much longer than its commands such a sandbox may live."""
ANSWER_SECONDS = 5.0
ROOM_SECONDS = 0.25
LEASE_IDLE_SECONDS = 10.0
GONE_SECONDS = 10.0
ATTEMPTS = 3
PAUSE_SECONDS = 0.2
CLOSE_SECONDS = 1.0


T = TypeVar("T")


class Workplace:
    """One running sandbox."""

    def __init__(self, sandbox: LiveSandbox, link: Process1Link, files: Files) -> None:
        self.sandbox = sandbox
        self._link = link
        self._files = files

    @property
    def sandbox_id(self) -> str:
        """Its id."""
        return self.sandbox.sandbox_id

    async def run(
        self,
        command: list[str],
        *,
        stdin: bytes | None = None,
        timeout_seconds: float,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> Ran:
        """Run a command to its end; at its limit its whole tree is killed and what it printed is there.

        Raises:
            AviatoError: it could not be started, or the sandbox ended.
            SandboxUnavailableError: nothing was heard of its end.
        """
        try:
            return await run_to_end(
                self._link,
                command,
                stdin=stdin,
                timeout_seconds=timeout_seconds,
                max_output_bytes=max_output_bytes,
            )
        except SandboxGone as gone:
            raise await error_of_gone(self.sandbox, gone, started=True) from None

    async def write(self, path: str, content: bytes) -> None:
        """Write a file before anything has run here; see `Files`.

        Raises:
            SandboxUnavailableError: the sandbox stands still, which nothing inside can be to blame for.
        """

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        try:
            await self._files.write(self.sandbox_id, path, chunks(), mode=None, size_bytes=len(content))
        except SandboxFileError as error:
            if error.reason != "timeout":
                raise
            raise SandboxUnavailableError(str(error), sandbox_id=self.sandbox_id, reason="silent") from error

    async def read(self, path: str, most_bytes: int, until: float) -> bytes | None:
        """A file as it is; None if it is larger. What lies there is up to the code that ran; see `Files`.

        Args:
            path: of the file.
            most_bytes: that it may have.
            until: by the loop's clock, when it has to be there.

        Raises:
            TimeoutError: it was not.
        """
        async with asyncio.timeout_at(until):
            return await self._files.read_whole(self.sandbox_id, path, most_bytes)

    async def check_answers(self) -> None:
        """See whether its process 1 does: what is inside holds up files, and not that.

        Raises:
            SandboxUnavailableError: it does not, or has ended.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._link.ping()
        except TimeoutError:
            message = f"the sandbox has not answered for {ANSWER_SECONDS:g} s"
            raise SandboxUnavailableError(message, sandbox_id=self.sandbox_id, reason="silent", started=True) from None
        except SandboxGone as gone:
            raise await error_of_gone(self.sandbox, gone, started=True) from None


class OneShots:
    """Makes and ends such sandboxes; who finds no free slot waits in order.

    Args:
        sandboxes: makes them.
        registry: finds them.
        files: writes and reads theirs.
        leases: they are held by a lease of this process, so that they end with it, whatever its end.
        long_polls: tells when the server goes.
        check_able: raises where sandboxes cannot run.
        concurrency: how many run at a time; None counts the cores, so that a burst does not make each one slow.
    """

    def __init__(
        self,
        sandboxes: Sandboxes,
        registry: Registry,
        files: Files,
        leases: Leases,
        long_polls: LongPolls,
        check_able: Callable[[], None],
        concurrency: int | None = None,
    ) -> None:
        self._sandboxes = sandboxes
        self._registry = registry
        self._files = files
        self._leases = leases
        self._long_polls = long_polls
        self._check_able = check_able
        self.concurrency = concurrency or max(LEAST_RUNS, RUNS_PER_CORE * (os.cpu_count() or 1))
        self._slots = asyncio.Semaphore(self.concurrency)
        self._lease_id: str | None = None
        self._lease_timer: asyncio.TimerHandle | None = None
        self._live: dict[str, LiveSandbox] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._jobs: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work for a request, as a task; cancelled when the server goes."""
        job = asyncio.create_task(work, name="run code")
        self._jobs.add(job)
        job.add_done_callback(self._over)
        return job

    def stop(self) -> None:
        """The server goes: all that waits for a result is told so now."""
        for job in list(self._jobs):
            job.cancel()

    def _over(self, job: asyncio.Task[Any]) -> None:
        self._jobs.discard(job)
        if not job.cancelled():
            job.exception()

    async def persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of an attempt, repeated where the machine fails.

        Raises:
            AviatoError: of the last attempt.
            SandboxUnavailableError: the server goes.
        """
        number = 1
        while True:
            self._long_polls.check()
            try:
                return await attempt()
            except AviatoError as error:
                if not error.is_infrastructure or number == ATTEMPTS:
                    self._long_polls.check()
                    raise
            number += 1
            await asyncio.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def workplace(self, busy_seconds: float) -> AsyncIterator[Workplace]:
        """A fresh running sandbox; it ends with the context, whose exit does not wait for that.

        Args:
            busy_seconds: that its commands may take; not long after them it ends in any case.

        Raises:
            AviatoError: it could not be had.
        """
        await self._slots.acquire()
        sandbox: LiveSandbox | None = None
        try:
            sandbox = await self._create(busy_seconds + SLACK_SECONDS)
            yield Workplace(sandbox, await running(sandbox), self._files)
        finally:
            if sandbox is None:
                self._slots.release()
            else:
                self._end(sandbox)

    async def close(self) -> None:
        """End what is left: nobody waits for it any more."""
        for sandbox in list(self._live.values()):
            sandbox.ask_to_end("stopped")
        if self._endings:
            await asyncio.wait(self._endings, timeout=CLOSE_SECONDS)
        for task in self._endings:
            task.cancel()
        self._close_lease()

    async def _create(self, lifetime_seconds: float) -> LiveSandbox:
        self._check_able()
        while True:
            try:
                sandbox_id = new_sandbox_id()
                request = CreateSandbox(
                    sandbox_id=sandbox_id, lease_id=self._lease(), max_lifetime_seconds=lifetime_seconds, tags=["run_code"]
                )
                self._sandboxes.create(request, self._own_process)
            except SandboxResourceExhaustedError:
                # The queue itself is full. Those who ask here have no other way to wait.
                await asyncio.sleep(ROOM_SECONDS)
                continue
            sandbox = self._live[sandbox_id] = self._registry.live[sandbox_id]
            return sandbox

    def _end(self, sandbox: LiveSandbox) -> None:
        sandbox.ask_to_end("stopped")
        task = asyncio.create_task(self._until_gone(sandbox))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _until_gone(self, sandbox: LiveSandbox) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(GONE_SECONDS):
                    await sandbox.gone.wait()
        finally:
            self._slots.release()
            self._live.pop(sandbox.sandbox_id, None)
            if not self._live and self._lease_id is not None and self._lease_timer is None:
                self._lease_timer = asyncio.get_running_loop().call_later(LEASE_IDLE_SECONDS, self._close_lease)

    def _lease(self) -> str:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if self._lease_id is None:
            self._lease_id = new_lease_id()
        return self._lease_id

    def _close_lease(self) -> None:
        self._lease_timer = None
        if self._lease_id is not None:
            self._leases.close(self._lease_id)
            self._lease_id = None

    @staticmethod
    def _own_process() -> Peer:
        return Peer(os.getpid(), open_process(os.getpid()))


def busy_error(seconds: float) -> SandboxRequestTimeoutError:
    """What a request gets whose turn did not come, or did not end, in time."""
    return SandboxRequestTimeoutError(
        f"the server is busy: no result after {seconds:g} s; send the same request again, it keeps its place for a moment",
        reason="busy",
        retryable=True,
        is_infrastructure=True,
    )
