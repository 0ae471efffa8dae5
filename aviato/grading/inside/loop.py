"""The event loop of process 1 and of `broker.py`: descriptors, timers, and jobs that share turns fairly. Standard library only.

Part of the broker's program too, so Python 3.8 has to take it.
"""

from __future__ import annotations

import errno
import functools
import heapq
import select
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANGUP = select.EPOLLHUP | select.EPOLLERR

BLIND_SECONDS = 0.01
FEW_TIMERS = 1024
STOOD_STILL_SECONDS = 1.0
"""A limit that is so late tells that nothing ran here meanwhile."""


class Timer:
    """A call in the future."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None] | None) -> None:
        self.due = due
        self.callback = callback

    def cancel(self) -> None:
        """Never call it."""
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.due < other.due


class Job:
    """Work in bounded steps: a generator that yields True when it can go on at once, or seconds to let pass before."""

    __slots__ = ("_loop", "_queued", "done", "steps")

    def __init__(self, loop: Loop, steps: Iterator[float]) -> None:
        self.steps = steps
        self.done = False
        self._loop = loop
        self._queued = False

    def wake(self) -> None:
        """Run a step in the next turn."""
        if not self.done and not self._queued:
            self._queued = True
            self._loop.jobs.append(self)

    def stop(self) -> None:
        """Close the generator, its `finally` included."""
        self.done = True
        close = getattr(self.steps, "close", None)
        if close is not None:
            close()

    def step(self) -> None:
        """One bounded piece of work."""
        self._queued = False
        if self.done:
            return
        try:
            pause = next(self.steps)
            if pause is True:
                self.wake()
            else:
                self._loop.after(pause, self.wake)
        except StopIteration:
            self.done = True


class Loop:
    """Turns of epoll, from `begin` on. Nothing that a handler raises ends it: it goes to `on_error`."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self.jobs: deque[Job] = deque()
        self.each_turn: list[Callable[[], None]] = []
        self._on_error = on_error
        self._epoll: select.epoll
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._blind: dict[int, int] = {}
        """Descriptors that epoll has no room for (code inside can use up its user's share): tried at intervals instead."""
        self._timers: list[Timer] = []
        self._many_timers = FEW_TIMERS
        self._soon: list[Callable[[], None]] = []

    now = staticmethod(time.monotonic)

    def begin(self, epoll: int | None = None) -> None:
        """Get what it waits by; `epoll`: a descriptor that is there already."""
        self._epoll = select.epoll() if epoll is None else select.epoll.fromfd(epoll)

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call the handler with the events of a descriptor; a hang-up always counts."""
        try:
            self._epoll.register(fd, events)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            if not self._blind:
                self.after(BLIND_SECONDS, self._try_blindly)
            self._blind[fd] = events
        self._handlers[fd] = handler

    def change(self, fd: int, events: int) -> None:
        """Other events from now on."""
        if fd in self._blind:
            self._blind[fd] = events
        else:
            self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Watch it no more; call it before closing the descriptor."""
        if self._handlers.pop(fd, None) is not None and self._blind.pop(fd, None) is None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back once."""
        timer = Timer(self.now() + seconds, callback)
        heapq.heappush(self._timers, timer)
        if len(self._timers) > self._many_timers:
            # Time limits of commands that ended long before would pile up until they are due.
            self._timers = [timer for timer in self._timers if timer.callback is not None]
            heapq.heapify(self._timers)
            self._many_timers = max(FEW_TIMERS, 2 * len(self._timers))
        return timer

    def limit(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back once so much time has passed in which things ran here; see `after`.

        What is limited had none of the time that this process, and the machine with it, stood still. So it gets all of its
        time anew then; once, or whoever keeps this process busy would be let run on for ever.
        """

        def due() -> None:
            if self.now() - timer.due <= STOOD_STILL_SECONDS:
                callback()
                return
            timer.due, timer.callback = self.now() + seconds, callback
            heapq.heappush(self._timers, timer)

        timer = self.after(seconds, due)
        return timer

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn, without waiting."""
        self._soon.append(callback)

    def start(self, steps: Iterator[float]) -> Job:
        """Begin a job."""
        job = Job(self, steps)
        job.wake()
        return job

    def turn(self) -> None:
        """Wait for something to do, and do a bounded amount of it."""
        patience = self._patience()
        arrived = self._epoll.poll(patience, 64)
        if patience and not arrived:
            # Who was stopped and goes on is told that the time is over, whatever has come before.
            arrived = self._epoll.poll(0, 64)
        for fd, events in arrived:
            handler = self._handlers.get(fd)
            if handler is not None:
                try:
                    handler(events)
                except Exception as error:
                    self._on_error(error)
        soon, self._soon = self._soon, []
        for callback in soon:
            self._run(callback)
        now = self.now()
        while self._timers and self._timers[0].due <= now:
            due = heapq.heappop(self._timers).callback
            if due is not None:
                self._run(due)
        for _ in range(len(self.jobs)):
            self._run(self.jobs.popleft().step)
        for callback in self.each_turn:
            self._run(callback)

    def _patience(self) -> float:
        if self.jobs or self._soon:
            return 0.0
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return -1.0
        return max(0.0, self._timers[0].due - self.now())

    def _try_blindly(self) -> None:
        for fd, events in list(self._blind.items()):
            if fd not in self._blind:
                continue
            try:
                self._epoll.register(fd, events)
            except OSError:
                self._run(functools.partial(self._handlers[fd], events))
            else:
                del self._blind[fd]
        if self._blind:
            self.after(BLIND_SECONDS, self._try_blindly)

    def _run(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._on_error(error)
