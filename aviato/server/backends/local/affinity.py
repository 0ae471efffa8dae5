"""Which processors the commands of sandboxes with a limit of `cpu` run on: as many as the limit, rounded up.

By these programs choose how many threads to have (`nproc`, OpenMP, OpenBLAS, Go, JVMs, `make -j`). Code inside may choose
others; how much time it has of them is the control group's matter.
"""

from __future__ import annotations

import math
import os


class Affinity:
    """Spreads sandboxes over the processors that this process may run on."""

    def __init__(self) -> None:
        self._loads: dict[int, float] = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0.0)

    def take(self, cpu: float | None) -> tuple[int, ...]:
        """Processors for one sandbox, those with the fewest of others; to be given back.

        Sets begin at multiples of their size, so that there are few of them: what compiled code is asked for is kept by set.

        Args:
            cpu: its limit.

        Returns:
            Their numbers; none where it may run on all.
        """
        there = list(self._loads)
        if cpu is None or (count := math.ceil(cpu)) >= len(there):
            return ()
        sets = [tuple((there + there)[start : start + count]) for start in range(0, len(there), count)]
        taken = min(sets, key=lambda numbers: sum(self._loads[number] for number in numbers))
        self._add(taken, cpu)
        return tuple(sorted(taken))

    def give_back(self, processors: tuple[int, ...], cpu: float | None) -> None:
        """A sandbox that had these is gone."""
        self._add(processors, -(cpu or 0))

    def _add(self, processors: tuple[int, ...], cpu: float) -> None:
        for number in processors:
            self._loads[number] += cpu / len(processors)
