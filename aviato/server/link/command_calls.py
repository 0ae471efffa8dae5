"""What a server asks about the commands of a sandbox: the calls of a link that start, follow and end them."""

from __future__ import annotations

import binascii
import json
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError
from aviato.server.link.exec_spec import LATER_FIELDS
from aviato.server.link.lasting_connection import LastingConnection, through_cuts
from aviato.server.link.payload import as_json
from aviato.server.link.progress import Progress
from aviato.server.link.subscription import Subscription
from aviato.wire.frames import MAX_PAYLOAD_BYTES, FrameType, encode

if TYPE_CHECKING:
    import asyncio

    from aviato.server.link.exec_spec import ExecSpec
    from aviato.server.shared_memory import Memory

PIECE_BYTES = 64 << 10
"""Of a command's input."""
LARGEST_REQUEST_BYTES = MAX_PAYLOAD_BYTES
LARGEST_EARLIER_BYTES = 1 << 20
"""What a process 1 without the feature `long_commands` takes."""
TOGETHER = "together"
"""The feature of a process 1 that may send what a command says with its end."""


class CommandCalls(LastingConnection):
    """What a link asks about commands."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(sandbox_id)
        self._feeding: set[asyncio.Task[None]] = set()

    def subscribe(
        self,
        spec: ExecSpec | None,
        exec_id: str,
        stdout: int = 0,
        stderr: int = 0,
        *,
        read_along: bool = True,
        memory: Memory | None = None,
    ) -> Subscription:
        """Start a command unless its id is known, and stream its output from these offsets.

        With `memory` large output of one that is started may lie there: SHARED frames then say where.

        What is wrong arrives as an ERROR frame: the same id with another spec (`REQUEST_ID_CONFLICT`), an unknown id without a
        spec (`EXEC_NOT_FOUND`), a missing working directory (`FILE`).

        Where nobody reads along, what a short command says, that it has begun too, may arrive with its end.

        Raises:
            SandboxGone: it has ended.
            AviatoValidationError: the request is too large for one frame, or needs a newer process 1.
        """
        features = self.hello["features"]
        request: dict[str, Any] = {"op": "exec", "exec_id": exec_id, "stdout": stdout, "stderr": stderr}
        if not read_along and TOGETHER in features:
            request["together"] = True
        given: str | None = None
        late_input: str | None = None
        if spec is not None:
            request["spec"] = fields = spec.fields()
            given = fields.pop("input", None)
            if given is not None and "input" not in features:
                given, late_input = None, given
            programs = ("programs",) if "cases" in fields and fields["cases"].get("programs") is not None else ()
            for name in (*LATER_FIELDS, *programs):
                if name not in features and (name in fields or name in programs):
                    raise AviatoValidationError(f"{self.sandbox_id} was made by a version without {name}; make a new sandbox")
        payload = as_json(request)
        if given is not None:  # No encoder has to look for what base64 does not have.
            payload = b'%b,"input":"%b"}}' % (payload[:-2], given.encode())
        most = LARGEST_REQUEST_BYTES if "long_commands" in features else LARGEST_EARLIER_BYTES
        if len(payload) > most:
            size = f"command and environment take {len(payload)} bytes; at most {most} fit a request"
            raise AviatoValidationError(size, field_violations={"command": size})
        subscription = Subscription(exec_id, self._unsubscribed)
        if self._reopen is not None:
            subscription.progress = Progress(json.loads(payload) if spec is not None else None, [stdout, stderr])
        channel = self._open(subscription, goes_on=subscription.progress is not None)
        older = self._subscriptions.pop(exec_id, None)
        if older is not None:
            older[1].replaced = True
            older[1]._finish(None)
            self._give_up(older[0])
        self._subscriptions[exec_id] = (channel, subscription)
        if spec is not None:
            self._active.add(exec_id)
        # Between two connections nothing is sent: the next one begins with it.
        if self._away is None and (spec is None or memory is None or not self._send_with(memory, payload, channel)):
            self._send(FrameType.REQUEST, payload, channel=channel)
        if late_input is not None:
            task = self._loop.create_task(self.feed(exec_id, binascii.a2b_base64(late_input)))
            self._feeding.add(task)
            task.add_done_callback(self._feeding.discard)
        return subscription

    def acknowledge(self, exec_id: str, stdout: int, stderr: int, done: bool) -> None:
        """Say what has been received: windows move on, and at `done` the result is forgotten. Fire and forget."""
        if done:
            self._active.discard(exec_id)
        if not self._acks:
            self._loop.call_soon(self._send_acks)
        said = {"exec_id": exec_id, "stdout": stdout, "stderr": stderr, "done": done}
        if self._reopen is not None:
            self._note(said)
        self._acks += encode(FrameType.ACK, as_json(said))

    async def write_stdin(self, exec_id: str, data: bytes, offset: int, eof: bool) -> None:
        """Write to a command's stdin at this offset of the stream; what it has already is skipped. Waits for room.

        Raises:
            SandboxExecutionError: reason `stdin_closed`.
            ExecNotFoundError: the command is not known.
            SandboxGone: the sandbox ended.
        """
        position = 0
        while True:
            piece = data[position : position + PIECE_BYTES]
            last = position + len(piece) >= len(data)
            request = {"op": "stdin", "exec_id": exec_id, "offset": offset + position, "eof": eof and last}
            await self._call(request, body=piece)
            position += len(piece)
            if last:
                return

    async def feed(self, exec_id: str, data: bytes) -> None:
        """Give a command all of its input, and the end of it. One that does not read it all has not failed."""
        await through_cuts(lambda: self.write_stdin(exec_id, data, 0, True))

    async def signal(self, exec_id: str, signal: int, key: str | None = None) -> None:
        """Send a signal to the command's process group; nothing happens if it has ended, or if a call of this key was done.

        Raises:
            ExecNotFoundError: the command is not known.
        """
        await self._call({"op": "signal", "exec_id": exec_id, "signal": signal, "key": key})

    async def resize(self, exec_id: str, width: int, height: int) -> None:
        """Give the command's terminal another size, in characters; nothing happens if it has ended.

        Raises:
            ExecNotFoundError: the command is not known.
            AviatoValidationError: it has no terminal.
        """
        await self._call({"op": "resize", "exec_id": exec_id, "width": width, "height": height})

    async def cancel(self, exec_id: str) -> None:
        """Kill the command's whole tree, children it left behind included; returns when it is dead."""
        await self._call({"op": "cancel", "exec_id": exec_id})

    async def cancel_all(self) -> None:
        """Kill everything but the main command and its descendants; returns when it is dead.

        Raises:
            AviatoValidationError: this needs a newer process 1.
        """
        if "cancel_all" not in self.hello["features"]:
            raise AviatoValidationError(f"{self.sandbox_id} was made by a version without cancel_all; make a new sandbox")
        await self._call({"op": "cancel_all"})

    def has(self, exec_id: str) -> bool:
        """Whether a command runs, or its result was not acknowledged."""
        return exec_id in self._active

    def active_execs(self) -> int:
        """Commands that run or whose result was not acknowledged."""
        return len(self._active)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is asked for, and no result is left that was not acknowledged."""
        return not self._active and not self._channels

    def _unsubscribed(self, subscription: Subscription) -> None:
        channel, current = self._subscriptions.get(subscription.exec_id, (0, None))
        if current is subscription:
            del self._subscriptions[subscription.exec_id]
            self._give_up(channel)
