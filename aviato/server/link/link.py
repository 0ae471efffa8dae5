"""The server's end of a connection to process 1: one object a sandbox, carrying every call into it.

Errors of the sandbox's files and commands arrive as the exceptions of `aviato.exceptions`; a sandbox that ended meanwhile is
`SandboxGone`, which the service turns into the error of that ending.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import logging
import mmap
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from socket import AF_UNIX
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.server.link import hello
from aviato.server.link.at_rest import AtRest, Done
from aviato.server.link.channels import Channel, ClosingChannel, ReplyChannel, error_of
from aviato.server.link.file_calls import FileCalls, as_json
from aviato.server.link.rest import Rest
from aviato.server.link.subscription import Ended, Resumable, SandboxGone, Subscription
from aviato.wire.frames import MAX_PAYLOAD_BYTES, Frame, FramePieces, FrameType, encode

if TYPE_CHECKING:
    import socket

    from aviato.server.shared_memory import Memory

__all__ = ["Ended", "ExecSpec", "Process1Link", "SandboxGone", "Subscription"]

log = logging.getLogger(__name__)

Reopen = Callable[[], Awaitable["socket.socket | None"]]

HELLO_SECONDS = 10.0
MOST_CONFIRMED = 256
PIECE_BYTES = 64 << 10
"""Of a command's input."""
ROOM_BYTES = 256 << 10
LARGEST_REQUEST_BYTES = MAX_PAYLOAD_BYTES
LARGEST_EARLIER_BYTES = 1 << 20
"""What a process 1 without the feature `long_commands` takes."""
LATER_FIELDS = ("terminal", "input", "cases", "user")
"""Of a command, that came after the first version; each is also the name of a feature."""
TOGETHER = "together"
"""The feature of a process 1 that may send what a command says with its end."""
HOST_NAME = "host_name"
"""The feature of a process 1 that can be told its name late."""
MAX_CHANNELS = 0xFFFF


@dataclass(frozen=True, kw_only=True)
class ExecSpec:
    """A command to run.

    Attributes:
        exec_id: at most one run ever per id.
        command: argv as given.
        environment: added to the sandbox's own; wins over it.
        working_dir: absolute, or counted from the sandbox's directory; None is the sandbox's directory.
        stdin: False is /dev/null, True a pipe.
        input: all that stdin gives, in base64; None is what comes by `write_stdin`.
        timeout_seconds: None is no limit.
        main: its exit ends the sandbox.
        terminal: width and height of a terminal of its own, which is its stdin, stdout and stderr; None is pipes.
        cases: what is asked of a program that runs cases, as `wire.execution.Cases` has it; None is any other command.
        user: a name or number, or two with a colon, the second of a group; None is who commands of the sandbox are.
    """

    exec_id: str
    command: list[str]
    environment: dict[str, str]
    working_dir: str | None
    stdin: bool
    timeout_seconds: float | None
    main: bool = False
    terminal: tuple[int, int] | None = None
    input: str | None = None
    cases: dict[str, Any] | None = None
    user: str | None = None

    def fields(self) -> dict[str, Any]:
        """For process 1; an earlier one is not asked for what it does not know."""
        return {name: value for name, value in vars(self).items() if name not in LATER_FIELDS or value is not None}


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


