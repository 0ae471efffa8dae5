"""Files by way of memory that is lent to a server on this machine. Whatever is wrong with that, the socket does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aviato.exceptions import AviatoError
from aviato.wire.memory import LEAST_BYTES, MOST_BYTES, REFUSED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.core.lifecycle import SandboxHandle
    from aviato.transport.lending import Memory

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
        if isinstance(error, AviatoError) and (error.retryable or error.reason == REFUSED):
            return None
        raise
    memory.keep()
    return result
