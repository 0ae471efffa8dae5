"""The event loop of servers and of clients' threads: the fastest that the kernel does not end for what others of its user do.

The kernel counts what all processes of a user wait for by epoll. At its limit uvloop ends its process (`abort`). Sandboxes of
an ordinary user's server may share that count, and one that fills it would end servers and trainers. So an ordinary user has
Python's own loop, which asks poll(2) about what epoll has no room for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import selectors
import sys
import time
from collections import ChainMap
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from selectors import SelectorKey

T = TypeVar("T")

FULL = (errno.ENOSPC, errno.ENOMEM)
"""Answers of an epoll that has no room for another descriptor."""
RETRY_SECONDS = 0.1
"""How often what is beyond it is offered to epoll again."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on such a loop."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a loop for this process."""
    if not sys.platform.startswith("linux"):
        return asyncio.new_event_loop
    if os.geteuid() != 0:
        return with_overflow
    try:
        import uvloop
    except ImportError:
        return with_overflow
    return uvloop.new_event_loop


def with_overflow() -> asyncio.AbstractEventLoop:
    """A loop for which it does not matter whether epoll has room."""
    return asyncio.SelectorEventLoop(OverflowSelector())


# Where gevent has replaced `select` there is none; `monkey_patches` says so, once it is asked.
if sys.platform.startswith("linux") and hasattr(selectors, "EpollSelector"):

    class OverflowSelector(selectors.EpollSelector):
        """epoll, and poll for the descriptors that it has no room for."""

        def __init__(self) -> None:
            super().__init__()
            self._beyond = selectors.PollSelector()
            self._beyond.register(self.fileno(), selectors.EVENT_READ)
            self._due = 0.0

        def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
            """See `BaseSelector`."""
            try:
                if not self._is_beyond(fileobj):
                    return super().register(fileobj, events, data)
            except OSError as error:
                if error.errno not in FULL:
                    raise
            return self._beyond.register(fileobj, events, data)

        def unregister(self, fileobj: Any) -> SelectorKey:
            """See `BaseSelector`."""
            return self._beyond.unregister(fileobj) if self._is_beyond(fileobj) else super().unregister(fileobj)

        def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
            """See `BaseSelector`."""
            if self._is_beyond(fileobj):
                return self._beyond.modify(fileobj, events, data)
            return super().modify(fileobj, events, data)

        def get_map(self) -> Mapping[Any, SelectorKey]:
            """See `BaseSelector`."""
            known = super().get_map()
            return ChainMap(self._beyond.get_map(), known) if known is not None and self._overflows else known  # type: ignore[arg-type]

        def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
            """See `BaseSelector`."""
            if not self._overflows:
                return super().select(timeout)
            self._offer()
            ready = self._beyond.select(timeout)
            found = [(key, events) for key, events in ready if key.fd != self.fileno()]
            return found if len(found) == len(ready) else [*found, *super().select(0)]

        def close(self) -> None:
            """See `BaseSelector`."""
            self._beyond.close()
            super().close()

        @property
        def _overflows(self) -> bool:
            return len(self._beyond.get_map() or ()) > 1

        def _is_beyond(self, fileobj: Any) -> bool:
            return self._overflows and fileobj in self._beyond.get_map()

        def _offer(self) -> None:
            """Let epoll have them, as far as there is room again."""
            now = time.monotonic()
            if now < self._due:
                return
            self._due = now + RETRY_SECONDS
            with contextlib.suppress(OSError):
                for key in list(self._beyond.get_map().values()):
                    if key.fd != self.fileno():
                        super().register(key.fileobj, key.events, key.data)
                        self._beyond.unregister(key.fileobj)
