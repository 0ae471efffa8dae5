"""How long registries are waited for."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long registries are waited for.

    Attributes:
        connect_seconds: for a connection.
        stall_seconds: for the next byte.
        attempts: of one request, or of a download that does not get on.
        backoff_seconds: before the second attempt; it doubles with each, and varies.
        most_wait_seconds: before one attempt; a registry that asks for more is given up.
    """

    connect_seconds: float = 30.0
    stall_seconds: float = 30.0
    attempts: int = 5
    backoff_seconds: float = 0.5
    most_wait_seconds: float = 60.0

    def backoff(self, attempt: int) -> float:
        """How long to wait after an attempt, the first of which is 0."""
        return float(min(self.backoff_seconds * 2**attempt, self.most_wait_seconds) * random.uniform(0.5, 1.0))
