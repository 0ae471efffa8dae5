"""The event loop of `broker.py`: descriptors and timers. Standard library only.

Part of the broker's program too, so Python 3.8 has to take it.
"""

from __future__ import annotations

import errno
import functools
import heapq
import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

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


class Loop:
    """Turns of epoll, from `begin` on. Nothing that a handler raises ends it: it goes to `on_error`."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self.each_turn: list[Callable[[], None]] = []
        self._on_error = on_error
        self._epoll: select.epoll
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._blind: dict[int, int] = {}
        """Descriptors that epoll has no room for (code inside can use up its user's share): tried at intervals instead."""
        self._timers: list[Timer] = []
        self._many_timers = FEW_TIMERS

    now = staticmethod(time.monotonic)

    def begin(self) -> None:
        """Get what it waits by."""
        self._epoll = select.epoll()

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
        """Call its handler with these events from now on."""
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
        now = self.now()
        while self._timers and self._timers[0].due <= now:
            due = heapq.heappop(self._timers).callback
            if due is not None:
                self._run(due)
        for callback in self.each_turn:
            self._run(callback)

    def _patience(self) -> float:
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
