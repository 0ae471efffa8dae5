"""Process 1 of a sandbox: starts commands, moves their bytes, kills their trees, reads and writes files. Standard library only.

One thread, one epoll loop, a bounded amount of work a turn. It is forked from a loaded template, so it must import nothing
once it runs: the root it then sees is the sandbox's.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import socket
from typing import TYPE_CHECKING, Any

from aviato.grading.inside.loop import READ, STOOD_STILL_SECONDS, Loop, Timer
from aviato.server.supervisor import prepared, spawn, takeover, tree
from aviato.server.supervisor.again import Again
from aviato.server.supervisor.by_number import ByNumber
from aviato.server.supervisor.commands import Commands
from aviato.server.supervisor.connection import Connection
from aviato.server.supervisor.ending import Ending, leave_note
from aviato.server.supervisor.errors import Refused, invalid
from aviato.server.supervisor.file_requests import FileRequests
from aviato.server.supervisor.grouped import Grouped
from aviato.server.supervisor.idleness import Idleness
from aviato.server.supervisor.itself import BOOT_ID, be_deaf, child_signals, take_short_turns, where
from aviato.server.supervisor.keeper import Keepers
from aviato.server.supervisor.lineage import Descent, Lineage
from aviato.server.supervisor.ports import Ports
from aviato.server.supervisor.spawner import Spawner
from aviato.server.supervisor.transfers import Transfer
from aviato.server.supervisor.watch import Watch
from aviato.wire.frames import PROTOCOL, Frame, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aviato.server.supervisor.spawn import Start

FEATURES = [
    "exec",
    "files",
    "usage",
    "kill_scope:command",
    "terminal",
    "long_commands",
    "input",
    "cancel_all",
    "again",
    "cases",
    "programs",
    prepared.FEATURE,
    prepared.FILES_FEATURE,
    "wide_window",
]
BACKLOG = 16
LARGEST_NOTE_ERRORS = 20
ACCEPT_RETRY_SECONDS = 1.0
NO_USE = frozenset({"configure", "ping"})
"""Requests of the server's own: they do not make a sandbox less idle."""

_listen = ctypes.CDLL(None, use_errno=True).listen
_where = where
_compact = json.JSONEncoder(separators=(",", ":")).encode


