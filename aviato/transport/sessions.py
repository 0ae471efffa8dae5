"""Sessions of aiohttp: how its connections are made, kept and found."""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import ResolveResult

from aviato.wire.version import WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from aviato.transport.resolution import Endpoint

IDLE_SECONDS = 30.0
"""How long a connection is kept that nobody uses."""
_READ_BUFFER_BYTES = 1 << 18
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class Resolver(aiohttp.ThreadedResolver):
    """Finds addresses also while the interpreter ends, when there are no more threads to ask on."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        """See `aiohttp`."""
        try:
            return await super().resolve(host, port, family)
        except RuntimeError:
            found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            return [
                ResolveResult(
                    hostname=host, host=str(address[0]), port=int(address[1]), family=kind, proto=protocol, flags=_NUMERIC
                )
                for kind, _, protocol, _, address in found
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


def proxy(origin: str) -> str | None:
    """The proxy that the environment names for this server. Not aiohttp's `trust_env`: it would also send netrc passwords."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(origin)
    proxies = getproxies()
    if proxy_bypass(parts.hostname or ""):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")
