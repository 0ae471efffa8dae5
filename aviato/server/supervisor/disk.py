"""What a sandbox has on disk: counted in small steps, and a limit that writing through the file calls meets at once.

Standard library only. The writable layer is seen through a mount of its own, without anything that is mounted in it inside.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from aviato.server.supervisor import tree
from aviato.server.supervisor.errors import NO_ROOM, Refused, file_error, os_file_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aviato.grading.inside.loop import Loop, Timer

HOST_FULL_BYTES = 1 << 20
SMALL_PART = 0.1
"""A disk that is full is the machine's failure if less than this part of its own limit can be in the sandbox."""
SAMPLE_SECONDS = 0.1
SETTLE_SECONDS = 0.005
SETTLE_AT_MOST_SECONDS = 0.02
REST = 20
"""So many times as long as a count took nothing is counted after it."""
SHORT_REST = 3
"""The same while the disk's free space dwindles as fast as this sandbox would have to write to reach its limit soon."""
ENTRIES_A_TURN = 64
DEPTH = 32
MOST_DEEP = 256
"""Directories at multiples of that depth wait for their turn with a descriptor each; who has more has too many."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Count:
    """What was found; it is over as soon as more was found than its ceiling allows."""

    def __init__(self, ceiling: tuple[float, float]) -> None:
        self.bytes = 0
        self.inodes = 0
        self.nameless: dict[int, int] = {}
        """Bytes in files in memory that have no name, by the process that holds them open."""
        self._ceiling = ceiling
        self._linked: set[tuple[int, int]] = set()

    @property
    def over(self) -> bool:
        """Whether it is more than allowed."""
        return self.bytes > self._ceiling[0] or self.inodes > self._ceiling[1]

    def add(self, found: os.stat_result) -> None:
        """One entry; a file with many names counts once."""
        if found.st_nlink != 1 and not stat.S_ISDIR(found.st_mode):
            key = (found.st_dev, found.st_ino)
            if key in self._linked:
                return
            self._linked.add(key)
        self.inodes += 1
        self.bytes += found.st_blocks * 512


class Disk:
    """Watches the writable layer.

    Args:
        loop: of process 1.
        proc: descriptor of /proc.
        layer: descriptor of the writable layer.
        pids: who lives.
        on_full: called with the name and the value of the limit that was passed.
        not_theirs: device and number of each file without a name that they have open and that is not counted.
    """

    def __init__(
        self,
        loop: Loop,
        proc: int,
        layer: int,
        pids: Iterable[int],
        on_full: Callable[[str], None],
        not_theirs: Callable[[], set[tuple[int, int]]] = set,
    ) -> None:
        self.full: str | None = None
        """The limit that is passed, in words."""
        self.nameless: dict[int, int] = {}
        """Bytes in files in memory that have no name, by the process that holds them open; in no measure of its memory."""
        self._loop = loop
        self._proc = proc
        self._layer = layer
        self._pids = pids
        self._on_full = on_full
        self._not_theirs = not_theirs
        self._bytes_limit = self._inodes_limit = float("inf")
        self._ceiling = (float("inf"), float("inf"))
        self._used = self._coming = self._seen_coming = 0
        self._inodes = 0
        self._free = (0, 0)
        self._dying: set[int] = set()
        """Who was killed for the last excess, and may still finish a write."""
        self._ended = self._took = 0.0
        self._counting = False
        self._again = False
        self._timer: Timer | None = None
        self._devices: tuple[frozenset[int], int] | None = None

    def limit(self, bytes: float | None, inodes: float | None) -> None:
        """From now on; None is no limit."""
        self._bytes_limit = float("inf") if bytes is None else bytes
        self._inodes_limit = float("inf") if inodes is None else inodes
        self._ceiling = (self._bytes_limit, self._inodes_limit)

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self._bytes_limit != float("inf") or self._inodes_limit != float("inf")

    def take(self, path: str, size: int) -> None:
        """So much is about to be written by a file call.

        Raises:
            Refused: there is no room for it within the limit.
        """
        if not self.limited:
            return
        if self.full is not None or self._used + self._coming + size > self._bytes_limit:
            what = self.full or _words("disk", self._bytes_limit)
            raise file_error(path, "disk_full", f"the sandbox's limit of {what} is reached")
        self._coming += size
        self.touched()

    def take_over(self, used: int) -> None:
        """Go on from what compiled code has found, and written since."""
        self._coming += used
        if used:
            self.touched()

    def error_of(self, path: str, error: OSError) -> Refused:
        """What an error of the operating system means to a file call: whether it is the machine's disk that is full."""
        if error.errno == errno.ENOSPC and self._is_host_full():
            message = f"{path!r}: the disk of the machine that sandboxes lie on is full"
            return Refused("FILE", message, reason="host_disk_full", filepath=path, is_infrastructure=True)
        return os_file_error(path, error)

    def _is_host_full(self) -> bool:
        """Whether it is, and cannot be for what is in here: at most a small part of what this sandbox may have."""
        try:
            found = os.statvfs(self._layer)
        except OSError:
            return False
        # What the disk lost since the last count may all be ours.
        own = self._used + self._coming + max(0, self._free[0] - found.f_bfree * found.f_frsize)
        return self.limited and found.f_bavail * found.f_frsize < HOST_FULL_BYTES and own < self._bytes_limit * SMALL_PART

    def give_back(self, size: int) -> None:
        """So much of what was taken is gone again, or has replaced as much."""
        self._coming -= size

    def settle(self) -> Iterator[float]:
        """A job, after something was removed: what is there is known at its end, if there is little room or it is soon done."""
        little = self.full is not None or self._used + self._coming > self._bytes_limit / 2
        if not self.limited or not (little or self._took <= SETTLE_AT_MOST_SECONDS):
            self.touched()
            return
        while self._counting:
            yield SETTLE_SECONDS
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._counting = True
        yield from self._count()

    def touched(self) -> None:
        """Something may have been written or removed: count, when it is time."""
        if not self.limited:
            return
        if self._counting:
            self._again = True
            return
        wait = self._ended + max(SAMPLE_SECONDS, self._took * (SHORT_REST if self._dwindles() else REST)) - self._loop.now()
        if self._timer is not None:
            if self._timer.due <= self._loop.now() + wait:
                return
            self._timer.cancel()
        self._timer = self._loop.after(max(0.0, wait), self._begin)

    def _dwindles(self) -> bool:
        """Whether the disk lost half as much as this sandbox may still take; others may have taken it."""
        if self._took <= SAMPLE_SECONDS / REST:
            return False
        free_bytes, free_inodes = _free(self._layer)
        return (
            self._free[0] - free_bytes > (self._bytes_limit - self._used) / 2
            or self._free[1] - free_inodes > (self._inodes_limit - self._inodes) / 2
        )

    def _begin(self) -> None:
        self._timer = None
        self._counting = True
        self._loop.start(self._count())

    def _count(self) -> Iterator[float]:
        began = self._loop.now()
        self._again = False
        settled = not self._dying.intersection(self._pids)
        self._seen_coming = self._coming
        self._free = _free(self._layer)
        count: Count | None = Count(self._ceiling)
        assert count is not None
        try:
            yield from _walk(self._proc, self._layer, count)
            if not count.over:
                yield from _nameless(self._proc, list(self._pids), self._where(), count, self._not_theirs())
        except OSError:
            count = None  # No descriptor is left, or somebody moved things about: the next one will do.
        finally:
            self._counting = False
            self._ended = self._loop.now()
            self._took = self._ended - began
        if count is not None:
            self._counted(count, settled)
        if self._again:
            self.touched()

    def _counted(self, count: Count, settled: bool) -> None:
        self._coming -= self._seen_coming
        self._used, self._inodes, self.nameless = count.bytes, count.inodes, count.nameless
        if count.over:
            by_bytes = count.bytes > self._ceiling[0]
            self.full = _words("disk", self._bytes_limit) if by_bytes else _words("inodes", self._inodes_limit)
            # What there is once the killed are gone may stay: a command that removes some of it must live to do so. Only more
            # is too much.
            self._ceiling = (count.bytes + self._bytes_limit, count.inodes + self._inodes_limit)
            self._dying = set(self._pids)
            self._again = True
            self._ended = 0.0
            self._on_full(self.full)
            return
        ceiling = (max(self._bytes_limit, count.bytes), max(self._inodes_limit, count.inodes))
        if ceiling == (self._bytes_limit, self._inodes_limit):
            self.full = None
        elif not settled:
            self._again = True
            return
        self._dying = set()
        self._ceiling = ceiling

    def _where(self) -> tuple[frozenset[int], int]:
        """The devices of the layer's files, seen from inside and from beside, and that of files that never had a name."""
        if self._devices is None:
            nameless = os.memfd_create("", os.MFD_CLOEXEC)
            try:
                memory = os.fstat(nameless).st_dev
            finally:
                os.close(nameless)
            self._devices = (frozenset({os.stat("/").st_dev, os.stat(".", dir_fd=self._layer).st_dev}), memory)
        return self._devices


