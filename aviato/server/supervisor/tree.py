"""Killing what belongs to a command, and all of a sandbox. Standard library only.

Process 1 enters a fresh UTS namespace before each command, so that every descendant carries that namespace's inode number in
`/proc/PID/ns/uts` and, without capabilities, cannot leave it: the mark holds where sessions, parents and environments do not.
Where there are no namespaces, `lineage` tells who lives and who belongs to whom instead.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CLONE_NEWUTS = 0x04000000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PAUSE_SECONDS = 0.001
FEW = 16
"""More processes than these make the first scan one of a sandbox that stands still."""
WALL = 0x40000000
"""Of `waitid`: children, too, that a clone without SIGCHLD made."""
TAKE_SECONDS = 0.1
"""So long a tracer is given to take the death of what it traces, as debuggers do at once."""
NOBODY = -1
"""A mark that no process carries."""
MANY = 64
"""With more than these nobody asks who was stopped before: asking would take longer than a hostile tree should be given."""

_libc = ctypes.CDLL(None, use_errno=True)


def new_mark(proc: int) -> int:
    """Enter a fresh UTS namespace; its number marks what is spawned from now on.

    Raises:
        OSError: the namespace cannot be had.
    """
    if _libc.unshare(CLONE_NEWUTS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return namespace(proc, "thread-self/ns/uts")


def namespace(proc: int, path: str) -> int:
    """The number of a namespace. As text: following the link would have the kernel make a file for it."""
    return int(os.readlink(path, dir_fd=proc).partition("[")[2][:-1])


class Population(Protocol):
    """Everything alive in a sandbox but its supervisor."""

    def pids(self, proc: int) -> list[str]:
        """Their numbers, in no order; those that are dead and not reaped yet may be among them."""

    def mark_of(self, proc: int, pid: str | int) -> int | None:
        """The mark that a process carries; None of one that is dead.

        Raises:
            PermissionError: it hides that.
        """

    def signal(self, pid: str, number: int) -> None:
        """Signal one of them."""

    def signal_all(self, number: int) -> bool:
        """Signal them all, in one step of the kernel if it can be had (0: only look); True if there is anything."""

    def lingers(self, mark: int) -> bool:
        """Whether something says that a process with this mark lives, though none was found."""


class OwnNamespace:
    """All other processes of a process namespace whose process 1 this is."""

    def pids(self, proc: int) -> list[str]:
        """See `Population`."""
        mine = str(os.getpid())
        return [name for name in os.listdir(proc) if name.isdecimal() and name != mine]

    def mark_of(self, proc: int, pid: str | int) -> int | None:
        """See `Population`. A program that its own user may not read hides its namespaces even from process 1."""
        for place in places(proc, pid):
            try:
                return os.stat(f"{place}/ns/uts", dir_fd=proc).st_ino
            except (FileNotFoundError, ProcessLookupError):
                continue
        return None

    def signal(self, pid: str, number: int) -> None:
        """See `Population`."""
        os.kill(int(pid), number)

    def signal_all(self, number: int) -> bool:
        """See `Population`.

        Whoever lives descends from process 1, and an orphan becomes its child: without one there is nobody, which is asked
        first, since for `kill(-1)` the kernel looks through every process of the machine.
        """
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | WALL)
            os.kill(-1, number)
        except (ChildProcessError, ProcessLookupError):
            return False
        return True

    def lingers(self, mark: int) -> bool:
        """See `Population`."""
        return False


_population: Population = OwnNamespace()


def inhabit(population: Population) -> Population:
    """Tell, before anything runs, who this sandbox's processes are; returns who it was before. A sandbox tells it once."""
    global _population
    before, _population = _population, population
    return before


def pids(proc: int) -> list[str]:
    """Every process of the sandbox but this one."""
    return _population.pids(proc)


def kill_marked(proc: int, mark: int, still: Callable[[], bool]) -> Iterator[float]:
    """A job that kills a tree; it ends when a whole scan has found nothing alive with the mark.

    A tree that forks on is faster than a scan, and many sessions leave process 1 a small share of the processor, whatever its
    priority. So the scan is made while the sandbox stands still where there are many processes, or newcomers since the last.

    Args:
        proc: descriptor of /proc.
        mark: see above.
        still: whether the mark means the same command as when the job began.
    """
    killed: set[str] = set()
    newcomers = False
    while still():
        try:
            before = pids(proc)
            frozen = newcomers or (not killed and len(before) > FEW)
            hits = _kill_frozen(proc, mark, before) if frozen else _kill_round(proc, mark, before)
        except OSError:
            # Someone inside took our descriptors away by prlimit, so that /proc cannot be listed. Nothing may outlive
            # its time because of that: the other commands go too.
            signal_all(signal.SIGKILL)
            return
        if not hits:
            if not _population.lingers(mark):
                return
            yield PAUSE_SECONDS
            continue
        dying = hits <= killed
        newcomers = bool(killed) and not dying
        killed |= hits
        if frozen or dying:
            # All are dying, and need the processor for it more than we do.
            yield PAUSE_SECONDS


