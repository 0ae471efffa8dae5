"""Programs that are sent into sandboxes: standard library only, Python 3.8 or newer; nothing of aviato is imported there."""

from __future__ import annotations

from importlib import resources


def stand_ins() -> str:
    """The source of the module of what stands for a solution."""
    return program("packing", "kinds", "crossing", "standin", "objects")


def program(*names: str) -> str:
    """Their source, one after the other."""
    folder = resources.files(__name__)
    texts = [folder.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in names]
    return "from __future__ import annotations\n" + "\n".join(
        text.replace("from __future__ import annotations\n", "") for text in texts
    )
