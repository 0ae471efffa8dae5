"""A command of several cases and as many processes as they take, with a line for each verdict. Standard library only."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor.command import LAST_SAMPLE_SECONDS, Command
from aviato.server.supervisor.streams import Output
from aviato.server.supervisor.usage import Used

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

    from aviato.grading.inside.leftover import Drain
    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.spawn import Failure

GATHERED_BYTES = 64 << 10
"""So much of verdicts waits for more of them before it is sent."""


class SuccessiveCommand(Command):
    """A command whose standard output is what this process says of its cases: a line of JSON for each, and a last one.

    It ends with 0 if there is a verdict on each, whatever they are; and else as its last process did, without the last line.
    """

    def __init__(
        self,
        loop: Loop,
        proc: int,
        spec: dict[str, Any],
        mark: int,
        changed: Callable[[Command], None],
        renew: Callable[[SuccessiveCommand], None],
    ) -> None:
        super().__init__(loop, proc, spec, mark, changed)
        self.loop = loop
        self.limits: list[float | None] = spec["cases"]["timeout_seconds"]
        self.done = 0
        """How many have a verdict."""
        self._spec = spec
        self._renew = renew
        self._used = Used(0.0, 0.0, 0)
        self._status = 0

    @property
    def next_spec(self) -> dict[str, Any]:
        """What the next process is started as."""
        return self._spec

    @property
    def complete(self) -> bool:
        """Whether there is a verdict on each."""
        return self.done >= len(self.limits)

    @property
    def given_up(self) -> bool:
        """Whether somebody has ended it, so that nothing more of it runs."""
        return self.silenced or self.killed

    def begin(self, drains: set[Drain], own_peak: int) -> None:
        """Its first process runs."""
        self._own_peak = own_peak
        self._drains = drains
        # At first it has less memory than any Python will have had at its end.
        self._next_sample = self.loop.after(LAST_SAMPLE_SECONDS, self._sample)
        self.outputs = (Output(self.loop, None, self._moved), Output(self.loop, None, self._moved))

    def may_begin(self) -> bool:
        """Whether the next process may begin. If not, it is asked for anew when it may."""
        return True

    def open_input(self) -> int | None:
        """What the next process reads as a file, the caller's; None: it is connected as the first was.

        Raises:
            OSError: it cannot be had.
        """
        return None

    def not_started(self, failure: Failure) -> None:
        """The next process could not be started: the verdicts so far are what there is."""
        self.end()

    def add_usage(self, status: int, used: resource.struct_rusage | Used) -> None:
        """Take note of a process that is gone."""
        self._status = status
        self._used = Used(
            self._used.ru_utime + used.ru_utime,
            self._used.ru_stime + used.ru_stime,
            max(self._used.ru_maxrss, used.ru_maxrss),
        )

    def end(self) -> None:
        """No other process follows."""
        super().reaped(self._status, self._used)

    def end_complete(self) -> None:
        """There is a verdict on each."""
        self.outputs[0].put(b'{"cases":%d}\n' % self.done)
        self._status = 0
        self.end()

    def acknowledge(self, stdout: int, stderr: int) -> None:
        """The server has these bytes for good; cases that waited for room go on."""
        super().acknowledge(stdout, stderr)
        self.go_on()

    def go_on(self) -> None:
        """Begin the next case, unless too many verdicts wait for their reader."""

    def judged(self, verdict: dict[str, Any]) -> None:
        """A case is over."""
        self.done += 1
        if self.complete:
            self._glance()
        self.outputs[0].put(json.dumps(verdict, separators=(",", ":")).encode() + b"\n")
        if self.outputs[0].waiting_bytes >= GATHERED_BYTES:
            self._moved()

    def kill(self) -> None:
        """End the process that runs and what is left of its group."""
        self.signal(signal.SIGKILL)


def ignore(_: object) -> None:
    """It has been accepted before."""
