"""Runs in the solution's sandbox: calls of several threads of the test, each in a thread of its own. Follows `tasks.py`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aviato.grading.inside.raising import failure
    from aviato.grading.inside.tasks import AT_ONCE_SECONDS


class Workers:
    """Those of one process.

    Args:
        answer: gives the answer to a request.
    """

    def __init__(self, answer: Callable[[Any], bytes]) -> None:
        self.answer = answer
        self.queues: dict[int, Any] = {}
        self.going: dict[int, Any] = {}
        self.count = 0

    def begin(self, thread: int, gone: list[int], request: Any) -> bytes:
        """The answer to a request of a thread of the test, if it comes at once; others of its threads have ended."""
        import threading
        from queue import SimpleQueue

        for each in gone:
            if each in self.queues:
                self.queues.pop(each).put((None, None))
        if thread not in self.queues:
            self.queues[thread] = SimpleQueue()
            threading.Thread(target=self.serve, args=(self.queues[thread],), daemon=True).start()
        self.count += 1
        answer: Any = SimpleQueue()
        self.going[self.count] = answer
        self.queues[thread].put((request, answer))
        return self.ended(self.count, AT_ONCE_SECONDS)

    def ended(self, number: int, seconds: float = 0.0) -> bytes:
        """The answer, if it is there."""
        from queue import Empty

        if number not in self.going:
            return failure([], "the solution's process is another one than was called")
        try:
            found: bytes = self.going[number].get(timeout=seconds)
        except Empty:
            return b'{"going":%d}' % number
        del self.going[number]
        return found

    def serve(self, queue: Any) -> None:
        while True:
            request, answer = queue.get()
            if request is None:
                return
            answer.put(self.answer(request))
