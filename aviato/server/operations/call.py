"""What an operation is given, whatever has carried it here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aviato.exceptions import AviatoValidationError
from aviato.server.callers import CALLER
from aviato.server.peers import Asker, peer_uid
from aviato.wire.shared_memory import MEMORY_HEADER
from aviato.wire.version import KEY_HEADER

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Mapping

    from aviato.server.callers import Caller
    from aviato.server.service import Service
    from aviato.server.shared_memory import Memory

_KEY = re.compile("[0-9A-Za-z]{1,64}")


class Incoming(Protocol):
    """A request as it came."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Those that operations look at."""
        ...

    @property
    def size_bytes(self) -> int | None:
        """Of its body, if it says so."""
        ...

    @property
    def transport(self) -> asyncio.BaseTransport | None:
        """Of its connection; None once that is gone."""
        ...

    def chunks(self, caller: Caller) -> AsyncIterator[bytes]:
        """Its body as it comes, as far as the caller may send it."""
        ...

    async def read(self, caller: Caller) -> bytes:
        """All of its body, where it is not large."""
        ...

    def cut(self) -> None:
        """Break its connection."""
        ...


@dataclass(slots=True)
class Call:
    """A request whose parts have been checked.

    Attributes:
        request: as it came.
        service: does what it asks for.
        variables: of its path.
        query, body: as the operation's models have them.
    """

    request: Incoming
    service: Service
    variables: Mapping[str, str]
    query: Any = None
    body: Any = None

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return CALLER.get()

    @property
    def asker(self) -> Asker:
        """Tells which process asks."""
        return Asker(self.request.transport)

    @property
    def key(self) -> str | None:
        """By which a repeat of this very call is known.

        Raises:
            AviatoValidationError: it is none.
        """
        key = self.request.headers.get(KEY_HEADER)
        if key is not None and not _KEY.fullmatch(key):
            raise AviatoValidationError(f"{KEY_HEADER}: 1 to 64 letters and digits", field_violations={KEY_HEADER: "no key"})
        return key

    def path_id(self, name: str, pattern: re.Pattern[str], what: str) -> str:
        """An id in the path.

        Raises:
            AviatoValidationError: it is none.
        """
        given = self.variables[name]
        if pattern.fullmatch(given) is None:
            raise AviatoValidationError(f"{given!r} is not the id of {what}", field_violations={name: f"no id of {what}"})
        return given

    async def memory(self) -> Memory | None:
        """What the client shares for it, to be closed; None where that is nothing that can be had here."""
        name = self.request.headers.get(MEMORY_HEADER)
        if name is None or (transport := self.request.transport) is None or peer_uid(transport) is None:
            return None
        return await self.service.shared_memories.get(name)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, whatever its head says of its size.

        Raises (while it comes):
            BodyTooLargeError: it is more than the caller may send.
        """
        return self.request.chunks(self.caller)

    async def read(self) -> bytes:
        """All of the body, where it is not large.

        Raises:
            BodyTooLargeError: it is more than the caller may send.
            SlowBodyError: it does not come in time.
        """
        return await self.request.read(self.caller)
