"""Which functions of the package a process calls, and when. In a process of its own: all that it does takes longer."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

PACKAGE = f"{Path(__file__).parents[1] / 'aviato'}/"
PARTS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>")
"""What is no function to a reader, though Python may make one of it."""


class Function(NamedTuple):
    """One that has a text of its own in the package: a function, a method, a property, a coroutine or a closure.

    What Python generates (the `__init__` of a dataclass, the parts of a comprehension) has none and is no function here.
    """

    file: str
    name: str


def record(path: str) -> None:
    """Write a line for each call of a function: when by the monotonic clock, in which file, and its name.

    In this thread, and in all that begin later.
    """
    lines = open(path, "w", buffering=1)  # noqa: SIM115 - until the end of the process
    said: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in said:
            ours = code.co_filename.startswith(PACKAGE) and code.co_name not in PARTS
            name = code.co_qualname.replace(".<locals>", "")
            said[code] = f"{code.co_filename.removeprefix(PACKAGE)} {name}" if ours else ""
        if said[code]:
            lines.write(f"{time.monotonic_ns()} {said[code]}\n")

    threading.setprofile(note)
    sys.setprofile(note)


def calls(path: Path, spans: list[tuple[int, int]]) -> list[Counter[Function]]:
    """How often which functions were called in each of these spans of time."""
    found: list[Counter[Function]] = [Counter() for _ in spans]
    for line in path.read_text().splitlines():
        at, file, name = line.split(" ", 2)
        for (begin, end), counted in zip(spans, found, strict=True):
            if begin <= int(at) <= end:
                counted[Function(file, name)] += 1
    return found
