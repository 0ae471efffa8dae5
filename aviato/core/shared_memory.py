"""Files and large output by memory that is shared with a server on this machine. Where that goes wrong, the socket does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aviato.exceptions import AviatoError, AviatoValidationError, SandboxUnavailableError
from aviato.wire.shared_memory import LEAST_BYTES, MOST_BYTES, PLACE, REFUSED, SIZE_FIELD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aviato.core.lifecycle import SandboxHandle
    from aviato.transport.shared_memory import Memory

LARGE_OUTPUT_BYTES = 2 << 20
"""Whoever has had so much of a sandbox shares memory for its next command."""
T = TypeVar("T")


def note(handle: SandboxHandle, size: int) -> None:
    """A file of this size went by the socket: for the next it is worth having memory."""
    if LEAST_BYTES <= size <= MOST_BYTES and (memories := handle.client.transport.memories) is not None:
        memories.note(_files(handle))


async def attempt(handle: SandboxHandle, call: Callable[[Memory], Awaitable[T]]) -> T | None:
    """Make a call with memory; None where there is none, or where it came to nothing that the socket would come to as well.

    The call must be one that can be repeated.
    """
    memories = handle.client.transport.memories
    if memories is None or (memory := await memories.take(_files(handle), handle.sandbox_id)) is None:
        return None
    try:
        result = await call(memory)
    except BaseException as error:
        memory.drop()
        if isinstance(error, AviatoValidationError) and SIZE_FIELD in error.field_violations:
            memories.refused()
            return None
        if isinstance(error, AviatoError) and error.retryable:
            return None
        raise
    memory.keep()
    return result


class SharedOutput:
    """Memory for what a command prints, of which large output comes by it; what else it prints, by the socket.

    Args:
        memory: to be shared.
    """

    def __init__(self, memory: Memory) -> None:
        self.name = memory.name
        self._memory = memory
        memory.confirm(0)  # A file may have been there.

    @classmethod
    async def of(cls, handle: SandboxHandle) -> SharedOutput | None:
        """For the next command of a sandbox; None where the socket will do."""
        memories = handle.client.transport.memories
        if memories is None or (memory := await memories.take(_output(handle), handle.sandbox_id)) is None:
            return None
        try:
            return cls(memory)
        except SandboxUnavailableError:
            memory.drop()
            return None

    def take(self, payload: bytes) -> Iterator[memoryview]:
        """The bytes that a frame tells the place of.

        Raises:
            SandboxUnavailableError: they are not there.
        """
        if len(payload) != PLACE.size:
            raise SandboxUnavailableError("the place of output in memory is no place", reason=REFUSED)
        return self._memory.pieces(*PLACE.unpack(payload))

    def confirm(self, offset: int) -> bool:
        """Say there how much of the output is here; False where that takes a request."""
        if not self._memory.used:
            return False
        try:
            self._memory.confirm(offset)
        except SandboxUnavailableError:
            return False
        return True

    def end(self, *, whole: bool) -> None:
        """Nothing more comes by it. What came by it may still be asked for by another reader, until it is confirmed."""
        if whole and not self._memory.used:
            self._memory.keep()
        else:
            self._memory.drop()


def note_output(handle: SandboxHandle) -> None:
    """A command has printed much: the next of its sandbox may, too."""
    if (memories := handle.client.transport.memories) is not None:
        handle.prints_much = True
        memories.note(_output(handle))


def _files(handle: SandboxHandle) -> str:
    return handle.sandbox_id


def _output(handle: SandboxHandle) -> str:
    return f"output of {handle.sandbox_id}"
