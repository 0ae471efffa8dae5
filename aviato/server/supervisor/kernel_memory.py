"""What the kernel holds for processes beside their memory: mappings, files, locks, pipes, epoll. Standard library only.

A process that maps 65,000 pages by turns has 14 MiB of descriptions of them, and a set of epoll takes a quarter of a KiB for
each descriptor that it waits for. The kernel counts the latter for each user, too, so `watches` may have a limit of its own;
and so may `filters` of system calls, whose compiled forms all users of the machine have one store for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
import time
from typing import TYPE_CHECKING, NamedTuple

from aviato.server.supervisor import memory, tree
from aviato.server.supervisor.errors import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from aviato.grading.inside.loop import Loop

MAPPING_BYTES = 256
FILE_BYTES = 512
"""An overlay opens a file twice."""
NODE_BYTES = 2048
"""Of a socket, a pipe or a file that has no name, without what is in it."""
TEXT_BYTES = 32 << 10
"""Of an open file of /proc: the kernel keeps the text that it made for its reader."""
LOCK_BYTES = 256
FILTER_BYTES = 160 << 10
"""Of the longest filter, as it came, as it is checked and as it is compiled."""
WATCH_BYTES = 256
FEW_PIPES = 64
"""So many pipes are not looked into: most sandboxes have no more, and they hold 4 MiB unless somebody makes them larger."""
DESCRIPTORS_A_TURN = 64
REST = 4
"""So many times as long as a look took of the processor there is no other."""
PIECE_BYTES = 64 << 10
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
EPOLL, SOCKET, PIPE, PROC = "anon_inode:[eventpoll]", "socket:[", "pipe:[", "/proc/"
NAMELESS = ("/memfd:", " (deleted)")
THREADS, FILTERS = b"\nThreads:", b"\nSeccomp_filters:"


class Held(NamedTuple):
    """What one process has.

    Attributes:
        ran: how long it had run.
        alone_bytes: what is its own alone.
        watches: of all its sets of epoll.
        filters: of all its threads, without those that every command has.
        nodes: its sockets, pipes and files without a name, by name; others may have them as well.
        piped_bytes: what is in its pipes, where there are many.
    """

    ran: int
    alone_bytes: int
    watches: int
    filters: int
    nodes: frozenset[str]
    piped_bytes: dict[str, int]


class KernelMemory:
    """Of all processes of a sandbox.

    Args:
        loop: of process 1.
        proc: descriptor of /proc.
    """

    def __init__(self, loop: Loop, proc: int) -> None:
        self.watches = 0
        """Of all sets of epoll; one that many processes share counts for each of them."""
        self.filters = 0
        """Of system calls; one that many threads share counts for each of them."""
        self.given_filters = 0
        """So many does each command get beside those that process 1 has."""
        self.bytes: dict[int, int] = {}
        """By process; what many share is that of one of them."""
        self._loop = loop
        self._proc = proc
        self._held: dict[int, Held] = {}
        self._due = 0.0
        self._usual_filters: int | None = None

    def look(self, ran: Mapping[int, int], *, all_of_it: bool = True) -> Generator[float, None, None]:
        """A job that looks at those who have run since they were looked at, if it is time.

        Args:
            ran: who lives, and how long each has run.
            all_of_it: else the kernel counts the memory, and only filters are looked for.
        """
        gone = self._held.keys() - ran.keys()
        for pid in gone:
            del self._held[pid]
        began = time.process_time()  # Who waits for a processor meanwhile need not rest for it.
        stale = [pid for pid, spent in ran.items() if pid not in self._held or self._held[pid].ran != spent]
        if not stale or self._loop.now() < self._due:
            if gone:
                self._add_up()
            return
        for pid in stale:
            self._held[pid] = yield from self._look_at(pid, ran[pid], all_of_it)
        self._add_up()
        self._due = self._loop.now() + REST * (time.process_time() - began)

    def _add_up(self) -> None:
        seen: set[str] = set()
        self.bytes = {}
        for pid, held in self._held.items():
            total = held.alone_bytes
            new = held.nodes - seen
            total += len(new) * NODE_BYTES + sum(held.piped_bytes.get(node, 0) for node in new)
            seen |= new
            self.bytes[pid] = total
        self.watches = sum(held.watches for held in self._held.values())
        self.filters = sum(held.filters for held in self._held.values())

    def _look_at(self, pid: int, ran: int, all_of_it: bool) -> Generator[float, None, Held]:
        most, filters = yield from self._filters(pid)
        if not all_of_it:
            return Held(ran, 0, 0, filters, frozenset(), {})
        total = most * FILTER_BYTES + MAPPING_BYTES * (yield from self._count(f"{pid}/maps", b"\n"))
        watches = locks = 0
        nodes: dict[str, str] = {}
        for count, (place, name, target) in enumerate(self._descriptors(pid), 1):
            total += FILE_BYTES
            if target.startswith((SOCKET, PIPE)):
                nodes[target] = f"{place}/fd/{name}"
            elif target == EPOLL:
                watches += yield from self._count(f"{place}/fdinfo/{name}", b"tfd:")
            elif target.startswith(PROC):
                total += TEXT_BYTES
            elif target.startswith("/"):
                locks += yield from self._count(f"{place}/fdinfo/{name}", b"lock:")
                if target.startswith(NAMELESS[0]) or target.endswith(NAMELESS[1]):
                    total += NODE_BYTES
            if count % DESCRIPTORS_A_TURN == 0:
                yield True
        total += watches * WATCH_BYTES + locks * LOCK_BYTES
        pipes = [(node, path) for node, path in nodes.items() if node.startswith(PIPE)]
        piped: dict[str, int] = {}
        for number, (node, path) in enumerate(pipes if len(pipes) > FEW_PIPES else (), 1):
            piped[node] = self._in_pipe(path)
            if number % DESCRIPTORS_A_TURN == 0:
                yield True
        yield True
        return Held(ran, total, watches, filters, frozenset(nodes), piped)

    def _filters(self, pid: int) -> Generator[float, None, tuple[int, int]]:
        """How many the thread has that has most, and all threads together: each may have its own."""
        if self._usual_filters is None:
            self._usual_filters = memory.number(memory.read(self._proc, "self/status"), FILTERS) + self.given_filters
        usual = self._usual_filters
        text = memory.read(self._proc, f"{pid}/status")
        most = total = max(0, memory.number(text, FILTERS) - usual)
        if memory.number(text, THREADS) > 1:
            for count, thread in enumerate(self._threads(pid), 1):
                text = memory.read(self._proc, f"{pid}/task/{thread}/status")
                found = max(0, memory.number(text, FILTERS) - usual)
                most = max(most, found)
                total += found if int(thread) != pid else 0
                if count % DESCRIPTORS_A_TURN == 0:
                    yield True
        return most, total

    def _threads(self, pid: int) -> list[str]:
        try:
            folder = os.open(f"{pid}/task", DIRECTORY, dir_fd=self._proc)
            try:
                return os.listdir(folder)
            finally:
                os.close(folder)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return []

    def _descriptors(self, pid: int) -> Generator[tuple[str, str, str], None, None]:
        """Where each is, its number, and what it is of."""
        for place in tree.places(self._proc, pid):
            try:
                folder = os.open(f"{place}/fd", DIRECTORY, dir_fd=self._proc)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            names: list[str] = []
            try:
                names = os.listdir(folder)
                for name in names:
                    try:
                        yield place, name, os.readlink(name, dir_fd=folder)
                    except (FileNotFoundError, ProcessLookupError, PermissionError):
                        continue
            except (FileNotFoundError, ProcessLookupError):
                continue
            finally:
                os.close(folder)
            if names:
                return

    def _count(self, path: str, what: bytes) -> Generator[float, None, int]:
        """How often something is in a file of /proc; 0 of a process that is gone or hides it."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            return 0
        count, rest = 0, b""
        try:
            while piece := os.read(fd, PIECE_BYTES):
                count += (rest + piece).count(what)
                rest = piece[len(piece) - len(what) + 1 :] if len(what) > 1 else b""
                if len(piece) > PIECE_BYTES // 2:
                    yield True
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
        finally:
            os.close(fd)
        return count

    def _in_pipe(self, path: str) -> int:
        """The pages that may lie in it: a byte that was written by itself may have one of its own."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return 0
        try:
            (waiting,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
            return int(min(waiting * 4096, fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)))
        except OSError:
            return 0
        finally:
            os.close(fd)
