"""Limits that are kept by looking: what goes beyond one is killed. Standard library only.

Nothing is looked at while no command's process lives, and next to nothing while none has run since the last look.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor import memory
from aviato.server.supervisor.buffers import Buffers
from aviato.server.supervisor.disk import Disk
from aviato.server.supervisor.group import Group
from aviato.server.supervisor.kernel_memory import KernelMemory
from aviato.server.supervisor.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from aviato.grading.inside.loop import Job, Loop
    from aviato.server.supervisor.command import Command
    from aviato.server.supervisor.commands import Commands

SAMPLE_SECONDS = 0.1
SHORTEST_SECONDS = 0.01
"""Between two looks at a sandbox that would be at its limit before the next one."""
COUNTS = {
    "watches": "watches of epoll",
    "filters": "filters of system calls",
    "orphans": "closed connections with bytes that nobody took",
    "tcp_bytes": "bytes in connections",
    "udp_bytes": "bytes in datagrams",
}
"""What the machine, or the server's user, has so much of for all: names of the limits, and what they are called."""
REST = 20
"""So many times as long as an exact look took there is no other, while the rough one grows by less than there is room."""


class Watch:
    """The watched limits of one sandbox.

    Args:
        loop: of process 1.
        proc: descriptor of /proc.
        layer: descriptor of the writable layer.
        sockets: descriptor that tells what sockets hold.
        commands: who is to blame.
        trouble: told of what nobody foresaw.
    """

    def __init__(
        self, loop: Loop, proc: int, layer: int, sockets: int, commands: Commands, trouble: Callable[[Exception], None]
    ) -> None:
        self._loop = loop
        self._proc = proc
        self._layer = layer
        self._commands = commands
        self._trouble = trouble
        self._processes = memory.Processes(proc)
        self._kernel = KernelMemory(loop, proc)
        self.disk = Disk(loop, proc, layer, self._processes, self._disk_full, commands.input_files)
        self._memory: int | None = None
        self._most: int | None = None
        self._most_of: dict[str, int] = {}
        self._group: Group | None = None
        self._swap = False
        self._stores: memory.Stores | None = None
        self._segments = Segments(proc)
        self._buffers = Buffers(proc, sockets)
        self._job: Job | None = None
        self._rough = 0
        self._nameless: dict[int, int] = {}
        self._unsure = False
        """The rough measure is beyond the limit, and it was not time for the exact one."""
        self._exact: tuple[float, int, int] | None = None

    def keep_in_group(self, control: int, most: int | None) -> None:
        """The kernel keeps the limit of memory; for the descriptors of what its control group counts see `Group`."""
        self._group = Group(self._proc, control, most)
        self._commands.on_exited = self.exited

    def commands_have_a_filter(self) -> None:
        """One of system calls, beside that of process 1."""
        self._kernel.given_filters = 1

    def limit(self, limits: dict[str, Any]) -> None:
        """Keep these: `memory`, `disk`, `inodes`, `processes` and those of `COUNTS`, each None for none; `swap`,
        `layer_in_memory` and `machines_root` (whether /dev/shm and its like are not the sandbox's own) say how things are.
        """
        self._memory = limits.get("memory")
        self._most_of = {name: most for name in COUNTS if (most := limits.get(name)) is not None}
        self._most = limits.get("processes")
        self._swap = bool(limits.get("swap"))
        own = not limits.get("machines_root")
        self._stores = memory.Stores(own)
        if not own:
            self._segments = Segments(self._proc, own=False)
        if limits.get("layer_in_memory"):
            self._stores.add(self._layer)
        if self._group is not None:
            self._group.limit = limits.get("group_memory", 0)
        self.disk.limit(limits.get("disk"), limits.get("inodes"))
        self._commands.attended = self._watches

    def begin(self, pause_seconds: float = SAMPLE_SECONDS) -> None:
        """A command has started; the first look comes after a pause."""
        if self._watches and (self._job is None or self._job.done):
            self._job = self._loop.start(self._looks(pause_seconds))

    @property
    def _watches(self) -> bool:
        limits = (self._group, self._memory, self._most)
        return self.disk.limited or bool(self._most_of) or any(limit is not None for limit in limits)

    def _looks(self, pause_seconds: float) -> Iterator[float]:
        """A job that goes on for as long as any process lives."""
        yield pause_seconds  # Most commands are over by then; who means harm could as well wait for a look to be over.
        while True:
            pause = SAMPLE_SECONDS
            try:
                changed = self._processes.look()
                if not self._processes:
                    self.disk.touched()
                    return
                if changed:
                    self.disk.touched()
                    for command in self._commands:
                        command.look_again()
                if self._most is not None and len(self._processes) > self._most:
                    self._too_many(self._most)
                if self._memory is not None or self._most_of:
                    before = self._kernel.bytes
                    all_of_it = self._memory is not None or "watches" in self._most_of
                    yield from self._kernel.look(self._processes.ran, all_of_it=all_of_it)
                    changed = changed or before is not self._kernel.bytes
                if changed or self._unsure:
                    yield from self._buffers.look()
                self._limit_counts()
                if self._group is not None:
                    if changed:
                        yield from self._group.look(self._processes)
                    self._blame(None)
                elif self._memory is not None and (changed or self._unsure or self.disk.nameless != self._nameless):
                    pause = yield from self._look_at_memory(self._memory)
            except OSError as error:
                if error.errno == errno.EMFILE:
                    # Someone inside took our descriptors away by prlimit. What cannot be watched must not go on.
                    self._commands.kill_all("aviato: killed: the sandbox took the means to watch its limits away")
                else:
                    self._trouble(error)
            except Exception as error:
                self._trouble(error)
            yield pause

    def exited(self, command: Command, status: int) -> None:
        """A command's own process has ended: because the kernel killed something at the limit of memory?"""
        if self._group is not None:
            self._blame(command if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else None)

    def _blame(self, killed: Command | None) -> None:
        """If the kernel has killed a process for its memory, the rest of its command goes the same way."""
        assert self._group is not None
        if self._group.has_killed():
            self._loop.start(self._segments.remove())
            running = [command for command in self._commands if command.running]
            mark = killed.mark if killed is not None else self._group.suspect(running)
            if mark is not None:
                self._commands.out_of_memory(mark)

    def _look_at_memory(self, limit: int) -> Generator[float, None, float]:
        """Returns how long to wait before the next look."""
        assert self._stores is not None
        pids = list(self._processes)
        self._nameless = self.disk.nameless
        stored = self._stores.used_bytes() + sum(self._nameless.values())
        stored += yield from self._segments.used_bytes()
        rough = yield from memory.rough_bytes(self._proc, pids, self._swap)
        buffers = self._buffers.bytes
        rough += stored + buffers + sum(self._kernel.bytes.values())
        grown, self._rough = rough - self._rough, rough
        self._unsure = rough > limit and not self._is_due(rough, limit)
        if rough > limit and not self._unsure:
            began = self._loop.now()
            shares = yield from memory.exact(self._proc, pids, self._nameless, self._kernel.bytes)
            used = shares.total(stored) + buffers
            now = self._loop.now()
            self._exact = (now + REST * (now - began), rough, used)
            if used > limit and shares.bytes:
                self._too_much(shares)
                return SHORTEST_SECONDS
        room = max(0, limit - rough)
        if grown > 0 and rough <= limit and room < 2 * grown:
            return max(SHORTEST_SECONDS, SAMPLE_SECONDS * room / (2 * grown))
        return SAMPLE_SECONDS

    def _is_due(self, rough: int, limit: int) -> bool:
        """Whether to look exactly: it is time, or more has come than there was room."""
        if self._exact is None:
            return True
        due, rough_then, used_then = self._exact
        return self._loop.now() >= due or rough - rough_then >= limit - used_then

    def _too_much(self, shares: memory.Shares) -> None:
        self._exact = None
        self._loop.start(self._segments.remove())
        self.disk.nameless = {}  # Whoever is killed holds none any more; the next count finds the others'.
        mark = shares.largest()
        if mark is not None and self._commands.out_of_memory(mark):
            return
        for pid in shares.pids[mark]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _too_many(self, limit: int) -> None:
        # Who forks as fast as this is not counted one by one.
        self._commands.kill_all(f"aviato: killed: the sandbox's limit of {limit} processes is reached")

    def _limit_counts(self) -> None:
        found = {"watches": self._kernel.watches, "filters": self._kernel.filters, "orphans": self._buffers.orphans}
        found |= {"tcp_bytes": self._buffers.tcp_bytes, "udp_bytes": self._buffers.udp_bytes}
        for name, most in self._most_of.items():
            if found[name] > most:
                self._commands.kill_all(f"aviato: killed: the sandbox's limit of {most} {COUNTS[name]} is reached")
                return

    def _disk_full(self, limit: str) -> None:
        # Whose the files are cannot be told, so it is all of them.
        self._commands.kill_all(f"aviato: killed: the sandbox's limit of {limit} is reached")
