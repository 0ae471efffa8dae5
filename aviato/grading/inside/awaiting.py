"""What is awaited of the solution: its loop goes on while that of the test does. Before `objects.py`.

Without a loop of asyncio's, each is over when it is awaited.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from aviato.grading.inside.objects import ask, number_of

WAITED: dict[Any, dict[int, Any]] = {}
"""Of each loop: the number of what goes on → the object that was awaited, and who waits."""
RUNNING: dict[int, Any] = {}
"""The number of a coroutine → its steps, where somebody else makes them, such as a task."""


def loop_here() -> Any:
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def steps_of(self: Any, verb: str, *args: Any) -> Generator[Any, Any, Any]:
    """What comes of something that is awaited; cancelled where the test cancels it."""
    loop = loop_here()
    if loop is None:
        return ask(self, verb, *args)
    number, has_ended, value = ask(self, "begin", verb, *args)
    if has_ended is True:
        return value
    while True:
        waits = loop.create_future()
        wait_for_end(loop, number, self, waits)
        try:
            yield from waits
            break
        except sys.modules["asyncio"].CancelledError:
            ask(self, "cancel", number)
        except GeneratorExit:
            WAITED.get(loop, {}).pop(number, None)
            ask(self, "cancel", number)
            raise
    came = ask(self, "came", number)
    if not came:
        raise sys.modules["asyncio"].CancelledError
    return came[0]


def wait_for_end(loop: Any, number: int, of: Any, waits: Any) -> None:
    if loop not in WAITED:
        WAITED[loop] = {}
        loop.call_soon(look_for_ends, loop)
    WAITED[loop][number] = (of, waits)


def look_for_ends(loop: Any) -> None:
    """Tell those whose wait is over, and look again in the loop's next turn."""
    waited = WAITED[loop]
    if not waited:
        del WAITED[loop]
        return
    try:
        first, _ = next(iter(waited.values()))
        for number in ask(first, "ended", list(waited)):
            _, waits = waited.pop(number)
            if not waits.done():
                waits.set_result(None)
    except BaseException as error:
        for _, waits in waited.values():
            if not waits.done():
                waits.set_exception(error)
        del WAITED[loop]
        return
    loop.call_soon(look_for_ends, loop)


class Steps:
    """Something that is awaited, in a coroutine of the test's side."""

    def __init__(self, of: Any, verb: str, *args: Any) -> None:
        self.asked = of, verb, *args

    def __await__(self) -> Any:
        return steps_of(*self.asked)


def awaited(self: Any) -> Any:
    return steps_of(self, "__await__")


def send(self: Any, value: Any) -> Any:
    number = number_of(self)
    if number not in RUNNING:
        RUNNING[number] = awaited(self)
    return stepped(number, RUNNING[number].send, value)


def throw(self: Any, kind: Any, value: Any = None, trace: Any = None) -> Any:
    error = kind if value is None else value
    number = number_of(self)
    if number not in RUNNING:
        raise error
    return stepped(number, RUNNING[number].throw, error)


def stepped(number: int, step: Any, given: Any) -> Any:
    """What a coroutine waits for next; forgotten once it is over."""
    try:
        return step(given)
    except BaseException:
        RUNNING.pop(number, None)
        raise


def close(self: Any) -> None:
    steps = RUNNING.pop(number_of(self), None)
    if steps is not None:
        steps.close()
