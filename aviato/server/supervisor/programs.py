"""A command whose cases are programs, one after the other, each a process of its own. Standard library only.

What tells how a case ended is what this process sees: the status of its process, the clock, and the bytes in its pipes.
"""

from __future__ import annotations

import binascii
import fcntl
import os
import signal
from typing import TYPE_CHECKING, Any

from aviato.grading.inside.leftover import Drain, unread_bytes
from aviato.grading.inside.loop import READ
from aviato.server.supervisor.shares import Shares
from aviato.server.supervisor.spawn import Ends
from aviato.server.supervisor.streams import PIPE_BYTES
from aviato.server.supervisor.successive import SuccessiveCommand

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

    from aviato.grading.inside.loop import Loop, Timer
    from aviato.server.supervisor.command import Command
    from aviato.server.supervisor.spawn import Failure, Spawned
    from aviato.server.supervisor.usage import Used

READ_BYTES = 256 << 10
STDERR_BYTES = 64 << 10
"""What is kept of a program's stderr; who asks for programs reckons with that."""
QUIET_SECONDS = 0.5
"""Once a program has ended, what it has left may print on, as `subprocess.run` reads on until all writers have closed. When
nothing has come for so long, a writer is taken for one that only has the pipe open: a daemon must not hold each case up for
as long as it may take."""
MOST_QUIET_SECONDS = 2.0
"""So long at most they may print on where the case has no limit of its own."""
NO_INPUT_CODE = 126
"""How such a command ends where the input of the next program cannot be kept."""
STARVED_SECONDS = 60.0
"""Without a sign of those who give input and take verdicts for so long, a command that has a limit is over."""


