"""Who is at the other end of a Unix socket, and whether that process lives."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected.

    Attributes:
        pid: its id.
        pidfd: a descriptor of it, owned by the taker; None if it is dead already.
    """

    pid: int
    pidfd: int | None


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """The uid at the other end of a Unix socket; None over TCP."""
    credentials = _credentials(transport)
    return None if credentials is None else credentials[1]


class Asker:
    """Tells who asks, where somebody wants to know: the peer process, if there is one here.

    Attributes:
        transport: of the connection.
    """

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self.transport = transport

    def __call__(self) -> Peer | None:
        """See `peer_process`."""
        return peer_process(self.transport)


def peer_process(transport: asyncio.BaseTransport | None) -> Peer | None:
    """The process at the other end; None over TCP, and where a pid namespace hides it."""
    credentials = None if transport is None else _credentials(transport)
    if transport is None or credentials is None or credentials[0] == 0:
        return None
    pid = credentials[0]
    connection = transport.get_extra_info("socket")
    try:
        pidfd: int | None = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        # Before Linux 6.5. The peer may be dead and its id another's: that one is then watched instead, which is harmless.
        pidfd = open_process(pid)
    if pidfd is not None:
        os.set_inheritable(pidfd, False)
    return Peer(pid, pidfd)


def notice_loss(transport: asyncio.BaseTransport) -> None:
    """Have the kernel find out within half a minute that the machine at the other end of a connection is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


def open_process(pid: int) -> int | None:
    """A descriptor of a process; None if there is none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot: with its id it names a process for good."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The kernel answers from memory: nothing here waits.
        text = os.pread(fd, 4096, 0).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    fields = text[text.rfind(")") + 2 :].split()
    return int(fields[19]) if len(fields) > 19 else None


@cache
def boot_id() -> str:
    """The id of this boot."""
    fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, 4096, 0).decode().strip()  # From memory, too.
    finally:
        os.close(fd)


def _credentials(transport: asyncio.BaseTransport) -> tuple[int, int, int] | None:
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid
