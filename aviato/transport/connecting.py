"""Connections to a server, before anything is said over them: by its socket's name, or by TCP and TLS."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.transport.resolution import Endpoint

    Infos = list[tuple[Any, ...]]

P = TypeVar("P", bound=asyncio.BaseProtocol)
T = TypeVar("T")

OTHER_ADDRESS_SECONDS = 0.25
"""After so long without an answer the next address of a host is tried beside the one before."""
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""A server that has vanished is noticed within half a minute, whether it was asked something or not."""


async def connect(endpoint: Endpoint, name: str | None, make: Callable[[], P]) -> P:
    """Connect to a server.

    Args:
        endpoint: which.
        name: of its Unix socket, as `connect` takes it; None where it has none.
        make: the protocol.

    Raises:
        OSError: that cannot be done, TLS's errors among them.
    """
    loop = asyncio.get_running_loop()
    if name is not None:
        return (await loop.create_unix_connection(make, name))[1]
    parts = urlsplit(endpoint.origin)
    host = parts.hostname or ""
    port = parts.port or (443 if endpoint.is_secure else 80)
    from aiohappyeyeballs import start_connection

    addresses = await resolve(host, port)
    sock = await start_connection(addresses, happy_eyeballs_delay=OTHER_ADDRESS_SECONDS)
    secure: dict[str, Any] = {}
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        if endpoint.is_secure:
            secure = {"ssl": await _in_a_thread(_context), "server_hostname": host.rstrip(".")}
    except BaseException:
        sock.close()
        raise
    # uvloop closes the descriptor itself, and forgets the socket where the connection ends while it begins: that would
    # close the descriptor again when it is collected, whoever has it then.
    is_uvloops = not isinstance(loop, asyncio.BaseEventLoop)
    try:
        transport, protocol = await loop.create_connection(make, sock=sock, **secure)
    except BaseException:
        if is_uvloops:
            sock.detach()
        else:
            sock.close()
        raise
    if is_uvloops and transport.is_closing():
        sock.detach()
    return protocol


async def resolve(host: str, port: int, family: int = socket.AF_UNSPEC) -> Infos:
    """The addresses of a host, as `getaddrinfo` has them."""
    ask = functools.partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return await _in_a_thread(ask)


async def _in_a_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError:
        return work()  # The interpreter ends, and there are no more threads to ask on.


@functools.cache
def _context() -> ssl.SSLContext:
    """Whom this process trusts: the machine's authorities, and those that `SSL_CERT_FILE` names."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
