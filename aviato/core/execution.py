"""One command: its request, the stream that answers, resumption after a cut, its input and its end."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Protocol

from aviato.core import exec_errors
from aviato.core.client import decode, encode_exec, error_of
from aviato.core.exec_calls import ExecCalls
from aviato.core.shared_memory import LARGE_OUTPUT_BYTES, SharedOutput, note_output
from aviato.exceptions import (
    AviatoError,
    AviatoValidationError,
    SandboxError,
    SandboxNotRunningError,
    SandboxRequestTimeoutError,
    SandboxUnavailableError,
)
from aviato.log import logger
from aviato.values.representation import beginning
from aviato.wire.errors import ExecNotFoundError
from aviato.wire.execution import Accepted, ExecExit, Gap, KeepAlive, Started
from aviato.wire.frames import WIDE_WINDOW_BYTES, Frame, FrameError, FramePieces, FrameType, StreamId
from aviato.wire.ids import EXEC_ID

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aviato.core.lifecycle import SandboxHandle
    from aviato.transport.http import Response

ACKNOWLEDGE_BYTES = 1 << 19
"""Half of what a process 1 holds of a stream at first: it goes on with one half while the request for the other is on its way.
Each is a request of its own, and such requests took more than half of what large output costs the server."""
SILENCE_SECONDS = 45.0
"""Three keepalives of the server: a stream that says less than that has lost its connection."""

_PAUSE_AFTER_CUT_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


class Output(Protocol):
    """Where the bytes of one stream go.

    Attributes:
        total_bytes: up to which offset bytes have been fed.
        reading: whether someone reads along, who may be slow.
    """

    total_bytes: int
    reading: bool

    def skip(self, offset: int) -> bool:
        """Leave out what comes before `offset`; False where someone would miss it."""

    def feed(self, data: bytes | memoryview, offset: int) -> None:
        """Take bytes that begin at `offset`; a view of them is good until this returns."""

    async def ready(self) -> None:
        """Wait until whoever reads along has caught up."""


class _Cut(Exception):
    """The stream ended before the command did."""


class _Contradiction(_Cut):
    """What came does not fit together: without more output, another attempt is no progress."""


class Execution(ExecCalls):
    """One command of a sandbox.

    Args:
        handle: the sandbox.
        request: the fields of the request, `exec_id` among them.
        stdout, stderr: where its output goes, from the offsets on that they have.
        attached: it was begun elsewhere and is only read here; of the request only `exec_id` counts.
        only: the sandbox is for this command alone. One request starts it, runs the command and has the server end it.

    Attributes:
        started: whether it is known to have begun to run.
        outlives: cancelling only lets go of it.
        command: of an attached one, once the server has told it.
    """

    def __init__(
        self,
        handle: SandboxHandle,
        request: dict[str, Any],
        stdout: Output,
        stderr: Output,
        *,
        attached: bool = False,
        only: bool = False,
    ) -> None:
        self.exec_id: str = request["exec_id"]
        self.started = False
        self.outlives: bool = attached or request.get("detach", False)
        self.command: tuple[str, ...] | None = None
        self._attached = attached
        self._only = only and not handle.begun
        self._first: Response | None = None
        """Of the request that made the sandbox too, until it is read."""
        self._ends_sandbox = False
        """The response that is being read is that one: its end is that of the sandbox."""
        self._reader_id = os.urandom(8).hex() if attached else ""
        self.handle = handle
        self._client = handle.client
        self._told = handle.lease.acknowledgements
        patience = handle.client.transport.request_timeout_seconds
        silence = max(patience, SILENCE_SECONDS)
        self._patience: dict[str, Any] = {
            "silence_seconds": silence,
            "head_seconds": patience if patience < silence else None,
        }
        """How long the stream may be silent, and how long it may take to begin."""
        self._request = request
        self._path = f"{handle.path}/execs"
        self._outputs = {int(StreamId.STDOUT): stdout, int(StreamId.STDERR): stderr}
        self._confirmed = {stream: output.total_bytes for stream, output in self._outputs.items()}
        self._wide_window = False
        self._frames: FramePieces
        self._shared: SharedOutput | None = None
        self._catching_up: dict[int, asyncio.Task[None]] = {}
        self._sent = False
        self._accepted = attached
        self._submitted: asyncio.Future[None] | None = None
        self._exit: ExecExit | None = None
        self._verdict: AviatoError | None = None
        self._moved = False
        self._grew = False
        self._ended = False
        self._running: asyncio.Future[bool] | None = None

    async def run(self) -> ExecExit:
        """Run the command to its end. Cancelling kills its whole process tree and waits for that, unless it outlives this.

        Raises:
            SandboxError: it has no exit code, and why; `started` tells whether it had begun.
        """
        handle = self.handle
        handle.enter()
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("command %s in %s begins: %s", self.exec_id, handle.sandbox_id, self._shown())
        if not self._attached:
            if self.outlives:
                self._submitted = self._submission()
            handle.lease.executions[self.exec_id] = self
        try:
            if self._attached:
                await self._check_attachable()
            if not self._only and (handle.stopped or not handle.accepted):
                await handle.start()
            cuts = 0
            while not await self._client.repeat(self._attempt, f"exec {self.exec_id}"):
                # Cut after progress, so the time for reconnecting begins anew.
                await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, _PAUSE_AFTER_CUT_SECONDS * 2**cuts))
                cuts = min(cuts + 1, 10)
            if self._outputs[StreamId.STDOUT].total_bytes >= LARGE_OUTPUT_BYTES:
                note_output(handle)
            if self._verdict is not None:
                raise self._verdict
            assert self._exit is not None
            if logger.isEnabledFor(logging.DEBUG):
                self._tell_of_end(self._exit)
            return self._exit
        except asyncio.CancelledError:
            begun = self._sent or self._attached
            if begun and self._exit is None and not self.outlives and not handle.lease.ended:
                await _to_its_end(self.cancel())
                self._tell_received(done=True)
            raise
        except SandboxError as error:
            if error.started is None or self.started:  # a server that was restarted may not know any more that it had
                error.started = self.started
            handle.has_failed(error)
            raise
        finally:
            self._over()
            handle.leave()

    def _shown(self) -> str:
        return "attached to" if self._attached else beginning(" ".join(self._request["command"]))

    def _tell_of_end(self, ended: ExecExit) -> None:
        how = " by its time limit" if ended.timed_out else " by the memory limit" if ended.oom_killed else ""
        wrote = self._outputs[StreamId.STDOUT].total_bytes, self._outputs[StreamId.STDERR].total_bytes
        logger.debug(
            "command %s has ended%s after %.3f s: returncode %d, %d bytes of stdout, %d of stderr",
            *(self.exec_id, how, ended.duration_seconds, ended.returncode, *wrote),
        )

    async def _attempt(self) -> bool:
        """Read the stream from where it was left; True at its end, False if it was cut after progress."""
        self._moved = self._grew = False
        again = self._sent
        try:
            response = await self._ask()
            self._frames = FramePieces()
            if not await response.pour(self._take):
                raise _Cut("no exit was sent")
            return True
        except SandboxNotRunningError as error:
            if not (again and self._only) or self.handle.stopped:
                raise
            message = f"the result of command {self.exec_id} was sent, and lost on its way; its sandbox has ended"
            raise SandboxUnavailableError(
                message, sandbox_id=self.handle.sandbox_id, reason="result_lost", retryable=False
            ) from error
        except (_Cut, FrameError) as error:
            if not self._moved or (isinstance(error, _Contradiction) and not self._grew):
                raise SandboxUnavailableError(
                    f"the stream of command {self.exec_id} ended before the command: {error}",
                    sandbox_id=self.handle.sandbox_id,
                    reason="stream_cut",
                ) from None
        except (SandboxUnavailableError, SandboxRequestTimeoutError):
            if not self._moved:
                raise
        finally:
            shared, self._shared = self._shared, None
            if shared is not None:
                shared.end(whole=self._exit is not None)
        return False

    async def _ask(self) -> Response:
        """Ask for the stream: of a command that is known from where it was left, of a new one by what begins it."""
        self._ends_sandbox = False
        if self._accepted:
            seen = {stream: output.total_bytes for stream, output in self._outputs.items()}
            path = f"{self._path}/{self.exec_id}?stdout={seen[StreamId.STDOUT]}&stderr={seen[StreamId.STDERR]}"
            path += f"&reader_id={self._reader_id}" if self._reader_id else ""
            try:
                return await self._client.transport.open("GET", path, **self._patience)
            except ExecNotFoundError as error:
                raise self._not_known(error) from error
        if self._only and not self.handle.accepted:
            await self.handle.start_by(self._send_run)
            self._ends_sandbox = True
            response, self._first = self._first, None
            if response is None:
                raise _Cut("the server is of an earlier version")
            return response
        body = encode_exec(self._request)
        if self.handle.prints_much and not (self._sent or any(map(self._request.get, ("detach", "terminal", "cases")))):
            self._shared = await SharedOutput.of(self.handle)
        self._sent = True
        memory = None if self._shared is None else self._shared.name
        return await self._client.transport.open("POST", self._path, body, memory=memory, **self._patience)

    async def _send_run(self, create: bytes) -> None:
        body = b'{"sandbox":%b,"command":%b}' % (create, encode_exec(self._request))
        self._sent = True
        try:
            response = await self._client.transport.open("POST", "/v1/runs", body, **self._patience)
        except AviatoValidationError as error:
            if error.reason != "http":
                raise
            # A server of an earlier version: one step after the other.
            self._only, self._moved = False, True
            await self._client.create(create)
            return
        if self._ended:
            response.close()  # Whoever asked has gone meanwhile; the sandbox is stopped by the usual way.
        else:
            self._first = response

    def _take(self, data: bytes | memoryview) -> bool:
        """Take note of the frames that have come; True if the last was among them."""
        for frame in self._frames.feed(data):
            kind = frame.type
            if kind == FrameType.DATA:
                output = self._output(frame)
                if frame.offset > output.total_bytes:
                    raise _Contradiction(f"bytes before offset {frame.offset} are missing")
                output.feed(frame.payload, frame.offset)
                self._grew = True
            elif kind == FrameType.STARTED:
                self.started = True
                said = self.handle.said_started
                if said is None or said[0] != frame.payload:  # Nearly all commands of a sandbox are told the same.
                    said = self.handle.said_started = frame.payload, decode(Started, frame.payload)
                    self.handle.runs(said[1])
                self._wide_window = said[1].wide_window
                if self._running is not None and not self._running.done():
                    self._running.set_result(True)
            elif kind == FrameType.EXIT:
                ended = decode(ExecExit, frame.payload)
                totals = {StreamId.STDOUT: ended.stdout_bytes_total, StreamId.STDERR: ended.stderr_bytes_total}
                for stream, total in totals.items():
                    here = self._outputs[stream].total_bytes
                    if here < total:
                        raise _Contradiction("the exit came before all output")
                    if self._attached and here > total:
                        self._verdict = exec_errors.beyond_end(self.exec_id, stream, here, total)
                        return True
                self._exit = ended
                self._told.received(
                    self.handle.sandbox_id, self.exec_id, *totals.values(), done=True, reader_id=self._reader_id
                )
                if self._ends_sandbox:
                    self.handle.ends_by_itself()
                return True
            elif (kind != FrameType.ACCEPTED or self._attached) and self._take_rare(frame):
                return True
            self._accepted = self._moved = True
            if self._submitted is not None:
                self._is_submitted()
        self._acknowledge()
        return False

    def _take_rare(self, frame: Frame) -> bool:
        """As `_take`, of one that most commands do not have."""
        kind = frame.type
        if kind == FrameType.SHARED:
            self._take_shared(frame)
        elif kind == FrameType.ERROR:
            error = error_of(frame.payload)
            if isinstance(error, ExecNotFoundError):
                raise self._not_known(error)
            if error.retryable and isinstance(error, SandboxUnavailableError):
                raise error
            self._verdict = error
            self._tell_received(done=True)
            return True
        elif kind == FrameType.KEEPALIVE:
            if frame.payload:
                self.handle.lease.waiting_in_queue(decode(KeepAlive, frame.payload).queue)
        elif kind == FrameType.GAP:
            output, gap = self._output(frame), decode(Gap, frame.payload)
            if not self._attached and not self._request.get("detach"):
                self._verdict = exec_errors.lost(self.handle.sandbox_id, self.exec_id, frame.stream, gap)
                return True
            # What would only be left out of the result anyway may as well be gone.
            if not output.skip(gap.to_offset):
                self._verdict = exec_errors.gone(self.handle.sandbox_id, self.exec_id, frame.stream, gap)
                return True
        elif kind == FrameType.ACCEPTED:
            command = decode(Accepted, frame.payload).command
            self.command = None if command is None else tuple(command)
        return False

    def _take_shared(self, frame: Frame) -> None:
        output, position = self._output(frame), frame.offset
        if self._shared is None or position > output.total_bytes:
            raise _Cut(f"bytes from offset {position} on are in memory that is not here")
        for piece in self._shared.take(frame.payload):
            output.feed(piece, position)
            position += len(piece)

    def _output(self, frame: Frame) -> Output:
        output = self._outputs.get(frame.stream)
        if output is None:
            raise FrameError(f"a frame of stream {frame.stream}, which there is none of")
        return output

    async def _check_attachable(self) -> None:
        """Refuse what cannot be there, without a request and without starting a sandbox for it."""
        if EXEC_ID.fullmatch(self.exec_id) is None or not self.handle.begun:
            raise exec_errors.unknown(self.handle.sandbox_id, self.exec_id)
        await self.handle.until_accepted()
        begun_here = self.handle.lease.executions.get(self.exec_id)
        if begun_here is not None:
            await begun_here.is_running()

    def _is_submitted(self) -> None:
        submitted, self._submitted = self._submitted, None
        self._has_submitted(submitted)

    def _not_known(self, error: ExecNotFoundError) -> Exception:
        """The server does not know it: one that has not begun was accepted by a server that died, and is sent again."""
        if self._attached:
            return exec_errors.unknown(self.handle.sandbox_id, self.exec_id)
        if self.started:
            message = f"the server has lost command {self.exec_id}"
            return SandboxUnavailableError(message, sandbox_id=self.handle.sandbox_id, retryable=False)
        self._accepted = False
        return _Contradiction(str(error))

    def _over(self) -> None:
        self._ended = True
        if self._first is not None:
            self._first.close()
        if self._submitted is not None:
            self._is_submitted()
        if not self._attached:
            self.handle.lease.executions.pop(self.exec_id, None)
        if self._running is not None and not self._running.done():
            self._running.set_result(False)
        for task in self._catching_up.values():
            task.cancel()

    # -- acknowledging

    def _acknowledge(self) -> None:
        """Confirm what has arrived, in steps; of a stream whose reader is slow only once the reader has caught up."""
        for stream, output in self._outputs.items():
            confirmed = self._confirmed[stream]
            wide = self._wide_window and confirmed >= WIDE_WINDOW_BYTES
            if output.total_bytes - confirmed < (WIDE_WINDOW_BYTES // 2 if wide else ACKNOWLEDGE_BYTES):
                continue
            if not output.reading:
                self._confirm(stream)
            elif stream not in self._catching_up:
                task = asyncio.get_running_loop().create_task(self._confirm_when_read(stream))
                self._catching_up[stream] = task

    async def _confirm_when_read(self, stream: int) -> None:
        try:
            await self._outputs[stream].ready()
        finally:
            self._catching_up.pop(stream, None)
        self._confirm(stream)

    def _confirm(self, stream: int) -> None:
        self._confirmed[stream] = self._outputs[stream].total_bytes
        if self._shared is not None and stream == StreamId.STDOUT and self._shared.confirm(self._confirmed[stream]):
            return
        self._tell_received()

    def _tell_received(self, *, done: bool = False) -> None:
        """Have the server told what was confirmed here, and at the command's end all that has come of it."""
        if done:
            self._confirmed = {stream: output.total_bytes for stream, output in self._outputs.items()}
        stdout, stderr = self._confirmed[StreamId.STDOUT], self._confirmed[StreamId.STDERR]
        self._told.received(self.handle.sandbox_id, self.exec_id, stdout, stderr, done=done, reader_id=self._reader_id)

    # -- for its calls

    async def is_running(self) -> bool:
        """Wait until the command has started; False if it ended instead."""
        if self._ended or self._exit is not None or self._verdict is not None:
            return False
        if self.started:
            return True
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._running)


async def _to_its_end(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a bounded clean-up in a task of its own: a second cancellation leaves it running, and leaves."""
    await asyncio.shield(asyncio.get_running_loop().create_task(coroutine))
