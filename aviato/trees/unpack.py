"""An archive as a directory tree, whatever the archive says. Standard library only.

A tree arrives in a directory of its own, beside or in its place; only when it is whole it is put there. Every name is opened by
itself from the top and no link on the way is followed, so neither an archive nor somebody who swaps directories meanwhile
brings a file out of that directory.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from aviato.trees import tar
from aviato.trees.errors import TreeError, hostile, shown
from aviato.trees.pack import DIRECTORY_FLAGS, LARGEST_PENDING_BYTES, named, open_below
from aviato.trees.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    OutsideLinks = Literal["keep", "refuse", "skip"]


class Unpacker:
    """Puts members below a directory.

    Args:
        top: descriptor of an empty directory.
        outside_links: what to do with a link whose target is not surely below the top.
        umask: bits that no file or directory gets.

    Attributes:
        skipped: names that were left out: FIFOs, devices, and links if asked for.
        directories: name, mode and time of those that arrived, to be set when nothing is put into them any more.
    """

    def __init__(self, top: int, *, outside_links: OutsideLinks, umask: int) -> None:
        self.skipped: list[bytes] = []
        self.directories: list[tuple[bytes, int, int]] = []
        self._top = top
        self._outside_links = outside_links
        self._umask = umask
        self._reader = tar.Reader()
        self._names_bytes = 0
        self._parent: tuple[bytes, int] | None = None
        self._file: tuple[tar.Member, int] | None = None

    def feed(self, data: bytes) -> Iterator[None]:
        """Take a part of the archive; each step is one member or a piece of one.

        Raises:
            TreeError: the archive is hostile.
            SenderFailed: its sender could not go on.
            OSError: with a member's name as its `filename`.
        """
        for item in self._reader.feed(data):
            if isinstance(item, tar.Member):
                try:
                    self._take(item)
                except OSError as error:
                    raise _refusal(error, item.name) from None
            else:
                assert self._file is not None
                member, fd = self._file
                try:
                    _write(fd, item)
                    if not self._reader.content_left:
                        self._end_file()
                except OSError as error:
                    raise named(error, member.name) from None
            yield

    def finish(self) -> None:
        """All has come.

        Raises:
            TreeError: it has not.
        """
        self._reader.finish()
        self.close()

    def close(self) -> None:
        """Let go of descriptors."""
        if self._file is not None:
            os.close(self._file[1])
            self._file = None
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _take(self, member: tar.Member) -> None:
        names = _checked(member.name)
        path = b"/".join(names)
        member = member._replace(name=path)
        if not names:
            if member.kind != tar.DIRECTORY:
                raise hostile(b".", "is no directory")
            self._remember(member)
        elif member.kind == tar.DIRECTORY:
            parent = self._open_parent(names[:-1])
            try:
                os.mkdir(names[-1], 0o700, dir_fd=parent)
            except FileExistsError:
                # Made on the way to something in it, or announced twice. A file or a link there is refused.
                os.close(os.open(names[-1], DIRECTORY_FLAGS, dir_fd=parent))
            self._remember(member)
        elif member.kind == tar.FILE:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = (member, os.open(names[-1], flags, 0o600, dir_fd=self._open_parent(names[:-1])))
            if not member.size_bytes:
                self._end_file()
        elif member.kind == tar.LINK:
            self._link(member, names)
        elif member.kind == tar.OTHER:
            self._skip(path)
        else:
            raise hostile(path, "is a second name of a file, which is not taken")

    def _link(self, member: tar.Member, names: list[bytes]) -> None:
        if self._outside_links != "keep" and not stays_below(len(names) - 1, member.target):
            if self._outside_links == "refuse":
                message = (
                    f"is a link to {shown(member.target)}, which may lead out of the tree; outside_links='skip' leaves it out"
                )
                raise hostile(member.name, message)
            self._skip(member.name)
            return
        parent = self._open_parent(names[:-1])
        os.symlink(member.target, names[-1], dir_fd=parent)
        os.utime(names[-1], (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)

    def _end_file(self) -> None:
        assert self._file is not None
        member, fd = self._file
        os.ftruncate(fd, member.size_bytes)
        os.fchmod(fd, member.mode & 0o777 & ~self._umask)
        os.utime(fd, (member.mtime, member.mtime))
        self._file = None
        os.close(fd)

    def _skip(self, name: bytes) -> None:
        self._count(name)
        self.skipped.append(name)

    def _remember(self, member: tar.Member) -> None:
        self._count(member.name)
        self.directories.append((member.name, member.mode & 0o777 & ~self._umask, member.mtime))

    def _count(self, name: bytes) -> None:
        self._names_bytes += len(name) + 100
        if self._names_bytes > 4 * LARGEST_PENDING_BYTES:
            raise hostile(name, "is one directory or special file too many")

    def _open_parent(self, names: list[bytes]) -> int:
        path = b"/".join(names)
        if self._parent is None or self._parent[0] != path:
            if self._parent is not None:
                os.close(self._parent[1])
                self._parent = None
            current = os.open(".", DIRECTORY_FLAGS, dir_fd=self._top)
            for name in names:
                try:
                    inner = _open_or_make(current, name)
                finally:
                    os.close(current)
                current = inner
            self._parent = (path, current)
        return self._parent[1]


def stays_below(depth: int, target: bytes) -> bool:
    """Whether a link in a directory so deep below the top can lead nowhere else, whatever other links there are.

    `..` counts only at the beginning of the target: after a name it would be taken from where that name, maybe a link, leads.
    """
    names = [name for name in target.split(b"/") if name not in (b"", b".")]
    climbs = 0
    while climbs < len(names) and names[climbs] == b"..":
        climbs += 1
    return not target.startswith(b"/") and climbs <= depth and b".." not in names[climbs:]


def _checked(name: bytes) -> list[bytes]:
    if name.startswith(b"/"):
        raise hostile(name, "is an absolute path")
    names = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in names:
        raise hostile(name, "leads out of the tree")
    if b"\0" in name or not name or any(len(part) > 255 for part in names):
        raise hostile(name, "can be no name of a file")
    return names


def _open_or_make(parent: int, name: bytes) -> int:
    try:
        return os.open(name, DIRECTORY_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, DIRECTORY_FLAGS, dir_fd=parent)


def _refusal(error: OSError, name: bytes) -> Exception:
    if error.errno == errno.EEXIST:
        return hostile(name, "comes twice")
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return hostile(name, "leads through something that is no directory")
    return named(error, name)


def _write(fd: int, piece: memoryview) -> None:
    """Zeros become a hole: a file full of them takes no place on one side, and must not fill the other's disk."""
    if piece[0] == piece[-1] == 0 and bytes(piece).count(0) == len(piece):
        os.lseek(fd, len(piece), os.SEEK_CUR)
        return
    while piece:
        piece = piece[os.write(fd, piece) :]


