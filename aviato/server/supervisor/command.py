"""One command: from its start to its result, and what subscribers see of it. Standard library only."""

from __future__ import annotations

import binascii
import json
import os
import signal
from typing import TYPE_CHECKING, Any

from aviato.grading.inside.leftover import Drain
from aviato.server.supervisor import usage
from aviato.server.supervisor.errors import invalid
from aviato.server.supervisor.spawn import Ends
from aviato.server.supervisor.streams import Input, Output
from aviato.server.supervisor.terminal import Keyboard, Screen
from aviato.wire.frames import FrameType
from aviato.wire.memory import PLACE

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

    from aviato.grading.inside.loop import Loop, Timer
    from aviato.server.supervisor.connection import Connection
    from aviato.server.supervisor.spawn import Failure, Spawned
    from aviato.server.supervisor.takeover import Taken

LENT_BYTES = 512 << 10
LENT_SECONDS = 0.001
LINGER_SECONDS = 0.1
"""How long after its exit a command's pipes may stay open before the result comes without their end."""
FIRST_SAMPLE_SECONDS = 0.004
LAST_SAMPLE_SECONDS = 0.1
SAMPLE_FACTOR = 4
"""By which pauses between two looks at a command's memory grow, from the one to the other: most commands are short, and only
what has less than this process itself needs any; see `usage`."""


