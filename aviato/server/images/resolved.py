"""What a reference turned out to mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ResolvedImage:
    """An image that this backend can start.

    Attributes:
        reference: what is in use, for the record.
        note: what the client should log once, or None: a substitution, or what will not work.
        kind: `host` or `dir`.
        root: the root directory of a `dir` image.
        strange: directories of it that belong to a user whom no sandbox of this server can have, with their modes. A sandbox
            begins with such ones of its own in their place, which what is in those is seen through.
        interpreter: the host Python that `python` means in a `host` sandbox.
    """

    reference: str
    kind: Literal["host", "dir"]
    note: str | None = None
    root: str | None = None
    strange: tuple[tuple[str, int], ...] = ()
    interpreter: str | None = None
