"""Results that nobody had confirmed when their sandbox ended, for those who were cut off and come back."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import json
import logging
import math
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from aviato.system.threads import in_thread
from aviato.wire.execution import Accepted, Gap
from aviato.wire.frames import Frame, FrameType
from aviato.wire.ids import EXEC_ID, SANDBOX_ID

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

KEPT_SECONDS = 600.0
"""How long after the end of its sandbox a result waits; ten times as long as a client looks for its server by default."""
MOST_SANDBOXES = 4096
MOST_BYTES = 256 << 20
"""Of so many ended sandboxes results are kept, and so many bytes in all; the oldest go first."""
SAVE_SECONDS = 0.3
"""Most are confirmed by then, and never written."""
PIECE_BYTES = 256 << 10


class Result(NamedTuple):
    """How a command ended, and its output from where it was not confirmed on: an offset and bytes for each stream."""

    exit: bytes
    stdout: tuple[int, bytes]
    stderr: tuple[int, bytes]

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return len(self.exit) + len(self.stdout[1]) + len(self.stderr[1])

    def frames(self, exec_id: str, offsets: tuple[int, int]) -> list[Frame]:
        """What a reader gets who has the output up to these offsets."""
        frames = [
            Frame(FrameType.ACCEPTED, 0, 0, 0, Accepted(exec_id=exec_id).model_dump_json(exclude_none=True).encode()),
            Frame(FrameType.STARTED, 0, 0, 0, b"{}"),
        ]
        for stream, ((base, data), seen) in enumerate(zip((self.stdout, self.stderr), offsets, strict=True), 1):
            if seen < base:
                gap = Gap(from_offset=seen, to_offset=base).model_dump_json().encode()
                frames.append(Frame(FrameType.GAP, stream, 0, seen, gap))
            frames += [
                Frame(FrameType.DATA, stream, 0, base + start, data[start : start + PIECE_BYTES])
                for start in range(max(0, seen - base), len(data), PIECE_BYTES)
            ]
        return [*frames, Frame(FrameType.EXIT, 0, 0, 0, self.exit)]


@dataclass(eq=False, slots=True)
class _Left:
    """What one sandbox left behind: `unsaved` in memory, the rest in its file."""

    since: float
    expires_at: float
    size_bytes: int = 0
    exec_ids: set[str] = field(default_factory=set)
    unsaved: dict[str, Result] = field(default_factory=dict)
    on_disk: bool = False


class RetainedResults:
    """What ended sandboxes left behind, in a file each and for a time.

    Args:
        directory: where the files lie.
        most_seconds: how long at most, where that is less than usual.
    """

    def __init__(self, directory: str, most_seconds: float = math.inf) -> None:
        self._most_seconds = most_seconds
        self._directory = directory
        self._left: dict[str, _Left] = {}
        self._size_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def has(self, sandbox_id: str, exec_id: str) -> bool:
        """Whether there is a result of this command."""
        left = self._left.get(sandbox_id)
        return left is not None and exec_id in left.exec_ids

    def offer(self, sandbox_id: str, exec_id: str, result: Result) -> None:
        """Keep a result whose sandbox is about to end without another word, until it is confirmed."""
        left = self._entry(sandbox_id)
        left.unsaved[exec_id] = result
        left.exec_ids.add(exec_id)
        self._grow(sandbox_id, left, result.size_bytes)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SAVE_SECONDS, self._save_on_time)

    async def gather(self, sandbox_id: str, leave: Callable[[str], bool]) -> None:
        """Take what process 1 of an ended sandbox left behind.

        Args:
            sandbox_id: which.
            leave: puts that into a file, given its path; False if there is nothing.
        """
        path = self._path(sandbox_id)
        try:
            found = await in_thread(lambda: _index(path) if leave(path) else {})
        except OSError as error:
            log.error("results of sandbox %s cannot be kept: %s", sandbox_id, error)
            return
        if not found:
            return
        left = self._entry(sandbox_id)
        left.on_disk = True
        left.exec_ids |= found.keys()
        in_memory = sum(result.size_bytes for result in left.unsaved.values())
        self._grow(sandbox_id, left, sum(found.values()) + in_memory - left.size_bytes)

    async def load(self, sandbox_id: str, exec_id: str) -> Result | None:
        """The result of a command, if it is still there."""
        left = self._left.get(sandbox_id)
        if left is None or exec_id not in left.exec_ids:
            return None
        return left.unsaved.get(exec_id) or await in_thread(_find, self._path(sandbox_id), exec_id)

    def confirm(self, sandbox_id: str, exec_id: str) -> None:
        """A result has arrived: it need not be kept."""
        left = self._left.get(sandbox_id)
        if left is None:
            return
        left.exec_ids.discard(exec_id)
        left.unsaved.pop(exec_id, None)
        if not left.exec_ids:
            self._remove(sandbox_id)

    def expire(self) -> None:
        """Take away what has waited for long enough."""
        now = time.monotonic()
        while self._left and (sandbox_id := next(iter(self._left))) and self._left[sandbox_id].expires_at <= now:
            self._remove(sandbox_id)

    def restore(self) -> None:
        """Find what an earlier server kept; it waits for one more period. For a worker thread."""
        for name in sorted(os.listdir(self._directory)):
            if not SANDBOX_ID.fullmatch(name) or name in self._left:
                continue
            found = _index(self._path(name))
            left = self._entry(name)
            left.on_disk = True
            left.exec_ids |= found.keys()
            self._grow(name, left, sum(found.values()))
            if not found:
                self._remove(name)

    def save(self, before: float = math.inf) -> bool:
        """Write what lies in memory alone.

        Args:
            before: of sandboxes whose first result came before that, by the monotonic clock.

        Returns:
            Whether it could be written.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sandbox_id, left in self._left.items():
            if not left.unsaved or left.since > before:
                continue
            lines = b"".join(_line(exec_id, result) for exec_id, result in left.unsaved.items())
            if left.on_disk:
                lines = b"\n" + lines  # The last one there may lack its end.
            try:
                with open(self._path(sandbox_id), "ab", opener=_opener) as file:
                    file.write(lines)
            except OSError as error:
                log.error("results of sandbox %s cannot be kept on disk: %s", sandbox_id, error)
                return False
            left.unsaved = {}
            left.on_disk = True
        return True

    def _save_on_time(self) -> None:
        self._timer = None
        now = time.monotonic()
        if not self.save(now - SAVE_SECONDS):
            return
        # Those that came just now are most likely confirmed before their own time has passed.
        first = next((left.since for left in self._left.values() if left.unsaved), None)
        if first is not None:
            self._timer = asyncio.get_running_loop().call_later(first + SAVE_SECONDS - now, self._save_on_time)

    def _entry(self, sandbox_id: str) -> _Left:
        left = self._left.get(sandbox_id)
        if left is None:
            now = time.monotonic()
            left = self._left[sandbox_id] = _Left(now, now + min(KEPT_SECONDS, self._most_seconds))
        return left

    def _grow(self, sandbox_id: str, left: _Left, size_bytes: int) -> None:
        left.size_bytes += size_bytes
        self._size_bytes += size_bytes
        while len(self._left) > MOST_SANDBOXES or (self._size_bytes > MOST_BYTES and len(self._left) > 1):
            self._remove(next(iter(self._left)))

    def _remove(self, sandbox_id: str) -> None:
        left = self._left.pop(sandbox_id)
        self._size_bytes -= left.size_bytes
        if left.on_disk:
            with contextlib.suppress(OSError):
                os.unlink(self._path(sandbox_id))

    def _path(self, sandbox_id: str) -> str:
        return os.path.join(self._directory, sandbox_id)


def _line(exec_id: str, result: Result) -> bytes:
    """As process 1s write it."""
    output = [[base, binascii.b2a_base64(data, newline=False).decode()] for base, data in (result.stdout, result.stderr)]
    return json.dumps({"exec_id": exec_id, "exit": json.loads(result.exit), "output": output}).encode() + b"\n"


def _index(path: str) -> dict[str, int]:
    """The commands that a file has results of, and what each takes. A supervisor's own last words stand before them."""
    found = {}
    with open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                exec_id = json.loads(line)["exec_id"]
                if EXEC_ID.fullmatch(exec_id):
                    found[exec_id] = len(line)
    return found


def _find(path: str, exec_id: str) -> Result | None:
    try:
        with open(path, "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    value = json.loads(line)
                    if value["exec_id"] == exec_id:
                        stdout, stderr = ((int(base), binascii.a2b_base64(data)) for base, data in value["output"])
                        return Result(json.dumps(value["exit"]).encode(), stdout, stderr)
    except OSError as error:
        log.error("a result in %s cannot be read: %s", path, error)
    return None


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
