"""A sandbox for one command: made, run and ended by one request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.callers import Caller
    from aviato.server.peers import Peer
    from aviato.server.service.execs import Execs
    from aviato.server.service.output.feed import ExecFeed
    from aviato.server.service.registry import Registry
    from aviato.server.service.sandboxes import Sandboxes
    from aviato.wire.execution import RunRequest

LEFT_SECONDS = 60.0
"""How long a result waits for a caller who was cut off."""
GRACE_SECONDS = 1.0
"""Of the end of one whose caller has not come back: nothing runs in it, and the result is kept."""


class Runs:
    """Puts a create, its first command and the end together; each is what it is by itself, repeats included."""

    def __init__(self, sandboxes: Sandboxes, execs: Execs, registry: Registry) -> None:
        self._sandboxes = sandboxes
        self._execs = execs
        self._registry = registry

    async def start(self, request: RunRequest, peer: Callable[[], Peer | None], caller: Caller) -> ExecFeed:
        """Make the sandbox and run the command in it, or join both.

        Raises:
            AviatoError: of either; a sandbox that was made for a command that is refused is ended.
        """
        sandbox_id = request.sandbox.sandbox_id
        accepted = await self._sandboxes.accept(request.sandbox, peer, caller, for_one_run=True)
        try:
            return self._execs.start(sandbox_id, request.command)
        except BaseException:
            if accepted.is_new:
                self._end(sandbox_id)
            raise

    def left(self, sandbox_id: str, over: bool) -> None:
        """A request for it has ended; if it was `over`, so does the sandbox, without a wait. Else its caller may come back."""
        if over:
            self._end(sandbox_id)
        else:
            self._look_later(sandbox_id)

    def restore(self) -> None:
        """Those of an earlier server, too, wait for a caller who may have been cut off, or who may have its result."""
        for sandbox in self._registry.live.values():
            if sandbox.record.for_one_run:
                self._look_later(sandbox.sandbox_id)

    def _look_later(self, sandbox_id: str) -> None:
        asyncio.get_running_loop().call_later(LEFT_SECONDS, self._end_if_over, sandbox_id)

    def _end(self, sandbox_id: str) -> None:
        sandbox = self._registry.live.get(sandbox_id)
        if sandbox is not None:
            sandbox.ask_to_end("stopped")

    def _end_if_over(self, sandbox_id: str) -> None:
        sandbox = self._registry.live.get(sandbox_id)
        if sandbox is None:
            return
        if sandbox.calls == 0 and all(state.exit is not None or state.cancelled for state in sandbox.execs.values()):
            sandbox.ask_to_end("stopped", GRACE_SECONDS)
        else:
            self._execs.look(sandbox)
            self._look_later(sandbox_id)