class Process1Link(FileCalls, asyncio.BufferedProtocol):
    """A connection to one process 1. Made by `connect`; used from one event loop."""

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.hello: dict[str, Any] = {}
        """What process 1 said first: protocol, pid_namespace, boot_id, features, execs …"""
        self.has_wide_windows = False
        """See `frames.WIDE_WINDOW_BYTES`."""
        self.heard = 0
        """How often something came from it."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended_future: asyncio.Future[Ended] = self._loop.create_future()
        self._decoder = FramePieces()
        self._channels: dict[int, Channel] = {}
        self._last_channel = 0
        self._subscriptions: dict[str, tuple[int, Subscription]] = {}
        self._active: set[str] = set()
        self._acks = b""
        self._feeding: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self._rest: Rest | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._detached = False
        self._takes_descriptors = False
        self._orphan_seconds: float | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._reopen: Reopen | None = None
        self._coming_back: asyncio.Task[None] | None = None
        self._confirmed: dict[str, dict[str, Any]] = {}
        """Where connections can be lost: what was said last of results that were received, which may not have arrived."""

    # -- making and ending ----------------------------------------------------------------------------------------------

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
        except BaseException:
            link.detach()
            if link._transport is None:
                sock.close()
            raise
        return link

    async def _use(self, sock: socket.socket) -> None:
        self._rest = Rest(sock)
        if sock.family == AF_UNIX:
            await self._loop.create_unix_connection(lambda: self, sock=sock)
        else:
            await self._loop.create_connection(lambda: self, sock=sock)

    def configure(self, configuration: Configuration, host_name: str) -> None:
        """Tell it once more what holds inside, from here on, and what the sandbox calls itself, where that can be told."""
        self._orphan_seconds = configuration.orphan_timeout_seconds
        payload = configuration.payload
        if HOST_NAME in self.hello["features"]:
            payload = b"%b,%b" % (payload[:-1], as_json({HOST_NAME: host_name})[1:])
        self._send(FrameType.REQUEST, payload)

    def detach(self) -> None:
        """Close the connection; the sandbox lives on. Open subscriptions and calls end as `lost`."""
        self._send_acks()
        self._detached = True
        if self._coming_back is not None:
            self._coming_back.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._close_rest()
        self._lose(Ended(reason="lost", message="the server let go of the connection"))

    def abandon(self, ended: Ended) -> None:
        """End all that is under way with this word; the connection stays for a `stop`."""
        channels, self._channels = self._channels, {}
        self._subscriptions.clear()
        for channel in channels.values():
            channel.gone(ended)

    def let_go(self, ended: Ended) -> None:
        """Close the connection, and take this for the end of its process 1, where that has not said its own."""
        self._lose(ended)
        self.detach()

    def ended(self) -> Ended | None:
        """How the sandbox ended, or None while it lives. A detached link does not know and says None."""
        return self._ended_future.result() if self._ended_future.done() else None

    async def wait_ended(self) -> Ended:
        """Wait until process 1 said that it ends, or is gone; for any number of waiters."""
        return await asyncio.shield(self._ended_future)

    # -- commands -------------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        spec: ExecSpec | None,
        exec_id: str,
        stdout: int = 0,
        stderr: int = 0,
        *,
        read_along: bool = True,
        memory: Memory | None = None,
    ) -> Subscription:
        """Start a command unless its id is known, and stream its output from these offsets.

        With `memory` large output of one that is started may lie there: SHARED frames then say where.

        What is wrong arrives as an ERROR frame: the same id with another spec (`REQUEST_ID_CONFLICT`), an unknown id without a
        spec (`EXEC_NOT_FOUND`), a missing working directory (`FILE`).

        Where nobody reads along, what a short command says, that it has begun too, may arrive with its end.

        Raises:
            SandboxGone: it has ended.
            AviatoValidationError: the request is too large for one frame, or needs a newer process 1.
        """
        features = self.hello["features"]
        request: dict[str, Any] = {"op": "exec", "exec_id": exec_id, "stdout": stdout, "stderr": stderr}
        if not read_along and TOGETHER in features:
            request["together"] = True
        given: str | None = None
        late_input: str | None = None
        if spec is not None:
            request["spec"] = fields = spec.fields()
            given = fields.pop("input", None)
            if given is not None and "input" not in features:
                given, late_input = None, given
            programs = ("programs",) if "cases" in fields and fields["cases"].get("programs") is not None else ()
            for name in (*LATER_FIELDS, *programs):
                if name not in features and (name in fields or name in programs):
                    raise AviatoValidationError(f"{self.sandbox_id} was made by a version without {name}; make a new sandbox")
        payload = as_json(request)
        if given is not None:  # No encoder has to look for what base64 does not have.
            payload = b'%b,"input":"%b"}}' % (payload[:-2], given.encode())
        most = LARGEST_REQUEST_BYTES if "long_commands" in features else LARGEST_EARLIER_BYTES
        if len(payload) > most:
            size = f"command and environment take {len(payload)} bytes; at most {most} fit a request"
            raise AviatoValidationError(size, field_violations={"command": size})
        subscription = Subscription(exec_id, self._unsubscribed)
        if self._reopen is not None:
            subscription.resumable = Resumable(json.loads(payload) if spec is not None else None, [stdout, stderr])
        channel = self._open(subscription)
        older = self._subscriptions.pop(exec_id, None)
        if older is not None:
            older[1].replaced = True
            older[1]._finish(None)
            self._give_up(older[0])
        self._subscriptions[exec_id] = (channel, subscription)
        if spec is not None:
            self._active.add(exec_id)
        if spec is None or memory is None or not self._send_with(memory, payload, channel):
            self._send(FrameType.REQUEST, payload, channel=channel)
        if late_input is not None:
            task = self._loop.create_task(self.feed(exec_id, binascii.a2b_base64(late_input)))
            self._feeding.add(task)
            task.add_done_callback(self._feeding.discard)
        return subscription

    def acknowledge(self, exec_id: str, stdout: int, stderr: int, done: bool) -> None:
        """Say what has been received: windows move on, and at `done` the result is forgotten. Fire and forget."""
        if done:
            self._active.discard(exec_id)
        if not self._acks:
            self._loop.call_soon(self._send_acks)
        said = {"exec_id": exec_id, "stdout": stdout, "stderr": stderr, "done": done}
        if self._reopen is not None:
            self._confirmed.pop(exec_id, None)
            self._confirmed[exec_id] = said
            if len(self._confirmed) > MOST_CONFIRMED:
                del self._confirmed[next(iter(self._confirmed))]
        self._acks += encode(FrameType.ACK, as_json(said))

    def _send_acks(self) -> None:
        """All that one turn of the loop has confirmed: clients do so for many commands at once."""
        acks, self._acks = self._acks, b""
        if acks and self._transport is not None and not self._transport.is_closing():
            self._transport.write(acks)

    async def write_stdin(self, exec_id: str, data: bytes, offset: int, eof: bool) -> None:
        """Write to a command's stdin at this offset of the stream; what it has already is skipped. Waits for room.

        Raises:
            SandboxExecutionError: reason `stdin_closed`.
            ExecNotFoundError: the command is not known.
            SandboxGone: the sandbox ended.
        """
        position = 0
        while True:
            piece = data[position : position + PIECE_BYTES]
            last = position + len(piece) >= len(data)
            request = {"op": "stdin", "exec_id": exec_id, "offset": offset + position, "eof": eof and last}
            await self._call(request, body=piece)
            position += len(piece)
            if last:
                return

    async def feed(self, exec_id: str, data: bytes) -> None:
        """Give a command all of its input, and the end of it. One that does not read it all has not failed."""
        with suppress(AviatoError, SandboxGone):
            await self.write_stdin(exec_id, data, 0, True)

    async def signal(self, exec_id: str, signal: int, key: str | None = None) -> None:
        """Send a signal to the command's process group; nothing happens if it has ended, or if a call of this key was done.

        Raises:
            ExecNotFoundError: the command is not known.
        """
        await self._call({"op": "signal", "exec_id": exec_id, "signal": signal, "key": key})

    async def resize(self, exec_id: str, width: int, height: int) -> None:
        """Give the command's terminal another size, in characters; nothing happens if it has ended.

        Raises:
            ExecNotFoundError: the command is not known.
            AviatoValidationError: it has no terminal.
        """
        await self._call({"op": "resize", "exec_id": exec_id, "width": width, "height": height})

    async def cancel(self, exec_id: str) -> None:
        """Kill the command's whole tree, children it left behind included; returns when it is dead."""
        await self._call({"op": "cancel", "exec_id": exec_id})

    async def cancel_all(self) -> None:
        """Kill everything but the main command and its descendants; returns when it is dead.

        Raises:
            AviatoValidationError: this needs a newer process 1.
        """
        if "cancel_all" not in self.hello["features"]:
            raise AviatoValidationError(f"{self.sandbox_id} was made by a version without cancel_all; make a new sandbox")
        await self._call({"op": "cancel_all"})

    async def stop(self, grace_seconds: float) -> Ended:
        """SIGTERM to all, SIGKILL after the grace, output drained for up to 1 s; returns when the sandbox has ended."""
        if self.ended() is None and self._transport is not None and not self._detached:
            request = as_json({"op": "stop", "grace_seconds": grace_seconds})
            self._send(FrameType.REQUEST, request)
        return await self.wait_ended()

    def has(self, exec_id: str) -> bool:
        """Whether a command runs, or its result was not acknowledged."""
        return exec_id in self._active

    def active_execs(self) -> int:
        """Commands that run or whose result was not acknowledged."""
        return len(self._active)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is asked for, and no result is left that was not acknowledged."""
        return not self._active and not self._channels

    # -- others ---------------------------------------------------------------------------------------------------------

    async def rest(self) -> AtRest | None:
        """What it says of its rest, which holds until something more is asked for; None: its version says nothing."""
        if "rest" not in self.hello["features"]:
            return None
        said = json.loads(await self._call({"op": "rest"}))
        return AtRest(said["rests"], Done(tuple(said["commands"]), tuple(said["calls"])))

    def remember(self, done: Done) -> None:
        """Have none of this happen here again, from here on."""
        if done.commands or done.calls:
            self._send(FrameType.REQUEST, as_json({"op": "remember", "commands": done.commands, "calls": done.calls}))

    async def ping(self) -> None:
        """Return once process 1 has answered."""
        await self._call({"op": "ping"})

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _send_with(self, memory: Memory | None, payload: bytes, channel: int) -> bool:
        """Send a request together with a descriptor of memory; False if that cannot be done now.

        A transport sends none: it goes beside it, once that has nothing more to send.
        """
        if memory is None or not self._takes_descriptors or self._rest is None or self._transport is None:
            return False
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return False
        request = b'%b,"memory":%d}' % (payload[:-1], memory.inode)
        if len(request) > MAX_PAYLOAD_BYTES:
            return False
        data = self._acks + encode(FrameType.REQUEST, request, channel=channel)
        try:
            sent = self._rest.send(data, memory.fd)
        except OSError:
            return False
        self._acks = b""
        if sent < len(data):
            self._transport.write(data[sent:])
        return True

    async def _call(self, request: dict[str, Any], body: bytes | None = None) -> bytes:
        reply = ReplyChannel(self._loop)
        channel = self._open(reply)
        self._send(FrameType.REQUEST, as_json(request), channel=channel)
        if body is not None:
            self._send(FrameType.DATA, body, channel=channel)
        try:
            return await reply.reply
        except asyncio.CancelledError:
            if self._channels.get(channel) is reply:
                self._give_up(channel)
            raise

    def _unsubscribed(self, subscription: Subscription) -> None:
        channel, current = self._subscriptions.get(subscription.exec_id, (0, None))
        if current is subscription:
            del self._subscriptions[subscription.exec_id]
            self._give_up(channel)

    def _open(self, channel: Channel) -> int:
        """Give a request the number of a channel; raises `SandboxGone` where nothing can be asked any more."""
        if self._ended_future.done():
            raise SandboxGone(self._ended_future.result())
        if self._coming_back is not None:
            raise SandboxGone(Ended(reason="cut", message="its connection is being made anew"))
        if self._detached or self._transport is None:
            raise SandboxGone(Ended(reason="lost", message="the server let go of the connection"))
        for _ in range(MAX_CHANNELS):
            self._last_channel = self._last_channel % MAX_CHANNELS + 1
            if self._last_channel not in self._channels:
                self._channels[self._last_channel] = channel
                return self._last_channel
        raise AviatoValidationError(f"{self.sandbox_id} has {MAX_CHANNELS} requests open at once")

    def _give_up(self, channel: int) -> None:
        if channel in self._channels:
            self._channels[channel] = ClosingChannel()
            self._send(FrameType.CLOSE, channel=channel)

    def _send(self, type: int, payload: bytes = b"", *, stream: int = 0, channel: int = 0, offset: int = 0) -> None:
        if self._acks:
            self._send_acks()  # What was confirmed before stays before.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(type, payload, stream=stream, channel=channel, offset=offset))

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        """Process 1 is slow to read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has read."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where what comes next goes: the same memory for all sandboxes, since it is taken from there at once."""
        return _room

    def buffer_updated(self, nbytes: int) -> None:
        """Frames have come: hand them to their channels."""
        self.heard += 1
        try:
            for frame in self._decoder.feed(_room[:nbytes]):
                channel = self._channels.get(frame.channel)
                if channel is None:
                    self._take(frame)
                elif channel.frame(frame):
                    del self._channels[frame.channel]
                    if isinstance(channel, Subscription):
                        self._subscriptions.pop(channel.exec_id, None)
                        if frame.type == FrameType.ERROR and b'"REQUEST_ID_CONFLICT"' not in frame.payload:
                            self._active.discard(channel.exec_id)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            self._lose(Ended(reason="lost", message=f"process 1 broke the protocol: {error}"))
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Process 1 is gone, or replaced us by a newer connection."""
        if exc is not None and self._rest is not None:
            for data in self._rest.read():
                _room[: len(data)] = data
                self.buffer_updated(len(data))
        self._close_rest()
        message = "the connection to process 1 was lost" + (f": {exc}" if exc else "")
        if self._reopen is None or self._detached or self._ended_future.done():
            self._lose(Ended(reason="lost", message=message))
        elif self._coming_back is None:
            self._coming_back = self._loop.create_task(self._come_back(self._reopen, message))

    async def _come_back(self, reopen: Reopen, message: str) -> None:
        """Go on over another connection: commands as they were, what else was under way is told that it was cut off."""
        try:
            while True:
                self._cut(message)
                try:
                    sock = await reopen()
                except SandboxGone as gone:
                    self._coming_back = None
                    return self._lose(gone.ended)
                if sock is None:
                    self._coming_back = None
                    return self._lose(Ended(reason="lost", message=message))
                self._ready, self._decoder = self._loop.create_future(), FramePieces()
                try:
                    await self._use(sock)
                    async with asyncio.timeout(HELLO_SECONDS):
                        await self._ready
                    break
                except (OSError, TimeoutError, SandboxGone, AviatoError) as error:
                    log.info("sandbox %s: a new connection came to nothing: %r", self.sandbox_id, error)
                    sock.close()
            self._coming_back = None
            for said in self._confirmed.values():
                self._send(FrameType.ACK, as_json(said))
            for exec_id, (channel, subscription) in self._subscriptions.items():
                if subscription.resumable is not None:
                    self._send(FrameType.REQUEST, as_json(subscription.resumable.again(exec_id)), channel=channel)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self._coming_back = None
            log.exception("sandbox %s cannot be gone on with", self.sandbox_id)
            self._lose(Ended(reason="lost", message=f"{message}; {type(error).__name__}"))

    def _cut(self, message: str) -> None:
        ended = Ended(reason="cut", message=message)
        for number, channel in list(self._channels.items()):
            if not isinstance(channel, Subscription):
                del self._channels[number]
                channel.gone(ended)

    def _close_rest(self) -> None:
        if self._rest is not None:
            self._rest.close()

    def _take(self, frame: Frame) -> None:
        """One that is of no request."""
        if frame.type == FrameType.HELLO:
            self._greeted(frame)
        elif frame.type == FrameType.DESCRIPTORS:
            self._takes_descriptors = True
        elif frame.type == FrameType.REPLACED:
            self._lose(Ended(reason="taken", message="another server has it now"))
        elif frame.type == FrameType.ENDED:
            self._lose(Ended.read(frame.payload))
        elif frame.type == FrameType.ERROR and not self._ready.done():
            self._ready.set_exception(error_of(frame))

    def _greeted(self, frame: Frame) -> None:
        if self._ready.done():
            return
        try:
            said = hello.read(frame.payload, self.sandbox_id)
        except AviatoError as error:
            self._ready.set_exception(error)
            return
        self.hello = {intern(name): _held_once(value) for name, value in said.items()}
        self.has_wide_windows = "wide_window" in self.hello["features"]
        self._active.update(self.hello["execs"])
        if self._orphan_seconds is None:
            self._keep_speaking()
        else:
            self._speak_later()  # It has just heard its configuration, and is about to hear its first command.
        self._ready.set_result(None)

    def _keep_speaking(self) -> None:
        """An idle sandbox must hear from us, or it takes itself for an orphan."""
        if self.ended() is None and not self._detached:
            self._send(FrameType.KEEPALIVE)
            self._speak_later()

    def _speak_later(self) -> None:
        if self.ended() is None and not self._detached:
            patience = self._orphan_seconds or float(self.hello["orphan_timeout_seconds"])
            self._beat = self._loop.call_later(min(60.0, patience / 4), self._keep_speaking)

    def _lose(self, ended: Ended) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if not self._ended_future.done() and not self._detached:
            self._ended_future.set_result(ended)
        final = self.ended() or ended
        if not self._ready.done():
            self._ready.set_exception(SandboxGone(final))
            self._ready.exception()
        channels, self._channels = self._channels, {}
        self._subscriptions.clear()
        self._writable.set()
        for channel in channels.values():
            channel.gone(final)


def _held_once(said: Any) -> Any:
    """What every process 1 says, in the strings of the first."""
    if isinstance(said, str):
        return intern(said)
    return [_held_once(one) for one in said] if isinstance(said, list) else said


_room = memoryview(mmap.mmap(-1, ROOM_BYTES))
