"""Which functions of the package a process calls, and when. In a process of its own: all that it does takes longer."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType, FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = f"{ROOT / 'aviato'}/"
PARTS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"})
"""What is no function to a reader, though Python may make one of it."""


def record(path: str) -> None:
    """Write a line for each call of a function of the package: when by the monotonic clock, in which file, and its name.

    In this thread, and in all that begin later.
    """
    lines = open(path, "w", buffering=1)  # noqa: SIM115 - until the end of the process
    names: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = names.get(code)
        if name is None:
            path = code.co_filename
            ours = path.startswith(PACKAGE) and code.co_name not in PARTS
            name = names[code] = f"{path.removeprefix(PACKAGE)} {code.co_qualname}" if ours else ""
        if name:
            lines.write(f"{time.monotonic_ns()} {name}\n")

    threading.setprofile(note)
    sys.setprofile(note)


def called(path: Path, spans: list[tuple[int, int]]) -> list[str]:
    """The functions that were called in each of these spans of time, in the order of the last one."""
    calls = [line.split(" ", 1) for line in path.read_text().splitlines()]
    found = [list(dict.fromkeys(name for at, name in calls if begin <= int(at) <= end)) for begin, end in spans]
    return [name for name in found[-1] if all(name in others for others in found)]
