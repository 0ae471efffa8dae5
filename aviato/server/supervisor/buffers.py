"""What sockets hold on its way, which is memory of no process: a few hundred of them hold a GiB. Standard library only.

The kernel tells it by netlink, for all sockets of a network namespace at once. Nobody inside can open such a socket.

Of TCP and UDP all network namespaces of the machine have so much together, and so many connections that no process has any more
and whose last bytes nobody has taken: at that number the kernel resets each that is closed, anywhere.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from aviato.server.supervisor.errors import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

FEW = 8
"""So many sockets are not looked at: most sandboxes have no more, and they hold some 40 MiB at most."""
PIECE_BYTES = 32 << 10
SOCK_DIAG = 4
"""The protocol of netlink."""

_SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP = 20, 0x301
_ERROR, _DONE = 2, 3
_HEAD = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_MEMORY = struct.Struct("=8I")
"""Received, limit, sent, limit, set aside, queued, options, backlog; of Unix sockets it is all with who has sent it."""
_INODE_AT = 68
_CLOSING = frozenset({4, 5, 9, 11})
"""States of TCP: FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING."""


class _Kind(NamedTuple):
    """What asks for one, the length of what is said of a socket, the attribute with its memory, and its protocol."""

    request: bytes
    skipped: int
    wanted: int
    protocol: int = 0


_KINDS = (
    _Kind(struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x20, 0, 0), 16, 5),
    *(
        _Kind(struct.pack("=BBBBI48x", family, protocol, 0x40, 0, 0xFFFFFFFF), 72, 7, protocol)
        for family in (socket.AF_INET, socket.AF_INET6)
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
    ),
)


def open_diagnosis() -> int:
    """A descriptor for `Buffers`, of the network namespace that this process is in; a useless one where there is none."""
    try:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG).detach()
    except OSError:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


class Buffers:
    """Those of a sandbox.

    Args:
        proc: descriptor of /proc.
        diagnosis: see `open_diagnosis`.
    """

    def __init__(self, proc: int, diagnosis: int) -> None:
        self.bytes = self.tcp_bytes = self.udp_bytes = 0
        """What all of them hold, by the last look, and those of these protocols."""
        self.orphans = 0
        """Connections that no process has any more."""
        self._proc = proc
        self._diagnosis = diagnosis
        self._opened = False
        self._count = -1
        self._netlink: socket.socket | None = None

    def look(self) -> Generator[float, None, None]:
        """A job that finds out what they hold."""
        if not self._opened:
            self._open()
        if self._netlink is None or int(os.pread(self._count, 64, 0).split()[2]) <= FEW:
            self.bytes = self.tcp_bytes = self.udp_bytes = self.orphans = 0
            return
        orphans = 0
        by_protocol = dict.fromkeys((kind.protocol for kind in _KINDS), 0)
        for kind in _KINDS:
            for found in self._dump(self._netlink, kind):
                if found is None:
                    yield True
                else:
                    by_protocol[kind.protocol] += found.held_bytes
                    orphans += found.is_orphan
        self.tcp_bytes, self.udp_bytes = by_protocol[socket.IPPROTO_TCP], by_protocol[socket.IPPROTO_UDP]
        self.orphans = orphans
        self.bytes = sum(by_protocol.values())

    def _open(self) -> None:
        try:
            self._count = os.open("self/net/sockstat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            self._netlink = socket.socket(fileno=self._diagnosis)
            self._netlink.setblocking(False)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            self._netlink = None
        self._opened = True

    def _dump(self, netlink: socket.socket, asked: _Kind) -> Iterator[_Found | None]:
        """Each socket of a kind; None between two pieces of the answer."""
        request = asked.request
        netlink.send(_HEAD.pack(_HEAD.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + request)
        while True:
            try:
                piece = netlink.recv(PIECE_BYTES)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    return
                raise
            at = 0
            while at + _HEAD.size <= len(piece):
                length, kind, _, _, _ = _HEAD.unpack_from(piece, at)
                if kind in (_ERROR, _DONE) or length < _HEAD.size:
                    return  # This kernel knows no sockets of the kind, or that was all.
                begin = at + _HEAD.size
                held = _held(piece, begin + asked.skipped, at + length, asked.wanted)
                yield _Found(held or 0, held is not None and asked.protocol == socket.IPPROTO_TCP and _is_orphan(piece, begin))
                at += (length + 3) & ~3
            yield None


class _Found(NamedTuple):
    held_bytes: int
    is_orphan: bool


def _is_orphan(piece: bytes, at: int) -> bool:
    (inode,) = struct.unpack_from("=I", piece, at + _INODE_AT)
    return inode == 0 and piece[at + 1] in _CLOSING


def _held(piece: bytes, at: int, end: int, wanted: int) -> int | None:
    """None of a connection of which the kernel keeps no more than its name."""
    while at + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(piece, at)
        if kind == wanted and length >= _ATTRIBUTE.size + _MEMORY.size:
            received, _, sent, _, _, queued, _, _ = _MEMORY.unpack_from(piece, at + _ATTRIBUTE.size)
            return int(received + max(sent, queued))
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return None
