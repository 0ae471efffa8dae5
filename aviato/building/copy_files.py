"""Copies as a Dockerfile has them: which files they take, under which names, and what they are cached by."""

from __future__ import annotations

import hashlib
import lzma
import os
import posixpath
import stat
import tarfile
import zlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, TYPE_CHECKING

from aviato.building.dockerignore import Rules, is_ignored, may_come_back
from aviato.building.path_patterns import WILD, compiled
from aviato.trees import tar
from aviato.trees.errors import TreeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aviato.building.steps import Source

PIECE_BYTES = 1 << 20
LARGEST_ID = 65534
_GIVEN_MODE = 0o644


@dataclass(frozen=True)
class CopyFiles:
    """`COPY` and `ADD`.

    Attributes:
        sources: patterns of what is copied, below the directory or in the image.
        destination: absolute; with a slash at its end it is a directory.
        directory: of the caller's, absolute.
        rules: of its files that are left out.
        source: the image that they come from in place of the directory.
        texts: names and contents that are copied beside them.
        owner: `USER[:GROUP]` of all; None: what comes of an image or an archive keeps its own, and else it is root.
        mode: of all files and directories; None: that each has.
        unpacked: whether archives are put there as what is in them.
        urls: what comes of the web beside them.
        checksum: `sha256:…` of the only one; None: whatever comes.
        said: what it is called.
    """

    sources: tuple[str, ...]
    destination: str
    directory: str
    rules: Rules = ()
    source: Source | None = None
    texts: tuple[tuple[str, str], ...] = ()
    owner: str | None = None
    mode: int | None = None
    unpacked: bool = False
    urls: tuple[str, ...] = ()
    checksum: str | None = None
    said: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.said or f"copy {' '.join(self.sources)} {self.destination}"

    def found(self) -> list[Found]:
        """What its sources are in the caller's directory. Blocks.

        Raises:
            OSError: something cannot be read.
            ValueError: there is none, or it is not below the directory.
        """
        return [*local(self.sources, self.directory, self.rules, unpacked=self.unpacked), *self.written()]

    def written(self) -> list[Found]:
        """Its texts."""
        return [Found(name, [Entry(name, tar.FILE, _GIVEN_MODE, content=text.encode())]) for name, text in self.texts]

    def inputs(self) -> str:
        """What its result depends on: names, modes and contents, no times, and nothing of images and URLs. Blocks.

        Raises:
            OSError: something cannot be read.
            ValueError: see `found`.
        """
        digest = hashlib.sha256()
        for one in [] if self.source is not None else self.found():
            for piece in one.pieces():
                digest.update(len(piece).to_bytes(8, "big") + piece)
        sources = self.sources if self.source is not None else ()
        return repr((sources, self.texts, self.destination, self.owner, self.mode, digest.hexdigest()))


@dataclass(frozen=True)
class Entry:
    """A file, directory or link that is copied.

    Attributes:
        name: below the destination.
        kind: as archives have it.
        mode: its permission bits.
        size_bytes: of a file.
        mtime: in whole seconds.
        target: of a link; of another name of a file the first one.
        uid, gid: whose it is.
        first: of another name of a file, what has the first one.
        content: of a file that is nowhere yet.
        open: opens any other file.
    """

    name: str
    kind: bytes
    mode: int
    size_bytes: int = 0
    mtime: int = 0
    target: str = ""
    uid: int = 0
    gid: int = 0
    first: Entry | None = None
    content: bytes | None = None
    open: Callable[[], IO[bytes]] | None = None

    def pieces(self) -> Iterator[bytes]:
        """Of its content. Blocks."""
        if self.content is not None:
            yield self.content
        elif self.open is not None:
            with self.open() as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece


