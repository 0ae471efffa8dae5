"""Moves a command's output from its process 1 to disk, so that it never stalls for want of a reader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.link.link import ExecSpec, Process1Link
    from aviato.wire.frames import Frame

Piece = tuple[int, int, bytes]
"""Stream, offset, bytes."""


class Sink(Protocol):
    """Where output is kept."""

    @property
    def offsets(self) -> dict[int, int]:
        """How far each stream is kept, or lost."""

    async def append(self, pieces: list[Piece]) -> None:
        """Take pieces in order of arrival; one that begins later than its stream's offset leaves a gap."""

    async def conclude(self, last: Frame) -> bool:
        """Take the last frame; False if process 1 must remember it still."""


async def keep(link: Process1Link, spec: ExecSpec | None, exec_id: str, sink: Sink, note: Callable[[Frame], None]) -> None:
    """Start a command unless its id is known, and keep all its output from where the sink is until its last frame.

    Args:
        link: to process 1, which is told what is kept.
        spec: of the command; None of one that runs there already.
        exec_id: of the command.
        sink: where the output goes.
        note: told each frame that is not output, once what came before it is kept.

    Raises:
        SandboxGone: the sandbox ended first.
        AviatoValidationError: it cannot be asked for.
    """
    subscription = link.subscribe(spec, exec_id, sink.offsets[1], sink.offsets[2])
    try:
        while True:
            await subscription.wait()
            frames = subscription.drain()
            if not frames and subscription.over:
                return
            pieces = [piece for frame in frames if (piece := _piece(frame)) is not None]
            if pieces:
                await sink.append(pieces)
            done = False
            for frame in frames:
                if frame.type in (FrameType.EXIT, FrameType.ERROR):
                    done = await sink.conclude(frame)
                if frame.type not in (FrameType.DATA, FrameType.GAP):
                    note(frame)
            if pieces or done:
                link.acknowledge(exec_id, sink.offsets[1], sink.offsets[2], done)
    finally:
        subscription.close()


def _piece(frame: Frame) -> Piece | None:
    if frame.type == FrameType.DATA:
        return frame.stream, frame.offset, frame.payload
    if frame.type == FrameType.GAP:
        return frame.stream, json.loads(frame.payload)["to_offset"], b""
    return None
