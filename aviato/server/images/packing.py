"""Directories of layers become tars again, by `aviato-init layer --pack`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Protocol

from aviato.exceptions import SandboxImageError
from aviato.server.images.layer_program import MOST_SAID_BYTES, LayerProgram

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

PIECE_BYTES = 1 << 20
_FAILED = "pack_failed"


class Pack(Protocol):
    """Makes the tar of a layer's directory."""

    def __call__(self, root: Path) -> AsyncGenerator[bytes, None]:
        """Its pieces; the same files always make the same tar. Close it.

        Raises:
            SandboxImageError: it cannot be packed.
        """
        ...


class Packing:
    """Packs by the program `aviato-init`.

    Args:
        program: gives its path.
        owners: whether files have the owners that they have on disk; for root. Else all is root's.
        map_ids: maps subordinate ids, as for `Unpacking`.
    """

    def __init__(
        self, program: Callable[[], str], *, owners: bool = False, map_ids: Callable[[socket.socket, int], None] | None = None
    ) -> None:
        self._program = LayerProgram(program, _failure, owners=owners, map_ids=map_ids)

    async def __call__(self, root: Path) -> AsyncGenerator[bytes, None]:
        """See `Pack`. Closed early, it leaves no process behind."""
        async with self._program.run([("--pack", root)]) as process:
            assert process.stdout is not None and process.stderr is not None
            errors = asyncio.ensure_future(process.stderr.read(MOST_SAID_BYTES))
            try:
                while piece := await process.stdout.read(PIECE_BYTES):
                    yield piece
                said = await errors
            finally:
                errors.cancel()
            if await process.wait() != 0:
                raise _refusal(said)


def _refusal(said: bytes) -> SandboxImageError:
    try:
        error = json.loads(said)["error"]
        return _failure(str(error["message"]), str(error["reason"]))
    except (ValueError, LookupError, TypeError):
        return _failure(f"aviato-init says {said.decode(errors='replace').strip()[-500:]!r}")


def _failure(why: str, reason: str = _FAILED) -> SandboxImageError:
    return SandboxImageError(f"a layer of the image cannot be packed: {why}", reason=reason, is_infrastructure=True)