class Command:
    """A command on record. `result` is set once it is over."""

    def __init__(self, loop: Loop, proc: int, spec: dict[str, Any], mark: int, changed: Callable[[Command], None]) -> None:
        self.exec_id: str = spec["exec_id"]
        self.main: bool = spec["main"]
        self.terminal = spec.get("terminal") is not None
        self.fingerprint = fingerprint(spec)
        self.mark = mark
        self.pid: int | None = None
        self.status: int | None = None
        self.result: dict[str, Any] | None = None
        self.silenced = False
        """Ended by the sandbox's own end: it gets no result."""
        self.timed_out = False
        self.cancelled = False
        self.attended = False
        """Whether `look_again` will be called from time to time."""
        self.oom_killed = False
        self.last_words: str | None = None
        """Of one that was killed with all others: a line for its stderr, or its terminal."""
        self.subscriber: Subscriber | None = None
        self.outputs: tuple[Output, Output]
        self.stdin: Input
        self._loop = loop
        self._proc = proc
        self._changed = changed
        self._started = loop.now()
        self._ended = 0.0
        self._lingered = False
        self._limit: Timer | None = None
        self._next_sample: Timer | None = None
        self._own_peak = 0
        self._peak: int | None = None
        self._pause = FIRST_SAMPLE_SECONDS
        self._looked = 0.0
        self._ran: int | None = None
        self._usage: dict[str, Any] = {}

    @property
    def running(self) -> bool:
        """Whether its own process has not been reaped yet."""
        return self.pid is not None and self.status is None

    @property
    def unfinished(self) -> bool:
        """Whether it has begun and its result comes when its process and its pipes are done."""
        return self.pid is not None and self.result is None

    @property
    def killed(self) -> bool:
        """Whether it was ended from here, for a reason that its result tells."""
        return self.timed_out or self.cancelled or self.oom_killed or self.last_words is not None

    @property
    def delivered(self) -> bool:
        """Whether its result has been sent to the one who listens."""
        return self.subscriber is not None and self.subscriber.over

    def failed(self, failure: Failure) -> None:
        """It could not be started: say so on stderr, or on its terminal, as a shell would."""
        self._connect(None, None, None)
        self._say(failure.message)
        self.status = failure.returncode << 8
        self._ended = self._started
        self._finish()

    def started(self, spawned: Spawned, drains: set[Drain], own_peak: int) -> None:
        """It runs."""
        assert isinstance(spawned.ends, Ends)
        self.pid = spawned.pid
        self._own_peak = own_peak
        self._sample()  # First of all: some are over in no time.
        self._drains = drains
        self._connect(*spawned.ends)

    def _connect(self, stdin: int | None, stdout: int | None, stderr: int | None) -> None:
        first = Screen if self.terminal else Output
        self.outputs = (first(self._loop, stdout, self._moved), Output(self._loop, stderr, self._moved))
        self.stdin = (Keyboard if self.terminal else Input)(self._loop, stdin)

    def take_over(self, taken: Taken) -> None:
        """Go on where compiled code has brought it; before, `started` where it runs."""
        if taken.pid is None:
            self._connect(None, None, None)
            self.status = 0
            self.result = taken.result
        for output, stream in zip(self.outputs, (taken.stdout, taken.stderr), strict=True):
            output.put(stream.data)
        self.stdin.close()
        self._started = taken.started
        self._own_peak = taken.own_peak
        self._peak = max(self._peak or 0, taken.peak or 0) or None

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call back once."""
        self._loop.after(seconds, call)

    def lend(self, fd: int) -> bool:
        """Have memory for large output, for the subscriber who began it; False where it is of no use and stays the caller's."""
        if self.terminal or self.result is not None or type(self) is not Command:
            return False
        self.outputs[0].lend(fd)
        return True

    def listen(self, subscriber: Subscriber | None) -> None:
        """Have this listener from now on, or none. Who has lent memory and listens no more has no say any more."""
        self.subscriber = subscriber
        if subscriber is None or not subscriber.has_lent:
            self.give_back()

    def give_back(self) -> None:
        """Let go of memory that was lent."""
        self.outputs[0].give_back()

    def limit(self, seconds: float | None, too_late: Callable[[Command], None]) -> None:
        """Start the clock of its time limit."""
        if seconds is not None:
            self._limit = self._loop.after(seconds, lambda: too_late(self))

    def signal(self, number: int) -> None:
        """Send a signal to its process group, while its own process keeps the number of the group from being used again."""
        if self.running and self.pid is not None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def give_up(self) -> None:
        """Somebody has ended it, as it says: it is over when its process is."""

    def hang_up(self) -> None:
        """Hang its terminal up, if it has one: a shell at a prompt ignores SIGTERM, and who is stopped cannot hear."""
        if isinstance(self.outputs[0], Screen):
            for number in (signal.SIGHUP, signal.SIGCONT):
                self.signal(number)
                self.outputs[0].signal(number)

    def resize(self, width: int, height: int) -> None:
        """Give its terminal another size; nothing happens once it has ended.

        Raises:
            Refused: it has no terminal.
        """
        screen = self.outputs[0]
        if not isinstance(screen, Screen):
            raise invalid(f"{self.exec_id!r} has no terminal")
        screen.resize(width, height)

    def reaped(self, status: int, used: resource.struct_rusage | usage.Used) -> None:
        """Its own process is gone; the result comes when its pipes are empty."""
        self._ended = self._loop.now()
        self.status = status
        for timer in (self._limit, self._next_sample):
            if timer is not None:
                timer.cancel()
        self._usage = {
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 6),
            "max_rss_bytes": usage.peak_bytes(self._own_peak, self._peak, used.ru_maxrss << 10),
        }
        self.stdin.close()
        for output in self.outputs:
            output.mark_exit()
        self._lingered = False
        self._moved()
        if self.result is None:
            self._loop.after(LINGER_SECONDS, self._linger_over)

    def acknowledge(self, stdout: int, stderr: int) -> None:
        """The server has these bytes for good."""
        for output, offset in zip(self.outputs, (stdout, stderr), strict=True):
            output.acknowledge(offset)
        self._moved()

    def left_behind(self) -> bytes:
        """Its result and what was not confirmed of its output, for a later reader. One line, whatever it printed."""
        kept = [[output.base, binascii.b2a_base64(output.rest, newline=False).decode()] for output in self.outputs]
        return json.dumps({"exec_id": self.exec_id, "exit": self.result, "output": kept}).encode() + b"\n"

    def _linger_over(self) -> None:
        self._lingered = True
        self._moved()

    def _moved(self) -> None:
        """Something was read or may be over."""
        self._glance()
        if self.status is not None and self.result is None and all(self._is_drained(output) for output in self.outputs):
            self._finish()
        if self.subscriber is not None:
            self.subscriber.notify()

    def _glance(self) -> None:
        """Look at its memory: who prints a result, or closes a pipe, is often about to leave."""
        if self.status is None and self._loop.now() - self._looked >= FIRST_SAMPLE_SECONDS and self._unsure:
            self._look()

    def _is_drained(self, output: Output) -> bool:
        return output.at_end or (self._lingered and output.target is not None and output.end >= output.target)

    def _finish(self) -> None:
        assert self.status is not None
        for output in self.outputs:
            fd = output.release()
            if fd is not None:
                Drain(self._loop, fd, self._drains)
        if not self.outputs[0].in_memory:
            self.give_back()
        if self.last_words is not None:
            self._say(self.last_words)
        by_signal = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None
        killed = self.killed
        self.result = {
            "returncode": 137 if killed else 128 + by_signal if by_signal else os.WEXITSTATUS(self.status),
            "signal": int(signal.SIGKILL) if killed else by_signal,
            "timed_out": self.timed_out,
            "oom_killed": self.oom_killed,
            "cancelled": self.cancelled,
            "duration_seconds": round(self._ended - self._started, 6),
            "stdout_bytes_total": self.outputs[0].end,
            "stderr_bytes_total": self.outputs[1].end,
            **self._usage,
        }
        self._changed(self)

    def _say(self, line: str) -> None:
        message = line.encode(errors="surrogateescape")
        self.outputs[0 if self.terminal else 1].put(message + (b"\r\n" if self.terminal else b"\n"))

    def look_again(self) -> None:
        """Look at its memory, if it has run since the last time and rusage might not tell."""
        if not self.running or self.pid is None or not self._unsure:
            return
        ran = usage.ran_nanoseconds(self.pid)
        if ran != self._ran:
            self._ran = ran
            self._look()

    def _sample(self) -> None:
        """Look at its memory at growing intervals, until those of the sandbox's own looks are as short."""
        self.look_again()
        if self.running and self._unsure and not (self.attended and self._pause >= LAST_SAMPLE_SECONDS):
            self._next_sample = self._loop.after(self._pause, self._sample)
            self._pause = min(SAMPLE_FACTOR * self._pause, LAST_SAMPLE_SECONDS)

    @property
    def _unsure(self) -> bool:
        """Whether rusage may not tell its peak."""
        return self._peak is None or self._peak <= self._own_peak + usage.SLACK_BYTES

    def _look(self) -> None:
        if self.pid is None:
            return  # Between two processes of one that has several.
        self._looked = self._loop.now()
        peak = usage.peak_sample(self._proc, self.pid)
        if peak is not None:
            self._peak = max(peak, self._peak or 0)


