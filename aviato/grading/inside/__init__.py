"""Programs that are sent into sandboxes: standard library only, Python 3.8 or newer; nothing of aviato is imported there."""

from __future__ import annotations

import re
from importlib import resources

FUTURE = "from __future__ import annotations\n"
"""What each program begins with."""
_IMPORTED = re.compile(r"^from (?:__future__|aviato\.grading\.inside\.\w+) import .*\n", re.MULTILINE)


def stand_ins() -> str:
    """The source of the module of what stands for a solution."""
    return program("packing", "held", "kinds", "crossing", "paths", "process_state", "raised", "standin", "awaiting", "objects")


def program(*names: str) -> str:
    """Their source, one after the other: what one imports of another stands above it."""
    folder = resources.files(__name__)
    texts = [folder.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in names]
    return FUTURE + "\n".join(_IMPORTED.sub("", text) for text in texts)
