"""How a sandbox ended, and the exception of whoever asks it for something then."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

EndReason = Literal["exited", "oom", "stopped", "lifetime", "idle", "orphaned", "lost", "reset", "cut", "taken", "disk"]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a sandbox ended.

    Attributes:
        reason: `exited` (its main command ended), `stopped`, `lifetime`, `orphaned`, `lost` (the connection or the
            process 1 is gone without a word), `reset` (it goes on with another process 1), `cut` (the connection is lost,
            and a new one is looked for), or `taken` (another server has it now).
        returncode: of the main command, if it had one that ended.
        message: for people.
    """

    reason: EndReason
    returncode: int | None = None
    message: str | None = None

    @classmethod
    def read(cls, payload: bytes) -> Ended:
        """From an ENDED frame; fields of a newer process 1 mean nothing.

        Raises:
            ValueError: it is no ENDED.
        """
        said = json.loads(payload)
        if not isinstance(said, dict) or not isinstance(said.get("reason"), str):
            raise ValueError("it ended and gave no reason that can be read")
        return cls(reason=said["reason"], returncode=said.get("returncode"), message=said.get("message"))


class SandboxGone(Exception):
    """The sandbox ended before what was asked of it; `ended` says how."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(f"the sandbox is gone: {ended.reason}" + (f" ({ended.message})" if ended.message else ""))
        self.ended = ended
