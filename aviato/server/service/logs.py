"""The main command's output, for those who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from aviato.server.service.main_command import MainCommand
    from aviato.server.service.output.main_output import MainOutput
    from aviato.server.service.registry import Registry


class Logs:
    """The output of main commands, of living sandboxes and of those on record."""

    def __init__(self, registry: Registry, main: MainCommand) -> None:
        self._registry = registry
        self._main = main

    async def open(
        self, sandbox_id: str, *, follow: bool, tail_lines: int | None, offset: int | None = None
    ) -> tuple[int, AsyncIterator[bytes]]:
        """The last 16 MiB, or the last `tail_lines` lines; with `follow` also what comes until the sandbox ends.

        Returns:
            Where in all of the output it begins, and the pieces from there on; from `offset` on for one who comes back.

        Raises:
            SandboxNotFoundError: the sandbox is not known.
            SandboxUnavailableError: more may come, and this server cannot reach the sandbox.
        """
        sandbox = self._registry.live.get(sandbox_id)
        if sandbox is None:
            (self._registry.ended if follow else self._registry.record)(sandbox_id)
        elif follow and sandbox.request.command is not None:
            await sandbox.ready.wait()
        output = sandbox.output if sandbox is not None else None
        if output is None:
            output = await self._kept(sandbox_id)
        begin = await output.begin(tail_lines) if offset is None else offset
        return begin, output.read(follow=follow, begin=begin)

    def remove(self, sandbox_ids: Iterable[str]) -> None:
        """Take away what is kept of sandboxes; for a worker thread."""
        for sandbox_id in sandbox_ids:
            self._main.output(sandbox_id).remove()

    async def _kept(self, sandbox_id: str) -> MainOutput:
        output = self._main.output(sandbox_id)
        await output.open()
        output.ended = True
        return output
