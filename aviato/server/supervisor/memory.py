"""How much memory the processes of a sandbox use, and whose they are. Standard library only.

The rough measure is cheap and never too small: the resident pages of every process, shared ones counted each time. Only where
that reaches the limit are pages divided among those who share them, which takes the kernel a walk of all page tables.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aviato.server.supervisor import tree, usage

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

PROCESSES_A_TURN = 64
IN_MEMORY = ("/dev/shm", "/run", "/etc", "/.aviato")
"""Where the file systems in memory are."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PAGE_TABLES = b"\nVmPTE:"


class Processes:
    """Everything alive but process 1, and whether it has run since the last look."""

    def __init__(self, proc: int) -> None:
        self._proc = proc
        self._load: int | None = None
        self._newest = b""
        self._ran: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._ran))

    def __len__(self) -> int:
        return len(self._ran)

    @property
    def ran(self) -> dict[int, int]:
        """How long each had run, in nanoseconds."""
        return self._ran

    def look(self) -> bool:
        """Find out who lives; whether anybody ran since the last time. Who has not run has neither taken nor written."""
        if self._load is None:
            self._load = os.open("loadavg", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        # Its last word is the number given out last in this namespace: unchanged, nothing was born.
        newest = os.pread(self._load, 128, 0).rpartition(b" ")[2]
        born = newest != self._newest
        self._newest = newest
        pids = [int(name) for name in tree.pids(self._proc)] if born else list(self._ran)
        ran: dict[int, int] = {}
        for pid in pids:
            time = usage.ran_nanoseconds(pid)
            if time is not None:
                ran[pid] = time
        changed = born or ran != self._ran
        self._ran = ran
        return changed


class Stores:
    """The file systems in memory that a sandbox can write to.

    Args:
        own: whether it has some of its own, at the usual places.
    """

    def __init__(self, own: bool = True) -> None:
        self._open: list[int] = []
        device = os.stat("/").st_dev
        for path in IN_MEMORY if own else ():
            try:
                if os.lstat(path).st_dev != device:
                    self._open.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
            except OSError:
                pass

    def add(self, fd: int) -> None:
        """One more."""
        self._open.append(fd)

    def used_bytes(self) -> int:
        """What their files take."""
        total = 0
        for fd in self._open:
            found = os.statvfs(fd)
            total += (found.f_blocks - found.f_bfree) * found.f_frsize
        return total


def rough_bytes(proc: int, pids: Iterable[int], swap: bool) -> Generator[float, None, int]:
    """A job that returns what all processes have resident and in tables of their pages, at most too much.

    Args:
        proc: descriptor of /proc.
        pids: which.
        swap: whether the machine has any, where pages go that are not resident.
    """
    total = 0
    for count, pid in enumerate(pids, 1):
        text = read(proc, f"{pid}/status")
        total += number(text, PAGE_TABLES) << 10
        if swap:
            total += number(text, b"\nVmSwap:") << 10
        total += resident_bytes(proc, pid)
        if count % PROCESSES_A_TURN == 0:
            yield True
    return total


class Shares:
    """What each command has, by its mark; None is the mark of what hides it."""

    def __init__(self) -> None:
        self.bytes: dict[int | None, int] = {}
        self.pids: dict[int | None, list[int]] = {}
        self.private_bytes = 0
        self.shared_bytes = 0

    def total(self, stored_bytes: int) -> int:
        """Of the sandbox, with the files in memory: what is mapped of those was counted with who maps it."""
        return self.private_bytes + max(self.shared_bytes, stored_bytes)

    def largest(self) -> int | None:
        """Whose share is the largest."""
        return max(self.bytes, key=lambda mark: self.bytes[mark])


def exact(
    proc: int, pids: Iterable[int], nameless: Mapping[int, int], kernel: Mapping[int, int]
) -> Generator[float, None, Shares]:
    """A job that returns the `Shares` of the commands, pages divided by how many share them.

    Args:
        proc: descriptor of /proc.
        pids: which.
        nameless: what they hold in files in memory without a name.
        kernel: what the kernel holds for them.
    """
    shares = Shares()
    for pid in pids:
        text = read(proc, f"{pid}/smaps_rollup")
        private = (number(text, b"\nPss_Anon:") + number(text, b"\nSwapPss:")) << 10
        shared = number(text, b"\nPss_Shmem:") << 10
        if not private + shared:
            private = resident_bytes(proc, pid)
        private += kernel.get(pid, 0) + (number(read(proc, f"{pid}/status"), PAGE_TABLES) << 10)
        mark = mark_of(proc, pid)
        shares.private_bytes += private
        shares.shared_bytes += shared
        shares.bytes[mark] = shares.bytes.get(mark, 0) + private + max(shared, nameless.get(pid, 0))
        shares.pids.setdefault(mark, []).append(pid)
        yield True
    return shares


def resident_bytes(proc: int, pid: int) -> int:
    """What a process has in memory, shared or not; 0 of one that is gone."""
    for place in tree.places(proc, pid):
        fields = read(proc, f"{place}/statm").split()
        if fields and (pages := int(fields[1])):
            return pages * PAGE_BYTES
    return 0


def mark_of(proc: int, pid: int) -> int | None:
    """The mark of its command; None of one that is gone or hides it."""
    try:
        return tree.mark_of(proc, pid)
    except PermissionError:
        return None


def number(text: bytes, name: bytes) -> int:
    """That follows a name in a text of /proc; 0 where the name is not in it."""
    start = text.find(name)
    if start < 0:
        return 0
    return int(text[start + len(name) : text.index(b"\n", start + 1)].split()[0])


def read(proc: int, path: str) -> bytes:
    """What is there, or nothing of a process that is gone or hides it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
    try:
        return os.read(fd, 4096)
    except (ProcessLookupError, PermissionError):
        return b""
    finally:
        os.close(fd)