class Supervisor(FileRequests):
    """The sandbox's one authority.

    It is made in the template, once for all sandboxes: a child of it writes to fewer pages then. So making it reads no clock
    and touches no descriptor; those are numbers that mean something once the sandbox has its own there. For them see `run`.
    """

    def __init__(self, listener: int, note: int, layer: int, sockets: int, children: int, proc: int = takeover.PROC) -> None:
        self._loop = Loop(self._trouble)
        self._note = note
        self._troubles = 0
        self._proc = proc
        self.commands = Commands(self._loop, proc)
        self._watch = Watch(self._loop, proc, layer, sockets, self.commands, self._trouble)
        self.commands.on_started = self._watch.begin
        self._first = self._new_connection()
        """For the server that made the sandbox."""
        self._connection: Connection | None = None
        self._ending = Ending(self._loop, self.commands, note, lambda: self._connection)
        self.commands.on_main_exit = self._main_exited
        self.commands.on_reaped = self._ending.go_on
        self._again = Again(self._loop)
        self._open: dict[int, Transfer | dict[str, Any] | None] = {}
        self._idleness = Idleness(self._loop, self.commands, self._in_call, lambda: self._ending.begin("idle", 0))
        self._orphan_seconds = 600.0
        self._configured = False
        self._orphan_due = self._last_heard = 0.0
        self._orphan_timer: Timer
        self._lifetime_end = float("inf")
        self._pid_namespace = 0
        self._children = children
        self._listener = listener
        self._loop.each_turn.append(self._flush)
        self._operations: dict[str, Callable[[Connection, int, dict[str, Any]], None]] = {
            "configure": self._configure,
            "exec": self._subscribe,
            "stdin": self._expect_input,
            "signal": self._signal,
            "resize": self._resize,
            "cancel": self._cancel,
            "cancel_all": self._cancel_all,
            "stop": self._stop,
            "ping": self._ping,
            **self.file_operations,
        }
        self._ports: Ports | None = None
        self.hello = _compact({"protocol": PROTOCOL, "boot_id": BOOT_ID, "features": FEATURES}).encode()[:-1] + b","

    def begin(
        self,
        connection: int,
        ports: int | None = None,
        groups: tuple[int, ...] = (),
        descent: Descent | None = None,
        born_filter: bytes | None = None,
    ) -> None:
        """Open and watch all there is, and say HELLO."""
        self._open_all(descent is not None)
        if groups:
            self._enter_groups(groups, born_filter)
        if born_filter is not None or descent is not None:
            self._watch.commands_have_a_filter()
        if descent is not None:
            lineage = Lineage(descent.exact)
            tree.inhabit(lineage)
            self.commands.keepers = Keepers(self._loop, descent.compiled, lineage)
            if descent.asked is not None:
                ByNumber(self._loop, self._proc, *descent.asked, lineage)
        if ports is not None:
            self._ports = Ports(self._loop, ports, self._idleness.called)
        self._adopt(self._first, connection)
        self._watch_orphanhood()

    def take_over(self, connection: int, state: takeover.State) -> None:
        """Go on from what compiled code has done with this connection, see `early.c`."""
        self._loop.begin(takeover.EPOLL)
        self._pid_namespace = state.pid_namespace
        self._loop.watch(self._children, READ, self._child_died)
        self._watch_listener()
        self._first.take_over(connection, state.last_heard, state.unsent, state.descriptors)
        self._again.take_over(state.calls)
        self._connection = self._first
        self._last_heard = state.last_heard
        self._orphan_due = state.due
        self._idleness.called(state.last_call)
        if state.configuration is not None:
            self._settle(state.configuration, state.configured)
        self._watch.disk.take_over(state.disk_bytes)
        if state.past or state.commands:
            self._watch.begin(0.0)  # Nobody has looked since the first of them.
        self.commands.take_over(state, self._first)
        self._loop.soon(self._reap)
        # Not before the first look at what has come: this process may have stood still on the way here.
        self._orphan_timer = self._loop.after(0, self._watch_orphanhood)
        if (configuration := state.configuration) is not None:
            self._loop.after(0, lambda: self._limit_life(configuration))
        self._first.take(state.received)

    def turn(self) -> None:
        """Wait for something to do, and do it."""
        try:
            self._loop.turn()
        except Exception as error:
            self._trouble(error)

    def _open_all(self, alone: bool) -> None:
        """All that making it left; `alone`: without namespaces."""
        self._loop.begin()
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.dup2(proc, self._proc, inheritable=False)
        os.close(proc)
        self._pid_namespace = tree.namespace(self._proc, "self/ns/pid")
        self.commands.begin(own_badness=alone)
        self._orphan_due = self._last_heard = self._loop.now()
        self._idleness.called()
        self._loop.watch(self._children, READ, self._child_died)
        self._watch_listener()

    def _enter_groups(self, groups: tuple[int, ...], born_filter: bytes | None) -> None:
        self._watch.keep_in_group(groups[0], groups[1] if born_filter is None else None)
        if born_filter is None:
            self.commands.place = Spawner(list(groups[2:]))
        else:
            self.commands.births = Grouped(self._proc, groups[1], born_filter)
            self.commands.start_program = self.commands.births.start

    def start_by(self, start: Start, new_mark: Callable[[int], int]) -> None:
        """Have commands started and marked otherwise than a sandbox does, see `rehearsal`."""
        self.commands.start_program = start
        self.commands.new_mark = new_mark

    # -- the connection -------------------------------------------------------------------------------------------------

    def _watch_listener(self) -> None:
        self._loop.watch(self._listener, READ, self._accept)

    def _accept(self, events: int) -> None:
        listener = socket.socket(fileno=self._listener)
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                self._loop.forget(self._listener)
                self._loop.after(ACCEPT_RETRY_SECONDS, self._watch_listener)
            return
        finally:
            listener.detach()
        self._adopt(self._new_connection(), sock.detach())

    def _new_connection(self) -> Connection:
        return Connection(self._loop, self._on_frame, self._on_close, lambda one: not isinstance(self._open.get(one), Transfer))

    def _adopt(self, connection: Connection, fd: int) -> None:
        if self._connection is not None:
            self._connection.close()
        connection.begin(fd)
        self._connection = connection
        self._last_heard = self._loop.now()
        now = {
            "pid_namespace": self._pid_namespace,
            "orphan_timeout_seconds": self._orphan_seconds,
            "configured": self._configured,
            "execs": self.commands.summary(),
        }
        connection.send(FrameType.HELLO, self.hello + _compact(now).encode()[1:])
        connection.send(FrameType.DESCRIPTORS)

    def _on_close(self, connection: Connection) -> None:
        self.commands.unsubscribe(connection, None)
        for channel in list(self._open):
            self._close_channel(channel)
        if self._connection is connection:
            self._last_heard = connection.last_heard
            self._connection = None

    def _flush(self) -> None:
        if self._connection is not None:
            self._connection.flush()

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        channel = frame.channel
        try:
            self._dispatch(connection, frame)
        except Refused as refused:
            self._close_channel(channel)
            connection.send_json(FrameType.ERROR, refused.body, channel=channel)
        except Exception as error:
            self._close_channel(channel)
            connection.send_json(FrameType.ERROR, self._refusal(error).body, channel=channel)

    def _refusal(self, error: Exception) -> Refused:
        """The answer to a request that failed in a way that nobody foresaw: no request goes without one."""
        if isinstance(error, (KeyError, TypeError, ValueError)):
            return invalid(f"a malformed request: {error!r}")
        self._trouble(error)
        return Refused("EXECUTION", f"the sandbox could not do it: {error}", reason="refused")

    def _dispatch(self, connection: Connection, frame: Frame) -> None:
        channel = frame.channel
        if frame.type == FrameType.REQUEST:
            request = prepared.as_request(frame)
            if request["op"] not in NO_USE:
                self._idleness.called()
            self._operations[request["op"]](connection, channel, request)
        elif frame.type == FrameType.ACK:
            self.commands.acknowledge(**json.loads(frame.payload))
        elif frame.type == FrameType.CLOSE:
            self._close_channel(channel)
            self.commands.unsubscribe(connection, channel)
            connection.send(FrameType.CLOSE, channel=channel)
        else:
            self._continue(connection, frame)

    def _continue(self, connection: Connection, frame: Frame) -> None:
        """A further frame of an open request; late ones of a request that is over mean nothing."""
        current = self._open.get(frame.channel)
        if isinstance(current, Transfer):
            if frame.type == FrameType.CREDIT:
                current.credit(frame.offset)
            elif frame.type == FrameType.DATA:
                current.data(frame.payload)
            elif frame.type == FrameType.END:
                current.end()
        elif isinstance(current, dict) and frame.type == FrameType.DATA:
            self._shut(frame.channel)
            self._input(connection, frame.channel, current, frame.payload)

    def _reply(self, connection: Connection, channel: int, value: dict[str, Any] | None = None) -> None:
        self._close_channel(channel)
        connection.send_json(FrameType.REPLY, value or {}, channel=channel)

    def _close_channel(self, channel: int) -> None:
        current = self._shut(channel)
        if isinstance(current, Transfer):
            current.close()

    def _in_call(self) -> bool:
        if self._ports is not None and self._ports.connections:
            return True
        # A download that was sent whole stays until its channel is used again.
        return any(not (isinstance(current, Transfer) and current.over) for current in self._open.values())

    def _shut(self, channel: int) -> Transfer | dict[str, Any] | None:
        if channel not in self._open:
            return None
        self._idleness.called()
        return self._open.pop(channel)

    # -- the sandbox ----------------------------------------------------------------------------------------------------

    def _configure(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self._settle(request, self._loop.now())
        self._orphan_timer.cancel()
        self._watch_orphanhood()
        self._limit_life(request)

    def _settle(self, request: dict[str, Any], began: float) -> None:
        self._configured = True
        lifetime = request["max_lifetime_seconds"]
        self._lifetime_end = float("inf") if lifetime is None else began + lifetime
        self.commands.environment = request["environment"]
        self.commands.work_in(request["working_dir"])
        self.commands.nice = request["nice"]
        limits = request.get("limits", {})
        self._watch.limit(limits)
        self.commands.births.open_files = limits.get("open_files")
        self._orphan_seconds = request["orphan_timeout_seconds"]

    def _limit_life(self, request: dict[str, Any]) -> None:
        if request["max_lifetime_seconds"] is not None:
            self._loop.after(self._lifetime_end - self._loop.now(), self._live_no_longer)
        if request["idle_timeout_seconds"] is not None:
            self._idleness.limit(request["idle_timeout_seconds"])

    def _live_no_longer(self) -> None:
        self._ending.begin("lifetime", 0)

    def _subscribe(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        if self._loop.now() >= self._lifetime_end:
            self._live_no_longer()  # Its timer is due in this turn: nothing starts before it.
        self.commands.subscribe(connection, channel, request)

    def _stop(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self._ending.begin("stopped", request["grace_seconds"])

    def _ping(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self._reply(connection, channel)

    def _main_exited(self, command: Any) -> None:
        self._ending.main_exited(command.result["returncode"], command.oom_killed)

    def _watch_orphanhood(self) -> None:
        now = self._loop.now()
        heard = self._connection.last_heard if self._connection is not None else self._last_heard
        left = heard + self._orphan_seconds - now
        if left <= 0 and now - self._orphan_due > STOOD_STILL_SECONDS:
            # It was this process that stood still, as on a machine that was paused: a server gets its chance to speak.
            left = min(self._orphan_seconds, now - self._orphan_due)
        elif left <= 0:
            self._ending.begin("orphaned", 0)
            self._ending.give_up()
            left = 1.0
        self._orphan_due = now + left
        self._orphan_timer = self._loop.after(left, self._watch_orphanhood)

    def _child_died(self, events: int) -> None:
        os.read(self._children, 4096)
        self._reap()

    def _reap(self) -> None:
        if self.commands.reap():
            self._loop.soon(self._reap)

    def _trouble(self, error: Exception) -> None:
        self._troubles += 1
        if self._troubles <= LARGEST_NOTE_ERRORS:
            leave_note(self._note, {"trouble": _where(error)})

    # -- commands -------------------------------------------------------------------------------------------------------

    def _expect_input(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self.commands.find(request["exec_id"])
        self._open[channel] = request

    def _input(self, connection: Connection, channel: int, request: dict[str, Any], data: bytes) -> None:
        def answer(refused: Refused | None) -> None:
            if refused is not None:
                connection.send_json(FrameType.ERROR, refused.body, channel=channel)
            else:
                self._reply(connection, channel)

        self.commands.find(request["exec_id"]).stdin.write(request["offset"], data, request["eof"], answer)

    def _signal(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        key = request.get("key")
        command = self.commands.find(request["exec_id"])
        if not self._again.is_done(key):
            command.signal(request["signal"])
            self._again.done(key)
        self._reply(connection, channel)

    def _resize(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self.commands.find(request["exec_id"]).resize(request["width"], request["height"])
        self._reply(connection, channel)

    def _cancel(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self.commands.cancelled(request["exec_id"])
        self._work(connection, channel, self.commands.kill(request["exec_id"]), reply=True)

    def _cancel_all(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self._work(connection, channel, self.commands.kill_but_main(), reply=True)

    # -- files ----------------------------------------------------------------------------------------------------------

    def _work(self, connection: Connection, channel: int, steps: Iterator[float], reply: bool) -> None:
        def guarded() -> Iterator[float]:
            try:
                yield from steps
            except Refused as refused:
                connection.send_json(FrameType.ERROR, refused.body, channel=channel)
            except Exception as error:
                connection.send_json(FrameType.ERROR, self._refusal(error).body, channel=channel)
            else:
                if reply:
                    self._reply(connection, channel)

        self._loop.start(guarded())


_USUAL = (4, 5, 6, 7, 8)
_usual = Supervisor(*_USUAL)


def run(
    connection: int,
    listener: int,
    note: int,
    layer: int,
    sockets: int,
    children: int,
    ports: int | None = None,
    groups: tuple[int, ...] = (),
    descent: Descent | None = None,
    born_filter: bytes | None = None,
) -> None:
    """Be the supervisor, with these descriptors and nothing else. Never returns.

    Args:
        connection: to the server.
        listener: where later servers connect.
        note: a file for last words.
        layer: the writable layer, as a mount of its own if there are mounts.
        sockets: tells what sockets hold, see `buffers`.
        children: see `child_signals`.
        ports: where servers connect for what ports need; None: this sandbox exposes none.
        groups: of the sandbox's control groups, if it has any: of version 1 `memory.oom_control`,
            `memory.max_usage_in_bytes` and each `tasks`, of version 2 `memory.events` and the directory.
        descent: for a sandbox without namespaces; in all others this must be process 1.
        born_filter: where groups are of version 2: what every command takes in addition, see `grouped`.
    """
    if descent is not None:
        be_deaf()
    else:
        _be_first()
    gc.enable()  # See `take_over`.
    take_short_turns()
    numbers = (listener, note, layer, sockets, children)
    os.set_blocking(listener, False)
    # Listening again writes this process into the socket: a server finds its supervisor by the credentials of its peer.
    if _listen(listener, BACKLOG):
        raise OSError(ctypes.get_errno(), "listen")
    supervisor = _usual if numbers == _USUAL else Supervisor(*numbers)
    supervisor.begin(connection, ports, groups, descent, born_filter)
    while True:
        supervisor.turn()


def early() -> takeover.Early:
    """What compiled code needs, to begin as `run` does in the usual sandbox."""
    texts = (_usual.hello, _usual.commands.badness)
    return takeover.Early(*(field for text in texts for field in (text, len(text))), spawn.DEFAULT_PATH.encode())


def take_over(connection: int, state: takeover.State) -> None:
    """Be the supervisor from where compiled code has come to. Never returns."""
    _be_first()
    # The template collects nothing, to keep its pages shared. Here every command leaves cycles behind.
    gc.enable()
    _usual.take_over(connection, state)
    while True:
        _usual.turn()


def _be_first() -> None:
    if os.getpid() != 1:
        raise RuntimeError("the supervisor must be process 1: it kills everything else that it sees when the sandbox ends")


__all__ = ["Descent", "Supervisor", "child_signals", "early", "run", "take_over"]