@dataclass(frozen=True)
class Found:
    """What one source is.

    Attributes:
        name: its last name.
        entries: of a directory what is in it; else itself.
        is_directory: whether it is one, or an archive that is unpacked.
    """

    name: str
    entries: Sequence[Entry]
    is_directory: bool = False

    def pieces(self) -> Iterator[bytes]:
        """What a copy of it depends on. Blocks."""
        yield f"{self.name if not self.is_directory else ''} {len(self.entries)}".encode(errors="surrogateescape")
        for entry in self.entries:
            said = f"{entry.name} {entry.kind!r} {entry.mode:o} {entry.uid}:{entry.gid} {entry.target}"
            yield said.encode(errors="surrogateescape")
            yield from entry.pieces()


def together(found: Sequence[Found], mode: int | None, name: str | None) -> dict[str, Entry]:
    """All entries of a copy by their names, the last one of a name.

    Args:
        found: its sources.
        mode: that all get; None: each its own.
        name: of the only file; None: as it is called.
    """
    entries: dict[str, Entry] = {}
    for entry in (entry for one in found for entry in one.entries):
        entries.pop(entry.name, None)  # The last one comes last: behind what it may be another name of.
        entries[entry.name] = entry
    for entry in list(entries.values()):
        if entry.first is not None and entries.get(entry.target) is not entry.first:
            entries[entry.name] = replace(entry.first, name=entry.name)
    given = [replace(entry, name=name or entry.name, mode=entry.mode if mode is None else mode) for entry in entries.values()]
    return {entry.name: entry for entry in given}


def archive(entries: Sequence[Entry]) -> Iterator[bytes]:
    """As an archive for a directory that is there. Blocks.

    Raises:
        TreeError: a file is not as long as it was.
    """
    yield tar.header(tar.Member(b".", tar.DIRECTORY, 0o755))
    for entry in entries:
        name = os.fsencode(entry.name)
        size = len(entry.content) if entry.content is not None else entry.size_bytes
        target = os.fsencode(entry.target)
        yield tar.header(tar.Member(name, entry.kind, entry.mode, size, entry.mtime, target, entry.uid, entry.gid))
        left = size
        for piece in entry.pieces():
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            raise TreeError(name, "file", "changed its length while it was read")
        yield tar.padding(size)
    yield tar.END


def local(sources: Sequence[str], directory: str, rules: Rules, *, unpacked: bool = False) -> list[Found]:
    """What sources are in a directory of the caller's; nothing outside is ever looked at, whatever links there are. Blocks.

    Raises:
        OSError: something cannot be read.
        ValueError: there is none, or it leads out of the directory.
    """
    top = os.path.realpath(directory)
    found: list[Found] = []
    for source in sources:
        names = [name for name in posixpath.normpath(f"/{source}").split("/") if name]
        matched = sorted(_matches(top, names))
        is_wild = any(WILD & set(name) for name in names)
        taken = [one for path in matched if (one := _taken(top, path, rules, unpacked)) is not None]
        if not taken and not is_wild:
            there = "it is left out by .dockerignore" if matched else "there is no such file"
            raise ValueError(f"{source!r} in {directory!r}: {there}")
        found += taken
    return found


def _matches(top: str, names: Sequence[str]) -> list[str]:
    """Paths below the top that names mean, each a pattern."""
    found = [""]
    for name in names:
        if not WILD & set(name):
            found = [f"{path}/{name}" for path in found if os.path.lexists(f"{_inside(top, path)}/{name}")]
            continue
        expression = compiled(name)
        found = [
            f"{path}/{entry}"
            for path in found
            if os.path.isdir(folder := _inside(top, path))
            for entry in os.listdir(folder)
            if expression.fullmatch(entry)
        ]
    return [path.lstrip("/") for path in found]


def _inside(top: str, path: str) -> str:
    real = os.path.realpath(f"{top}/{path.lstrip('/')}")
    if real != top and not real.startswith(top.rstrip("/") + "/"):
        raise ValueError(f"{path.lstrip('/')!r} leads out of {top!r}, by a link")
    return real


