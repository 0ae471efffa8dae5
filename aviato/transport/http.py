"""Requests to one server: over framed sessions, or by HTTP where it opens none. Nothing here knows what they mean."""

from __future__ import annotations

import asyncio
import io
import math
import os
import resource
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from aviato.exceptions import AviatoValidationError
from aviato.transport import auth, embedded, faults
from aviato.transport.channel import Channel
from aviato.transport.resolution import Endpoint, endpoint, proxy_of
from aviato.transport.server import Server
from aviato.transport.sessions import IDLE_SECONDS, Sessions
from aviato.transport.shared_memory import Memories
from aviato.wire.session import LENGTH_HEADER, TYPE_HEADER
from aviato.wire.shared_memory import MEMORY_HEADER
from aviato.wire.version import KEY_HEADER, WIRE_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence

    import aiohttp

    Body = bytes | list[bytes] | tuple[bytes, ...] | AsyncIterable[bytes]

CONNECT_SECONDS = 5.0
UPLOAD_CHUNK_BYTES = 1 << 18
FOREIGN_ANSWERS = 3
"""After so many from a server that has never answered, it is taken for somebody else's: one alone can be a proxy's mishap."""
_WHOLE_BODY_BYTES = 1 << 19
"""A larger body is sent in pieces: aiohttp warns that it would hold the loop."""


class _Pool:
    """The connections of one loop to one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.proxy: str | None = None
        self._http: aiohttp.ClientSession | None = None
        self.sessions: Sessions | None = None
        """None where it opens none, or there is a proxy on the way: then requests of HTTP are answered."""
        self.begun = False
        self.memories: Memories | None = None
        """Shared with a server on a Unix socket, which was asked before."""
        self._name: str | None = None
        self._name_fd: int | None = None
        self._starting: asyncio.Task[None] | None = None
        self._keeper = self._until_the_loop_goes()

    async def http(self) -> aiohttp.ClientSession:
        """What sends requests of HTTP; the embedded server is found or started first, once for all who ask."""
        await self.begin()
        if self._http is None or self._http.closed:
            from aviato.transport import aiohttp_session

            self._http = aiohttp_session.make_session(self.server.endpoint, self._name)
        return self._http

    async def begin(self) -> None:
        """Find the embedded server, or start it, once for all who ask, and get what its connections need."""
        endpoint = self.server.endpoint
        if endpoint.embedded and not self.server.up:
            await self._ensure_embedded()
        if not self.begun:
            _raise_descriptor_limit()
            if endpoint.socket_path is not None:
                self._name, self._name_fd = embedded.reachable_name(endpoint.socket_path)
                self.memories = Memories(self._name)
            else:
                self.proxy = proxy_of(endpoint)
            if self.proxy is None and endpoint.origin.isascii():
                self.sessions = Sessions(self.server, self._name, IDLE_SECONDS)
            self.begun = True
            # asyncio closes the generators that were begun on a loop before it closes the loop.
            await anext(self._keeper)

    async def _until_the_loop_goes(self) -> AsyncGenerator[None, None]:
        loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            _pools.pop(loop, None)
            if self.sessions is not None:
                self.sessions.close()
            if self.memories is not None:
                self.memories.close()
            if self._http is not None:
                await self._http.close()
            if self._name_fd is not None:
                os.close(self._name_fd)

    async def _ensure_embedded(self) -> None:
        if self._starting is None or self._starting.done():
            path = self.server.endpoint.socket_path
            assert path is not None
            self._starting = asyncio.get_running_loop().create_task(embedded.ensure(path))
        await asyncio.shield(self._starting)
        self.server.up = self.server.reached = True


_servers: dict[Endpoint, Server] = {}
_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Server, _Pool]] = WeakKeyDictionary()


class HttpResponse:
    """An answer of HTTP, whose body has not been read; it reads like a session's, which is a `Channel`.

    Args:
        raw: as it came.
        seconds: how long the server was given for its head.
        server: that has sent it.
    """

    __slots__ = ("_raw", "_seconds", "_server", "headers", "length", "status")

    def __init__(self, raw: aiohttp.ClientResponse, seconds: float, server: Server) -> None:
        self._raw = raw
        self._seconds = seconds
        self._server = server
        self.status = raw.status
        self.length = raw.content_length
        self.headers = raw.headers

    async def read(self) -> bytes:
        """The whole body; raises as `next`."""
        try:
            return await self._raw.read()
        except Exception as error:
            self._server.failed(error, self._seconds)

    async def next(self) -> bytes:
        """What has arrived of the body since the last call, once there is something; nothing at its end.

        Raises:
            SandboxUnavailableError: the connection was cut.
            SandboxRequestTimeoutError: it was silent for too long.
        """
        try:
            return await self._raw.content.readany()
        except Exception as error:
            self._server.failed(error, self._seconds)

    async def pour(self, take: Callable[[bytes | memoryview], bool | None]) -> bool:
        """Give the body away as it arrives; see `Channel.pour`."""
        try:
            while chunk := await self.next():
                if take(chunk):
                    return True
            return False
        finally:
            if not self.finished:
                self.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives; raises as `next`."""
        while chunk := await self.next():
            yield chunk

    def close(self) -> None:
        """Give the connection back; a body that was not read to its end ends the connection."""
        self._raw.close()

    @property
    def finished(self) -> bool:
        """Whether the body was read to its end."""
        return self._raw.content.at_eof()


