"""What a reference turned out to mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ResolvedImage:
    """An image that this backend can start.

    Attributes:
        reference: what is in use, for the record.
        note: a substitution that the client should log once, or None.
        kind: `host` or `dir`.
        root: the root directory of a `dir` image.
        interpreter: the host Python that `python` means in a `host` sandbox.
    """

    reference: str
    kind: Literal["host", "dir"]
    note: str | None = None
    root: str | None = None
    interpreter: str | None = None
