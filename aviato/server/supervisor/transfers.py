"""What a file or a tree on its way in or out has in common. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.supervisor.errors import Refused, entry_error
from aviato.trees.errors import TreeError
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.server.supervisor.connection import Connection


class Transfer:
    """An open request whose further frames are its own. What does not concern it means nothing."""

    over = False
    """Whether nothing more will be sent, though the channel has not been closed."""

    def credit(self, taken: int) -> None:
        """The server has taken this much."""

    def data(self, piece: bytes | memoryview) -> None:
        """A further piece of what comes in; a view is good until this returns."""

    def end(self) -> None:
        """All has come in."""

    def close(self) -> None:
        """The request is over, whole or not: let go of everything."""


class Outgoing(Transfer):
    """Pieces on their way to the server, no more of them ahead than its window; a source of its connection."""

    def __init__(self, pieces: Iterator[bytes], path: str, window: int, connection: Connection, channel: int) -> None:
        self.queued = False
        self._pieces: Iterator[bytes] | None = pieces
        self._path = path
        self._window = window
        self._connection = connection
        self._channel = channel
        self._sent = 0
        self._credit = 0
        connection.feed_from(self)

    def credit(self, taken: int) -> None:
        """See `Transfer`."""
        self._credit = max(self._credit, taken)
        if self._pieces is not None:
            self._connection.feed_from(self)

    def close(self) -> None:
        """See `Transfer`."""
        self.over = True
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            pieces.close()  # type: ignore[attr-defined]

    def pump(self, connection: Connection) -> bool:
        """See `connection.Source`."""
        if self._pieces is None or self._sent - self._credit >= self._window:
            return False
        try:
            piece = next(self._pieces)
        except StopIteration:
            connection.send(FrameType.END, channel=self._channel, offset=self._sent)
            self.close()
            return False
        except (OSError, TreeError, Refused) as error:
            connection.send_json(FrameType.ERROR, entry_error(self._path, error).body, channel=self._channel)
            self.close()
            return False
        if piece:
            connection.send(FrameType.DATA, piece, channel=self._channel, offset=self._sent)
            self._sent += len(piece)
        return True