def _find(target: str | bytes) -> tuple[int, bytes]:
    place = os.path.realpath(os.fsencode(target))
    merging = os.path.lexists(place)
    if merging and not os.path.isdir(place):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(place))
    # In the place if it is there, since that may be a file system of its own.
    holder, last = (place, b".") if merging else os.path.split(place)
    return os.open(os.fsdecode(holder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), last


class Arrival:
    """A tree on its way to its place: a new directory, or one that it is merged into.

    Files and links replace those of the same name; what else is there stays, and keeps its mode. Nothing is touched before
    the tree is whole and fits: a directory is never put in place of a file or link, nor the other way round.

    Args:
        target: the place, as a path, of which links at it are followed; or as a descriptor of the directory that holds it,
            which is closed here, and its name there. `.` is that directory, which is merged into.
        outside_links, umask: see `Unpacker`.
    """

    def __init__(self, target: str | bytes | tuple[int, bytes], *, outside_links: OutsideLinks, umask: int) -> None:
        self._name = b".aviato-" + os.urandom(8).hex().encode()
        self._holder, self._last = target if isinstance(target, tuple) else _find(target)
        self._merging = self._last == b"."
        self._top = -1
        try:
            os.mkdir(self._name, 0o700, dir_fd=self._holder)
            self._top = os.open(self._name, DIRECTORY_FLAGS, dir_fd=self._holder)
            self._unpacker = Unpacker(self._top, outside_links=outside_links, umask=umask)
        except BaseException:
            self._close()
            raise

    @property
    def skipped(self) -> list[bytes]:
        """Names that were left out."""
        return self._unpacker.skipped

    def feed(self, data: bytes) -> Iterator[None]:
        """See `Unpacker`."""
        return self._unpacker.feed(data)

    def finish(self) -> Iterator[None]:
        """All has come: put it in its place, in bounded steps."""
        self._unpacker.finish()
        if not self._merging:
            yield from self._settle(self._top, frozenset())
            os.rename(self._name, self._last, src_dir_fd=self._holder, dst_dir_fd=self._holder)
            self._close()
            return
        merged = [b""]
        yield from self._walk(merged, move=False)
        merged = [b""]
        yield from self._walk(merged, move=True)
        yield from self._settle(self._holder, frozenset(merged))
        yield from self.abort()

    def abort(self) -> Iterator[None]:
        """Remove what has not been put in its place."""
        self._unpacker.close()
        try:
            if self._holder >= 0:
                for _ in remove_tree(self._holder, os.fsdecode(self._name)):
                    yield
        except FileNotFoundError:
            pass
        finally:
            self._close()

    def _close(self) -> None:
        for fd in (self._top, self._holder):
            if fd >= 0:
                os.close(fd)
        self._top = self._holder = -1

    def _walk(self, merged: list[bytes], *, move: bool) -> Iterator[None]:
        """Visit what arrived beside what is there, and move it if asked to. `merged` gets the directories that both have."""
        size = position = 0
        while position < len(merged):
            path = merged[position]
            position += 1
            ours = open_below(self._top, path)
            theirs = -1
            try:
                theirs = open_below(self._holder, path)
                with os.scandir(ours) as entries:
                    for entry in entries:
                        name = os.fsencode(entry.name)
                        below = path + b"/" + name if path else name
                        if self._place(ours, theirs, name, below, move):
                            merged.append(below)
                            size += len(below)
                            if size > LARGEST_PENDING_BYTES:
                                raise TreeError(below, "too_large", "is one directory too many to merge")
                        yield
            except OSError as error:
                raise named(error, path) from None
            finally:
                os.close(ours)
                if theirs >= 0:
                    os.close(theirs)

    def _place(self, ours: int, theirs: int, name: bytes, below: bytes, move: bool) -> bool:
        """Whether this is a directory on both sides; if not, its place is free or it is moved there."""
        is_directory = stat.S_ISDIR(os.stat(name, dir_fd=ours, follow_symlinks=False).st_mode)
        try:
            found = os.stat(name, dir_fd=theirs, follow_symlinks=False).st_mode
        except FileNotFoundError:
            found = None
        if is_directory and found is not None and stat.S_ISDIR(found):
            return True
        if found is not None and (is_directory or stat.S_ISDIR(found)):
            number = errno.ENOTDIR if is_directory else errno.EISDIR
            raise named(OSError(number, ""), below)
        if move:
            os.rename(name, name, src_dir_fd=ours, dst_dir_fd=theirs)
        return False

    def _settle(self, top: int, merged: frozenset[bytes]) -> Iterator[None]:
        """Give directories their modes and times: last, since a mode may forbid to put anything into them."""
        for path, mode, mtime in reversed(self._unpacker.directories):
            if path in merged:
                continue
            try:
                fd = open_below(top, path)
                try:
                    os.fchmod(fd, mode)
                    os.utime(fd, (mtime, mtime))
                finally:
                    os.close(fd)
            except OSError as error:
                raise named(error, path) from None
            yield
