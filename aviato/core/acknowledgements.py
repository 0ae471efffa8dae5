"""What a process tells a server in the background: which output has arrived, and which sandboxes nobody can use any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from aviato.core.background import background
from aviato.exceptions import AviatoError
from aviato.log import logger
from aviato.wire.execution import ACKNOWLEDGED_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

LET_GO_SECONDS = 0.01
AFTER_EXIT_SECONDS = 0.1
"""A whole result that has arrived holds nothing up, and the end of its sandbox, which often comes soon, says it too."""
AGAIN_SECONDS = 1.0


class Received(NamedTuple):
    """What has arrived of a command, as `wire.execution.ExecAck` has it: no model on the hot path."""

    sandbox_id: str
    exec_id: str
    stdout: int
    stderr: int
    done: bool
    reader_id: str


class Told(NamedTuple):
    """What one request tells, as `wire.execution.Acknowledgements` has it."""

    execs: list[Received]
    let_go: list[str]


class Acknowledger:
    """Gathers what is to be told, and tells many things in one request.

    Args:
        send: tells the server.

    Attributes:
        ended: there is nobody to tell any more.
    """

    def __init__(self, send: Callable[[Told], Awaitable[None]]) -> None:
        self._send = send
        self._execs: dict[str, dict[tuple[str, str], Received]] = {}
        self._let_go: list[str] = []
        self._within: float | None = None
        """How soon the most urgent of it is to be told."""
        self._timer: tuple[float, asyncio.Handle] | None = None
        """When it is told next."""
        self._flushing: asyncio.Task[None] | None = None
        self.ended = False

    def received(
        self, sandbox_id: str, exec_id: str, stdout: int, stderr: int, *, done: bool = False, reader_id: str = ""
    ) -> None:
        """Acknowledge bytes of a command; some time after its end, and at once while it runs."""
        execs, key = self._execs.setdefault(sandbox_id, {}), (exec_id, reader_id)
        if not done and (before := execs.get(key)) is not None and before.done:
            return  # Whoever reads along has caught up in the turn in which the end came: that says it all.
        execs[key] = Received(sandbox_id, exec_id, stdout, stderr, done, reader_id)
        self._tell_within(AFTER_EXIT_SECONDS if done else 0.0)

    def let_go(self, sandbox_id: str) -> None:
        """Nobody can use this sandbox any more."""
        self._let_go.append(sandbox_id)
        self._tell_within(LET_GO_SECONDS)

    def results_of(self, sandbox_id: str) -> list[str]:
        """The commands of a sandbox whose whole results have arrived, and the server was not told so yet."""
        # A whole result that an attached reader has is no less whole: what a command has left goes either way.
        found = [exec_id for (exec_id, _), ack in self._execs.get(sandbox_id, {}).items() if ack.done]
        return list(dict.fromkeys(found))

    def settled(self, sandbox_id: str, exec_ids: Iterable[str]) -> None:
        """These whole results need no acknowledgement any more: the server was told in another way, or has none left."""
        gone, execs = set(exec_ids), self._execs.pop(sandbox_id, {})
        if left := {key: ack for key, ack in execs.items() if not (ack.done and key[0] in gone)}:
            self._execs[sandbox_id] = left

    async def told_of(self, sandbox_id: str) -> None:
        """Wait until the server has been told what there was of a sandbox, whatever comes of others meanwhile."""
        if self._flushing is not None:
            await asyncio.wait((self._flushing,))
        while not self.ended and (sandbox_id in self._execs or sandbox_id in self._let_go):
            if self._flushing is None:
                self._flush()
            if self._flushing is not None:
                await asyncio.wait((self._flushing,))

    def _tell_within(self, seconds: float) -> None:
        self._within = seconds if self._within is None else min(self._within, seconds)
        if self._flushing is not None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is not None:
            if self._timer[0] <= due:
                return
            self._timer[1].cancel()
        self._timer = (due, loop.call_later(seconds, self._flush))

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        if self._execs or self._let_go:
            self._flushing = background(self._tell())
            self._flushing.add_done_callback(self._told)
        else:
            self._within = None

    async def _tell(self) -> None:
        while not self.ended and (self._execs or self._let_go):
            acks = self._take_execs()
            let_go, self._let_go = self._let_go[:ACKNOWLEDGED_AT_ONCE], self._let_go[ACKNOWLEDGED_AT_ONCE:]
            if not self._execs and not self._let_go:
                self._within = None
            try:
                await self._send(Told(acks, let_go))
            except AviatoError as error:
                logger.debug("acknowledging failed and is tried again: %s", error)
            else:
                if max(len(acks), len(let_go)) < ACKNOWLEDGED_AT_ONCE:
                    return
                continue
            for ack in acks:
                execs, key = self._execs.setdefault(ack.sandbox_id, {}), (ack.exec_id, ack.reader_id)
                if ack.done or key not in execs:
                    execs[key] = ack
            self._let_go = let_go + self._let_go
            await asyncio.sleep(AGAIN_SECONDS)

    def _take_execs(self) -> list[Received]:
        """Those that one request may have."""
        taken: list[Received] = []
        while self._execs and len(taken) < ACKNOWLEDGED_AT_ONCE:
            sandbox_id, execs = next(iter(self._execs.items()))
            taken += [execs.pop(key) for key in list(execs)[: ACKNOWLEDGED_AT_ONCE - len(taken)]]
            if not execs:
                del self._execs[sandbox_id]
        return taken

    def _told(self, flushing: asyncio.Task[None]) -> None:
        self._flushing = None
        if self._within is not None and not flushing.cancelled():
            self._tell_within(self._within)
