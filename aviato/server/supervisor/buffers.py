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
LINES_A_TURN = 256
SOCK_DIAG = 4
"""The protocol of netlink."""

_SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP = 20, 0x301
_ERROR, _DONE = 2, 3
_HEAD = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_MEMORY = struct.Struct("=8I")
"""Received, limit, sent, limit, set aside, queued, options, backlog; of Unix sockets it is all with who has sent it."""
HIDDEN_BYTES = 1 << 20
"""At most so much is taken to be on its way from a Unix socket that was closed: it was that one's, and nothing tells it."""
PACKET_BYTES = 1024
"""What a byte takes that was sent by itself."""
_UNIX_PEER, _UNIX_WAITING, _UNIX_LENGTHS, _UNIX_MEMORY = 2, 3, 4, 5
_DATAGRAM, _LISTENS, _QUEUE = 2, 10, 11
"""A type and a state of Unix sockets; so many datagrams wait for one of them, of which the length of the first is told."""
_NOBODY = bytes(4)
"""The number of a socket that is closed."""
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
    _Kind(struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x3C, 0, 0), 16, _UNIX_MEMORY),
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
        self.bytes = sum(by_protocol.values()) + (yield from self._asked_for_routes())

    def _asked_for_routes(self) -> Generator[float, None, int]:
        """A job that returns what netlink's own sockets hold: of those the kernel tells in a table."""
        total = 0
        with open("self/net/netlink", opener=lambda path, flags: os.open(path, flags, dir_fd=self._proc)) as table:
            next(table, None)
            for count, line in enumerate(table, 1):
                total += sum(map(int, line.split()[4:6]))
                if count % LINES_A_TURN == 0:
                    yield True
        return total

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
                told = dict(_attributes(piece, begin + asked.skipped, at + length))
                held = _held(told.get(asked.wanted, b""))
                orphan = held is not None and asked.protocol == socket.IPPROTO_TCP and _is_orphan(piece, begin)
                hidden = _hidden(piece[begin + 1], piece[begin + 2], told) if not asked.protocol else 0
                yield _Found((held or 0) + hidden, orphan)
                at += (length + 3) & ~3
            yield None


class _Found(NamedTuple):
    held_bytes: int
    is_orphan: bool


def _is_orphan(piece: bytes, at: int) -> bool:
    (inode,) = struct.unpack_from("=I", piece, at + _INODE_AT)
    return inode == 0 and piece[at + 1] in _CLOSING


def _attributes(piece: bytes, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    while at + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(piece, at)
        yield kind, piece[at + _ATTRIBUTE.size : at + length]
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)


def _held(told: bytes) -> int | None:
    """None of a connection of which the kernel keeps no more than its name."""
    if len(told) < _MEMORY.size:
        return None
    received, _, sent, _, _, queued, _, _ = _MEMORY.unpack_from(told)
    return int(received + max(sent, queued))


def _hidden(kind: int, state: int, told: dict[int, bytes]) -> int:
    """What waits for a Unix socket, or for who would accept a connection, and came from one that is closed."""
    if state == _LISTENS:
        waiting = told.get(_UNIX_WAITING, b"")
        return sum(HIDDEN_BYTES for at in range(0, len(waiting), 4) if waiting[at : at + 4] == _NOBODY)
    if told.get(_UNIX_PEER, _NOBODY) != _NOBODY or len(told.get(_UNIX_LENGTHS, b"")) < 4:
        return 0
    (length,) = struct.unpack_from("=I", told[_UNIX_LENGTHS])
    length *= _QUEUE if kind == _DATAGRAM else 1
    return int(max(length, min(length * PACKET_BYTES, HIDDEN_BYTES)))
