"""A command whose cases are programs, one after the other, each a process of its own. Standard library only.

What tells how a case ended is what this process sees: the status of its process, the clock, and the bytes in its pipes.
"""

from __future__ import annotations

import binascii
import fcntl
import os
import signal
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor.command import LINGER_SECONDS
from aviato.server.supervisor.errors import Refused, invalid
from aviato.server.supervisor.leftover import Drain, unread_bytes
from aviato.server.supervisor.loop import READ
from aviato.server.supervisor.spawn import Ends
from aviato.server.supervisor.streams import PIPE_BYTES, Input
from aviato.server.supervisor.successive import SuccessiveCommand, ignore

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

    from aviato.server.supervisor.command import Command
    from aviato.server.supervisor.loop import Loop, Timer
    from aviato.server.supervisor.spawn import Failure, Spawned
    from aviato.server.supervisor.usage import Used

READ_BYTES = 256 << 10


class ProgramsCommand(SuccessiveCommand):
    """Its cases are processes of their own, each with its share of the input; what one leaves is killed before the next."""

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
        self._shares = Shares(loop, [program["input_bytes"] for program in self._programs])
        self._printed: tuple[Printed, Printed] | None = None
        self._ended_status: int | None = None
        """Of the process of this case, once it is gone."""
        self._since = 0.0
        self._seconds = 0.0
        self._late = False
        self._clock: Timer | None = None
        self._held = False
        """The next case waits for room."""

    @property
    def next_spec(self) -> dict[str, Any]:
        """What the next process is started as."""
        return {**self._spec, "command": self._programs[self.done]["command"]}

    def started(self, spawned: Spawned, drains: set[Drain], own_peak: int) -> None:
        """The process of a case runs."""
        assert isinstance(spawned.ends, Ends)
        stdin, stdout, stderr = spawned.ends
        assert stdin is not None and stdout is not None and stderr is not None
        self.pid = spawned.pid
        if self._printed is None:
            self.begin(drains, own_peak)
            self.stdin = self._shares  # type: ignore[assignment]  # all of `Input` that a command's stdin is asked for
        most = self._programs[self.done]["output_bytes"]
        self._printed = Printed(self.loop, stdout, most, self._look), Printed(self.loop, stderr, most, self._look)
        self._shares.attach(self.done, stdin)
        self._since = self.loop.now()
        self._late, self._ended_status = False, None
        limit = self.limits[self.done]
        if limit is not None:
            self._clock = self.loop.after(limit, self._too_late)

    def reaped(self, status: int, used: resource.struct_rusage | Used) -> None:
        """The process of a case is gone: its verdict comes when its pipes are empty."""
        assert self._printed is not None
        self._seconds = self.loop.now() - self._since
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        self._shares.close()
        self.add_usage(status, used)
        self._ended_status = status
        for one in self._printed:
            one.catch_up()
        self._look()
        if self._ended_status is not None:
            self._clock = self.loop.after(LINGER_SECONDS, self._linger_is_over)

    def not_started(self, failure: Failure) -> None:
        """The program of a case could not be started: that is its verdict."""
        verdict = self._verdict(failure.returncode, None, b"", failure.message.encode(errors="surrogateescape") + b"\n")
        self._next({**verdict, "started": False})

    def go_on(self) -> None:
        """Begin the case that waits for room."""
        if self._held and not self.outputs[0].full:
            self._held = False
            self._renew(self)

    def _too_late(self) -> None:
        self._clock = None
        self._late = True
        self.kill()

    def _linger_is_over(self) -> None:
        self._clock = None
        self._over()

    def _look(self) -> None:
        """Whether it is gone and nobody can print any more."""
        if self._ended_status is not None and self._printed is not None and all(one.at_end for one in self._printed):
            self._over()

    def _over(self) -> None:
        assert self._printed is not None and self._ended_status is not None
        status, self._ended_status = self._ended_status, None
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        out, err = self._printed
        for one in self._printed:
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
        elif self.outputs[0].full:
            self._held = True
        else:
            self._renew(self)


class Printed:
    """One stream of a program: its beginning is kept, and all of it is counted."""

    def __init__(self, loop: Loop, fd: int, most_bytes: int, changed: Callable[[], None]) -> None:
        self.kept = bytearray()
        self.total = 0
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
        self.kept += data[: self._most_bytes - len(self.kept)]
        return True

    def _grow(self, fd: int) -> None:
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # Its user has too much in pipes already.


class Shares:
    """The input of such a command: each program gets its share, in order, and the end of its stdin behind that."""

    def __init__(self, loop: Loop, sizes: list[int]) -> None:
        self.accepted = 0
        self._loop = loop
        self._sizes = sizes
        self._total = sum(sizes)
        self._kept = bytearray()
        self._base = 0
        """Where in all of the input that begins which is kept: with the share of this program."""
        self._size = 0
        self._passed = 0
        self._input: Input | None = None

    def write(self, offset: int, data: bytes, eof: bool, answer: Callable[[Refused | None], None]) -> None:
        """Take bytes that belong at an offset of all of it; see `Input.write`."""
        if offset > self.accepted:
            answer(invalid(f"stdin: offset {offset} leaves a gap after {self.accepted}"))
            return
        fresh = data[self.accepted - offset :]
        if self.accepted + len(fresh) > self._total:
            answer(Refused("EXECUTION", "stdin is longer than the shares of its programs", reason="stdin_closed"))
            return
        self._kept += fresh
        self.accepted += len(fresh)
        answer(None)
        self._pass_on()

    def attach(self, index: int, fd: int) -> None:
        """The next program reads here."""
        begin = sum(self._sizes[:index])
        del self._kept[: begin - self._base]
        self._base, self._size, self._passed = begin, self._sizes[index], 0
        self._input = Input(self._loop, fd)
        self._pass_on()

    def close(self) -> None:
        """The program that reads here is gone."""
        if self._input is not None:
            self._input.close()

    def _pass_on(self) -> None:
        there = min(len(self._kept), self._size)
        if self._input is not None and (there > self._passed or there == self._size):
            self._input.write(self._passed, bytes(self._kept[self._passed : there]), there == self._size, ignore)
            self._passed = there
