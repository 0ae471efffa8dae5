"""What is asked again after a cut: calls that were done, and files that had come in part. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.supervisor.errors import Refused, invalid
from aviato.server.supervisor.transfers import Transfer

if TYPE_CHECKING:
    from aviato.grading.inside.loop import Loop, Timer
    from aviato.server.supervisor.writing import Answers, Upload

REMEMBERED = 4096
"""Calls that are known to have been done, the newest of them."""
PARTS_SECONDS = 120.0
"""How long a file that has come in part waits for the rest."""
MOST_PARTS = 64
"""Files that wait so; the one that waits for longest goes first."""


class Again:
    """The calls of this sandbox that were done, by the key that their caller gave them, and the files that wait."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._done: dict[str, None] = {}
        self._waiting: dict[str, tuple[Upload, Timer]] = {}
        self.coming: dict[str, Part] = {}

    def is_done(self, key: str | None) -> bool:
        """Whether the call was done."""
        return key is not None and key in self._done

    def done(self, key: str | None) -> None:
        """The call was done."""
        if key is not None:
            self._done[key] = None
            while len(self._done) > REMEMBERED:
                del self._done[next(iter(self._done))]

    def take_over(self, calls: list[str]) -> None:
        """These were done by compiled code."""
        for key in calls:
            self.done(key)

    def take(self, key: str, offset: int) -> Upload | None:
        """The file that has come up to this offset, or further; None at the beginning of a new one.

        Raises:
            Refused: it is not there.
        """
        if (older := self.coming.get(key)) is not None:
            older.close()  # Of a connection that nobody has missed yet.
        upload, timer = self._waiting.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        if upload is None and offset:
            raise Refused(
                "UNAVAILABLE",
                "what had come of the file is gone",
                reason="upload_lost",
                retryable=False,
                is_infrastructure=True,
            )
        return upload

    def put(self, key: str, upload: Upload) -> None:
        """Keep a file until the rest comes."""
        while len(self._waiting) >= MOST_PARTS:
            self._drop(next(iter(self._waiting)))
        self._waiting[key] = upload, self._loop.after(PARTS_SECONDS, lambda: self._drop(key))

    def _drop(self, key: str) -> None:
        upload, timer = self._waiting.pop(key)
        timer.cancel()
        upload.close()


class Part(Transfer):
    """One part of a file on its way in. What has come of it stays when it is cut off, if the file has several."""

    def __init__(
        self, again: Again, key: str, upload: Upload, offset: int, size: int | None, last: bool, answers: Answers
    ) -> None:
        self._again = again
        self._key = key
        self._upload: Upload | None = upload
        self._offset = self._position = offset
        self._size = size
        self._last = last
        self._single = last and not offset
        self._answers = answers
        again.coming[key] = self

    def data(self, piece: bytes | memoryview) -> None:
        """See `Transfer`."""
        if self._upload is None:
            return
        written = self._upload.written
        if self._position > written:
            raise invalid(f"offset {self._position} leaves a gap after {written}")
        known = min(len(piece), written - self._position)
        try:
            self._upload.take(piece[known:])
        except Refused:
            self._discard()
            raise
        self._position += len(piece)
        self._answers.credit(self._position - self._offset)

    def end(self) -> None:
        """See `Transfer`."""
        upload = self._upload
        if upload is None:
            # What came later may be a copy that a proxy made, so that this is the one whose caller waits: he asks again.
            raise Refused(
                "UNAVAILABLE",
                "the same part came again on another connection",
                reason="replaced",
                retryable=True,
                is_infrastructure=True,
            )
        if self._size is not None and self._position - self._offset != self._size:
            raise invalid(f"{self._position - self._offset} bytes arrived where {self._size} were announced")
        if self._last:
            self._single = True  # Whether it gets to its place or not, nothing of it waits for more.
            upload.put_in_place(self._position)
            self._again.done(self._key)
        self._answers.reply()

    def close(self) -> None:
        """See `Transfer`."""
        upload = self._let_go()
        if upload is None:
            return
        if self._single:
            upload.close()
        else:
            self._again.put(self._key, upload)

    def _discard(self) -> None:
        upload = self._let_go()
        if upload is not None:
            upload.close()

    def _let_go(self) -> Upload | None:
        upload, self._upload = self._upload, None
        if self._again.coming.get(self._key) is self:
            del self._again.coming[self._key]
        return upload


class Repeated(Transfer):
    """What was done already comes again, and means nothing."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._taken = 0

    def data(self, piece: bytes | memoryview) -> None:
        """See `Transfer`."""
        self._taken += len(piece)
        self._answers.credit(self._taken)

    def end(self) -> None:
        """See `Transfer`."""
        self._answers.reply()
