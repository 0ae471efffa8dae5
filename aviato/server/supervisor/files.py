"""Files of the sandbox, seen from inside it: plain paths, plain system calls, bounded steps. Standard library only."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor.errors import Refused, file_error, os_file_error
from aviato.server.supervisor.removal import remove_tree
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.server.supervisor.connection import Connection

LARGEST_LISTING = 100_000
LARGEST_LISTING_BYTES = 32 << 20
ENTRIES_A_TURN = 256
PIECE_BYTES = 64 << 10
CREDIT_BYTES = 128 << 10
SLOW_READER_SECONDS = 0.005


def readable(name: str) -> str:
    """A name as text that every layer can carry: bytes that are no UTF-8, which only code inside makes, become U+FFFD."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def describe(path: str, found: os.stat_result, link: str | None = None) -> dict[str, Any]:
    """A `wire.files.FileStat`."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return {
        "path": readable(path),
        "size_bytes": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "mtime": found.st_mtime,
        "type": kinds.get(stat.S_IFMT(found.st_mode), "other"),
        "link_target": None if link is None else readable(link),
    }


def stat_path(path: str) -> dict[str, Any]:
    """What is at a path; a link at its end is not followed."""
    try:
        found = os.lstat(path)
        link = os.readlink(path) if stat.S_ISLNK(found.st_mode) else None
    except OSError as error:
        raise os_file_error(path, error) from None
    return describe(path, found, link)


def list_directory(path: str, connection: Connection, channel: int) -> Iterator[float]:
    """A job that sends the entries of a directory, sorted by name, as one JSON array in pieces.

    What code inside can make long, names and targets of links, is bounded: every piece fits a frame, the whole fits memory.
    """
    entries: list[tuple[str, str]] = []
    size = 0
    try:
        with os.scandir(path) as found:
            for count, entry in enumerate(found, 1):
                if count > LARGEST_LISTING:
                    raise file_error(path, "too_large", f"the directory has more than {LARGEST_LISTING} entries")
                try:
                    text = json.dumps(stat_path(os.path.join(path, entry.name)), separators=(",", ":"))
                except Refused:
                    continue  # Gone meanwhile.
                entries.append((entry.name, text))
                size += len(text)
                if size > LARGEST_LISTING_BYTES:
                    raise file_error(path, "too_large", f"the listing has more than {LARGEST_LISTING_BYTES} bytes")
                if count % ENTRIES_A_TURN == 0:
                    yield True
    except OSError as error:
        raise os_file_error(path, error) from None
    entries.sort()
    piece = "["
    for number, (_, text) in enumerate(entries):
        piece += f",{text}" if number else text
        if len(piece) >= PIECE_BYTES:
            connection.send(FrameType.DATA, piece.encode(), channel=channel)
            piece = ""
            yield True
            while connection.full:
                yield SLOW_READER_SECONDS
    connection.send(FrameType.DATA, f"{piece}]".encode(), channel=channel)
    connection.send(FrameType.END, channel=channel)


def make_directory(path: str, mode: int, asked: str | None = None) -> None:
    """Make a directory and its parents; fine if it is there. Errors name the path that was `asked` for."""
    missing: list[str] = []
    folder = path.rstrip("/") or "/"
    try:
        while True:
            try:
                os.mkdir(folder, 0o755)
            except FileNotFoundError:
                parent = os.path.dirname(folder)
                if parent == folder:
                    raise
                missing.append(folder)
                folder = parent
                continue
            except FileExistsError:
                if not os.path.isdir(folder):
                    raise
                if not missing:
                    return
            if not missing:
                break
            folder = missing.pop()
        if mode != 0o755:
            os.chmod(folder, mode)
    except OSError as error:
        raise os_file_error(asked or path, error) from None


def remove(path: str, recursive: bool) -> Iterator[bool]:
    """A job that removes a file, an empty directory, or a tree; never the root."""
    name = os.path.basename(path.rstrip("/"))
    try:
        if name in ("", ".", "..") or os.path.samestat(os.lstat(path), os.stat("/")):
            raise file_error(path, "permission_denied", "the root, '.' and '..' cannot be removed")
        parent = os.open(os.path.dirname(path.rstrip("/")) or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)
            elif recursive:
                yield from remove_tree(parent, name)
            else:
                os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise os_file_error(path, error) from None


class Download:
    """A regular file on its way to the server; a source of its connection."""

    def __init__(self, path: str, max_bytes: int | None, window: int, connection: Connection, channel: int) -> None:
        self.queued = False
        self._path = path
        self._max_bytes = max_bytes
        self._window = window
        self._connection = connection
        self._channel = channel
        self._sent = 0
        self._credit = 0
        self._fd: int | None = None
        found = self._open()
        connection.send_json(FrameType.REPLY, describe(path, found), channel=channel)
        connection.feed_from(self)

    @property
    def over(self) -> bool:
        """Whether nothing more will be sent."""
        return self._fd is None

    def credit(self, taken: int) -> None:
        """The server has taken this much."""
        self._credit = max(self._credit, taken)
        if self._fd is not None:
            self._connection.feed_from(self)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def pump(self, connection: Connection) -> bool:
        """See `connection.Source`."""
        if self._fd is None or self._sent - self._credit >= self._window:
            return False
        try:
            data = os.read(self._fd, PIECE_BYTES)
            if self._max_bytes is not None and self._sent + len(data) > self._max_bytes:
                raise self._too_large()
        except (OSError, Refused) as error:
            refused = os_file_error(self._path, error) if isinstance(error, OSError) else error
            connection.send_json(FrameType.ERROR, refused.body, channel=self._channel)
            self.close()
            return False
        if not data:
            connection.send(FrameType.END, channel=self._channel, offset=self._sent)
            self.close()
            return False
        connection.send(FrameType.DATA, data, channel=self._channel, offset=self._sent)
        self._sent += len(data)
        return True

    def _open(self) -> os.stat_result:
        try:
            # Looked at before it is opened: opening a FIFO or a device does something to whoever is at its other end.
            handle = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
            try:
                found = os.fstat(handle)
                if stat.S_ISDIR(found.st_mode):
                    raise IsADirectoryError(errno.EISDIR, "")
                if not stat.S_ISREG(found.st_mode):
                    raise file_error(self._path, "not_a_regular_file", "Not a regular file")
                if self._max_bytes is not None and found.st_size > self._max_bytes:
                    raise self._too_large()
                self._fd = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            finally:
                os.close(handle)
        except OSError as error:
            raise os_file_error(self._path, error) from None
        return found

    def _too_large(self) -> Refused:
        return file_error(self._path, "too_large", f"larger than {self._max_bytes} bytes")


class Upload:
    """A file on its way in: written beside its place, renamed over it when it is whole."""

    def __init__(self, path: str, mode: int | None, size: int | None, connection: Connection, channel: int) -> None:
        self._path = path
        self._size = size
        self._connection = connection
        self._channel = channel
        self._written = 0
        self._credited = 0
        self._temporary: str | None = None
        self._fd = -1
        if path.endswith("/"):
            raise file_error(path, "is_a_directory", "Is a directory")
        try:
            self._target = os.path.realpath(path)
            self._mode = self._final_mode(mode)
            make_directory(os.path.dirname(self._target), 0o755, path)
            temporary = os.path.join(os.path.dirname(self._target), f".aviato-{os.urandom(8).hex()}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(temporary, flags, 0o600)
            self._temporary = temporary
        except OSError as error:
            raise os_file_error(path, error) from None

    def data(self, piece: bytes) -> None:
        """Write a piece."""
        try:
            view = memoryview(piece)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self.abort()
            raise os_file_error(self._path, error) from None
        self._written += len(piece)
        if self._written - self._credited >= CREDIT_BYTES:
            self._credited = self._written
            self._connection.send(FrameType.CREDIT, channel=self._channel, offset=self._written)

    def finish(self) -> None:
        """All has come: put it in its place."""
        try:
            if self._size is not None and self._size != self._written:
                raise file_error(self._path, "file", f"{self._written} bytes arrived where {self._size} were announced")
            assert self._temporary is not None
            os.fchmod(self._fd, self._mode)
            os.rename(self._temporary, self._target)
            self._temporary = None
        except OSError as error:
            raise os_file_error(self._path, error) from None
        finally:
            self.abort()

    def abort(self) -> None:
        """Leave things as they were."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._temporary is not None:
            try:
                os.unlink(self._temporary)
            except OSError:
                pass
            self._temporary = None

    def _final_mode(self, mode: int | None) -> int:
        try:
            found = os.stat(self._target).st_mode
        except FileNotFoundError:
            return 0o644 if mode is None else mode
        if stat.S_ISDIR(found):
            raise IsADirectoryError(errno.EISDIR, "")
        if not stat.S_ISREG(found):
            raise file_error(self._path, "not_a_regular_file", "Not a regular file")
        return stat.S_IMODE(found) if mode is None else mode
