"""Measurements, their percentiles, and ratios of them with a bootstrap interval."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAMPLES = 2_000
"""Of a bootstrap."""


@dataclass
class Series:
    """Seconds of one thing, measured many times.

    Attributes:
        errors: what failed in place of a measurement.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        """The value below which `percent` of the measurements lie, in seconds."""
        return quantile(self.seconds, percent / 100)

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    @property
    def success(self) -> float:
        """The part that did not fail."""
        return len(self.seconds) / max(1, len(self.seconds) + len(self.errors))

    def take(self, case: Callable[[], float]) -> None:
        """Run a case once and note what it took, or what went wrong."""
        try:
            self.seconds.append(case())
        except AviatoError as error:
            self.errors.append(f"{type(error).__name__}: {error}")


def quantile(values: Sequence[float], part: float) -> float:
    """The measurement below which that part of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(part * (len(ordered) - 1)))]


def alternate(rounds: int, *cases: tuple[Series, Callable[[], float]], warmup: int = 3) -> None:
    """Run the cases in turn, round by round, in a new order each round, so that noise hits all alike."""
    for _, case in cases:
        for _ in range(warmup):
            case()
    order = list(cases)
    for _ in range(rounds):
        random.shuffle(order)
        for series, case in order:
            series.take(case)


def timed(action: Callable[[], object]) -> Callable[[], float]:
    """A case that times one call."""

    def case() -> float:
        begin = time.perf_counter()
        action()
        return time.perf_counter() - begin

    return case


@dataclass(frozen=True)
class Ratio:
    """A ratio and its bootstrap 90 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"

    def inverse(self) -> Ratio:
        """Of rates, where this is of times."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low)


def ratio(measured: Series, floor: Series, samples: int = SAMPLES) -> Ratio:
    """How many floors the measured thing costs: a ratio of medians.

    Where both have a value a round, whole rounds are drawn: what slowed a round down slowed both sides.
    """
    ours, theirs = measured.seconds, floor.seconds
    pick = random.Random(0)

    def draw() -> float:
        mine = pick.choices(range(len(ours)), k=len(ours))
        same = mine if len(ours) == len(theirs) else pick.choices(range(len(theirs)), k=len(theirs))
        return statistics.median(ours[i] for i in mine) / statistics.median(theirs[i] for i in same)

    draws = sorted(draw() for _ in range(samples))
    return Ratio(measured.median / floor.median, draws[samples // 20], draws[-samples // 20])


def interval(values: Sequence[float], samples: int = SAMPLES) -> Ratio:
    """The median of values, one a round, with its interval."""
    pick = random.Random(0)
    draws = sorted(statistics.median(pick.choices(values, k=len(values))) for _ in range(samples))
    return Ratio(statistics.median(values), draws[samples // 20], draws[-samples // 20])
