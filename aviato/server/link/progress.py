"""How far a subscription to a command is, so that another connection goes on with it where this one was cut."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from aviato.wire.frames import Frame


@dataclass
class Progress:
    """How far a subscription is, for the connection after this one.

    Attributes:
        request: that began it, for a process 1 that has not heard of it; None once it has.
        offsets: of stdout and stderr.
        said: the kinds of frames that come once.
    """

    request: dict[str, Any] | None
    offsets: list[int]
    said: set[int] = field(default_factory=set)

    def is_new(self, frame: Frame) -> bool:
        """Take note of a frame; False if it was said before, on another connection."""
        if frame.type == FrameType.DATA:
            self.offsets[frame.stream - 1] = frame.offset + len(frame.payload)
        elif frame.type == FrameType.GAP:
            self.offsets[frame.stream - 1] = json.loads(frame.payload)["to_offset"]
        elif frame.type in (FrameType.ACCEPTED, FrameType.STARTED):
            self.request = None
            if frame.type in self.said:
                return False
            self.said.add(frame.type)
        return True

    def again(self, exec_id: str) -> dict[str, Any]:
        """The request that goes on with it."""
        asked = self.request or {"op": "exec", "exec_id": exec_id}
        return {**asked, "stdout": self.offsets[0], "stderr": self.offsets[1]}
