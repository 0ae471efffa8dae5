"""`aviato-init layer`: a process for each layer that is unpacked, packed or counted, killed with whatever made it useless."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from aviato.server.images import programs
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

MAP_SECONDS = 60.0
"""How long mapping subordinate ids may take."""
MOST_SAID_BYTES = 64 << 10
"""Of what the program says at its end."""
BUFFER_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENVIRONMENT: Mapping[str, str] = {}


class LayerProgram:
    """How the program is started.

    Args:
        program: gives its path.
        fail: makes the error of what it cannot do.
        owners: whether files have owners of their own; for root.
        map_ids: maps subordinate ids for a process that asks by a socket, as `subordinate.serve` does. Files have their owners
            then too.
    """

    def __init__(
        self,
        program: Callable[[], str],
        fail: Callable[[str], Exception],
        *,
        owners: bool,
        map_ids: Callable[[socket.socket, int], None] | None,
    ) -> None:
        self._program = program
        self._fail = fail
        self._owners = owners or map_ids is not None
        self._map_ids = map_ids

    @asynccontextmanager
    async def run(
        self, directories: Sequence[tuple[str, Path]], flags: Sequence[str] = ()
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """The program at work; it is killed at the end, if it still is.

        Args:
            directories: flags, each with the directory that it is given.
            flags: further ones.

        Raises:
            Exception: as `fail` makes it: it cannot begin.
        """
        with ExitStack() as held, ExitStack() as theirs:
            argv, kept, control = await in_thread(self._prepared, held, theirs, directories, flags)
            process = await self._start(argv, kept)
            theirs.close()
            try:
                if control is not None:
                    await in_thread(self._give_ids, control, process.pid)
                yield process
            finally:
                await programs.end(process)

    def _prepared(
        self, held: ExitStack, theirs: ExitStack, directories: Sequence[tuple[str, Path]], flags: Sequence[str]
    ) -> tuple[list[str], list[int], socket.socket | None]:
        """Its command line, the descriptors that it gets, and by what it asks for ids. Blocks."""
        argv, kept, control = [self._program(), "layer", *flags], [], None
        if self._owners:
            argv.append("--owners")
        try:
            for flag, directory in directories:
                kept.append(os.open(directory, _DIRECTORY))
                held.callback(os.close, kept[-1])
                argv += [flag, str(kept[-1])]
        except OSError as error:
            raise self._fail(f"{error.filename!r}: {error.strerror}") from error
        if self._map_ids is not None:
            control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            held.enter_context(control)
            theirs.enter_context(other)
            argv += ["--gives-ids", "--control", str(other.fileno())]
            kept.append(other.fileno())
        return argv, kept, control

    async def _start(self, argv: Sequence[str], kept: Sequence[int]) -> asyncio.subprocess.Process:
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
                limit=BUFFER_BYTES,
            )
        except OSError as error:
            raise self._fail(f"{argv[0]!r} cannot be started: {error.strerror}") from error

    def _give_ids(self, control: socket.socket, pid: int) -> None:
        assert self._map_ids is not None
        control.settimeout(MAP_SECONDS)
        try:
            self._map_ids(control, pid)
        except OSError as error:
            raise self._fail(f"its subordinate ids cannot be mapped: {error}") from error
