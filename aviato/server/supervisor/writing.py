"""Files and trees on their way in. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections import deque
from typing import TYPE_CHECKING

from aviato.server.supervisor.errors import Refused, entry_error, file_error
from aviato.server.supervisor.paths import DIRECTORY, find_place, open_path
from aviato.server.supervisor.transfers import Transfer
from aviato.trees.errors import SenderFailed, TreeError, hostile
from aviato.trees.unpack import Arrival
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.connection import Connection
    from aviato.server.supervisor.disk import Disk

CREDIT_BYTES = 256 << 10
"""A quarter of what a server sends ahead; each wakes it."""
ENTRIES_A_TURN = 32
EXCHANGED_BYTES = 4 << 20
"""Of the old file: one that lies below the writable layer is copied there when names are exchanged, so it must not be large."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
RENAME_EXCHANGE = 2

_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
"""Of C libraries that have it."""


class Answers:
    """What a request on its way in says to the server."""

    def __init__(self, connection: Connection, channel: int, close: Callable[[int], None], *, waits: bool = True) -> None:
        self._connection = connection
        self._channel = channel
        self._close = close
        self._credited: float = 0 if waits else float("inf")
        """Where all is there already nobody waits to hear how much was taken."""

    def credit(self, taken: int) -> None:
        """So much has been taken; the server is told in steps."""
        if taken - self._credited >= CREDIT_BYTES:
            self._credited = taken
            self._connection.send(FrameType.CREDIT, channel=self._channel, offset=taken)

    def reply(self) -> None:
        """It is done; the channel is closed, which may take a moment that nobody has to wait for."""
        self._connection.send_json(FrameType.REPLY, {}, channel=self._channel)
        self._connection.flush()
        self._close(self._channel)

    def refuse(self, refused: Refused) -> None:
        """It cannot be done; the channel is closed."""
        self._close(self._channel)
        self._connection.send_json(FrameType.ERROR, refused.body, channel=self._channel)


