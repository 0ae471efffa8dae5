"""Files and large output by memory that is lent to a server on this machine. Where that goes wrong, the socket does it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.wire.frames import PLACE
from aviato.wire.memory import LEAST_BYTES, MOST_BYTES, REFUSED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aviato.core.lifecycle import SandboxHandle
    from aviato.transport.lending import Memory

LARGE_OUTPUT_BYTES = 2 << 20
"""Of so much it is taken that much more comes."""
T = TypeVar("T")


def note(handle: SandboxHandle, size: int) -> None:
    """A file of this size went by the socket: for the next it is worth having memory."""
    if LEAST_BYTES <= size <= MOST_BYTES and (lender := handle.client.transport.lender) is not None:
        lender.noted(handle.sandbox_id)


async def attempt(handle: SandboxHandle, call: Callable[[Memory], Awaitable[T]]) -> T | None:
    """Make a call with memory; None where there is none, or where it came to nothing that the socket would come to as well.

    The call must be one that can be repeated.
    """
    lender = handle.client.transport.lender
    if lender is None or (memory := await lender.memory(handle.sandbox_id)) is None:
        return None
    try:
        result = await call(memory)
    except BaseException as error:
        memory.drop()
        if isinstance(error, AviatoError) and error.reason == REFUSED:
            lender.refused()
            return None
        if isinstance(error, AviatoError) and error.retryable:
            return None
        raise
    memory.keep()
    return result


class LentOutput:
    """Large output of a command that this client has begun: it comes by memory once that is lent, and by the socket until then.

    Args:
        handle: its sandbox.
        path: of the command, for requests.
        exec_id: its id.
    """

    def __init__(self, handle: SandboxHandle, path: str, exec_id: str) -> None:
        self._handle = handle
        self._path = path
        self._exec_id = exec_id
        self._outputs = f"output of {handle.sandbox_id}"
        self._memory: Memory | None = None
        self._stream = 0
        """Which output comes by it."""
        self._asking: asyncio.Task[None] | None = None

    def large(self, stream: int, size: int) -> None:
        """So much of an output has come: lend memory for it, once; soon where this sandbox has had large output before."""
        if self._asking is None and (size >= LARGE_OUTPUT_BYTES or self._is_usual):
            self._asking = asyncio.get_running_loop().create_task(self._ask(stream))

    @property
    def _is_usual(self) -> bool:
        lender = self._handle.client.transport.lender
        return lender is not None and lender.is_noted(self._outputs)

    def take(self, payload: bytes) -> Iterator[memoryview] | None:
        """The bytes that a frame tells the place of; None where there is no such memory."""
        return None if self._memory is None else self._memory.pieces(*PLACE.unpack(payload))

    def confirm(self, stream: int, offset: int) -> bool:
        """Say there how much of an output is here; False where that takes a request."""
        if self._memory is None or stream != self._stream:
            return False
        try:
            self._memory.confirm(offset)
        except SandboxUnavailableError:
            return False
        return True

    def end(self) -> None:
        """Take it back. What comes after a cut does not come by the memory of before."""
        if self._asking is not None:
            self._asking.cancel()
        if self._memory is not None:
            self._memory.drop()
            self._memory = None

    async def _ask(self, stream: int) -> None:
        transport = self._handle.client.transport
        if (lender := transport.lender) is None or (memory := await lender.output(self._exec_id)) is None:
            return
        self._memory = memory
        try:
            await transport.request("POST", f"{self._path}/{self._exec_id}/memory?memory={memory.name}&stream={stream}")
        except AviatoError:
            return  # It comes as before. Whether places in it are still told nobody knows, so it is kept to the end.
        self._stream = stream
        lender.noted(self._outputs)
