"""Sessions of aiohttp: how its connections are made, kept and found."""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import ResolveResult

from aviato.transport.connecting import resolve
from aviato.transport.sessions import IDLE_SECONDS
from aviato.wire.version import WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from aviato.transport.resolution import Endpoint

_READ_BUFFER_BYTES = 1 << 18
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class Resolver(aiohttp.ThreadedResolver):
    """Finds addresses also while the interpreter ends, when there are no more threads to ask on."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        """See `aiohttp`."""
        return [
            ResolveResult(
                hostname=host, host=str(address[0]), port=int(address[1]), family=kind, proto=protocol, flags=_NUMERIC
            )
            for kind, _, protocol, _, address in await resolve(host, port, family)
        ]


class _LastFirst(aiohttp.BaseConnector):
    """Takes the connection that was used last.

    aiohttp takes the one that has been idle for longest. So all that a burst of a thousand commands left behind were used
    again and again in turn, by whatever came after it, and none was ever idle for long enough to be closed: a thousand
    descriptors, here and at the server.
    """

    async def _get(self, key: Any, traces: Any) -> Any:
        connections = self._conns.get(key)
        if isinstance(connections, deque):
            connections.rotate(1)
        return await super()._get(key, traces)


class _UnixConnector(_LastFirst, aiohttp.UnixConnector):
    pass


class _TCPConnector(_LastFirst, aiohttp.TCPConnector):
    pass


def make_session(endpoint: Endpoint, name: str | None) -> aiohttp.ClientSession:
    """Connections to an endpoint; a Unix socket's has this name."""
    connector: aiohttp.BaseConnector
    if name is not None:
        connector = _UnixConnector(name, limit=0, keepalive_timeout=IDLE_SECONDS)
    else:
        connector = _TCPConnector(limit=0, resolver=Resolver(), keepalive_timeout=IDLE_SECONDS)
    return aiohttp.ClientSession(
        connector=connector,
        headers={WIRE_HEADER: str(WIRE_VERSION)},
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        auto_decompress=False,
        read_bufsize=_READ_BUFFER_BYTES,
    )
