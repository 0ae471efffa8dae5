"""Commands that the server itself runs, to their end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.server.link.ended import SandboxGone
from aviato.server.link.link import ExecSpec
from aviato.wire.errors import ErrorBody, from_wire
from aviato.wire.execution import ExecExit
from aviato.wire.frames import FrameType, StreamId
from aviato.wire.ids import new_exec_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.server.link.link import Process1Link
    from aviato.server.link.subscription import Subscription

MAX_OUTPUT_BYTES = 4 << 20
"""Of each stream, where nothing else is said."""
SILENCE_SECONDS = 10.0
"""How long after its limit a command's end is waited for."""
WARM_UP_SECONDS = 600.0
"""How long each command of a warm-up may take."""
SHOWN_BYTES = 2000
"""Of what a command of a warm-up said that failed."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How a command ended. What was printed beyond the limit of a stream is not there, but counted."""

    exit: ExecExit
    stdout: bytes
    stderr: bytes

    @property
    def cut(self) -> list[str]:
        """What is missing, in words."""
        totals = (("stdout", self.stdout, self.exit.stdout_bytes_total), ("stderr", self.stderr, self.exit.stderr_bytes_total))
        return [f"{name} cut at {len(kept)} of {total} bytes" for name, kept, total in totals if len(kept) < total]


async def run_to_end(
    link: Process1Link,
    command: list[str],
    *,
    stdin: bytes | None = None,
    timeout_seconds: float,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> Ran:
    """Run a command to its end; at its limit its whole tree is killed and what it printed is there.

    Raises:
        AviatoError: it could not be started.
        SandboxUnavailableError: nothing was heard of its end.
        SandboxGone: the sandbox ended.
    """
    exec_id = new_exec_id()
    spec = ExecSpec(
        exec_id=exec_id,
        command=command,
        environment={},
        working_dir=None,
        stdin=stdin is not None,
        timeout_seconds=timeout_seconds,
    )
    feeding: asyncio.Task[None] | None = None
    try:
        subscription = link.subscribe(spec, exec_id)
        if stdin is not None:
            feeding = asyncio.create_task(link.feed(exec_id, stdin))
        try:
            async with asyncio.timeout(timeout_seconds + SILENCE_SECONDS):
                return await _collect(link, subscription, exec_id, max_output_bytes)
        except TimeoutError:
            # Its process 1 kills any command at its limit, and says so: it is the machine that stands still.
            message = f"the sandbox has not answered for {SILENCE_SECONDS:g} s after the command's limit"
            raise SandboxUnavailableError(message, sandbox_id=link.sandbox_id, reason="silent", started=True) from None
        finally:
            subscription.close()
    finally:
        if feeding is not None:
            feeding.cancel()


async def warm_up(link: Process1Link, commands: Sequence[Sequence[str]]) -> None:
    """Run commands one after the other; nothing of them is left but what they did.

    Raises:
        SandboxUnavailableError: one did not end with returncode 0, or the sandbox ended; reason `warm_up_failed`.
    """
    for command in commands:
        try:
            ran = await run_to_end(link, [*command], timeout_seconds=WARM_UP_SECONDS)
        except SandboxGone as gone:
            raise _not_warm(command, f"the sandbox ended meanwhile ({gone.ended.reason})") from None
        except AviatoError as error:
            raise _not_warm(command, str(error)) from error
        if ran.exit.timed_out:
            raise _not_warm(command, f"it takes longer than {WARM_UP_SECONDS:g} s")
        if ran.exit.returncode != 0:
            said = (ran.stderr or ran.stdout)[-SHOWN_BYTES:].decode(errors="replace").strip()
            raise _not_warm(command, f"it ended with returncode {ran.exit.returncode}: {said}")


async def _collect(link: Process1Link, subscription: Subscription, exec_id: str, limit: int) -> Ran:
    kept = {int(StreamId.STDOUT): bytearray(), int(StreamId.STDERR): bytearray()}
    ends = dict.fromkeys(kept, 0)
    while True:
        await subscription.wait()
        frames = subscription.drain()
        if not frames:
            raise from_wire(ErrorBody(code="UNAVAILABLE", message="the command's output broke off", is_infrastructure=True))
        for frame in frames:
            if frame.type == FrameType.DATA:
                ends[frame.stream] = frame.offset + len(frame.payload)
                room = limit - len(kept[frame.stream])
                kept[frame.stream] += frame.payload[:room]
            elif frame.type == FrameType.ERROR:
                raise from_wire(ErrorBody.model_validate_json(frame.payload))
            elif frame.type == FrameType.EXIT:
                link.acknowledge(exec_id, ends[1], ends[2], True)
                result = ExecExit.model_validate_json(frame.payload)
                return Ran(exit=result, stdout=bytes(kept[1]), stderr=bytes(kept[2]))
        link.acknowledge(exec_id, ends[1], ends[2], False)


def _not_warm(command: Sequence[str], why: str) -> SandboxUnavailableError:
    message = f"the warm-up command {list(command)!r} failed: {why}"
    return SandboxUnavailableError(message, reason="warm_up_failed", retryable=False)
