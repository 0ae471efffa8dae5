"""The server's end of a connection to process 1: one object a sandbox, carrying every call into it.

Errors of the sandbox's files and commands arrive as the exceptions of `aviato.exceptions`; a sandbox that ended meanwhile is
`SandboxGone`, which the service turns into the error of that ending.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.server.link.at_rest import AtRest, Done
from aviato.server.link.command_calls import CommandCalls
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.link.exec_spec import ExecSpec
from aviato.server.link.file_calls import FileCalls
from aviato.server.link.payload import as_json
from aviato.server.link.port_calls import PortCalls
from aviato.server.link.subscription import Subscription
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    import socket

    from aviato.server.link.lasting_connection import Reopen


__all__ = ["Configuration", "Ended", "ExecSpec", "Process1Link", "SandboxGone", "Subscription"]

HOST_NAME = "host_name"
"""The feature of a process 1 that can be told its name late."""


class Configuration(NamedTuple):
    """What a new process 1 is told first, as it is sent.

    Attributes:
        payload: of the request.
        orphan_timeout_seconds: how long it waits for a word.
    """

    payload: bytes
    orphan_timeout_seconds: float

    @classmethod
    def of(cls, values: dict[str, Any]) -> Configuration:
        """From the fields of `configure`."""
        return cls(as_json({"op": "configure", **values}), values["orphan_timeout_seconds"])


class Process1Link(CommandCalls, FileCalls, PortCalls):
    """A connection to one process 1 and all that is asked over it. Made by `connect`; used from one event loop."""

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        sock: socket.socket,
        configuration: Configuration | None = None,
        *,
        reopen: Reopen | None = None,
    ) -> Process1Link:
        """The link over a connected stream socket, once process 1 has said HELLO.

        Args:
            sandbox_id: for messages.
            sock: connected; the link owns it from now on.
            configuration: sent first; for a process 1 that has not begun yet.
            reopen: where a connection can be lost while process 1 lives on: gives another, or None where it does not.

        Raises:
            AviatoError: what the other side could not do while it confined itself, or that it speaks another protocol.
            SandboxGone: it ended before HELLO.
        """
        link = cls(sandbox_id)
        try:
            await link._use(sock)
            if configuration is not None:
                link._orphan_seconds = configuration.orphan_timeout_seconds
                link._send(FrameType.REQUEST, configuration.payload)
            await link._ready
            link._reopen = reopen
            if configuration is not None and reopen is not None:
                link._until_heard(configuration.payload)
        except BaseException:
            link.detach()
            if link._transport is None:
                sock.close()
            raise
        return link

    def configure(self, configuration: Configuration, host_name: str) -> None:
        """Tell it once more what holds inside, from here on, and what the sandbox calls itself, where that can be told."""
        self._orphan_seconds = configuration.orphan_timeout_seconds
        payload = configuration.payload
        if HOST_NAME in self.hello["features"]:
            payload = b"%b,%b" % (payload[:-1], as_json({HOST_NAME: host_name})[1:])
        self._say(payload)

    async def stop(self, grace_seconds: float) -> Ended:
        """SIGTERM to all, SIGKILL after the grace, output drained for up to 1 s; returns when the sandbox has ended."""
        if self.ended() is None and not self._detached:
            self._say(as_json({"op": "stop", "grace_seconds": grace_seconds}))
        return await self.wait_ended()

    async def rest(self, *, at_end: bool = False) -> AtRest | None:
        """What it says of its rest, which holds until something more is asked for; None: its version says nothing.

        Args:
            at_end: ask also where it is abandoned.
        """
        if "rest" not in self.hello["features"]:
            return None
        said = json.loads(await self._call({"op": "rest"}, at_end=at_end))
        return AtRest(said["rests"], Done(tuple(said["commands"]), tuple(said["calls"])))

    def remember(self, done: Done) -> None:
        """Have none of this happen here again, from here on."""
        if done.commands or done.calls:
            self._say(as_json({"op": "remember", "commands": done.commands, "calls": done.calls}))

    async def ping(self) -> None:
        """Return once process 1 has answered."""
        await self._call({"op": "ping"})