def kill_others(proc: int, mark: int | None) -> Iterator[float]:
    """A job that kills everything but this process and what carries the mark (None: nothing does); it ends when all are gone.

    One round is enough, since nobody can fork meanwhile; a command that begins later is none of those meant.
    """
    try:
        if mark is None:
            signal_all(signal.SIGKILL)
            killed = set(pids(proc))  # Whoever is there now is dying, also one that was born just before.
        else:
            killed = _kill_frozen(proc, mark, pids(proc), others=True)
        while any(not _is_held(proc, pid) for pid in killed & set(pids(proc))):
            yield PAUSE_SECONDS
    except OSError:
        signal_all(signal.SIGKILL)  # as in kill_marked


def signal_all(number: int) -> bool:
    """Signal everything else in this sandbox (0: only look); True if there is anything, the unreaped included."""
    return _population.signal_all(number)


def _kill_round(proc: int, mark: int, candidates: list[str], others: bool = False) -> set[str]:
    """Kill what carries the mark, or with `others` what does not; returns their numbers."""
    hits = {pid for pid in candidates if _carries(proc, pid, mark, others)}
    _signal_each(hits, signal.SIGKILL)
    return hits


def _kill_frozen(proc: int, mark: int, before: list[str], others: bool = False) -> set[str]:
    """A round in which nobody can fork.

    A signal to everyone is one step for the kernel: a fork under way either fails and sees it, or hands it to the child. So
    nothing is missed by the scan, at the price of a standstill of a few milliseconds for the other commands. What somebody
    had stopped before stays stopped. Children go on before their parents: a shell's job control must not see them stopped.
    """
    stopped = {pid for pid in before if is_stopped(proc, pid)} if len(before) <= MANY else set()
    signal_all(signal.SIGSTOP)
    spared = set(before)
    try:
        everyone = pids(proc)
        hits = _kill_round(proc, mark, everyone, others)
        spared.update(everyone)
        spared -= hits
    finally:
        _signal_each(sorted(spared - stopped, key=int, reverse=True), signal.SIGCONT)
    return hits


def _signal_each(numbers: Iterable[str], number: int) -> None:
    for pid in numbers:
        try:
            _population.signal(pid, number)
        except ProcessLookupError:
            pass


def is_stopped(proc: int, pid: str) -> bool:
    """Whether a process stands still, by a signal or for its tracer."""
    try:
        stat = os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return False
    try:
        return os.read(stat, 4096).rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False
    finally:
        os.close(stat)


def tracer_of(proc: int, pid: str | int) -> int | None:
    """The thread that traces a process, dead or alive, if it is none of this process."""
    return _state_and_tracer(proc, pid)[1]


def kill_tracer(proc: int, pid: str | int) -> None:
    """Kill who traces a process, if somebody does."""
    tracer = tracer_of(proc, pid)
    if tracer is not None:
        _signal_each([str(tracer)], signal.SIGKILL)


def _is_held(proc: int, pid: str) -> bool:
    """Whether a process is dead, and its tracer, who is told first, has not let its parent know."""
    state, tracer = _state_and_tracer(proc, pid)
    return state == "Z" and tracer is not None


def _state_and_tracer(proc: int, pid: str | int) -> tuple[str, int | None]:
    try:
        with open(
            os.open(f"{pid}/status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc), encoding="utf-8", errors="replace"
        ) as file:
            found = dict(line.split(":", 1) for line in file if line.startswith(("State:", "TracerPid:")))
    except OSError:
        return "", None
    tracer = int(found.get("TracerPid", "0"))
    return found.get("State", "").strip()[:1], tracer if tracer not in (0, os.getpid()) else None


def mark_of(proc: int, pid: str | int) -> int | None:
    """The mark that a process carries; None of one that is dead.

    Raises:
        PermissionError: it hides that.
    """
    return _population.mark_of(proc, pid)


def places(proc: int, pid: str | int) -> Iterator[str]:
    """Where /proc tells of a process: once its first thread has ended, only its others show what it has."""
    yield str(pid)
    try:
        folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
        try:
            names = os.listdir(folder)
        finally:
            os.close(folder)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
    yield from (f"{pid}/task/{name}" for name in names if name != str(pid))


def _carries(proc: int, pid: str, mark: int, others: bool) -> bool:
    """Whether a living process carries the mark, or with `others` another one."""
    try:
        found = mark_of(proc, pid)
    except PermissionError:
        return True  # Only hostile code has a reason to hide, so it dies with the first tree that is killed.
    return found is not None and (found == mark) is not others