class Subscriber:
    """The one listener of a command: sends what its offsets lack, then the result.

    Args:
        command: what it listens to.
        connection, channel: where to.
        stdout, stderr: from which offsets on.
        known: up to which offsets the listener is sure to have all.
        has_lent: whether it has the memory in which large output lies.
    """

    def __init__(
        self,
        command: Command,
        connection: Connection,
        channel: int,
        stdout: int,
        stderr: int,
        known: tuple[int, int] = (0, 0),
        has_lent: bool = False,
    ) -> None:
        self.queued = False
        self.over = False
        self._command = command
        self._connection = connection
        self._channel = channel
        self._sent = [stdout, stderr]
        self._known = known
        self._turn = 0
        self.has_lent = has_lent
        self._timed = self._due = False
        for index, output in enumerate(command.outputs):
            if self._sent[index] < output.base:
                gap = {"from_offset": self._sent[index], "to_offset": output.base}
                self._frame(FrameType.GAP, gap, stream=index + 1)
                self._sent[index] = output.base
        self.notify()

    def is_on(self, connection: Connection, channel: int | None) -> bool:
        """Whether it sends on this channel (None: any) of this connection."""
        return self._connection is connection and channel in (None, self._channel)

    def notify(self) -> None:
        """There may be something to send."""
        if not self.over:
            self._connection.feed_from(self)

    def pump(self, connection: Connection) -> bool:
        """See `connection.Source`."""
        if self.over or self._command.subscriber is not self:
            return False
        for index in (self._turn, 1 - self._turn):
            output = self._command.outputs[index]
            # An acknowledgement may have run ahead of what this connection has sent.
            self._sent[index] = max(self._sent[index], output.base)
            if output.full and output.base < self._known[index]:
                # Whoever attached ahead of the output knows these bytes, and would never confirm them.
                output.acknowledge(self._known[index])
            if self._sent[index] < output.end:
                if self.has_lent and (place := output.place(self._sent[index])) is not None:
                    if self._waits(output.end - self._sent[index]):
                        continue
                    self._due = False
                    said = PLACE.pack(*place)
                    connection.send(FrameType.LENT, said, stream=index + 1, channel=self._channel, offset=self._sent[index])
                    self._sent[index] += place[1]
                    self._turn = 1 - index
                    return True
                piece = output.peek(self._sent[index])
                if not piece:  # Whoever lent the memory in which it was has shortened it.
                    gap = {"from_offset": self._sent[index], "to_offset": output.end}
                    self._frame(FrameType.GAP, gap, stream=index + 1)
                    self._sent[index] = output.end
                    return True
                connection.send(FrameType.DATA, piece, stream=index + 1, channel=self._channel, offset=self._sent[index])
                self._sent[index] += len(piece)
                self._turn = 1 - index
                return True
        if self._command.result is not None and not self._command.silenced:
            self.over = True
            self._frame(FrameType.EXIT, self._command.result)
        return False

    def _waits(self, size: int) -> bool:
        """Whether so little is not worth waking two processes for, while more may come in a moment."""
        if size >= LENT_BYTES or self._command.status is not None or self._due:
            return False
        if not self._timed:
            self._timed = True
            self._command.after(LENT_SECONDS, self._moment_over)
        return True

    def _moment_over(self) -> None:
        self._timed, self._due = False, True
        self.notify()

    def _frame(self, type: int, value: dict[str, Any], stream: int = 0) -> None:
        offset = value["from_offset"] if stream else 0
        self._connection.send(type, json.dumps(value).encode(), stream=stream, channel=self._channel, offset=offset)


def fingerprint(spec: dict[str, Any]) -> int:
    """What tells a repeated request from another one under the same id."""
    return hash(json.dumps(spec, sort_keys=True))
