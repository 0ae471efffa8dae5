"""How often a key may ask. Pure rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LONGEST_SECONDS = 30.0
"""How far ahead turns are given: clients try for a minute, and turns of those that gave up would hold up all others."""
KEPT_SECONDS = 4.0
"""How long a turn that has come is kept for who comes late."""
_LITTLE = 1e-6


@dataclass(slots=True)
class RateLimit:
    """So many requests a second on average, and a second's worth at once. Who is refused has a turn, and is told when.

    Requests that come back cannot be told from others: one that comes when a turn is there takes it. There are never more turns
    than requests that wait, so that each gets one.

    Args:
        per_second: on average.
    """

    per_second: float
    _left: float = field(init=False)
    """What may come in without a turn; below zero it is what was promised ahead."""
    _turns: int = field(default=0, init=False)
    """That were given and not taken."""
    _last_turn: float = field(default=-math.inf, init=False)
    _since: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        self._left = self._most

    @property
    def _most(self) -> float:
        return max(1.0, self.per_second)

    def take(self, now: float) -> float:
        """Take one request.

        Args:
            now: in seconds, by a clock that does not go back.

        Returns:
            0 if it may come in, else in how many seconds its turn is.
        """
        come = self._go_on(now)
        if come > 0:
            self._turns -= 1
            return 0.0
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        seconds = (1.0 - self._left) / self.per_second
        if self._turns == 0 or seconds <= LONGEST_SECONDS:
            self._left -= 1.0
            self._turns += 1
            self._last_turn = now + seconds
        return seconds

    def _go_on(self, now: float) -> int:
        """Time has passed: how many turns have come that nobody has taken."""
        if now > self._last_turn + KEPT_SECONDS:
            self._turns = 0
        left = self._left + max(0.0, now - self._since) * self.per_second
        self._since = now
        come = self._turns - max(0, math.ceil(-left - _LITTLE))
        forgotten = max(0, come - math.ceil(max(1.0, KEPT_SECONDS * self.per_second)))
        self._turns -= forgotten
        come -= forgotten
        self._left = min(left, max(0.0, self._most - come))
        return come
