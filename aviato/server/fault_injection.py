"""A switch for tests: at named points of the server a call fails, or the whole server is killed.

It is there only where `AVIATO_TEST_FAULTS` names a directory when the server starts: then, and only then, this module is
imported and wraps the functions of `POINTS`. A server without the variable runs the functions as they are.

The file `armed` in that directory says what shall happen: `kill POINT RUNNING CREATING` or `fail POINT RUNNING CREATING`. The
point acts when it is passed while at least so many commands run and so many sandboxes are being made. Each act appends a line
to the file `hits`: what, where, and how many commands ran and sandboxes were being made. The next server is another process,
so whoever armed a kill disarms it.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import importlib
import inspect
import os
import signal
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxUnavailableError
from aviato.server.states import State
from aviato.wire.frames import FrameDecoder, FrameError, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.service import Service

LEAVING_SECONDS = 0.002
"""In this time what was written has left the process: the loop writes at the end of its turn."""


@dataclass(frozen=True)
class Point:
    """Where a point is.

    Attributes:
        functions: `module:name` or `module:Class.name`; the point is in each of them.
        after: behind the call, and not before it.
        sent: behind it by as long as bytes take to leave.
        only: tells from the arguments whether this call counts.
        error: what a failure looks like there.
    """

    functions: tuple[str, ...]
    after: bool = False
    sent: bool = False
    only: Callable[..., bool] | None = None
    error: Callable[[], Exception] | None = None


def _store_error() -> Exception:
    return sqlite3.OperationalError("disk I/O error (armed by a test)")


def _backend_error() -> Exception:
    return SandboxUnavailableError("no sandbox can be made now (armed by a test)", reason="start_failed")


def _disk_error() -> Exception:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _begins(frames: Any) -> bool:
    return any(frame.type == FrameType.DATA and frame.offset == 0 for frame in frames)


def _feed_begins(feed: Any, frames: Any) -> bool:
    return _begins(frames)


def _feed_ends(feed: Any, frames: Any) -> bool:
    return any(frame.type == FrameType.EXIT for frame in frames)


def _sends_beginning(body: Any, data: Any) -> bool:
    with suppress(FrameError):  # It may be a file.
        return _begins(FrameDecoder().feed(bytes(data)))
    return False


def _is_over(feed: Any) -> bool:
    return feed.over and feed.state.exit is not None


_STORE = tuple(
    f"aviato.server.store.database:Store.{name}"
    for name in ("add_sandbox", "save_sandbox", "save_sandboxes", "save_execs", "save_lease", "remove_lease")
)
_FORK = ("aviato.server.backends.local.zygote:Zygote.ask",)
_FORKED = ("aviato.server.backends.local.zygote:Zygote._answered",)
_HELLO = ("aviato.server.link.link:Process1Link.connect",)
_START = ("aviato.server.service.execs:Execs.start",)
_ENCODE = ("aviato.server.service.output.feed:ExecFeed._encode",)
_SEND = ("aviato.wire.flow:Outgoing.send", "aiohttp.web:StreamResponse.write")
_LEAVE = ("aviato.server.backends.local.backend:LocalBackend.leave_layer",)
_ACKNOWLEDGE = ("aviato.server.service.execs:Execs.acknowledge",)

POINTS = {
    "store.before": Point(_STORE, error=_store_error),
    "store.after": Point(_STORE, after=True),
    "disk.before": Point(("aviato.server.service.output.ring:Ring._room",), error=_disk_error),
    "fork.before": Point(_FORK, error=_backend_error),
    "fork.after": Point(_FORKED, after=True),
    "hello.before": Point(_HELLO, error=_backend_error),
    "hello.after": Point(_HELLO, after=True),
    "accept.before": Point(_START),
    "accept.after": Point(_START, after=True, sent=True),
    "first_byte.before": Point(_ENCODE, only=_feed_begins),
    "first_byte.after": Point(_SEND, after=True, sent=True, only=_sends_beginning),
    "exit.before": Point(_ENCODE, only=_feed_ends),
    "exit.after": Point(("aviato.server.service.output.feed:ExecFeed.close",), after=True, sent=True, only=_is_over),
    "acknowledgement.before": Point(_ACKNOWLEDGE),
    "acknowledgement.after": Point(_ACKNOWLEDGE, after=True, sent=True),
    "stop.before": Point(("aviato.server.service.live_sandbox:LiveSandbox.ask_to_end",)),
    "stop.after": Point(("aviato.server.service.sandboxes:Sandboxes.stop",), after=True),
    "move.before": Point(_LEAVE, error=_disk_error),
    "move.ended": Point(("aviato.server.images.layer_pull:LayerPulls.move_in",)),
    "move.renamed": Point(("aviato.server.images.layer_pull:_move",), after=True),
    "move.published": Point(("aviato.server.images.layer_pull:LayerPulls._publish",), after=True),
    "move.written": Point(("aviato.server.images.image_snapshots:ImageSnapshots._write",), after=True),
    "move.after": Point(_LEAVE, after=True),
}
OF_MOVES = tuple(name for name in POINTS if name.startswith("move."))
"""Those that only a sandbox passes that moves."""


class Switch:
    """Acts at the points as the files of a directory say."""

    def __init__(self, service: Service, directory: str) -> None:
        self._service = service
        self._directory = directory

    def install(self) -> None:
        """Wrap the functions of all points."""
        for name, point in POINTS.items():
            for function in point.functions:
                self._wrap(name, point, function)

    def passed(self, name: str, point: Point) -> None:
        """Act, if this point is armed and the server is as busy as it shall be.

        Raises:
            Exception: the failure of this point.
        """
        try:
            with open(os.path.join(self._directory, "armed")) as file:
                act, where, running, creating = file.read().split()
        except (OSError, ValueError):
            return
        if where != name or self._running < int(running) or self._creating < int(creating):
            return
        with open(os.path.join(self._directory, "hits"), "a") as file:
            file.write(f"{act} {name} {self._running} {self._creating}\n")
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if point.error is not None:
            raise point.error()

    @property
    def _running(self) -> int:
        sandboxes = self._service.registry.live.values()
        return sum(state.started and state.exit is None for sandbox in sandboxes for state in sandbox.execs.values())

    @property
    def _creating(self) -> int:
        sandboxes = self._service.registry.live.values()
        return sum(sandbox.state < State.RUNNING for sandbox in sandboxes)

    def _wrap(self, name: str, point: Point, function: str) -> None:
        module, _, path = function.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, last = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        inner = inspect.getattr_static(owner, last)
        is_class_method = isinstance(inner, classmethod)
        wrapped = self._around(name, point, inner.__func__ if is_class_method else inner)
        setattr(owner, last, classmethod(wrapped) if is_class_method else wrapped)

    def _around(self, name: str, point: Point, call: Callable[..., Any]) -> Callable[..., Any]:
        def counts(*args: Any) -> bool:
            return point.only is None or point.only(*args)

        def behind() -> None:
            if point.sent:
                asyncio.get_running_loop().call_later(LEAVING_SECONDS, self.passed, name, point)
            else:
                self.passed(name, point)

        @functools.wraps(call)
        def plain(*args: Any, **kwargs: Any) -> Any:
            if not point.after and counts(*args):
                self.passed(name, point)
            result = call(*args, **kwargs)
            if point.after and counts(*args):
                behind()
            return result

        @functools.wraps(call)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            if not point.after and counts(*args):
                self.passed(name, point)
            result = await call(*args, **kwargs)
            if point.after and counts(*args):
                behind()
            return result

        return waiting if inspect.iscoroutinefunction(call) else plain
