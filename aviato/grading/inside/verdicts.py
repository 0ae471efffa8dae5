"""The verdicts on cases that `broker.py` makes, which process 1 makes alike: follows one process of the program `cases.py`.

The program is a process of the sandbox like any other, and code under test runs in it. What tells that a case has passed is a
record that it writes after the case's last statement; when that has come, what the case has printed is taken to be its own and
the next one may begin. All that is believed is read here, where nobody inside can write: a process that ends, is killed or
stands still without a record has not passed. Those cases that are left then begin in another process.

Standard library only, and Python 3.8 has to take it.
"""

from __future__ import annotations

import functools
import os
import select
from typing import TYPE_CHECKING, Any

from aviato.grading.inside.leftover import Drain, unread_bytes
from aviato.grading.inside.loop import READ

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.grading.inside.broker import Ends, Task
    from aviato.grading.inside.loop import Timer

READ_BYTES = 64 << 10
DRAIN_READS = 32
LARGEST_RECORD_BYTES = 64 << 10
SIZE_BYTES = 8
CLOSED_SECONDS = 0.1
"""So long after nobody can record any more the process is given up, if it has not ended."""
BEGIN, PASSED, FAILED, LAST = b"begin", b"passed", b"failed", b"last"
GIVEN_REASONS = frozenset({"assertion", "exception", "out_of_memory", "ended_early", "skipped", "not_checked", "not_separable"})
"""That the program may give for a case that failed."""


