"""Layers of images become directories in the form that overlayfs takes, by `aviato-init layer`.

The program reads what strangers packed; it is a process of its own, which is killed with whatever made it useless.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxImageError
from aviato.server.images import programs
from aviato.server.images.unpacked_layer import UnpackedLayer
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

from aviato.server.images.unpacked_layer import UnpackLimits

MAP_SECONDS = 60.0
"""How long mapping subordinate ids may take."""
MOST_SAID_BYTES = 64 << 10
"""Of what the program says at its end."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENVIRONMENT: Mapping[str, str] = {}
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
        self._program = program
        self._owners = owners or map_ids is not None
        self._map_ids = map_ids

    async def __call__(
        self, pieces: AsyncIterator[bytes], into: Path, below: Sequence[Path], limits: UnpackLimits
    ) -> UnpackedLayer:
        """Unpack one layer, see `Unpack`. Cancelled, it leaves no process behind."""
        with ExitStack() as held:
            try:
                fds = await in_thread(_opened, held, (into, *below))
            except OSError as error:
                raise _failure(f"{error.filename!r}: {error.strerror}") from error
            said = await self._run(held, fds, pieces, limits)
        return _result(said, into)

    async def _run(self, held: ExitStack, fds: Sequence[int], pieces: AsyncIterator[bytes], limits: UnpackLimits) -> _Said:
        argv = [self._program(), "layer", "--into", str(fds[0])]
        argv += ["--most-bytes", str(limits.most_bytes), "--most-files", str(limits.most_files)]
        for fd in fds[1:]:
            argv += ["--below", str(fd)]
        if self._owners:
            argv.append("--owners")
        control = None
        kept = [*fds]
        with ExitStack() as theirs:
            if self._map_ids is not None:
                control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                held.enter_context(control)
                theirs.enter_context(other)
                argv += ["--gives-ids", "--control", str(other.fileno())]
                kept.append(other.fileno())
            process = await _start(argv, kept)
        try:
            if control is not None:
                await self._give_ids(control, process.pid)
            return await _talk(process, pieces)
        finally:
            await programs.end(process)

    async def _give_ids(self, control: socket.socket, pid: int) -> None:
        assert self._map_ids is not None
        control.settimeout(MAP_SECONDS)
        try:
            await in_thread(self._map_ids, control, pid)
        except OSError as error:
            raise _failure(f"its subordinate ids cannot be mapped: {error}") from error


@dataclass(frozen=True)
class _Said:
    """What the program said at its end."""

    status: int
    output: bytes
    errors: bytes


def _opened(held: ExitStack, directories: Sequence[Path]) -> list[int]:
    fds = []
    for directory in directories:
        fds.append(os.open(directory, _DIRECTORY))
        held.callback(os.close, fds[-1])
    return fds


async def _start(argv: Sequence[str], kept: Sequence[int]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            pass_fds=kept,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise _failure(f"{argv[0]!r} cannot be started: {error.strerror}") from error


async def _talk(process: asyncio.subprocess.Process, pieces: AsyncIterator[bytes]) -> _Said:
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


async def _answer(process: asyncio.subprocess.Process) -> _Said:
    assert process.stdout is not None and process.stderr is not None
    output, errors = await asyncio.gather(process.stdout.read(MOST_SAID_BYTES), process.stderr.read(MOST_SAID_BYTES))
    return _Said(await process.wait(), output, errors)


def _result(said: _Said, into: Path) -> UnpackedLayer:
    try:
        answer: Mapping[str, Any] = json.loads(said.output)
    except ValueError:
        words = said.errors.decode(errors="replace").strip()[-500:]
        raise _failure(f"aviato-init ended with status {said.status}: {words}") from None
    error = answer.get("error")
    if error is None and said.status == 0:
        return UnpackedLayer(**{name: answer[name] for name in ("size_bytes", "files", "implied", "left_out")})
    if error is None:
        raise _failure(f"aviato-init ended with status {said.status}")
    reason = error["reason"]
    remedy = f"; {_REMEDIES[reason].format(into=str(into))}" if reason in _REMEDIES else ""
    raise _failure(f"{error['message']}{remedy}", reason)


def _failure(why: str, reason: str = _FAILED) -> SandboxImageError:
    return SandboxImageError(f"a layer of the image cannot be unpacked: {why}", reason=reason, is_infrastructure=True)
