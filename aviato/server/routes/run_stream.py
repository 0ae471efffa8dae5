"""Many sandboxes for one command each over one request: an item of a batch costs a frame each way, and no request of HTTP.

It is a quicker way to what `POST /v1/runs` does and nothing beside it: whatever is not short and small is asked for there, and
so is what was under way when the stream was cut, by the same ids.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, cast

from aiohttp import web

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.server.peers import Asker, peer_uid
from aviato.server.routes.streaming import HOLD_BACK_BYTES, break_off, cuts, hold_back
from aviato.server.routes.table import OCTETS, Call, Route, parse_body
from aviato.wire.errors import to_wire
from aviato.wire.execution import FRAMES_CONTENT_TYPE, Acknowledgements, ExecAck, RunRequest
from aviato.wire.frames import CONFIRMED_AT_ONCE, Frame, FrameDecoder, FrameError, FrameType, encode

if TYPE_CHECKING:
    from aviato.server.service.feed import ExecFeed
    from aviato.server.service.left_feed import LeftFeed

log = logging.getLogger(__name__)

HOLD_SECONDS = 2.0
"""A command that takes longer is asked for by itself: then its client hears where its sandbox waits, and that it has begun."""
MOST_AT_ONCE = 256
MOST_UNCONFIRMED = 4096
"""What an earlier one stands for is forgotten: then its result waits as long as one that nobody confirms."""


async def run_stream(call: Call) -> web.StreamResponse:
    """Run what comes, each in a sandbox of its own."""
    transport = call.request.transport
    if transport is None or peer_uid(transport) is None:
        # Over TCP each request counts against what its key may send.
        raise AviatoValidationError("runs are streamed over a Unix socket only; send each to /v1/runs", reason="transport")
    response = web.StreamResponse(headers={"Content-Type": FRAMES_CONTENT_TYPE})
    await response.prepare(call.request)
    try:
        with call.service.long_polls.without_end():
            await _RunStream(call, response, transport).serve()
        await response.write_eof()
    except Exception as error:
        break_off(call.request, error)
    return response


class _RunStream:
    """One request, and what is under way over it."""

    def __init__(self, call: Call, response: web.StreamResponse, transport: asyncio.BaseTransport) -> None:
        self._call = call
        self._runs = call.service.runs
        self._caller = call.caller
        self._response = response
        self._transport = transport
        self._running: set[asyncio.Task[None]] = set()
        self._sent: dict[int, tuple[str, str]] = {}
        """Whose result was sent whole, by number, until it is confirmed."""

    async def serve(self) -> None:
        """Until no more comes and all was answered."""
        decoder = FrameDecoder()
        try:
            async for data in self._call.request.content.iter_any():
                for frame in decoder.feed(data):
                    await self._take(frame)
            if self._running:
                await asyncio.wait(self._running)
        finally:
            for task in self._running:
                task.cancel()

    async def _take(self, frame: Frame) -> None:
        if frame.type == FrameType.CONFIRMED:
            self._confirm(frame.payload)
            return
        if frame.type != FrameType.RUN:
            raise FrameError(f"a frame of type {frame.type}")
        if len(self._running) >= MOST_AT_ONCE:
            await self._say(FrameType.RAN, frame.offset)
            return
        task = asyncio.create_task(self._run(frame))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, frame: Frame) -> None:
        try:
            self._call.service.check_able()
            request = cast("RunRequest", parse_body(RunRequest, frame.payload))
            feed = await self._runs.start(request, Asker(self._transport), self._caller)
            await self._answer(frame.offset, request, feed)
        except AviatoError as error:
            await self._say(FrameType.ERROR, frame.offset, to_wire(error).model_dump_json().encode())
        except ConnectionError:
            return  # It has been cut.
        except Exception as error:
            # The request by itself fails in the same way, or does not.
            log.warning("a run of a stream failed, and is left to a request of its own: %r", error)
            await self._say(FrameType.RAN, frame.offset)

    async def _answer(self, number: int, request: RunRequest, feed: ExecFeed | LeftFeed) -> None:
        """As `streaming.stream_run`, with what can be said in one frame."""
        sandbox_id, over = request.sandbox.sandbox_id, False
        try:
            held = await hold_back(feed, HOLD_SECONDS)
            whole = feed.over and len(held) <= HOLD_BACK_BYTES
            if whole:
                self._may_confirm(number, sandbox_id, request.command.exec_id)
            await self._say(FrameType.RAN, number, held if whole else b"", int(whole))
            over = whole and not self._transport.is_closing()
        except AviatoError as error:
            over = not cuts(error)
            raise
        finally:
            feed.close()
            self._runs.left(sandbox_id, over)

    def _may_confirm(self, number: int, sandbox_id: str, exec_id: str) -> None:
        self._sent[number] = sandbox_id, exec_id
        if len(self._sent) > MOST_UNCONFIRMED:
            del self._sent[next(iter(self._sent))]

    def _confirm(self, numbers: bytes) -> None:
        """As `POST /v1/acknowledgements`, of what this stream has sent."""
        count, rest = divmod(len(numbers), 8)
        if rest or count > CONFIRMED_AT_ONCE:
            raise FrameError(f"{len(numbers)} bytes of numbers")
        known = [found for number in struct.unpack(f">{count}Q", numbers) if (found := self._sent.pop(number, None))]
        acks = [ExecAck.model_construct(sandbox_id=sandbox_id, exec_id=exec_id, done=True) for sandbox_id, exec_id in known]
        self._call.service.execs.acknowledge(Acknowledgements.model_construct(execs=acks), self._caller)

    async def _say(self, kind: FrameType, number: int, payload: bytes = b"", stream: int = 0) -> None:
        await self._response.write(encode(kind, payload, stream=stream, offset=number))


ROUTES = (
    Route(
        method="POST",
        path="/v1/runs/stream",
        handler=run_stream,
        summary="As many of `/v1/runs` as come, a frame each; what is not short and small is answered by an empty frame",
        body=OCTETS,
        answers={200: FRAMES_CONTENT_TYPE},
    ),
)
