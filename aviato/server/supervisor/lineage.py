"""Who lives in a sandbox that has no namespaces, told by descent. Standard library only.

The supervisor is a child subreaper, so that whoever loses its parent comes to it, and so is the keeper of each command
(`keeper`): a command's mark is the number of its keeper, and its processes are those that descend from there.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from aviato.server.supervisor import tree

ROUNDS = 200
"""So many times processes that are found one by one are stopped, until no new ones are found."""


class Descent(NamedTuple):
    """How a sandbox without namespaces knows its processes: by descent.

    Attributes:
        compiled: the filter that keeps commands from the supervisor and their keepers.
        exact: see `Lineage`.
        asked: descriptor of what the supervisor is asked by, and the calls whose number is the second argument, see
            `by_number`; None: it is not asked.
    """

    compiled: bytes
    exact: bool
    asked: tuple[int, list[int]] | None = None


class Lineage:
    """All descendants of this process but the keepers.

    Args:
        exact: whether the kernel lets this process signal nothing but what is in the sandbox, so that a signal to everyone is
            just that.
    """

    def __init__(self, exact: bool) -> None:
        self.keepers: set[int] = set()
        """Those that have not been reaped."""
        self._exact = exact
        self._own = os.getpid()

    def pids(self, proc: int) -> list[str]:
        """See `tree.Population`."""
        return [pid for pid in descendants(proc, str(self._own)) if int(pid) not in self.keepers]

    def mark_of(self, proc: int, pid: str | int) -> int | None:
        """See `tree.Population`. Who has killed a keeper belongs to nobody, which counts as hiding."""
        above = parent(proc, pid)
        if above is None:
            return None
        while above != self._own:
            pid, above = above, parent(proc, above, dead_too=True)
            if above is None or above <= 1:
                return None  # Somebody on the way up died just now; whoever is meant has another parent by the next look.
        if int(pid) not in self.keepers:
            raise PermissionError(f"process {pid} has lost its keeper")
        return int(pid)

    def has(self, proc: int, pid: int) -> bool:
        """Whether a process or thread is in the sandbox, and neither this process nor a keeper.

        Args:
            proc: descriptor of /proc.
            pid: its number.
        """
        if pid in self.keepers:
            return False
        above = parent(proc, pid, dead_too=True)
        while above is not None and above > 1 and above != self._own:
            above = parent(proc, above, dead_too=True)
        return above == self._own

    def signal(self, pid: str, number: int) -> None:
        """See `tree.Population`."""
        os.kill(int(pid), number)

    def signal_all(self, number: int) -> bool:
        """See `tree.Population`."""
        if number == 0:
            return bool(children(None, str(self._own)))
        if self._exact:
            try:
                os.kill(-1, number)
            except ProcessLookupError:
                return False
            if number == signal.SIGSTOP:
                for keeper in self.keepers:  # They start nothing, and who is dead waits for them.
                    _kill(str(keeper), signal.SIGCONT)
            return True
        return self._signal_each(number)

    def lingers(self, mark: int) -> bool:
        """See `tree.Population`: a keeper leaves when all that it keeps has gone, which no scan can tell as surely."""
        if mark not in self.keepers:
            return False
        try:
            os.kill(mark, signal.SIGCONT)  # Another command may have stopped it.
        except ProcessLookupError:
            return False
        return True

    def _signal_each(self, number: int) -> bool:
        """Signal everyone by number; who is to be killed is stopped first, so that nobody forks meanwhile."""
        seen: set[str] = set()
        for _ in range(ROUNDS):
            found = set(descendants(None, str(self._own))) - {str(keeper) for keeper in self.keepers}
            if not found - seen:
                break
            for pid in found - seen:
                _kill(pid, signal.SIGSTOP if number == signal.SIGKILL else number)
            seen |= found
        if number == signal.SIGKILL:
            for pid in seen:
                _kill(pid, number)
        return bool(seen)


def descendants(proc: int | None, pid: str) -> list[str]:
    """All that descend from a process; some of those that are born or die meanwhile may be missing."""
    found: list[str] = []
    left = [pid]
    while left:
        born = children(proc, left.pop())
        found += born
        left += born
    return found


def children(proc: int | None, pid: str) -> list[str]:
    """The children of all threads of a process, dead ones that are not reaped included.

    Args:
        proc: descriptor of /proc, or None.
        pid: of the process.
    """
    found: list[str] = []
    try:
        folder = os.open(f"{pid}/task" if proc is not None else f"/proc/{pid}/task", tree.DIRECTORY, dir_fd=proc)
    except OSError:
        return found
    try:
        for thread in os.listdir(folder):
            try:
                found += _read(f"{thread}/children", folder).decode().split()
            except (FileNotFoundError, ProcessLookupError):
                continue
    except (FileNotFoundError, ProcessLookupError):
        pass
    finally:
        os.close(folder)
    return found


def parent(proc: int | None, pid: str | int, dead_too: bool = False) -> int | None:
    """The parent of a process; None if it is gone, or dead unless that is asked for."""
    try:
        text = _read(f"{pid}/stat" if proc is not None else f"/proc/{pid}/stat", proc)
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(b") ")[2].split()
    # One whose first thread has ended looks dead, and has other threads.
    if not fields or (fields[0] in (b"Z", b"X") and int(fields[17]) <= 1 and not dead_too):
        return None
    return int(fields[1])


def _read(path: str, directory: int | None) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
        return data
    finally:
        os.close(fd)


def _kill(pid: str, number: int) -> None:
    try:
        os.kill(int(pid), number)
    except ProcessLookupError:
        pass