def _taken(top: str, path: str, rules: Rules, unpacked: bool) -> Found | None:
    real = _inside(top, path)
    below = os.path.relpath(real, top)
    name = posixpath.basename(path)
    info = os.stat(real)
    if stat.S_ISDIR(info.st_mode):
        entries = list(_below(real, "" if below == "." else below, "", rules))
        is_gone = below != "." and is_ignored(below, rules) and not entries
        return None if is_gone else Found(name, entries, is_directory=True)
    if is_ignored(below, rules) or is_ignored(path, rules):
        return None
    if not stat.S_ISREG(info.st_mode):
        raise ValueError(f"{path!r} is neither a file nor a directory")
    if unpacked and tarfile.is_tarfile(real):
        return Found(name, _unpacked(real), is_directory=True)
    return Found(name, [_entry(real, name, info)])


def _below(folder: str, path: str, name: str, rules: Rules) -> Iterator[Entry]:
    """What is in a directory, in an order that is always the same.

    Args:
        folder: where it is.
        path: of it, as rules have it.
        name: of it, as entries have it.
        rules: of what is left out.
    """
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        inner_path = f"{path}/{entry.name}" if path else entry.name
        inner_name = f"{name}/{entry.name}" if name else entry.name
        left_out = bool(rules) and is_ignored(inner_path, rules)
        info = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            inner = list(_below(entry.path, inner_path, inner_name, rules)) if not left_out or may_come_back(rules) else []
            if inner or not left_out:
                yield _entry(entry.path, inner_name, info)
                yield from inner
        elif not left_out and (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
            yield _entry(entry.path, inner_name, info)


def _entry(path: str, name: str, info: os.stat_result) -> Entry:
    mode, mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
    if stat.S_ISDIR(info.st_mode):
        return Entry(name, tar.DIRECTORY, mode, mtime=mtime)
    if stat.S_ISLNK(info.st_mode):
        return Entry(name, tar.LINK, 0o777, mtime=mtime, target=os.readlink(path))
    return Entry(name, tar.FILE, mode, info.st_size, mtime, open=partial(opened, path))


def opened(path: str) -> IO[bytes]:
    """A file of the caller's, and never what a link leads to. Blocks."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0)


def _unpacked(path: str) -> list[Entry]:
    found: dict[str, Entry] = {}
    archive = _Archive(path)
    for member in archive.members():
        name = posixpath.normpath(f"/{member.name}").lstrip("/")
        if ".." in member.name.split("/"):
            raise ValueError(f"the archive {path!r} has a name with .. in it: {member.name!r}")
        mode, mtime = member.mode & 0o7777, max(int(member.mtime), 0)
        uid, gid = _id(member.uid), _id(member.gid)
        if not name:
            continue
        if member.isdir():
            found[name] = Entry(name, tar.DIRECTORY, mode, mtime=mtime, uid=uid, gid=gid)
        elif member.issym():
            found[name] = Entry(name, tar.LINK, 0o777, mtime=mtime, target=member.linkname, uid=uid, gid=gid)
        elif member.isreg():
            found[name] = Entry(name, tar.FILE, mode, member.size, mtime, uid=uid, gid=gid, open=partial(archive.open, member))
        elif member.islnk():
            same = found.get(posixpath.normpath(f"/{member.linkname}").lstrip("/"))
            if same is None:
                raise ValueError(f"the archive {path!r} has a link to what is not in it: {member.name!r}")
            found[name] = second_name(name, same)
    return list(found.values())


def second_name(name: str, same: Entry) -> Entry:
    """Of a file that there is by another name."""
    first = same.first or same
    return Entry(name, tar.HARD_LINK, first.mode, target=first.name, uid=first.uid, gid=first.gid, first=first)


def _id(number: int) -> int:
    """One that sandboxes have, as where images are unpacked."""
    return min(max(number, 0), LARGEST_ID)


class _Archive:
    """A tar that stays open as long as somebody may read what is in it: a compressed one is read from its beginning else."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115
        self._tar = tarfile.open(fileobj=self._file)  # noqa: SIM115

    def members(self) -> list[tarfile.TarInfo]:
        try:
            return self._tar.getmembers()
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"the archive {self._path!r} is damaged: {error}") from None

    def open(self, member: tarfile.TarInfo) -> IO[bytes]:
        file = self._tar.extractfile(member)
        assert file is not None
        return file

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
