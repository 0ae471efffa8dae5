"""Commands: accept or join, stream, feed, signal, cancel, acknowledge."""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, AviatoValidationError, SandboxError, SandboxUnavailableError
from aviato.server.backends.capabilities import Capability
from aviato.server.link.ended import SandboxGone
from aviato.server.link.lasting_connection import through_cuts
from aviato.server.service.exec_state import ExecState
from aviato.server.service.live_sandbox import ended_sandbox
from aviato.server.service.output.feed import ExecFeed
from aviato.server.service.output.retained_reader import RetainedReader
from aviato.server.service.registry import error_of_gone, running
from aviato.server.states import State, error_of_reset
from aviato.wire.errors import ExecNotFoundError, RequestConflictError
from aviato.wire.execution import Acknowledgements, ExecAck, ExecExit
from aviato.wire.frames import FrameType, StreamId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from aviato.server.backends.base import Backend
    from aviato.server.callers import Caller
    from aviato.server.link.link import Process1Link
    from aviato.server.service.detached import Detached
    from aviato.server.service.event import Event
    from aviato.server.service.exec_records import ExecRecords
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.output.retained_results import RetainedResults
    from aviato.server.service.registry import Registry
    from aviato.server.service.slots import Slots
    from aviato.server.shared_memory import Memory
    from aviato.wire.execution import ExecRequest

log = logging.getLogger(__name__)

ROOT_USERS = (None, "0", "root", "0:0", "root:root")
"""What every sandbox's commands can be: None is who they are unless a call says otherwise."""
ABANDONED_SECONDS = 60.0
"""How long a command of a detached sandbox lives on when nobody reads it."""