class _Folder:
    """A directory that is being counted, readable for as long as that takes."""

    def __init__(self, proc: int, parent: int, name: str | None) -> None:
        self.fd, self._mode = _open(proc, parent, name)
        try:
            self.entries = os.scandir(self.fd)
        except OSError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        self.entries.close()
        if self._mode is not None:
            try:
                # Unless somebody has given it another one meanwhile.
                if stat.S_IMODE(os.fstat(self.fd).st_mode) == self._mode | 0o500:
                    os.fchmod(self.fd, self._mode)
            except OSError:
                pass
        os.close(self.fd)


def _open(proc: int, parent: int, name: str | None) -> tuple[int, int | None]:
    """A directory's descriptor (None: of the parent itself), and the mode to give back where it had to be made readable."""
    path = os.dup(parent) if name is None else os.open(name, os.O_PATH | DIRECTORY, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.fstat(path).st_mode)
        # By way of /proc: where the root itself cannot be searched, there is no other.
        if mode & 0o500 != 0o500:
            os.chmod(f"self/fd/{path}", mode | 0o500, dir_fd=proc)
        fd = os.open(f"self/fd/{path}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    finally:
        os.close(path)
    return fd, None if mode & 0o500 == 0o500 else mode


def _walk(proc: int, layer: int, count: Count) -> Iterator[float]:
    """A job that counts a tree that changes meanwhile, of any depth."""
    waiting = [os.dup(layer)]
    stack: list[_Folder] = []
    steps = 0
    try:
        while waiting and not count.over:
            top = waiting.pop()
            try:
                stack.append(_Folder(proc, top, None))
            finally:
                os.close(top)
            while stack and not count.over:
                entry = next(stack[-1].entries, None)
                if entry is None:
                    stack.pop().close()
                    continue
                steps += 1
                if steps % ENTRIES_A_TURN == 0:
                    yield True
                try:
                    found = entry.stat(follow_symlinks=False)
                    count.add(found)
                    if stat.S_ISDIR(found.st_mode):
                        _descend(proc, entry.name, stack, waiting, count)
                except OSError as error:
                    if error.errno in NO_ROOM:
                        raise
                    # Gone meanwhile, or another thing by now.
    finally:
        for folder in stack:
            folder.close()
        for fd in waiting:
            os.close(fd)


def _descend(proc: int, name: str, stack: list[_Folder], waiting: list[int], count: Count) -> None:
    if len(stack) < DEPTH:
        stack.append(_Folder(proc, stack[-1].fd, name))
    elif len(waiting) < MOST_DEEP:
        waiting.append(os.open(name, os.O_PATH | DIRECTORY, dir_fd=stack[-1].fd))
    else:
        count.inodes = 1 << 62


def _nameless(
    proc: int, pids: list[int], where: tuple[frozenset[int], int], count: Count, seen: set[tuple[int, int]]
) -> Iterator[float]:
    """A job that adds files which have lost their names, or never had one, and that somebody holds open, but those seen."""
    on_disk, in_memory = where
    for pid in pids:
        folder, names = _descriptors(proc, pid)
        if folder is None:
            continue
        try:
            for number, name in enumerate(names, 1):
                if number % ENTRIES_A_TURN == 0:
                    yield True
                try:
                    found = os.stat(name, dir_fd=folder)
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                key = (found.st_dev, found.st_ino)
                if found.st_nlink or not stat.S_ISREG(found.st_mode) or key in seen:
                    continue
                seen.add(key)
                if found.st_dev in on_disk:
                    count.bytes += found.st_blocks * 512
                    count.inodes += 1
                elif found.st_dev == in_memory:
                    count.nameless[pid] = count.nameless.get(pid, 0) + found.st_blocks * 512
        except (FileNotFoundError, ProcessLookupError):
            pass
        finally:
            os.close(folder)
        yield True


def _descriptors(proc: int, pid: int) -> tuple[int | None, list[str]]:
    """The directory of a process's descriptors, open, and what is in it."""
    for place in tree.places(proc, pid):
        try:
            folder = os.open(f"{place}/fd", DIRECTORY, dir_fd=proc)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        try:
            if names := os.listdir(folder):
                return folder, names
        except (FileNotFoundError, ProcessLookupError):
            pass
        except BaseException:
            os.close(folder)
            raise
        os.close(folder)
    return None, []


def _free(layer: int) -> tuple[int, int]:
    found = os.statvfs(layer)
    return found.f_bfree * found.f_frsize, found.f_ffree


def _words(name: str, value: float) -> str:
    return f"{value / (1 << 20):g} MiB of disk" if name == "disk" else f"{value:.0f} files and directories"
