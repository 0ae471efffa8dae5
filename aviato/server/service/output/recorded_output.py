"""What is kept of a detached command: a ring a stream, and its result."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.service.output.recorded_reader import RecordedReader
from aviato.server.service.output.ring import Ring
from aviato.system.threads import in_thread
from aviato.wire.errors import to_wire
from aviato.wire.execution import ExecExit
from aviato.wire.frames import Frame, FrameType

if TYPE_CHECKING:
    from aviato.exceptions import AviatoError
    from aviato.server.link.ended import Ended
    from aviato.server.service.output.recorder import Piece

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""How long in all a command waits for one reader that has fallen behind: one at full speed then loses nothing."""
UNREAD_SECONDS = 60.0
"""How long output that is to go waits for readers that do not move."""
AHEAD_BYTES = 8 << 20
"""How far a command may be ahead of such a reader before it waits."""


class RecordedOutput:
    """Output and result of one command, in a directory of its own: `stdout.OFFSET`, `stderr.OFFSET`, `command`, `exit`.

    Attributes:
        command: argv, where it is known.
        accepted, started: as its process 1 said.
        last: its EXIT or ERROR, once it is over.
        is_stored: its result is on disk, and not in memory alone.
        gone: its sandbox ended first.
        taken: somebody has received the result.
        readers: who reads it now.
    """

    def __init__(self, directory: str, command: list[str] | None = None) -> None:
        self.directory = directory
        self.command = command
        self.accepted = False
        self.started = False
        self.last: Frame | None = None
        self.is_stored = False
        self.gone: Ended | None = None
        self.taken = asyncio.Event()
        self.readers: set[RecordedReader] = set()
        self.rings = {1: Ring(directory, "stdout"), 2: Ring(directory, "stderr")}
        self.unread = asyncio.Event()
        self.unread.set()

    @property
    def offsets(self) -> dict[int, int]:
        """How far each stream is kept, or lost."""
        return {stream: ring.end for stream, ring in self.rings.items()}

    @property
    def kept_bytes(self) -> int:
        """What it takes on disk."""
        return sum(ring.kept_bytes for ring in self.rings.values())

    @property
    def over(self) -> bool:
        """Whether nothing more will be kept."""
        return self.last is not None or self.gone is not None

    @property
    def has_result(self) -> bool:
        """Whether the command has ended, and by itself."""
        return self.last is not None and self.last.type == FrameType.EXIT

    def make(self) -> None:
        """Make its directory; for a worker thread. Where the disk does not allow it, all output is a gap."""
        with suppress(OSError):
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            if self.command is not None:
                self._put("command", json.dumps(self.command).encode())

    def load(self) -> None:
        """Read what an earlier server kept; for a worker thread."""
        self.accepted = True
        for ring in self.rings.values():
            ring.load()
        with suppress(OSError, ValueError), open(os.path.join(self.directory, "command"), "rb") as file:
            self.command = json.loads(file.read())
        with suppress(OSError), open(os.path.join(self.directory, "exit"), "rb") as file:
            self._take_exit(file.read())
        # Without either nobody knows: the server may have died before it had sent the command off.
        self.started = self.last is not None or any(self.offsets.values())

    def _take_exit(self, payload: bytes) -> None:
        """A machine that stopped may have left less than was written: then there is no result here."""
        try:
            ended = ExecExit.model_validate_json(payload)
        except ValueError:
            log.error("the result in %s cannot be read; it counts as none", self.directory)
            return
        self.last = Frame(FrameType.EXIT, 0, 0, 0, payload)
        self.is_stored = True
        for stream, total in ((1, ended.stdout_bytes_total), (2, ended.stderr_bytes_total)):
            self.rings[stream].ends_at(total)

    def read(self, offsets: tuple[int, int]) -> RecordedReader:
        """A new reader from these offsets on."""
        reader = RecordedReader(self, offsets)
        self.readers.add(reader)
        self.unread.clear()
        return reader

    def left(self, reader: RecordedReader) -> None:
        """A reader has gone."""
        self.readers.discard(reader)
        if not self.readers:
            self.unread.set()

    async def until_read(self) -> None:
        """Wait until nobody reads it any more; what those lack who stand still for too long is a gap then."""
        while self.readers:
            before = {reader: reader.progress for reader in self.readers}
            with suppress(TimeoutError):
                async with asyncio.timeout(UNREAD_SECONDS):
                    await self.unread.wait()
            if all(before.get(reader) == reader.progress for reader in self.readers):
                break
        for ring in self.rings.values():
            ring.forget()
        self._wake()

    def note(self, frame: Frame) -> None:
        """Take note of a frame that is no output."""
        self.accepted = self.accepted or frame.type == FrameType.ACCEPTED
        self.started = self.started or frame.type == FrameType.STARTED
        self._wake()

    async def append(self, pieces: list[Piece]) -> None:
        """Keep pieces and wake the readers; wait a moment for those that would miss something and are about to read on."""
        await in_thread(self._write, pieces)
        self._wake()
        if self.readers:
            await asyncio.gather(*(reader.catch_up(AHEAD_BYTES, PATIENCE_SECONDS) for reader in self.readers))

    async def conclude(self, last: Frame) -> bool:
        """Keep the result; False if the disk does not take it."""
        self.is_stored = last.type == FrameType.EXIT and await in_thread(self._put, "exit", last.payload)
        self.last = last
        self.close()
        return self.is_stored or last.type == FrameType.ERROR

    def fail(self, error: AviatoError) -> None:
        """It could not be started."""
        self.last = Frame(FrameType.ERROR, 0, 0, 0, to_wire(error).model_dump_json().encode())
        self.close()

    def lose(self, gone: Ended) -> None:
        """Its sandbox is gone."""
        self.gone = gone
        self.close()

    def close(self) -> None:
        """Let go of open files and wake the readers."""
        for ring in self.rings.values():
            ring.close()
        self._wake()

    def _wake(self) -> None:
        for reader in self.readers:
            reader.wake()

    def _write(self, pieces: list[Piece]) -> None:
        for stream, offset, data in pieces:
            self.rings[stream].write(offset, data)

    def _put(self, name: str, content: bytes) -> bool:
        path = os.path.join(self.directory, name)
        try:
            with open(f"{path}.new", "wb") as file:
                file.write(content)
            os.replace(f"{path}.new", path)
        except OSError:
            return False
        return True