class Execs:
    """The commands of living sandboxes.

    Args:
        backend: says whether commands can be those of other users than root.
        registry: finds the sandboxes.
        slots: tells where a sandbox waits.
        results: what ended sandboxes left behind.
        records: puts them on record.
        detached: runs and keeps the detached ones.
    """

    def __init__(
        self,
        backend: Backend,
        registry: Registry,
        slots: Slots,
        results: RetainedResults,
        records: ExecRecords,
        detached: Detached,
    ) -> None:
        self._backend = backend
        self._registry = registry
        self._slots = slots
        self._results = results
        self._records = records
        self._detached = detached
        self.feeds: set[ExecFeed] = set()
        self._recorded: dict[tuple[str, str, str], ExecFeed] = {}
        """Readers of detached commands, by sandbox, command and reader; also of those whose sandbox has ended."""

    async def restore(self, sandbox: LiveSandbox, *, is_others: bool) -> None:
        """Find what an earlier server knew of the commands of a sandbox, before a request asks for them.

        Which are detached only that has on its disk: of another server's sandbox none is killed since nobody reads it.
        """
        await self._detached.restore(sandbox)
        assert sandbox.link is not None
        for exec_id in sandbox.link.hello["execs"]:
            if exec_id != sandbox.main_exec_id and exec_id not in sandbox.execs and sandbox.record.detached:
                state = sandbox.execs[exec_id] = ExecState(exec_id=exec_id, sandbox_id=sandbox.sandbox_id, started=True)
                if not is_others:
                    self._abandon(sandbox, state)

    def start(self, sandbox_id: str, request: ExecRequest, memory: Memory | None = None) -> ExecFeed:
        """Run a command, or join it if its id is known; on a pending sandbox it waits for its place.

        Large output may come by `memory`, if the command begins here and now.

        Raises:
            RequestConflictError: the id was used with another body.
            SandboxError: the sandbox is not known, or the error of its ending.
        """
        try:
            sandbox = self._registry.find(sandbox_id, exec_id=request.exec_id)
        except SandboxError as error:
            return self._retained_feed(sandbox_id, request.exec_id, (0, 0), "", error)
        if request.exec_id == sandbox.main_exec_id:
            raise RequestConflictError(f"{request.exec_id} is the main command of {sandbox_id}")
        if request.working_dir is not None and not request.working_dir.startswith("/"):
            problem = f"working_dir must be absolute, got {request.working_dir!r}"
            raise AviatoValidationError(problem, field_violations={"working_dir": "not absolute"})
        if request.user not in ROOT_USERS:
            self._backend.require(Capability.USERS, "user")
        state = sandbox.execs.get(request.exec_id)
        if state is not None and state.left is not None:
            return self._past_feed(sandbox, state, state.left, (0, 0), "")
        if state is None or state.is_guess:
            state = ExecState(exec_id=request.exec_id, sandbox_id=sandbox_id, request=request)
            sandbox.execs[request.exec_id] = state
            if request.detach:
                self._detached.begin(sandbox, state)
        elif state.request is None:
            state.request = request
        elif state.request != request:
            raise RequestConflictError(f"{request.exec_id} was used before with another body")
        return self._feed(sandbox, state, (0, 0), "", memory)

    def resume(self, sandbox_id: str, exec_id: str, offsets: tuple[int, int], reader_id: str) -> ExecFeed:
        """Read a command from these offsets of stdout and stderr.

        A kept command has any number of readers. Of others the newest reader takes over; one that only comes back does not.

        Raises:
            ExecNotFoundError: the sandbox knows no such command.
            SandboxUnavailableError: another reader took over.
            SandboxError: the sandbox is not known, or the error of its ending.
        """
        try:
            sandbox = self._registry.find(sandbox_id, exec_id=exec_id)
        except SandboxError as error:
            return self._retained_feed(sandbox_id, exec_id, offsets, reader_id, error)
        self._refuse_main(sandbox, exec_id)
        state = sandbox.execs.get(exec_id)
        if state is not None and state.left is not None:
            return self._past_feed(sandbox, state, state.left, offsets, reader_id)
        if state is None:
            if not sandbox.runs:
                raise ExecNotFoundError(f"{sandbox_id} knows no command {exec_id!r}", sandbox_id=sandbox_id)
            # It may be one of an earlier server; if it is none, its process 1 says so and it is forgotten.
            state = sandbox.execs[exec_id] = ExecState(exec_id=exec_id, sandbox_id=sandbox_id)
        if state.recorded is None:
            state.take_over(reader_id)
        return self._feed(sandbox, state, offsets, reader_id)

    async def write_stdin(self, sandbox_id: str, exec_id: str, pieces: AsyncIterator[bytes], offset: int, eof: bool) -> None:
        """Write to a command's stdin from an offset on, as it has room; a repeat is harmless.

        Raises:
            SandboxExecutionError: stdin is closed, or is no pipe.
            ExecNotFoundError: the sandbox knows no such command.
        """

        async def write(link: Process1Link) -> None:
            position = offset
            async for piece in pieces:
                await link.write_stdin(exec_id, piece, position, False)
                position += len(piece)
            if eof or position == offset:
                await link.write_stdin(exec_id, b"", position, eof)

        await self._on_link(sandbox_id, exec_id, write)

    async def signal(self, sandbox_id: str, exec_id: str, signal: int, key: str | None = None) -> None:
        """Send a signal to a command's process group; a repeat by the same key is harmless.

        Raises:
            ExecNotFoundError: the sandbox knows no such command.
        """
        await self._on_link(sandbox_id, exec_id, lambda link: link.signal(exec_id, signal, key))

    async def resize(self, sandbox_id: str, exec_id: str, width: int, height: int) -> None:
        """Give a command's terminal another size, in characters.

        Raises:
            AviatoValidationError: it has no terminal.
            ExecNotFoundError: the sandbox knows no such command.
        """
        await self._on_link(sandbox_id, exec_id, lambda link: link.resize(exec_id, width, height))

    async def cancel(self, sandbox_id: str, exec_id: str) -> None:
        """Kill a command's whole tree, and return when it is dead; one that waits for its sandbox never starts.

        Raises:
            ExecNotFoundError: it is the main command.
        """
        sandbox = self._registry.find(sandbox_id, exec_id=exec_id)
        self._refuse_main(sandbox, exec_id)
        state = sandbox.execs.get(exec_id)
        if state is None:
            # The request that starts it may come behind this one, on another connection.
            state = sandbox.execs[exec_id] = ExecState(exec_id=exec_id, sandbox_id=sandbox_id)
        if state.left is not None:
            return  # It is dead.
        state.cancelled = True
        if not sandbox.ready.is_set():
            for feed in list(self.feeds):
                if feed.state is state:
                    feed.fail_cancelled()
            return
        try:
            await self._on_link(sandbox_id, exec_id, lambda link: link.cancel(exec_id))
        except SandboxError:
            if sandbox.state < State.ENDED:
                raise
            return  # One that was made for this command ends with it, and whatever ran is dead.
        if state.feed is None and state.recorded is None:
            self._discard(sandbox, state)

    async def cancel_all(self, sandbox_id: str) -> None:
        """Kill all commands of a running sandbox but the main one, and what they left behind; returns when all are dead."""
        sandbox = self._registry.find(sandbox_id)
        with self._slots.use(sandbox):
            link = await running(sandbox)
            try:
                await link.cancel_all()
            except SandboxGone as gone:
                raise await error_of_gone(sandbox, gone, started=None) from None

    def acknowledge(self, request: Acknowledgements, caller: Caller) -> None:
        """Take what clients have received, and which sandboxes they have let go; what is not known any more is ignored.

        So is what is not there for the caller. Ids of which nothing is in memory are not looked up.
        """
        freed = False
        for ack in request.execs:
            freed = self._acknowledge(ack, caller) or freed
        for sandbox_id in request.let_go:
            sandbox = self._registry.live.get(sandbox_id)
            if sandbox is None:
                continue
            record = sandbox.record
            if not caller.sees(record.owner) or record.let_go:
                continue
            if sandbox.request.releasable and not record.detached:
                sandbox.record = record.but(let_go=True)
                self._registry.save(sandbox.record)
                self._registry.let_go[sandbox_id] = sandbox
                freed = True
        if freed:
            self._slots.update()

    def _acknowledge(self, ack: ExecAck, caller: Caller) -> bool:
        """Take what one reader has received; True if that may free a sandbox that was let go."""
        if (kept := self._recorded.get((ack.sandbox_id, ack.exec_id, ack.reader_id))) is not None:
            if caller.tenant is None or self._registry.sees(caller, ack.sandbox_id):
                kept.acknowledge(ack.stdout, ack.stderr)
                if ack.done:
                    kept.state.take()
                    kept.sandbox.confirm(ack.exec_id)
                    self._results.confirm(ack.sandbox_id, ack.exec_id)
            return False
        sandbox = self._registry.live.get(ack.sandbox_id)
        if sandbox is None:
            if ack.done:
                self._confirm_left(ack, caller)
            return False
        if not caller.sees(sandbox.record.owner):
            return False
        state = sandbox.execs.get(ack.exec_id)
        if ack.done:
            self._results.confirm(ack.sandbox_id, ack.exec_id)
            sandbox.confirm(ack.exec_id)
        if (
            sandbox.link is None
            or not sandbox.runs
            or ack.exec_id == sandbox.main_exec_id
            or (state is not None and (state.recorded is not None or state.left is not None))
        ):
            # The server itself has it, or nobody.
            if ack.done and state is not None:
                state.take()
            return False
        if state is not None and state.reader_id != ack.reader_id:
            return False  # Another reader has taken over, who has not got that far.
        sandbox.link.acknowledge(ack.exec_id, ack.stdout, ack.stderr, ack.done)
        if state is not None and state.feed is not None:
            state.feed.confirmed(ack.stdout, ack.stderr)
        if ack.done and sandbox.execs.pop(ack.exec_id, None) is not None and state is not None:
            state.keep()
        return ack.done and sandbox.record.let_go

    def _confirm_left(self, ack: ExecAck, caller: Caller) -> None:
        """The result of a command whose sandbox has ended has arrived."""
        left = self._detached.left(ack.sandbox_id, ack.exec_id)
        if left is not None and caller.sees(left[0].record.owner):
            left[1].take()
        if caller.tenant is None or self._registry.sees(caller, ack.sandbox_id):
            self._results.confirm(ack.sandbox_id, ack.exec_id)

    def received(self, sandbox_id: str, exec_ids: Iterable[str], caller: Caller) -> None:
        """Take whole results that a client has received, of a sandbox that it is about to end or to reset."""
        acks = [ExecAck.model_construct(sandbox_id=sandbox_id, exec_id=exec_id, done=True) for exec_id in exec_ids]
        if acks:
            self.acknowledge(Acknowledgements.model_construct(execs=acks), caller)

    def shed(self, most_bytes: int) -> None:
        """Cut off readers that do not read, longest first, until no more than so many bytes are held for them.

        What they lack stays with process 1, and they come back for it when they read on.
        """
        slow = [feed for feed in self.feeds if feed.sending_bytes]
        held = {feed: feed.unread_bytes for feed in slow}
        total = sum(held.values())
        for feed in sorted(slow, key=lambda one: one.sending_since):
            if total <= most_bytes:
                return
            if feed.cut is not None:
                log.info("the reader of %s does not read and is cut off", feed.state.exec_id)
                feed.cut()
                total -= held[feed]

    def _retained_feed(
        self, sandbox_id: str, exec_id: str, offsets: tuple[int, int], reader_id: str, error: SandboxError
    ) -> ExecFeed:
        """A reader of what an ended sandbox left behind, once it has ended.

        Raises:
            SandboxError: the given one; nobody knows that the command began to run.
        """
        if (left := self._detached.left(sandbox_id, exec_id)) is not None:
            return self._feed(*left, offsets, reader_id)
        sandbox = self._registry.live.get(sandbox_id)
        state = None if sandbox is None else sandbox.execs.get(exec_id)
        if sandbox is not None and state is not None and state.recorded is not None and state.started:
            state.outlives = True
            return self._feed(sandbox, state, offsets, reader_id)
        if not self._results.has(sandbox_id, exec_id) and not (sandbox is not None and sandbox.ends_with(exec_id)):
            raise error
        if sandbox is None:
            if (record := self._registry.find_record(sandbox_id)) is None:
                raise error
            sandbox = ended_sandbox(record)
        return self._kept_feed(sandbox, exec_id, offsets, reader_id, sandbox.gone, error)

    def _kept_feed(
        self, sandbox: LiveSandbox, exec_id: str, offsets: tuple[int, int], reader_id: str, kept: Event, error: SandboxError
    ) -> ExecFeed:
        """A reader of what a command left behind, once that is kept."""
        reader = RetainedReader(self._results, sandbox.sandbox_id, exec_id, offsets, kept, error)
        state = ExecState(exec_id=exec_id, sandbox_id=sandbox.sandbox_id, outlives=True)
        sandbox.calls += 1
        feed = ExecFeed(sandbox, state, offsets, reader_id, self._slots, self._closed, retained=reader)
        self.feeds.add(feed)
        return feed

    def _past_feed(
        self, sandbox: LiveSandbox, state: ExecState, left: Event, offsets: tuple[int, int], reader_id: str
    ) -> ExecFeed:
        """A reader of what a command left behind that ran before its sandbox was reset.

        Raises:
            SandboxExecutionError: it left nothing.
        """
        if state.recorded is not None:
            state.outlives = True
            return self._feed(sandbox, state, offsets, reader_id)
        error = error_of_reset(sandbox.sandbox_id, started=state.started)
        if left.is_set() and not self._results.has(sandbox.sandbox_id, state.exec_id):
            raise error
        return self._kept_feed(sandbox, state.exec_id, offsets, reader_id, left, error)

    def _feed(
        self, sandbox: LiveSandbox, state: ExecState, offsets: tuple[int, int], reader_id: str, memory: Memory | None = None
    ) -> ExecFeed:
        if state.abandon is not None:
            state.keep()
        sandbox.calls += 1
        if not sandbox.runs or sandbox.record.for_one_run:
            memory = None  # It is open for the moment, and of no use for what is kept here.
        feed = ExecFeed(sandbox, state, offsets, reader_id, self._slots, self._closed, memory=memory)
        if sandbox.record.for_one_run:
            feed.keep(self._results)
        if state.recorded is None:
            state.feed = feed
        else:
            key = (sandbox.sandbox_id, state.exec_id, reader_id)
            if (older := self._recorded.get(key)) is not None:
                older.fail(SandboxUnavailableError(f"another request reads {state.exec_id} now", reason="replaced"))
            self._recorded[key] = feed
        self.feeds.add(feed)
        return feed

    def _closed(self, feed: ExecFeed) -> None:
        sandbox, state = feed.sandbox, feed.state
        self.feeds.discard(feed)
        sandbox.calls -= 1
        key = (state.sandbox_id, state.exec_id, feed.reader_id)
        if self._recorded.get(key) is feed:
            del self._recorded[key]
        if state.feed is feed:
            state.feed = None
            if state.started or state.exit is not None:
                self._records.note(state)
            if state.exit is None and not feed.over and sandbox.record.detached and sandbox.runs:
                self._abandon(sandbox, state)
            elif feed.over and state.exit is None and not state.started and sandbox.execs.get(state.exec_id) is state:
                del sandbox.execs[state.exec_id]
            if state.cancelled and not feed.over:
                self._discard(sandbox, state)
        if sandbox.record.let_go and sandbox.calls == 0:
            self._slots.update()

    def _discard(self, sandbox: LiveSandbox, state: ExecState) -> None:
        """Nobody fetches the result of a cancelled command: until it is taken, it would keep its sandbox from being idle."""
        if sandbox.runs and sandbox.link is not None:
            sandbox.spawn(asyncio.create_task(self._take_result(sandbox, sandbox.link, state)))

    async def _take_result(self, sandbox: LiveSandbox, link: Process1Link, state: ExecState) -> None:
        offsets = {int(StreamId.STDOUT): 0, int(StreamId.STDERR): 0}
        with suppress(AviatoError, SandboxGone):
            subscription = link.subscribe(None, state.exec_id)
            async for frame in subscription:
                if frame.type == FrameType.DATA:
                    offsets[frame.stream] = frame.offset + len(frame.payload)
                done = frame.type == FrameType.EXIT
                if done or frame.type == FrameType.DATA:
                    link.acknowledge(state.exec_id, offsets[StreamId.STDOUT], offsets[StreamId.STDERR], done)
        if sandbox.record.let_go:
            self._slots.update()

    def _abandon(self, sandbox: LiveSandbox, state: ExecState) -> None:
        """Kill it if nobody comes back for it in time."""
        loop = asyncio.get_running_loop()
        state.abandon = loop.call_later(ABANDONED_SECONDS, self._kill_abandoned, sandbox, state)

    def _kill_abandoned(self, sandbox: LiveSandbox, state: ExecState) -> None:
        if sandbox.runs and sandbox.link is not None and state.feed is None:
            kill = functools.partial(sandbox.link.cancel, state.exec_id)
            sandbox.spawn(asyncio.create_task(through_cuts(kill, lambda: state.feed is None)))

    def look(self, sandbox: LiveSandbox) -> None:
        """Find out how commands have ended that nobody reads. Whoever comes back reads on as if nobody had."""
        if not sandbox.runs or sandbox.link is None:
            return
        for state in sandbox.execs.values():
            if state.exit is None and state.feed is None and state.recorded is None:
                sandbox.spawn(asyncio.create_task(self._note_exit(sandbox.link, state)))

    async def _note_exit(self, link: Process1Link, state: ExecState) -> None:
        with suppress(AviatoError, SandboxGone):
            async for frame in link.subscribe(None, state.exec_id):
                if frame.type == FrameType.EXIT:
                    state.started, state.exit = True, ExecExit.model_validate_json(frame.payload)
                    self._records.note(state)

    def _refuse_main(self, sandbox: LiveSandbox, exec_id: str) -> None:
        if exec_id == sandbox.main_exec_id:
            raise ExecNotFoundError(f"{exec_id} is the main command; read its logs", sandbox_id=sandbox.sandbox_id)

    async def _on_link(self, sandbox_id: str, exec_id: str, call: Callable[[Process1Link], Awaitable[None]]) -> None:
        sandbox = self._registry.find(sandbox_id, exec_id=exec_id)
        self._refuse_main(sandbox, exec_id)
        state = sandbox.execs.get(exec_id)
        if state is not None and state.left is not None:
            raise error_of_reset(sandbox_id, started=state.started)
        with self._slots.use(sandbox):
            link = await running(sandbox)
            try:
                await call(link)
            except SandboxGone as gone:
                state = sandbox.execs.get(exec_id)
                raise await error_of_gone(sandbox, gone, started=state is not None and state.started) from None
