"""Memory that a client on the same machine lends: files are copied between it and the disk here. Standard library only.

It is read and written by calls, and never mapped: whoever shortens it meanwhile gets less, and kills nobody.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor.errors import Refused, invalid
from aviato.wire.memory import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.supervisor.connection import Connection
    from aviato.server.supervisor.transfers import Transfer

    Operation = Callable[[Connection, int, dict[str, Any]], None]

PIECE_BYTES = 256 << 10


class Lent:
    """All that was lent to this sandbox, by numbers."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._last = 0
        self._room: memoryview | None = None

    def operations(
        self,
        reply: Callable[[Connection, int, dict[str, Any]], None],
        output: Callable[[Connection, dict[str, Any], int], None],
    ) -> dict[str, Operation]:
        """What the server asks for, by name: that a descriptor be looked for, one that came with the request, and its end.

        Args:
            reply: answers.
            output: has an output kept in it, by a descriptor of its own.
        """

        def lend(connection: Connection, channel: int, request: dict[str, Any]) -> None:
            connection.expect_descriptor()
            reply(connection, channel, {})

        def lent(connection: Connection, channel: int, request: dict[str, Any]) -> None:
            fd = connection.descriptor()
            if fd is None:
                raise invalid("no descriptor came with it")
            self._last += 1
            self._fds[self._last] = fd
            if (wanted := request.get("output")) is not None:
                try:
                    output(connection, wanted, fd)
                except BaseException:
                    self._let_go(self._last)  # Nobody learns its number.
                    raise
            reply(connection, channel, {"memory": self._last})

        def give_back(connection: Connection, channel: int, request: dict[str, Any]) -> None:
            self._let_go(request["memory"])  # Nobody waits for an answer.

        return {"lend": lend, "lent": lent, "give_back": give_back}

    def close(self) -> None:
        """Let go of all: whoever passed them on is gone."""
        for number in list(self._fds):
            self._let_go(number)

    def _let_go(self, number: int) -> None:
        fd = self._fds.pop(number, -1)
        if fd >= 0:
            os.close(fd)

    def pour(self, number: int, size: int, transfer: Transfer) -> None:
        """Hand so many bytes of it to what comes in, and the end."""
        fd, room, taken = self._find(number), self._kept_room(), 0
        while taken < size:
            try:
                count = os.preadv(fd, [room[: size - taken]], taken)
            except OSError as error:
                raise Refused("VALIDATION", f"what was lent cannot be read: {error}", reason=REFUSED) from None
            if not count:
                break  # It was shortened. Whoever knows how much should come says so.
            transfer.data(room[:count])
            taken += count
        transfer.end()

    def fill(self, number: int, file: int, most_bytes: int) -> int | None:
        """Put a file into it, from where it stands to its end; returns the size, None where it does not take so much."""
        fd, room, size = self._find(number), self._kept_room(), 0
        while count := os.readv(file, [room[: most_bytes + 1 - size]]):
            if size + count > most_bytes:
                return None
            try:
                if os.pwrite(fd, room[:count], size) < count:
                    return None  # It takes no more, which the kernel tells by what it took.
            except OSError:
                return None
            size += count
        return size

    def _find(self, number: int) -> int:
        if number not in self._fds:
            raise Refused("VALIDATION", f"no memory {number} was lent", reason=REFUSED)
        return self._fds[number]

    def _kept_room(self) -> memoryview:
        if self._room is None:
            self._room = memoryview(mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return self._room
