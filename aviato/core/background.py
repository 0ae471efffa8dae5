"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

_tasks: set[asyncio.Task[Any]] = set()


def background(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that nobody waits for; kept, since a loop holds its tasks weakly."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task
