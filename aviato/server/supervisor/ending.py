"""How a sandbox ends: ask, kill, drain, say why, leave. Standard library only."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor import tree
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.commands import Commands
    from aviato.server.supervisor.connection import Connection

STEP_SECONDS = 0.005
HANG_UP_SECONDS = 0.2
WAIT_SECONDS = 0.1
KILL_SECONDS = 5.0
DRAIN_SECONDS = 1.0


class Ending:
    """One way from living to gone; a second reason that comes meanwhile changes nothing but may shorten the grace."""

    def __init__(self, loop: Loop, commands: Commands, note: int, connection: Callable[[], Connection | None]) -> None:
        self.reason: str | None = None
        self.over = False
        self._loop = loop
        self._commands = commands
        self._note = note
        self._connection = connection
        self._returncode: int | None = None
        self._deadline = 0.0
        self._step: Callable[[], bool] = self._ask
        self._patient = False
        self._busy = False

    def begin(self, reason: str, grace_seconds: float, returncode: int | None = None) -> None:
        """End the sandbox: SIGTERM, after the grace SIGKILL, output drained, ENDED.

        Args:
            reason: `exited`, `oom` (the main command's), `stopped`, `lifetime`, `idle` or `orphaned`.
            grace_seconds: 0 kills at once.
            returncode: of the main command.
        """
        now = self._loop.now()
        if self.reason is not None:
            if self._step == self._ask:
                self._deadline = min(self._deadline, now + grace_seconds)
            return
        self.reason = reason
        self._returncode = returncode
        self._patient = reason in ("exited", "oom")
        self._deadline = now + grace_seconds
        self._commands.ending = True
        if grace_seconds > 0:
            # Not only to commands that run: a server that an ended one left behind would wait for the kill.
            tree.signal_all(signal.SIGTERM)
            self._hang_up()
        self._go_on()

    def main_exited(self, returncode: int, oom_killed: bool) -> None:
        """The main command is over, be it by our own signals."""
        self._returncode = returncode
        if self.reason is None:
            self.begin("oom" if oom_killed else "exited", 0, returncode)

    def go_on(self) -> None:
        """Something happened that may bring the end nearer."""
        if self.reason is None or self.over or self._busy:
            return
        self._busy = True  # Reaping the dead, which a step does, calls back here.
        try:
            while self._step():
                pass
        finally:
            self._busy = False

    def _go_on(self) -> None:
        self.go_on()
        if not self.over:
            waiting = self._patient and self._connection() is None
            self._loop.after(WAIT_SECONDS if waiting else STEP_SECONDS, self._go_on)

    def _hang_up(self) -> None:
        """Hang terminals up, until they are gone: a shell may miss it just before it begins to wait for a key or a job."""
        if self._step == self._ask:
            self._commands.hang_up()
            self._loop.after(HANG_UP_SECONDS, self._hang_up)

    def _ask(self) -> bool:
        if self._loop.now() < self._deadline and tree.signal_all(0):
            return False
        self._deadline = self._loop.now() + KILL_SECONDS
        self._step = self._kill
        return True

    def _kill(self) -> bool:
        tree.signal_all(signal.SIGKILL)
        while self._commands.reap():
            pass
        if tree.signal_all(0) and self._loop.now() < self._deadline:
            return False
        self._deadline = self._loop.now() + DRAIN_SECONDS
        self._step = self._drain
        return True

    def _drain(self) -> bool:
        connection = self._connection()
        if connection is None:
            # A main command's output and exit code wait for the next server; the orphan timeout ends that.
            if self._patient:
                self._deadline = self._loop.now() + DRAIN_SECONDS
                return False
        elif self._loop.now() < self._deadline and not (self._commands.all_sent(self._patient) and connection.idle):
            return False
        self._say()
        return False

    def _say(self) -> None:
        self.over = True
        ended: dict[str, Any] = {"reason": self.reason, "returncode": self._returncode}
        leave_note(self._note, ended)
        self._leave_results()
        connection = self._connection()
        if connection is not None:
            connection.send_json(FrameType.ENDED, ended)
            connection.flush()
            if not connection.idle:
                self._deadline = self._loop.now() + DRAIN_SECONDS
                self._leave_when_sent()
                return
        os._exit(0)

    def _leave_results(self) -> None:
        """Leave the results that nobody has confirmed behind the note: who was cut off comes back for them."""
        for line in self._commands.unconfirmed():
            try:
                if os.write(self._note, line) < len(line):
                    return
            except OSError:
                return

    def _leave_when_sent(self) -> None:
        connection = self._connection()
        if connection is None or connection.idle or self._loop.now() >= self._deadline:
            os._exit(0)
        self._loop.after(STEP_SECONDS, self._leave_when_sent)

    def give_up(self) -> None:
        """No server came for what was left to say."""
        self._patient = False


def leave_note(note: int, value: dict[str, Any]) -> None:
    """Write a line where a later server looks for the reason."""
    try:
        os.write(note, json.dumps(value).encode() + b"\n")
    except OSError:
        pass
