"""What one exec request sends: the frames of a command as bytes, coalesced as they arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, OperationCancelledError, SandboxUnavailableError
from aviato.server.link.ended import SandboxGone
from aviato.server.link.subscription import Subscription
from aviato.server.service.exec_state import replaced_error
from aviato.server.service.output.backpressure import Backpressure
from aviato.server.service.output.recorded_reader import RecordedReader
from aviato.server.service.output.retained_results import Result
from aviato.server.service.registry import error_of_gone
from aviato.wire.errors import ErrorBody, from_wire, to_wire
from aviato.wire.execution import Accepted, ExecExit, KeepAlive, Started
from aviato.wire.frames import HEAD, Frame, FrameType, StreamId, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aviato.server.service.exec_state import ExecState
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.output.retained_reader import RetainedReader
    from aviato.server.service.output.retained_results import RetainedResults
    from aviato.server.service.output.source import Source
    from aviato.server.service.slots import Slots
    from aviato.server.shared_memory import Memory

MOST_BYTES = 512 << 10
"""Of payload, that are put together for one write: larger blocks would be new memory each time."""
_OUTPUT = (FrameType.DATA, FrameType.GAP, FrameType.SHARED)
LONGEST_COMMAND = 64 << 10
"""A longer one is not told to those who attach: a frame must hold it."""


class ExecFeed(Backpressure):
    """The stream of one request. `next()` until `over`, then `close()`; closing lets the command run on.

    Args:
        sandbox: its sandbox; it may still wait for its place.
        state: the command.
        offsets: of stdout and stderr, from which to send.
        reader_id: who reads.
        slots: tells where the sandbox waits.
        on_close: called once with this feed.
        memory: where large output may lie, if the command begins here and now.
        retained: what it has left behind, if that is read. Else its frames come from disk, or from process 1 once that runs.
    """

    def __init__(
        self,
        sandbox: LiveSandbox,
        state: ExecState,
        offsets: tuple[int, int],
        reader_id: str,
        slots: Slots,
        on_close: Callable[[ExecFeed], None],
        *,
        memory: Memory | None = None,
        retained: RetainedReader | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.state = state
        self.offsets = offsets
        self.reader_id = reader_id
        self.over = False
        request = state.request
        self.is_fed = not reader_id and request is not None and request.stdin and request.input is None
        # Whoever reads has begun it, and has nothing to give to it once it runs.
        self._is_plain = not (reader_id or request is None or request.stdin or request.terminal or request.detach)
        self._retained = retained
        self._slots = slots
        self._on_close = on_close
        self._subscription: Source | None = None
        self._failure: BaseException | None = None
        self._accepted = False
        self._changed: asyncio.Event | None = None
        """Of who waits for it to be attached, or to fail."""
        self._closed = False
        self._results: RetainedResults | None = None
        self._unconfirmed: deque[Frame] = deque()
        if sandbox.runs or state.outlives:
            self._attach(memory)
        else:
            sandbox.on_run.append(self._attach)

    async def next(self, timeout_seconds: float, enough_bytes: int = 0) -> bytes:
        """Bytes that are ready to be sent; empty when nothing came in `timeout_seconds`.

        Args:
            timeout_seconds: how long to wait.
            enough_bytes: of payload, that are worth waking up for before the end of the command or of that time.

        Raises:
            AviatoError: how the command came to no end; nothing more will come.
        """
        frames: list[Frame] = []
        try:
            async with asyncio.timeout(timeout_seconds):
                if self._subscription is None and self._failure is None:
                    self._changed = asyncio.Event()
                    await self._changed.wait()
                if self._failure is None:
                    assert self._subscription is not None
                    try:
                        await self._subscription.wait(enough_bytes)
                        frames = self._subscription.drain(MOST_BYTES)
                    except (SandboxGone, AviatoError) as error:
                        await self._raise(error)
                if self._failure is not None:
                    await self._raise(self._failure)
        except TimeoutError:
            if self._subscription is not None and self._subscription.queued_bytes:
                return self._encode(self._subscription.drain(MOST_BYTES))
            if self._subscription is None and not self._accepted:
                self._accepted = True
                return encode(FrameType.ACCEPTED, self._acceptance())
            return b""
        if frames:
            return self._encode(frames)
        if self.reader_id != self.state.reader_id:
            raise replaced_error(self.state.exec_id)
        # The same reader has come back on another connection.
        raise SandboxUnavailableError(f"another request reads {self.state.exec_id} now", reason="replaced")

    @property
    def unread_bytes(self) -> int:
        """What the server holds of it for a reader that does not read, roughly."""
        return self.sending_bytes + (0 if self._subscription is None else self._subscription.queued_bytes)

    def keepalive(self) -> bytes:
        """A frame for times of silence; says where the sandbox waits."""
        body = KeepAlive(queue=self._slots.queue_of(self.sandbox))
        return encode(FrameType.KEEPALIVE, body.model_dump_json(exclude_none=True).encode())

    def fail_cancelled(self) -> None:
        """The command was cancelled before its sandbox ran."""
        self.fail(cancelled_error(self.state.exec_id))

    def fail(self, error: AviatoError) -> None:
        """End it with an error."""
        self._failure = error
        if self._changed is not None:
            self._changed.set()
        if self._subscription is not None:
            self._subscription.close()

    def acknowledge(self, stdout: int, stderr: int) -> None:
        """The reader of kept output has these bytes."""
        if isinstance(self._subscription, RecordedReader):
            self._subscription.acknowledge(stdout, stderr)

    def keep(self, results: RetainedResults) -> None:
        """Its sandbox ends when the result was sent: hold that until it has arrived."""
        self._results = results

    def confirmed(self, stdout: int, stderr: int) -> None:
        """The reader has these bytes."""
        while self._unconfirmed:
            frame = self._unconfirmed[0]
            if frame.offset + len(frame.payload) > (stdout if frame.stream == StreamId.STDOUT else stderr):
                return
            self._unconfirmed.popleft()

    def close(self) -> None:
        """Stop reading; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._attach in self.sandbox.on_run:
            self.sandbox.on_run.remove(self._attach)
        if self._subscription is not None:
            if self._subscription.queued_bytes:
                self.state.started |= any(frame.type == FrameType.STARTED for frame in self._subscription.drain())
            self._subscription.close()
        self._on_close(self)

    def _attach(self, memory: Memory | None = None) -> None:
        """Begin to read it where its frames come from."""
        sandbox, state = self.sandbox, self.state
        if not sandbox.runs and not state.outlives:
            self._failure = sandbox.error(started=False)
        elif state.cancelled and not state.started:
            self._failure = cancelled_error(state.exec_id)
        elif self._retained is not None:
            self._subscription = self._retained
        elif state.recorded is not None:
            self._subscription = state.recorded.read(self.offsets)
        else:
            link = sandbox.link
            assert link is not None
            if any(self.offsets):
                # Whoever comes back has these bytes, and what confirmed them may have died with an earlier server (or an
                # earlier reader confirmed none): a full window would wait for that for ever.
                link.acknowledge(state.exec_id, *self.offsets, False)
            read_along = not sandbox.record.for_one_run or self.is_fed
            try:
                spec = state.spec()
                self._subscription = link.subscribe(spec, state.exec_id, *self.offsets, read_along=read_along, memory=memory)
            except (AviatoError, SandboxGone) as error:
                self._failure = error
        if self._changed is not None:
            self._changed.set()

    async def _raise(self, failure: BaseException) -> None:
        if isinstance(failure, SandboxGone):
            # What would have told that it has begun may have waited for its end.
            self.state.started |= self.sandbox.record.for_one_run and self._subscription is not None
            failure = await error_of_gone(self.sandbox, failure, started=self.state.started)
        self.over = True
        raise failure

    def _encode(self, frames: list[Frame]) -> bytes:
        parts: list[bytes] = []
        for frame in frames:
            kind = frame.type
            payload = frame.payload
            if kind in _OUTPUT:
                self.is_quiet = False
            if kind == FrameType.DATA:
                if self._results is not None:
                    self._unconfirmed.append(frame)
            elif kind == FrameType.SHARED:
                self.by_memory = True
            elif kind == FrameType.ACCEPTED:
                if self._accepted:
                    continue
                self._accepted = True
                if self.reader_id or self.state.recorded is not None:  # Else process 1 says the same.
                    payload = self._acceptance()
            elif kind == FrameType.STARTED:
                self.state.started = True
                payload = self._started()
                self.is_quiet = self._is_plain
            elif kind == FrameType.EXIT:
                self.over, self.is_quiet = True, False
                self.state.exit = ExecExit.model_validate_json(payload)
                if self._results is not None:
                    result = _result(payload, self._unconfirmed, self.offsets)
                    self._results.offer(self.sandbox.sandbox_id, self.state.exec_id, result)
            elif kind == FrameType.ERROR:
                self.over, self.is_quiet = True, False
                if not self._accepted:
                    raise from_wire(ErrorBody.model_validate_json(payload))
            parts.append(HEAD.pack(kind, frame.stream, 0, len(payload), frame.offset))
            parts.append(payload)
        return b"".join(parts)

    def _acceptance(self) -> bytes:
        command = self.state.command if self.reader_id else None
        if command is not None and sum(map(len, command)) > LONGEST_COMMAND:
            command = None
        if command is None:
            return b'{"exec_id":"%b"}' % self.state.exec_id.encode()
        return Accepted(exec_id=self.state.exec_id, command=command).model_dump_json().encode()

    def _started(self) -> bytes:
        record = self.sandbox.record
        # What is kept of a detached command is sent by the server, with a window of its own.
        wide = (
            isinstance(self._subscription, Subscription)
            and self.sandbox.link is not None
            and self.sandbox.link.has_wide_windows
        )
        said = self.sandbox.said_started
        if said is None or said[0] is not record or said[1] is not wide:
            known = Started(
                started_at=record.started_at,
                startup_seconds=record.startup_seconds,
                was_ready=self.sandbox.was_ready,
                image_pull=self.sandbox.image_pull,
                image_id=record.image_id,
                status=record.status,
                wide_window=wide,
            )
            said = self.sandbox.said_started = record, wide, known.model_dump_json().encode()
        return said[2]


def _result(exit: bytes, frames: Iterable[Frame], offsets: tuple[int, int]) -> Result:
    """What a reader has not confirmed; of a stream without a frame nothing is left, so any offset will do."""
    kept = {}
    for stream, begin in ((StreamId.STDOUT, offsets[0]), (StreamId.STDERR, offsets[1])):
        own = [frame for frame in frames if frame.stream == stream]
        kept[stream] = (own[0].offset if own else begin, b"".join(frame.payload for frame in own))
    return Result(exit, kept[StreamId.STDOUT], kept[StreamId.STDERR])


def error_frame(error: AviatoError) -> bytes:
    """The last frame of a stream that came to no result."""
    return encode(FrameType.ERROR, to_wire(error).model_dump_json().encode())


def cancelled_error(exec_id: str) -> AviatoError:
    """What a command that was cancelled before its sandbox ran ends with."""
    return OperationCancelledError(f"{exec_id} was cancelled before it started")