class ProgramsCommand(SuccessiveCommand):
    """Its cases are processes of their own, each with its share of the input; what one leaves is killed before the next.

    A case begins when all of its share is there and its reader has taken enough of the verdicts before it. Until then neither
    its own clock runs nor that of the whole command: how fast bytes come and go is nothing that a program could help.
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
        super().__init__(loop, proc, spec, mark, changed, renew)
        self._programs: list[dict[str, Any]] = spec["cases"]["programs"]
        self._shares = Shares(proc, [program["input_bytes"] for program in self._programs], self._heard_of)
        self.stdin = self._shares  # type: ignore[assignment]  # all of `Input` that a command's stdin is asked for
        self._printed: tuple[Printed, Printed] | None = None
        self._ended_status: int | None = None
        """Of the process of this case, once it is gone."""
        self._since = 0.0
        self._seconds = 0.0
        self._late = False
        self._clock: Timer | None = None
        self._held = False
        """The next case waits for its input, or for room."""
        self._heard = 0.0
        """When there was a sign of those whom it waits for."""
        self._left: float | None = None
        """Of the limit of all of it, while that stands still."""
        self._too_late_for_all: Callable[[Command], None]

    @property
    def running(self) -> bool:
        """Whether it is not over, be it that no process of it lives for the moment."""
        return self.status is None

    @property
    def unfinished(self) -> bool:
        """See `Command.unfinished`. Held, it needs somebody else."""
        return self.result is None and not self._held

    @property
    def given_up(self) -> bool:
        """Whether somebody has ended it. A case over the limit of memory is no end of those after it."""
        return self.silenced or self.timed_out or self.cancelled or self.last_words is not None

    @property
    def next_spec(self) -> dict[str, Any]:
        """What the next process is started as."""
        return {**self._spec, "command": self._programs[self.done]["command"]}

    @property
    def input_file(self) -> tuple[int, int] | None:
        """Device and number of the file that a program was given last."""
        return self._shares.given

    def begin(self, drains: set[Drain], own_peak: int) -> None:
        """It is on record; its first process follows."""
        super().begin(drains, own_peak)
        self._shares.begin(0)
        self._renew(self)

    def limit(self, seconds: float | None, too_late: Callable[[Command], None]) -> None:
        """See `Command.limit`. It stands still while a case waits for what comes from outside."""
        self._too_late_for_all = too_late
        if seconds is not None and not self._held:
            self._limit = self.loop.limit(seconds, lambda: too_late(self))
        else:
            self._left = seconds

    def may_begin(self) -> bool:
        """See `SuccessiveCommand.may_begin`. Where it may not, the limit of all of it stands still."""
        self._held = self.outputs[0].full or not self._shares.whole
        if self._held and self._limit is not None:
            self._heard = self.loop.now()
            self._left = max(0.0, self._limit.due - self._heard)
            self._limit.cancel()
            self._limit = self.loop.after(STARVED_SECONDS, self._starved)
        return not self._held

    def open_input(self) -> int | None:
        """See `SuccessiveCommand.open_input`: its share."""
        try:
            return self._shares.open()
        except OSError as error:
            self._status = NO_INPUT_CODE << 8
            self._say(
                f"aviato: no room for the {self._programs[self.done]['input_bytes']} bytes of its input: {error.strerror}"
            )
            raise

    def started(self, spawned: Spawned, drains: set[Drain], own_peak: int) -> None:
        """The process of a case runs."""
        assert isinstance(spawned.ends, Ends)
        _, stdout, stderr = spawned.ends
        assert stdout is not None and stderr is not None
        self.pid = spawned.pid
        self._own_peak = max(self._own_peak, own_peak)
        self.oom_killed = False
        most = self._programs[self.done]["output_bytes"]
        self._printed = (
            Printed(self.loop, stdout, most, self._look_at_pipes),
            Printed(self.loop, stderr, STDERR_BYTES, self._look_at_pipes),
        )
        self._since = self.loop.now()
        self._late, self._ended_status = False, None
        limit = self.limits[self.done]
        if limit is not None:
            self._clock = self.loop.limit(limit, self._too_late)

    def reaped(self, status: int, used: resource.struct_rusage | Used) -> None:
        """The process of a case is gone: its verdict comes when its pipes are empty."""
        assert self._printed is not None
        now = self.loop.now()
        self.pid = None
        self._seconds = now - self._since
        self._stop_clock()
        self.add_usage(status, used)
        self._ended_status = status
        for one in self._printed:
            one.catch_up()
        self._look_at_pipes()
        if self._ended_status is not None:
            limit = self.limits[self.done]
            self._wait_for_writers(now, now + MOST_QUIET_SECONDS if limit is None else self._since + limit)

    def not_started(self, failure: Failure) -> None:
        """The program of a case could not be started: that is its verdict, and the end where it is the first."""
        if self._printed is None:
            self.stdin.close()
            self.failed(failure)
            self._moved()
            return
        verdict = self._verdict(failure.returncode, None, b"", failure.message.encode(errors="surrogateescape") + b"\n")
        self._next({**verdict, "started": False})

    def acknowledge(self, stdout: int, stderr: int) -> None:
        """The server has these bytes for good; a case that waited for room begins."""
        self._heard = self.loop.now()
        super().acknowledge(stdout, stderr)

    def go_on(self) -> None:
        """Begin the case that is held, if it may."""
        if self._held and self._shares.whole and not self.outputs[0].full:
            self._held = False
            if self._left is not None:
                if self._limit is not None:
                    self._limit.cancel()
                left, self._left = self._left, None
                self.limit(left, self._too_late_for_all)
            self._renew(self)

    def give_up(self) -> None:
        """Somebody has ended it: no process may be there whose end would be the end of it."""
        if self._held:
            self._held = False
            self.end()

    def _heard_of(self) -> None:
        """Some input has come."""
        self._heard = self.loop.now()
        self.go_on()

    def _starved(self) -> None:
        left = self._heard + STARVED_SECONDS - self.loop.now()
        if left > 0:
            self._limit = self.loop.after(left, self._starved)
        else:
            self._too_late_for_all(self)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_late(self) -> None:
        self._clock = None
        self._late = True
        self.kill()

    def _wait_for_writers(self, since: float, until: float) -> None:
        """End the case at a time, or as soon as nothing has come for long; see `QUIET_SECONDS`."""
        assert self._printed is not None
        heard = max(since, *(one.heard for one in self._printed))
        left = min(heard + QUIET_SECONDS, until) - self.loop.now()
        if left <= 0 or self._late or self.given_up:
            self._over()
        else:
            self._clock = self.loop.after(left, lambda: self._wait_for_writers(since, until))

    def _look_at_pipes(self) -> None:
        """Whether it is gone and nobody can print any more."""
        if self._ended_status is not None and self._printed is not None and all(one.at_end for one in self._printed):
            self._over()

    def _over(self) -> None:
        assert self._printed is not None and self._ended_status is not None
        status, self._ended_status = self._ended_status, None
        self._stop_clock()
        out, err = self._printed
        for one in self._printed:
            one.catch_up()
            one.close(self._drains)
        by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = 128 + by_signal if by_signal else os.WEXITSTATUS(status)
        verdict = self._verdict(code, by_signal, bytes(out.kept), bytes(err.kept))
        verdict.update(stdout_bytes_total=out.total, stderr_bytes_total=err.total, duration_seconds=round(self._seconds, 6))
        # A case over the limit of memory is no end of those after it.
        verdict["oom_killed"], self.oom_killed = self.oom_killed, False
        if self._late or verdict["oom_killed"]:
            verdict.update(returncode=137, signal=int(signal.SIGKILL), timed_out=self._late)
        self._next(verdict)

    def _verdict(self, returncode: int, by_signal: int | None, out: bytes, err: bytes) -> dict[str, Any]:
        return {
            "started": True,
            "returncode": returncode,
            "signal": by_signal,
            "timed_out": False,
            "oom_killed": False,
            "duration_seconds": 0.0,
            "stdout": binascii.b2a_base64(out, newline=False).decode(),
            "stderr": binascii.b2a_base64(err, newline=False).decode(),
            "stdout_bytes_total": len(out),
            "stderr_bytes_total": len(err),
        }

    def _next(self, verdict: dict[str, Any]) -> None:
        """The verdict on a case, and what follows it."""
        if self.given_up:
            self.end()
            return
        needed = self._programs[self.done]["required"]
        self.judged(verdict)
        if self.complete:
            self.end_complete()
        elif needed and verdict["returncode"] != 0:
            self._status = 0  # Nobody has to run what comes after it.
            self.end()
        else:
            self._shares.begin(self.done)
            self._renew(self)


class Printed:
    """One stream of a program: its beginning is kept, and all of it is counted."""

    def __init__(self, loop: Loop, fd: int, most_bytes: int, changed: Callable[[], None]) -> None:
        self.kept = bytearray()
        self.total = 0
        self.heard = 0.0
        """When something came last."""
        self._loop = loop
        self._fd: int | None = fd
        self._most_bytes = most_bytes
        self._changed = changed
        loop.watch(fd, READ, self._ready)

    @property
    def at_end(self) -> bool:
        """Whether nobody can write any more."""
        return self._fd is None

    def catch_up(self) -> None:
        """Read what is there; somebody left behind may write for ever."""
        if self._fd is not None:
            target = self.total + unread_bytes(self._fd)
            while self._read() and self.total < target:
                pass

    def close(self, drains: set[Drain]) -> None:
        """Read no more; whoever can still write neither blocks nor dies of that."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._loop.forget(fd)
            Drain(self._loop, fd, drains)

    def _ready(self, events: int) -> None:
        self._read()
        if self._fd is None:
            self._changed()

    def _read(self) -> bool:
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = None
            return False
        if not self.total and len(data) >= READ_BYTES >> 2:
            self._grow(self._fd)
        self.total += len(data)
        self.heard = self._loop.now()
        self.kept += data[: self._most_bytes - len(self.kept)]
        return True

    def _grow(self, fd: int) -> None:
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # Its user has too much in pipes already.
