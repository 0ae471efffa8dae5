"""What sockets hold on its way, which is memory of no process: a few hundred of them hold a GiB. Standard library only.

The kernel tells it by netlink, for all sockets of a network namespace at once. Nobody inside can open such a socket.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING

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
# Of each kind: what asks for it, the length of what is said of a socket, and the attribute with its memory.
_UNIX = (struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x20, 0, 0), 16, 5)
_KINDS = (
    _UNIX,
    *(
        (struct.pack("=BBBBI48x", family, protocol, 0x40, 0, 0xFFFFFFFF), 72, 7)
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
        self._proc = proc
        self._diagnosis = diagnosis
        self._opened = False
        self._count = -1
        self._netlink: socket.socket | None = None

    def used_bytes(self) -> Generator[float, None, int]:
        """A job that returns what they hold."""
        if not self._opened:
            self._open()
        if self._netlink is None or int(os.pread(self._count, 64, 0).split()[2]) <= FEW:
            return 0
        total = 0
        for request, skipped, wanted in _KINDS:
            for held in self._dump(self._netlink, request, skipped, wanted):
                if held is None:
                    yield True
                else:
                    total += held
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

    def _dump(self, netlink: socket.socket, request: bytes, skipped: int, wanted: int) -> Iterator[int | None]:
        """What each socket of a kind holds; None between two pieces of the answer."""
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
                yield _held(piece, at + _HEAD.size + skipped, at + length, wanted)
                at += (length + 3) & ~3
            yield None


def _held(piece: bytes, at: int, end: int, wanted: int) -> int:
    while at + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(piece, at)
        if kind == wanted and length >= _ATTRIBUTE.size + _MEMORY.size:
            received, _, sent, _, _, queued, _, _ = _MEMORY.unpack_from(piece, at + _ATTRIBUTE.size)
            return int(received + max(sent, queued))
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return 0
