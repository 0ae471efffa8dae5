"""Blocking calls, in the loop's own executor: a fixed set of threads, made at the start.

A set that grew and shrank with the load would make it impossible to tell a leak from a burst.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

THREADS = 6


def fix_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Give a loop its threads, all of them at once."""
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="aviato-server")
    together = threading.Barrier(THREADS)
    for _ in range(THREADS):
        executor.submit(together.wait)
    loop.set_default_executor(executor)
