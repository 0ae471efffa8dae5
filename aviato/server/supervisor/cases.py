"""A command that runs cases: as many processes as it takes, and a line for each verdict. Standard library only."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor.command import LAST_SAMPLE_SECONDS, Command
from aviato.server.supervisor.spawn import CaseEnds
from aviato.server.supervisor.streams import Input, Output
from aviato.server.supervisor.usage import Used
from aviato.server.supervisor.verdicts import Program

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

    from aviato.server.supervisor.loop import Loop
    from aviato.server.supervisor.spawn import Spawned
    from aviato.server.supervisor.streams import Drain

GATHERED_BYTES = 64 << 10
"""So much of verdicts waits for more of them before it is sent."""


class CaseCommand(Command):
    """A command whose standard output is what this process says of its cases: a line of JSON for each, and a last one.

    It ends with 0 if there is a verdict on each, whatever they are; and else as its process did, without the last line.
    """

    def __init__(
        self,
        loop: Loop,
        proc: int,
        spec: dict[str, Any],
        mark: int,
        changed: Callable[[Command], None],
        renew: Callable[[CaseCommand], None],
    ) -> None:
        super().__init__(loop, proc, spec, mark, changed)
        asked = spec["cases"]
        self.loop = loop
        self.spec = spec
        self.token: bytes = asked["token"].encode()
        self.limits: list[float | None] = asked["timeout_seconds"]
        self.most_bytes: int = asked["output_bytes"]
        self.done = 0
        """How many have a verdict."""
        self._renew = renew
        self._program: Program | None = None
        self._used = Used(0.0, 0.0, 0)
        self._status = 0
        self._given = bytearray()

    @property
    def complete(self) -> bool:
        """Whether there is a verdict on each."""
        return self.done >= len(self.limits)

    def started(self, spawned: Spawned, drains: set[Drain], own_peak: int) -> None:
        """A process runs: the first, or one for the cases that another has left."""
        assert isinstance(spawned.ends, CaseEnds)
        self.pid = spawned.pid
        if self._program is None:
            self._own_peak = own_peak
            self._drains = drains
            # At first it has less memory than any Python will have had at its end.
            self._next_sample = self.loop.after(LAST_SAMPLE_SECONDS, self._sample)
            self.outputs = (Output(self.loop, None, self._moved), Output(self.loop, None, self._moved))
            self.stdin = Input(self.loop, spawned.ends.stdin, kept=self._given)
        else:
            self.stdin = Input(self.loop, spawned.ends.stdin)
            self.stdin.write(0, bytes(self._given), True, _ignore)
        self._program = Program(self, spawned.ends, self.done)
        self.go_on()

    def reaped(self, status: int, used: resource.struct_rusage | Used) -> None:
        """A process is gone; others follow as long as each comes to a verdict."""
        program = self._program
        assert program is not None
        verdict = program.ended(status)
        program.close(self._drains)
        self.stdin.close()
        self._status = status
        self._used = Used(
            self._used.ru_utime + used.ru_utime,
            self._used.ru_stime + used.ru_stime,
            max(self._used.ru_maxrss, used.ru_maxrss),
        )
        if not self.given_up:
            if verdict is not None:
                self.judged(verdict)
            if self.complete:
                self.outputs[0].put(b'{"cases":%d}\n' % self.done)
                self._status = 0
            elif self.done > program.first:
                self._renew(self)
                return
            else:
                self.outputs[1].put(program.stderr)
        self.end()

    def end(self) -> None:
        """No other process follows."""
        self._given.clear()
        super().reaped(self._status, self._used)

    def acknowledge(self, stdout: int, stderr: int) -> None:
        """The server has these bytes for good; cases that waited for room go on."""
        super().acknowledge(stdout, stderr)
        self.go_on()

    def judged(self, verdict: dict[str, Any]) -> None:
        """A case is over."""
        self.done += 1
        if self.complete:
            self._glance()
        self.outputs[0].put(json.dumps(verdict, separators=(",", ":")).encode() + b"\n")
        if self.outputs[0].waiting_bytes >= GATHERED_BYTES:
            self._moved()

    def go_on(self) -> None:
        """Let the program begin a case, unless too many verdicts wait for their reader."""
        if self._program is not None and self._program.may_go and not self.outputs[0].full:
            self._program.go()

    def kill(self) -> None:
        """End the program and what is left of its group."""
        self.signal(signal.SIGKILL)

    @property
    def given_up(self) -> bool:
        """Whether somebody has ended it, so that nothing more of it runs."""
        return self.silenced or self.killed


def _ignore(_: object) -> None:
    """It has been accepted before."""
