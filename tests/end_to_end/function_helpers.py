"""A module of the user's that no image has: what a remote function reads of it travels along."""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass, field
from typing import ClassVar

FACTOR = 7


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.5


@dataclass
class Path:
    unit: ClassVar[str] = "m"
    points: list[Point] = field(default_factory=list)

    def length(self) -> float:
        return sum(math.hypot(point.x, point.y) for point in self.points) * FACTOR


def times(n: int) -> int:
    return n * FACTOR


@functools.cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def fail(kind: str) -> None:
    try:
        {}[kind]
    except KeyError as error:
        raise RuntimeError("in the helper") from error
