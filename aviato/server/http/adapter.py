"""Operations as routes of aiohttp: how a request becomes a call, and how a reply is sent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web

from aviato.exceptions import AviatoError
from aviato.server.operations.bodies import SMALL_BODY_BYTES, Bodies
from aviato.server.operations.call import Call
from aviato.server.operations.reply import Last, Reply
from aviato.server.operations.table import Operation, parse_query
from aviato.server.service import Service
from aviato.wire.frames import FrameError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aviato.server.callers import Caller

log = logging.getLogger(__name__)

SERVICE = web.AppKey("service", Service)
BODIES = web.AppKey("bodies", Bodies)


class HttpRequest:
    """A request of aiohttp's."""

    __slots__ = ("_request",)

    def __init__(self, request: web.Request) -> None:
        self._request = request

    @property
    def headers(self) -> Mapping[str, str]:
        """Of it, whatever their case."""
        return self._request.headers

    @property
    def size_bytes(self) -> int | None:
        """Of its body, if it says so."""
        return self._request.content_length

    @property
    def transport(self) -> asyncio.BaseTransport | None:
        """Of its connection."""
        return self._request.transport

    def chunks(self, caller: Caller) -> AsyncIterator[bytes]:
        """See `operations.call.Call.chunks`."""
        return self._request.content.iter_any() if caller.max_body_bytes is None else self._counted(caller)

    async def _counted(self, caller: Caller) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._request.content.iter_any():
            size += len(chunk)
            caller.check_size(size)
            yield chunk

    async def read(self, caller: Caller) -> bytes:
        """See `operations.call.Call.read`."""
        content = self._request.content
        if content.is_eof() and (self._request.content_length or 0) <= SMALL_BODY_BYTES:
            data = content.read_nowait()  # It came with its head, as most do.
            caller.check_size(len(data))
            return data
        # Not the request's own read(): it would keep the body for as long as its connection is idle.
        bodies = self._request.app[BODIES]
        return await bodies.read(self.chunks(caller), self._request.content_length, caller)

    def cut(self) -> None:
        """Break its connection."""
        if self._request.transport is not None:
            self._request.transport.abort()


def route(operation: Operation) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """An operation as aiohttp calls it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        query: Any = None
        if operation.query is not None or request.query_string:
            query = parse_query(operation.query, request.query.items())
        call = Call(request=HttpRequest(request), service=request.app[SERVICE], variables=request.match_info, query=query)
        return await _send(request, await operation(call))

    return handle


async def _send(request: web.Request, reply: Reply) -> web.StreamResponse:
    try:
        if reply.pieces is None:
            response: web.StreamResponse = response_of(reply)
            if reply.stack is not None:
                # Here, so that the client need not wait for what is done at the end.
                await response.prepare(request)
                await response.write_eof()
        else:
            response = await _stream(request, reply, reply.pieces)
        reply.sent = request.transport is not None and not request.transport.is_closing()
        return response
    finally:
        await reply.close()


def response_of(reply: Reply) -> web.Response:
    """A reply that is whole."""
    body = None if reply.content_type is None else reply.body
    return web.Response(body=body, status=reply.status, content_type=reply.content_type, headers=reply.headers)


async def _stream(request: web.Request, reply: Reply, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(
        status=reply.status, headers={"Content-Type": reply.content_type or "application/octet-stream", **reply.headers}
    )
    last = b""
    try:
        await response.prepare(request)
        async for piece in pieces:
            if isinstance(piece, Last):
                last = piece
                break
            if piece:
                await response.write(piece)
        await response.write_eof(last)
    except Exception as error:
        # The client sees a break and resumes, or fails, by itself.
        if not isinstance(error, (ConnectionError, AviatoError, FrameError)):
            log.error("a stream broke off", exc_info=error)
        if request.transport is not None:
            request.transport.abort()
    finally:
        if (close := getattr(pieces, "aclose", None)) is not None:
            await close()
    return response
