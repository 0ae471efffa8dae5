"""The directories that lie below the writable layers of `host` sandboxes, made once for all of them.

Every name in a sandbox's root that is its own costs the disk's file system as much as several system calls, and again when it
is removed; every mount costs as much. These names are every sandbox's, so they lie in one directory that nobody writes to. It
has copies of parts of the machine's /etc: once those are no longer like it, sandboxes made from then on get another directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import stat
import time
from typing import TYPE_CHECKING

from aviato.server.backends.local import configuration, host_tree
from aviato.server.backends.local.accounts import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aviato.server.backends.local.host_tree import BaseRoot


LOOK_SECONDS = 5.0
"""How long sandboxes may get what the machine's /etc was: looking through it takes half a millisecond."""


class BaseRoots:
    """One directory of them, which servers may share; the name of each is that of its content.

    Args:
        directory: made if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, int] = {}
        self._names: dict[BaseRoot, tuple[float, str]] = {}
        """As of when, the name of each."""
        self._early: asyncio.Task[None] | None = None

    def make_early(self, base_root: BaseRoot) -> None:
        """Begin to make the one that will be needed, beside other work; `ready` waits for it."""
        self._early = asyncio.create_task(self._make_early(base_root))

    async def _make_early(self, base_root: BaseRoot) -> None:
        with contextlib.suppress(OSError):  # Whoever needs it tries again, and says why not.
            await asyncio.to_thread(self.look, base_root)
            await asyncio.to_thread(self.make, self.path(base_root), base_root)

    async def ready(self, base_root: BaseRoot) -> str:
        """Where it is, made if it is missing.

        Raises:
            OSError: it cannot be made.
        """
        if self._early is not None and not self._early.done():
            await asyncio.wait({self._early})
        if self.is_due(base_root):
            await asyncio.to_thread(self.look, base_root)
        path = self.path(base_root)
        if not self.has(path):
            await asyncio.to_thread(self.make, path, base_root)
        return path

    def path(self, base_root: BaseRoot) -> str:
        """Where it is, or would be, as of the last look."""
        return f"{self._directory}/{self._names[base_root][1] if base_root in self._names else _name(base_root, [])}"

    def is_due(self, base_root: BaseRoot) -> bool:
        """Whether it is time to `look`."""
        return base_root not in self._names or time.monotonic() - self._names[base_root][0] > LOOK_SECONDS

    def look(self, base_root: BaseRoot) -> None:
        """See whether what it has copies of has changed; for a worker thread."""
        versions = [list(_versions(one)) for one in base_root.copies]
        self._names[base_root] = time.monotonic(), _name(base_root, versions)

    def has(self, path: str) -> bool:
        """Whether this process holds it."""
        return path in self._held

    def make(self, path: str, base_root: BaseRoot) -> None:
        """Make it, or what is missing of it, and hold it; for a worker thread.

        Raises:
            OSError: it cannot be made.
        """
        self._directory.mkdir(exist_ok=True)
        self._directory.chmod(0o700)  # No sandbox comes here by its path, and nobody else is to take the lock.
        _fill(path, base_root)
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # What cleans /var/tmp of old things leaves alone what lies below a locked directory.
        with contextlib.suppress(BlockingIOError):  # It is at it just now: what it takes is made again by the next server.
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        other = self._held.setdefault(path, held)
        if other != held:
            os.close(held)

    def devices(self) -> str | None:
        """Where the devices of sandboxes are, made if they are missing; None where that cannot be, or nobody can use them."""
        made = host_tree.devices()
        path = self.path(made)
        try:
            self.make(path, made)
            # Seen without being opened: a terminal is not to become the server's.
            if any(os.stat(path + name).st_rdev != os.makedev(*numbers) for name, *numbers in made.nodes):
                return None
            os.close(os.open(f"{path}/null", os.O_RDWR | os.O_CLOEXEC))  # Not on a disk that is mounted without devices.
        except OSError:
            return None
        return path

    async def close(self) -> None:
        """Hold none any more."""
        if self._early is not None:
            await asyncio.wait({self._early})
        while self._held:
            os.close(self._held.popitem()[1])


def _fill(directory: str, base_root: BaseRoot) -> None:
    """All of it that is missing: servers that share the directory may do so at the same time."""
    for path, mode in (("", 0o755), *base_root.directories):
        os.makedirs(directory + path, exist_ok=True)
        os.chmod(directory + path, mode)
    for path, target in base_root.links:
        _link(target, directory + path)
    for path, major, minor in base_root.nodes:
        with contextlib.suppress(FileExistsError):
            os.mknod(directory + path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(directory + path, 0o666)
    for path, content in base_root.files:
        _put(directory + path, content.encode(), _mode(path, content))
    for path in base_root.copies:
        os.makedirs(os.path.dirname(directory + path), exist_ok=True)
        _copy(path, directory + path)


def _name(base_root: BaseRoot, versions: list[list[tuple[str, int, int, int]]]) -> str:
    return hashlib.sha256(repr((base_root.digest, versions)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _versions(path: str) -> Iterator[tuple[str, int, int, int]]:
    """What changes when a file or anything in a directory does."""
    try:
        found = os.stat(path)
        yield path, found.st_mode, found.st_mtime_ns, found.st_size
        if stat.S_ISDIR(found.st_mode):
            for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    yield from _versions(entry.path)
                else:
                    found = entry.stat(follow_symlinks=False)
                    yield entry.name, found.st_mode, found.st_mtime_ns, found.st_size
    except OSError:
        yield path, 0, 0, 0


def _copy(source: str, target: str) -> None:
    """Make a file, a link or a directory like another, as far as it is missing and everybody may see it."""
    real = os.path.realpath(source)
    if source.startswith("/usr/"):
        _copy_program(source, target)
        return
    with contextlib.suppress(PermissionError, FileNotFoundError):
        if os.path.islink(source) and real.startswith("/usr/"):
            _link(real, target)
            return
        for path, found in configuration.files_of(real):
            to = target + path.removeprefix(real)
            if stat.S_ISLNK(found.st_mode):
                _link(os.readlink(path), to)
            elif stat.S_ISDIR(found.st_mode):
                os.makedirs(to, 0o755, exist_ok=True)
            elif not os.path.lexists(to):
                with open(path, "rb") as file:
                    _put(to, file.read(), found.st_mode & 0o755)


def _copy_program(source: str, target: str) -> None:
    """Of what sandboxes see in any case."""
    with contextlib.suppress(PermissionError, FileNotFoundError):
        if not os.path.lexists(target):
            with open(source, "rb") as file:
                _put(target, file.read(), 0o755)


def _link(text: str, target: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.symlink(text, target)


def _put(path: str, content: bytes, mode: int) -> None:
    """Make a file, whole or not at all."""
    if os.path.lexists(path):
        return
    temporary = f"{path}.{os.urandom(8).hex()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode(path: str, content: str) -> int:
    """Of a new file of a sandbox's tree."""
    if path in PRIVATE:
        return 0o600
    if path.startswith("/sys/"):
        return 0o444
    return 0o755 if content.startswith("#!") else 0o644