class Upload:
    """A file on its way in: written beside its place, renamed over it when it is whole.

    Attributes:
        written: how many bytes of it.
    """

    def __init__(self, path: str, mode: int | None, disk: Disk) -> None:
        disk.take(path, 0)
        self._disk = disk
        self._path = path
        self.written = 0
        self._temporary: str | None = None
        self._fd = -1
        self._replaced = -1
        """Holds the file that was there: the kernel takes its time to give up what it had."""
        try:
            self._folder, self._name = find_place(path, make=True)
            try:
                self._mode = self._look(mode)
                self._begin()
            except BaseException:
                os.close(self._folder)
                raise
        except OSError as error:
            raise disk.error_of(path, error) from None

    def take(self, piece: bytes | memoryview) -> None:
        """Write a piece."""
        self._disk.take(self._path, len(piece))
        try:
            view = memoryview(piece)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise self._disk.error_of(self._path, error) from None
        self.written += len(piece)

    def put_in_place(self, size: int | None) -> None:
        """All has come: so many bytes, if that is known."""
        try:
            if size is not None and size != self.written:
                raise file_error(self._path, "file", f"{self.written} bytes arrived where {size} were announced")
            assert self._temporary is not None
            old = self._size()
            self._disk.give_back(old)
            os.fchmod(self._fd, self._mode)
            if old:
                with contextlib.suppress(OSError):
                    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
                    self._replaced = os.open(self._name, flags, dir_fd=self._folder)
            if not (0 < old <= EXCHANGED_BYTES and exchange(self._temporary, self._name, self._folder)):
                os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._temporary = None
        except OSError as error:
            raise self._disk.error_of(self._path, error) from None

    def close(self) -> None:
        """Leave things as they were, if they are not as they should be."""
        if self._temporary is not None:
            try:
                os.unlink(self._temporary, dir_fd=self._folder)
            except OSError:
                pass
            else:
                self._disk.give_back(self.written)
            self._temporary = None
        for fd in (self._fd, self._replaced, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd = self._replaced = self._folder = -1

    def _begin(self) -> None:
        temporary = f".aviato-{os.urandom(8).hex()}"
        self._fd = os.open(temporary, NEW, 0o600, dir_fd=self._folder)
        self._temporary = temporary

    def _look(self, mode: int | None) -> int:
        """Which mode it gets."""
        try:
            found = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0o644 if mode is None else mode
        if stat.S_ISDIR(found):
            raise IsADirectoryError(errno.EISDIR, "")
        if not stat.S_ISREG(found):
            raise file_error(self._path, "not_a_regular_file", "Not a regular file")
        return stat.S_IMODE(found) if mode is None else mode

    def _size(self) -> int:
        try:
            return os.stat(self._name, dir_fd=self._folder, follow_symlinks=False).st_blocks * 512
        except OSError:
            return 0


def exchange(new: str, old: str, folder: int) -> bool:
    """Put a file in the place of another one, in one step, as a rename does; False where that is left to it.

    A rename over a file has ext4 write the new one to disk first, for the sake of programs that do not: four times as long as
    all the rest of a MiB takes. When two names are exchanged it does not.
    """
    if _renameat2 is None or _renameat2(folder, os.fsencode(new), folder, os.fsencode(old), RENAME_EXCHANGE):
        return False
    try:
        os.unlink(new, dir_fd=folder)
    except FileNotFoundError:
        pass  # Somebody inside has removed it.
    except OSError:
        # It was no file any more, but a directory that somebody inside has put there.
        _renameat2(folder, os.fsencode(new), folder, os.fsencode(old), RENAME_EXCHANGE)
        return False
    return True


class Whole(Transfer):
    """A file that comes in one piece."""

    def __init__(self, upload: Upload, size: int | None, answers: Answers) -> None:
        self._upload = upload
        self._size = size
        self._answers = answers

    def data(self, piece: bytes | memoryview) -> None:
        """See `Transfer`."""
        self._upload.take(piece)
        self._answers.credit(self._upload.written)

    def end(self) -> None:
        """See `Transfer`."""
        self._upload.put_in_place(self._size)
        self._answers.reply()

    def close(self) -> None:
        """See `Transfer`."""
        self._upload.close()


def _place_of_tree(path: str) -> tuple[int, bytes]:
    try:
        return open_path(path, DIRECTORY), b"."
    except FileNotFoundError:
        while path.endswith(("/", "/.")):
            path = path.removesuffix(".").rstrip("/")
        folder, name = find_place(path, make=True)
        return folder, os.fsencode(name)


class TreeUpload(Transfer):
    """A tree on its way in, as an archive. What has arrived is worked off by a job, a few entries a turn."""

    def __init__(self, path: str, loop: Loop, answers: Answers, disk: Disk, done: Callable[[], None]) -> None:
        disk.take(path, 0)
        self._disk = disk
        self._path = path
        self._loop = loop
        self._answers = answers
        self._done = done
        self._pieces: deque[bytes] = deque()
        self._taken = 0
        self._ended = False
        self._closed = False
        self._busy = False
        try:
            self._arrival = Arrival(_place_of_tree(path), outside_links="keep", umask=0)
        except OSError as error:
            raise disk.error_of(path, error) from None

    def data(self, piece: bytes | memoryview) -> None:
        """See `Transfer`."""
        self._pieces.append(bytes(piece))
        self._work()

    def end(self) -> None:
        """See `Transfer`."""
        self._ended = True
        self._work()

    def close(self) -> None:
        """See `Transfer`."""
        self._closed = True
        self._work()

    def _work(self) -> None:
        if not self._busy:
            self._busy = True
            self._loop.start(self._steps())

    def _steps(self) -> Iterator[bool]:
        try:
            while self._pieces and not self._closed:
                piece = self._pieces.popleft()
                self._disk.take(self._path, len(piece))
                yield from self._some(self._arrival.feed(piece))
                self._taken += len(piece)
                self._answers.credit(self._taken)
            if self._ended and not self._closed:
                yield from self._some(self._arrival.finish())
                self._done()
                if not self._closed:
                    self._answers.reply()
        except (OSError, TreeError, Refused) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                self._answers.refuse(self._disk.error_of(self._path, error))
            else:
                self._answers.refuse(entry_error(self._path, error))
        except SenderFailed:
            self._answers.refuse(entry_error(self._path, hostile(b"", "the archive says that its sender failed")))
        finally:
            self._busy = False
        if self._closed:
            self._busy = True
            try:
                yield from self._some(self._arrival.abort(), to_the_end=True)
            except OSError:
                pass  # Somebody inside holds on to it, and keeps it.

    def _some(self, steps: Iterator[None], to_the_end: bool = False) -> Iterator[bool]:
        for count, _ in enumerate(steps, 1):
            if self._closed and not to_the_end:
                return
            if count % ENTRIES_A_TURN == 0:
                yield True
