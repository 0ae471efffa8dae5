"""When a sandbox has been out of use for so long that it ends. Standard library only.

Commands that run count as use, and so does every call that reaches inside. What a command left behind does not: nobody asked
for it any more. The clock is the supervisor's, so that it goes on when no server is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.commands import Commands

RESULT_SECONDS = 60.0
"""So long a result that nobody has taken yet counts as use: its client may be on its way back to it."""


class Idleness:
    """Ends the sandbox after so long without use.

    Args:
        loop: for its clock.
        commands: those of the sandbox.
        called: whether a call is open now.
        end: called when the time is over.
    """

    def __init__(self, loop: Loop, commands: Commands, called: Callable[[], bool], end: Callable[[], None]) -> None:
        self._loop = loop
        self._commands = commands
        self._called = called
        self._end = end
        self._last_call = 0.0
        self._seconds = 0.0

    def limit(self, seconds: float) -> None:
        """Begin to watch; once."""
        self._seconds = seconds
        self._look()

    def called(self, when: float | None = None) -> None:
        """A call uses the sandbox, now or `when`."""
        self._last_call = self._loop.now() if when is None else when

    def _look(self) -> None:
        now = self._loop.now()
        since = now if self._called() else max(self._last_call, self._commands.used_until(now, RESULT_SECONDS))
        left = since + self._seconds - now
        if left <= 0:
            self._end()
        else:
            self._loop.after(left, self._look)