class Program:
    """One process that runs cases, from the first that is left on."""

    def __init__(self, command: Task, ends: Ends, first: int) -> None:
        self.first = first
        """How many cases had a verdict before."""
        self.begun = False
        """Whether a case is under way, or was left by the process's end."""
        self.timed_out = False
        self.may_go = True
        """It waits to be told to go on, or with which case to begin."""
        self._unheard = False
        """Killed, since it can record nothing any more."""
        self._told = False
        self._ready = False
        self._over = False
        self._command = command
        self._record = b""
        self._texts = {ends.stdout: b"", ends.stderr: b""}
        self._ends = ends
        self._watched: set[int] = set()
        self._timer: Timer | None = None
        self._since = command.loop.now()
        self._printed = select.poll()
        for fd in self._texts:
            self._printed.register(fd, select.POLLIN)
            self._watch(fd, functools.partial(self._take, fd))
        self._watch(ends.record, self._recorded)

    @property
    def stderr(self) -> bytes:
        """What it has written there since the last verdict."""
        return self._texts[self._ends.stderr]

    def go(self) -> None:
        """Begin the next case."""
        self.may_go = False
        if self._told:
            self._begin()
        try:
            os.write(self._ends.go, b"g" if self._told else b"%d\n" % self.first)
            self._told = True
        except OSError:
            # It is over, as will be heard, and what it was not told has not begun.
            self.begun = False
            self._stop_clock()

    def ended(self, status: int) -> dict[str, Any] | None:
        """The process is gone; the verdict on a case that was under way."""
        self._over = True  # A record that is read now lets nothing begin.
        for _ in range(DRAIN_READS):  # somebody left behind may write for ever
            if not self._take_record():
                break
        self._drain()
        if not self._has_begun():
            return None
        verdict = self._verdict(passed=False)
        if self.timed_out:
            verdict.update(reason="timed_out", message="the case ran longer than its time limit")
        elif self._unheard:
            verdict["message"] = "the code spoilt what its end would have been told by"
        elif os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            verdict.update(reason="killed", message=f"killed by signal {number}", signal=number)
        else:
            verdict["message"] = f"the process ended with code {os.WEXITSTATUS(status)} before the last assertion"
        return verdict

    def close(self, drains: set[Drain]) -> None:
        """Let go of its pipes; those that somebody may still write to are read until he has gone."""
        self._stop_clock()
        for fd in (self._ends.stdout, self._ends.stderr, self._ends.record):
            if fd in self._watched:
                self._forget(fd)
                Drain(self._command.loop, fd, drains)
            else:
                os.close(fd)
        os.close(self._ends.go)

    def _has_begun(self) -> bool:
        """Whether it had come as far as a case that has no verdict."""
        if self._command.done == self.first and self._ready:
            return True
        if not self.begun and self._command.done > self.first:
            return False
        # What it was told last may be unread. It says itself that it begins only where there is a limit, or a verdict.
        return self._told and unread_bytes(self._ends.go) == 0

    # -- reading --------------------------------------------------------------------------------------------------------

    def _watch(self, fd: int, handler: Callable[[int], None]) -> None:
        self._watched.add(fd)
        self._command.loop.watch(fd, READ, handler)

    def _forget(self, fd: int) -> None:
        if fd in self._watched:
            self._watched.remove(fd)
            if fd in self._texts:
                self._printed.unregister(fd)
            self._command.loop.forget(fd)

    def _take(self, fd: int, events: int) -> None:
        """Read once; what is too much is read and dropped."""
        data = self._read(fd)
        room = self._command.most_bytes - len(self._texts[fd])
        if data and room > 0:
            self._texts[fd] += data[:room]

    def _read(self, fd: int) -> bytes:
        if fd not in self._watched:
            return b""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._forget(fd)
        return data

    def _drain(self) -> None:
        """Take what has been printed by now; somebody left behind may print for ever."""
        for _ in range(DRAIN_READS):
            ready = self._printed.poll(0)
            for fd, events in ready:
                self._take(fd, events)
            if not ready:
                return

    def _recorded(self, events: int) -> None:
        self._take_record()

    def _take_record(self) -> bool:
        """Read once; False: there was nothing."""
        watched = self._ends.record in self._watched
        data = self._read(self._ends.record)
        self._record += data
        if data and not self._whole_records():
            # Nobody writes such a thing by mistake, and nothing that comes after it can be told from it.
            self._forget(self._ends.record)
            self._give_up()
        elif watched and not data and self._ends.record not in self._watched and not self._over:
            # Closed, by its end as a rule.
            self._stop_clock()
            self._timer = self._command.loop.after(CLOSED_SECONDS, self._give_up)
        return bool(data)

    def _give_up(self) -> None:
        """It can record nothing any more."""
        if not self._over:
            self._unheard = True
            self._command.kill()

    def _whole_records(self) -> bool:
        """Handle those that are whole; False if what has come is none."""
        token = self._command.token
        head = len(token) + SIZE_BYTES
        while len(self._record) >= head:
            if not self._record.startswith(token):
                return False
            try:
                size = int(self._record[len(token) : head])
            except ValueError:
                return False
            if not 0 <= size <= LARGEST_RECORD_BYTES:
                return False
            if len(self._record) < head + size:
                return True
            body, self._record = self._record[head : head + size], self._record[head + size :]
            self._handle(body)
        return True

    # -- verdicts -------------------------------------------------------------------------------------------------------

    def _handle(self, body: bytes) -> None:
        kind, _, rest = body.partition(b"\0")
        if kind == BEGIN and self._told and not self._ready:
            self._ready = True
            self._begin(rest)
        elif kind in (PASSED, FAILED, LAST) and self.begun:
            self._stop_clock()
            self._drain()
            verdict = self._verdict(passed=kind == PASSED)
            if kind != PASSED:
                reason, message, trace = ([*rest.decode("utf-8", "replace").split("\0"), "", ""])[:3]
                if reason in GIVEN_REASONS:
                    verdict.update(reason=reason, message=message, traceback=trace)
            self.begun = False
            self._texts = dict.fromkeys(self._texts, b"")
            self._command.judged(verdict)
            if kind == LAST or self._command.complete:
                self._forget(self._ends.record)
                self._command.kill()
            elif not self._over:
                self.may_go = True
                self._command.go_on()

    def _begin(self, told: bytes = b"") -> None:
        self.begun = True
        now = self._command.loop.now()
        try:
            # By the program's own clock, which is this one's; how long a case took is all that depends on it.
            self._since = min(max(float(told), self._since), now)
        except ValueError:
            self._since = now
        limit = self._command.limits[self._command.done]
        if limit is not None:
            self._timer = self._command.loop.limit(limit, self._too_late)

    def _too_late(self) -> None:
        late = self._command.done
        self._take_record()
        if self._command.done == late:
            self.timed_out = True
            self._forget(self._ends.record)
            self._command.kill()

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _verdict(self, passed: bool) -> dict[str, Any]:
        out, err = (text.decode("utf-8", "replace") for text in self._texts.values())
        verdict: dict[str, Any] = {
            "passed": passed,
            "reason": "passed" if passed else "ended_early",
            "message": "",
            "duration_seconds": self._command.loop.now() - self._since,
            "stdout": out,
            "stderr": err,
        }
        return verdict