Response: TypeAlias = Channel | HttpResponse
"""An answer of less than 400 whose body has not been read."""


@dataclass(slots=True)
class _Request:
    """What is sent; see `HttpTransport.open`."""

    method: str
    path: str
    body: Body | None
    content_type: str
    length: int | None
    silence_seconds: float
    head_seconds: float | None
    headers: dict[str, str]
    meanwhile: Callable[[], None] | None


class HttpTransport:
    """Requests to one server, from whichever loop is running.

    Args:
        base_url: as `resolution.choose` gave it.
        request_timeout_seconds: how long one request may be silent.
    """

    def __init__(self, base_url: str, *, request_timeout_seconds: float) -> None:
        self.base_url = base_url
        self.request_timeout_seconds = request_timeout_seconds
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}

    @cached_property
    def server(self) -> Server:
        """What is known of the server."""
        found = endpoint(self.base_url)
        return _servers.setdefault(found, Server(found))

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        silence_seconds: float | None = None,
        key: str | None = None,
    ) -> bytes:
        """Send a request and read the whole answer.

        Raises:
            AviatoError: the error that the server answered, or what went wrong on the way.
        """
        response = await self.open(method, path, body, silence_seconds=silence_seconds, key=key)
        return await response.read()

    async def open(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        content_type: str = "application/json",
        length: int | None = None,
        silence_seconds: float | None = None,
        head_seconds: float | None = None,
        key: str | None = None,
        memory: str | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Response:
        """Send a request and return when the head of its answer is there.

        Args:
            method: of HTTP.
            path: with its query, percent-encoded, from `/v1` on.
            body: bytes, in one piece or several, or a source of chunks that is read as they go out.
            content_type: of the body.
            length: of a body from a source, where it is known.
            silence_seconds: how long the server may be silent; `request_timeout_seconds` if None.
            head_seconds: a shorter limit until the head is there.
            key: by which the server knows a repeat of the same call.
            memory: the name of what is shared for it, out of `memories`.
            meanwhile: done while the head is on its way to a Unix socket, before the body follows.

        Raises:
            AviatoError: the error that the server answered, or what went wrong on the way.
        """
        headers = {} if key is None else {KEY_HEADER: key}
        if memory is not None:
            headers[MEMORY_HEADER] = memory
        silence = self.request_timeout_seconds if silence_seconds is None else silence_seconds
        request = _Request(method, path, body, content_type, length, silence, head_seconds, headers, meanwhile)
        pool = self._pool()
        server, seconds = pool.server, head_seconds or silence
        try:
            response = await self._send(pool, request)
            if response.status >= 400 and auth.asks_for_wandb(server.endpoint, response.status, response.headers):
                server.wandb_asked = True
                response.close()
                response = await self._send(pool, request)
            reached = server.reached
            if WIRE_HEADER in response.headers or response.status in faults.TOO_BUSY:
                server.reached = True
            elif not reached:
                server.foreign += 1
                reached = server.foreign < FOREIGN_ANSWERS
            if response.status >= 400:
                raise faults.from_response(
                    server.endpoint.url, response.status, response.headers, await response.read(), reached=reached
                )
            if not isinstance(response, Channel):  # A session's version was looked at when it was opened.
                faults.check_wire_version(server.endpoint.url, response.headers, reached=reached)
        except Exception as error:
            server.failed(error, seconds)
        return response

    @property
    def memories(self) -> Memories | None:
        """What this loop shares with the server, where it is on this machine and was asked before."""
        return self._pool().memories

    async def until_lost(self) -> None:
        """Hold a connection to a server on a Unix socket open, and return when the server has closed it."""
        pool = self._pool()
        try:
            await pool.begin()
        except Exception as error:
            faults.raise_typed(error, pool.server.endpoint.url, self.request_timeout_seconds)
        path = pool.server.endpoint.socket_path
        assert path is not None
        await embedded.until_closed(path)
        pool.server.up = False

    def _pool(self) -> _Pool:
        server = self.server
        loop = asyncio.get_running_loop()
        pools = _pools.get(loop)
        if pools is None:
            for other in [other for other in _pools if other.is_closed()]:
                del _pools[other]  # a loop that was closed without its clean-up
            pools = _pools[loop] = {}
        pool = pools.get(server)
        if pool is None:
            pool = pools[server] = _Pool(server)
        return pool

    async def _send(self, pool: _Pool, request: _Request) -> Response:
        server, body = pool.server, request.body
        credentials: dict[str, str] = {}  # A Unix socket knows its callers by peer credentials.
        if server.endpoint.socket_path is None:
            credentials = auth.headers(server.endpoint, wandb_asked=server.wandb_asked)
        if not pool.begun or (server.endpoint.embedded and not server.up):
            async with asyncio.timeout(request.head_seconds):
                await pool.begin()
        patience = min(CONNECT_SECONDS, request.silence_seconds)
        session = None if pool.sessions is None else await pool.sessions.session(patience, credentials)
        if session is None:
            return await self._send_http(pool, request, credentials)
        path, headers = request.path, request.headers
        if not path.isascii() or not path.isprintable() or " " in path:
            raise AviatoValidationError(f"{path!r} cannot be asked for: it is not percent-encoded")
        if body is not None:
            headers = {**headers, TYPE_HEADER: request.content_type}
            if isinstance(body, bytes):
                body = (body,)
            length = sum(map(len, body)) if isinstance(body, (list, tuple)) else request.length
            if length is not None:
                headers[LENGTH_HEADER] = str(length)
        line = f"{request.method} {path}"
        return await session.ask(line, headers, body, request.silence_seconds, request.head_seconds, request.meanwhile)

    async def _send_http(self, pool: _Pool, request: _Request, credentials: dict[str, str]) -> HttpResponse:
        from yarl import URL

        server, body = pool.server, request.body
        http = await pool.http()
        headers = {**credentials, **request.headers}
        data: Any = body
        timer = asyncio.timeout(request.head_seconds)
        if body is not None:
            headers["Content-Type"], length = request.content_type, request.length
            if isinstance(body, bytes):
                data = body if len(body) <= _WHOLE_BODY_BYTES else io.BytesIO(body)
            else:
                if isinstance(body, (list, tuple)):
                    length, body = sum(map(len, body)), _each(body)
                data = _paced(body, timer, request.silence_seconds)
                if length is not None:
                    headers["Content-Length"] = str(length)
        async with timer:
            response = await http.request(
                request.method,
                URL(server.endpoint.origin + request.path, encoded=True),
                data=data,
                headers=headers,
                timeout=self._timeout(request.silence_seconds),
                proxy=pool.proxy,
                allow_redirects=False,
            )
        return HttpResponse(response, request.head_seconds or request.silence_seconds, server)

    def _timeout(self, silence: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(silence)
        if timeout is None:
            import aiohttp

            read = None if silence == math.inf else silence
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_SECONDS, silence), sock_read=read)
            self._timeouts[silence] = timeout
        return timeout


async def _each(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _paced(body: AsyncIterable[bytes], timer: asyncio.Timeout, silence: float) -> AsyncIterator[bytes]:
    """The chunks of a body, with a limit on how long the server may leave one lying; a slow source is not its fault."""
    loop = asyncio.get_running_loop()
    async for chunk in body:
        for start in range(0, len(chunk), UPLOAD_CHUNK_BYTES):
            timer.reschedule(loop.time() + silence)
            yield chunk[start : start + UPLOAD_CHUNK_BYTES]
        timer.reschedule(None)
    timer.reschedule(loop.time() + silence)


def _raise_descriptor_limit() -> None:
    """Thousands of commands at a time need thousands of connections where they go by HTTP."""
    asked = os.environ.get("AVIATO_RAISE_DESCRIPTOR_LIMIT", "")
    if asked not in ("", "0", "1"):
        raise AviatoValidationError(f"AVIATO_RAISE_DESCRIPTOR_LIMIT is {asked!r}: it is 0 or 1")
    if asked == "0":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass
