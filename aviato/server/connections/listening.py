"""The sockets where a server listens."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.server.connections.connection_limit import BACKLOG, backlog
from aviato.server.connections.handshakes import TlsListener

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aviato.server.connections.tls import Tls

ACCEPTED_A_TURN = 4
"""Connections that Python's loop takes at once: those are no more than `connection_limit` sees before the next ones come."""
HANDSHAKE_SECONDS = 10.0
"""How long a client may take to begin TLS."""
VANISHED_SECONDS = 120
"""How long a connection over TCP is kept whose peer does not answer any more."""


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Where a server listens.

    Attributes:
        sockets: bound and listening.
        path: of the Unix socket, unlinked when the server goes; None if it is someone else's.
        tls: of those that are on TCP; None is none.
    """

    sockets: Sequence[socket.socket]
    path: str | None = None
    tls: Tls | None = None

    @property
    def has_tcp(self) -> bool:
        """Whether anybody can come who is not on this machine, or whose uid is not known."""
        return any(listener.family != socket.AF_UNIX for listener in self.sockets)


async def accept(make: Callable[[], asyncio.Protocol], listeners: Listeners) -> list[asyncio.AbstractServer | TlsListener]:
    """Let connections come, over TLS where that is TCP's.

    Args:
        make: the protocol of one.
        listeners: where they come.
    """
    loop = asyncio.get_running_loop()
    found: list[asyncio.AbstractServer | TlsListener] = []
    for listener in listeners.sockets:
        if listener.family == socket.AF_UNIX or listeners.tls is None:
            found.append(await loop.create_server(make, sock=listener, backlog=ACCEPTED_A_TURN))
            listener.listen(backlog())
        else:
            found.append(TlsListener(listener, make, listeners.tls.context, HANDSHAKE_SECONDS))
    return found


def listen_unix(path: str, *, locked: bool = True) -> socket.socket:
    """A listening Unix socket with mode 0600, whatever the length of its path.

    A socket that a dead server left there is replaced.

    Args:
        path: where.
        locked: the caller's lock says that no server is there; otherwise one that listens is left in peace.

    Raises:
        FileExistsError: what lies there is no socket.
        OSError: EADDRINUSE: somebody listens there.
    """
    directory, name = os.path.split(path)
    directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove_dead(directory_fd, name, locked)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        mask = os.umask(0o177)
        try:
            listener.bind(f"/proc/self/fd/{directory_fd}/{name}")
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
        return listener
    finally:
        os.close(directory_fd)


def _remove_dead(directory_fd: int, name: str, locked: bool) -> None:
    """Remove a socket where nobody listens; what somebody has named by mistake stays."""
    try:
        mode = os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file of this name, and it is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        if not locked and probe.connect_ex(f"/proc/self/fd/{directory_fd}/{name}") not in (errno.ECONNREFUSED, errno.ENOENT):
            raise OSError(errno.EADDRINUSE, "another server listens there")
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory_fd)


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Those that are accepted have it from here: of a peer that has vanished nothing else would ever be heard.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, VANISHED_SECONDS // 2))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, VANISHED_SECONDS // 8))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    return listener
