"""A command that runs cases in a program of ours: as many processes as it takes. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.grading.inside.verdicts import Program
from aviato.server.supervisor.spawn import CaseEnds
from aviato.server.supervisor.streams import Input
from aviato.server.supervisor.successive import SuccessiveCommand, ignore

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

    from aviato.grading.inside.leftover import Drain
    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.command import Command
    from aviato.server.supervisor.spawn import Spawned
    from aviato.server.supervisor.usage import Used


class CaseCommand(SuccessiveCommand):
    """One whose processes run one case after the other, each from the first that is left on."""

    def __init__(
        self,
        loop: Loop,
        proc: int,
        spec: dict[str, Any],
        mark: int,
        changed: Callable[[Command], None],
        renew: Callable[[SuccessiveCommand], None],
    ) -> None:
        super().__init__(loop, proc, spec, mark, changed, renew)
        self.token: bytes = spec["cases"]["token"].encode()
        self.most_bytes: int = spec["cases"]["output_bytes"]
        self.report_bytes: int = spec["cases"].get("report_bytes") or self.most_bytes
        self._program: Program | None = None
        self._given = bytearray()

    def started(self, spawned: Spawned, drains: set[Drain], own_peak: int) -> None:
        """A process runs: the first, or one for the cases that another has left."""
        assert isinstance(spawned.ends, CaseEnds)
        self.pid = spawned.pid
        if self._program is None:
            self.begin(drains, own_peak)
            self.stdin = Input(self.loop, spawned.ends.stdin, kept=self._given)
        else:
            self.stdin = Input(self.loop, spawned.ends.stdin)
            self.stdin.write(0, bytes(self._given), True, ignore)
        self._program = Program(self, spawned.ends, self.done)
        self.go_on()

    def reaped(self, status: int, used: resource.struct_rusage | Used) -> None:
        """A process is gone; others follow as long as each comes to a verdict."""
        program = self._program
        assert program is not None
        verdict = program.ended(status)
        program.close(self._drains)
        self.stdin.close()
        self.add_usage(status, used)
        if not self.given_up:
            if verdict is not None:
                self.judged(verdict)
            if self.complete:
                self.end_complete()
                return
            if self.done > program.first:
                self._renew(self)
                return
            self.outputs[1].put(program.stderr)
        elif self.oom_killed and not self.silenced and verdict is not None:
            # None follows, but what this one has printed and reported is known.
            self.judged({**verdict, "reason": "out_of_memory", "message": "killed at the memory limit"})
        self.end()

    def end(self) -> None:
        """No other process follows."""
        self._given.clear()
        super().end()

    def go_on(self) -> None:
        """Let the program begin a case, unless too many verdicts wait for their reader."""
        if self._program is not None and self._program.may_go and not self.outputs[0].full:
            self._program.go()
