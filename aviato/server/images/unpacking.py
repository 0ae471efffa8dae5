"""Layers of images become directories in the form that overlayfs takes, by `aviato-init layer`.

The program reads what strangers packed; it is a process of its own, which is killed with whatever made it useless.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.exceptions import SandboxImageError
from aviato.server.images.layer_program import MOST_SAID_BYTES, LayerProgram
from aviato.server.images.unpacked_layer import UnpackedLayer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from aviato.server.images.unpacked_layer import UnpackLimits

_FAILED = "unpack_failed"
_REMEDIES = {
    "disk_full": "make room on the file system of {into!r}",
    "too_large": "allow images more bytes or files, or take a smaller image",
    "hostile_archive": "take an image from somebody else: no honest program writes such a layer",
    "damaged_archive": "pull the image again, or have it built anew",
}


class Unpacking:
    """Unpacks by the program `aviato-init`.

    Args:
        program: gives its path.
        owners: whether files get the owners that the tar says; for root.
        map_ids: maps subordinate ids for a process that asks by a socket, as `subordinate.serve` does. Files get their owners
            then too.
    """

    def __init__(
        self, program: Callable[[], str], *, owners: bool = False, map_ids: Callable[[socket.socket, int], None] | None = None
    ) -> None:
        self._program = LayerProgram(program, _failure, owners=owners, map_ids=map_ids)
        self._counter = LayerProgram(program, _failure, owners=False, map_ids=map_ids)

    async def __call__(
        self, pieces: AsyncIterator[bytes], into: Path, below: Sequence[Path], limits: UnpackLimits
    ) -> UnpackedLayer:
        """Unpack one layer, see `Unpack`. Cancelled, it leaves no process behind."""
        flags = ["--most-bytes", str(limits.most_bytes), "--most-files", str(limits.most_files)]
        async with self._program.run([("--into", into), *(("--below", one) for one in below)], flags) as process:
            said = await _talk(process, pieces)
        return _result(said, into)

    async def count(self, root: Path) -> UnpackedLayer:
        """Say how much is in a layer, see `Count`."""
        async with self._counter.run([("--count", root)]) as process:
            return _result(await _answer(process), root)


class _Ended(NamedTuple):
    """What the program said until its end."""

    output: bytes
    errors: bytes
    status: int


async def _talk(process: asyncio.subprocess.Process, pieces: AsyncIterator[bytes]) -> _Ended:
    feeding = asyncio.ensure_future(_feed(process, pieces))
    answering = asyncio.ensure_future(_answer(process))
    try:
        # Where it ends first it has refused something, and the rest is not waited for.
        await asyncio.wait({feeding, answering}, return_when=asyncio.FIRST_COMPLETED)
        if feeding.done():
            feeding.result()
        return await answering
    finally:
        feeding.cancel()
        answering.cancel()
        await asyncio.gather(feeding, answering, return_exceptions=True)


async def _feed(process: asyncio.subprocess.Process, pieces: AsyncIterator[bytes]) -> None:
    stdin = process.stdin
    assert stdin is not None
    async for piece in pieces:
        try:
            stdin.write(piece)
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return  # It says why.
    stdin.close()


async def _answer(process: asyncio.subprocess.Process) -> _Ended:
    assert process.stdout is not None and process.stderr is not None
    output, errors = await asyncio.gather(process.stdout.read(MOST_SAID_BYTES), process.stderr.read(MOST_SAID_BYTES))
    return _Ended(output, errors, await process.wait())


def _result(said: _Ended, into: Path) -> UnpackedLayer:
    try:
        answer: Mapping[str, Any] = json.loads(said.output)
    except ValueError:
        words = said.errors.decode(errors="replace").strip()[-500:]
        raise _failure(f"aviato-init ended with status {said.status}: {words}") from None
    error = answer.get("error")
    if error is None and said.status == 0:
        return UnpackedLayer(**{name: answer[name] for name in ("size_bytes", "files", "implied", "left_out", "says_top")})
    if error is None:
        raise _failure(f"aviato-init ended with status {said.status}")
    reason = error["reason"]
    remedy = f"; {_REMEDIES[reason].format(into=str(into))}" if reason in _REMEDIES else ""
    raise _failure(f"{error['message']}{remedy}", reason)


def _failure(why: str, reason: str = _FAILED) -> SandboxImageError:
    return SandboxImageError(f"a layer of the image cannot be unpacked: {why}", reason=reason, is_infrastructure=True)
