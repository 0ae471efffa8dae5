"""What an image reference means, as a pure parse."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_PYTHON = re.compile(r"(python|host):3\.(\d{1,3})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Reference:
    """A parsed reference.

    Attributes:
        kind: `host`, `python`, `name` (a registered directory), `path` (a directory) or `other`.
        value: the minor version of `python` in decimal, also of a `host` that asks for one, the name, or the path.
    """

    kind: Literal["host", "python", "name", "path", "other"]
    value: str = ""


def parse(reference: str | None) -> Reference:
    """Read a reference; whatever is not ours is `other`."""
    if reference is None or reference == "host":
        return Reference("host")
    match = _PYTHON.fullmatch(reference)
    if match:
        return Reference("host" if match[1] == "host" else "python", match[2])
    if reference.startswith("dir:"):
        rest = reference[4:]
        if rest.startswith("/") and "\0" not in rest:
            return Reference("path", rest)
        if _NAME.fullmatch(rest):
            return Reference("name", rest)
    return Reference("other", reference)
