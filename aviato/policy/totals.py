"""What a whole process has counted since it began, for exporters that want numbers which only grow."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of a histogram's buckets; the last bucket has none."""


class Buckets:
    """A histogram of durations in seconds; not thread-safe."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total += seconds

    def copy(self) -> Buckets:
        """As it is now."""
        other = Buckets()
        other.counts, other.total = self.counts[:], self.total
        return other


class Totals:
    """Numbers by name, and histograms of `exec`, `startup` and `image_pull`; not thread-safe."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin at zero."""
        self.numbers: dict[str, int] = {}
        self.durations = {name: Buckets() for name in ("exec", "startup", "image_pull")}

    def add(self, name: str, by: bool | int = 1) -> None:
        """Count something."""
        self.numbers[name] = self.numbers.get(name, 0) + by

    def copy(self) -> Totals:
        """As it is now."""
        other = Totals()
        other.numbers = dict(self.numbers)
        other.durations = {name: buckets.copy() for name, buckets in self.durations.items()}
        return other
