"""A connection to process 1: its frames, the requests that share it, what process 1 says first and how it ended."""

from __future__ import annotations

import asyncio
import mmap
from socket import AF_UNIX
from sys import intern
from typing import TYPE_CHECKING, Any, cast

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.server.link import hello
from aviato.server.link.channels import Channel, ClosingChannel, ReplyChannel, error_of
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.link.payload import as_json
from aviato.server.link.second_descriptor import SecondDescriptor
from aviato.server.link.subscription import Subscription
from aviato.wire.frames import MAX_PAYLOAD_BYTES, Frame, FramePieces, FrameType, encode

if TYPE_CHECKING:
    import socket

    from aviato.server.shared_memory import Memory

ROOM_BYTES = 256 << 10
MAX_CHANNELS = 0xFFFF


class Connection(asyncio.BufferedProtocol):
    """A connection to one process 1, used from one event loop."""

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
        self._transport: asyncio.Transport | None = None
        self._second: SecondDescriptor | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._detached = False
        self._takes_descriptors = False
        self._orphan_seconds: float | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._away: Ended | None = None
        """Set while another connection is looked for: what those are told who ask meanwhile."""
        self._abandoned: Ended | None = None
        """Set once nothing but its end is wanted of it: what all others are told who ask."""

    # -- making and ending ----------------------------------------------------------------------------------------------

    async def _use(self, sock: socket.socket) -> None:
        self._second = SecondDescriptor(sock)
        if sock.family == AF_UNIX:
            await self._loop.create_unix_connection(lambda: self, sock=sock)
        else:
            await self._loop.create_connection(lambda: self, sock=sock)

    def detach(self) -> None:
        """Close the connection; the sandbox lives on. Open subscriptions and calls end as `lost`."""
        self._send_acks()
        self._detached = True
        if self._transport is not None:
            self._transport.abort()
        self._close_second()
        self._lose(Ended(reason="lost", message="the server let go of the connection"))

    def abandon(self, ended: Ended) -> None:
        """End all that is under way or asked for later with this word; the connection stays for what belongs to its end."""
        self._abandoned = ended
        channels, self._channels = self._channels, {}
        self._subscriptions.clear()
        for channel in channels.values():
            channel.gone(ended)

    def let_go(self, ended: Ended) -> None:
        """Close the connection, and take this for the end of its process 1, where that has not said its own."""
        self._lose(ended)
        self.detach()

    @property
    def is_detached(self) -> bool:
        """Whether this side has let go of it."""
        return self._detached

    def ended(self) -> Ended | None:
        """How the sandbox ended, or None while it lives. A detached link does not know and says None."""
        return self._ended_future.result() if self._ended_future.done() else None

    async def wait_ended(self) -> Ended:
        """Wait until process 1 said that it ends, or is gone; for any number of waiters."""
        return await asyncio.shield(self._ended_future)

    # -- requests -------------------------------------------------------------------------------------------------------

    def _send_acks(self) -> None:
        """All that one turn of the loop has confirmed: clients do so for many commands at once."""
        acks, self._acks = self._acks, b""
        if acks and self._transport is not None and not self._transport.is_closing():
            self._transport.write(acks)

    def _send_with(self, memory: Memory | None, payload: bytes, channel: int) -> bool:
        """Send a request together with a descriptor of memory; False if that cannot be done now.

        A transport sends none: it goes beside it, once that has nothing more to send.
        """
        if memory is None or not self._takes_descriptors or self._second is None or self._transport is None:
            return False
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return False
        request = b'%b,"memory":%d}' % (payload[:-1], memory.inode)
        if len(request) > MAX_PAYLOAD_BYTES:
            return False
        data = self._acks + encode(FrameType.REQUEST, request, channel=channel)
        try:
            sent = self._second.send(data, memory.fd)
        except OSError:
            return False
        self._acks = b""
        if sent < len(data):
            self._transport.write(data[sent:])
        return True

    async def _call(self, request: dict[str, Any], body: bytes | None = None, *, at_end: bool = False) -> bytes:
        reply = ReplyChannel(self._loop)
        channel = self._open(reply, at_end=at_end)
        self._send(FrameType.REQUEST, as_json(request), channel=channel)
        if body is not None:
            self._send(FrameType.DATA, body, channel=channel)
        try:
            return await reply.reply
        except asyncio.CancelledError:
            if self._channels.get(channel) is reply:
                self._give_up(channel)
            raise

    def _open(self, channel: Channel, *, goes_on: bool = False, at_end: bool = False) -> int:
        """Give a request the number of a channel; raises `SandboxGone` where nothing can be asked any more.

        One that `goes_on` over another connection may be asked for while that is looked for, and one `at_end` of one that is
        abandoned.
        """
        if self._abandoned is not None and not at_end:
            raise SandboxGone(self._abandoned)  # Also once it has ended: by its own word the sandbox would have.
        if self._ended_future.done():
            raise SandboxGone(self._ended_future.result())
        if self._away is not None and not goes_on:
            raise SandboxGone(self._away)
        if self._detached or (self._transport is None and self._away is None):
            raise SandboxGone(Ended(reason="lost", message="the server let go of the connection"))
        for _ in range(MAX_CHANNELS):
            self._last_channel = self._last_channel % MAX_CHANNELS + 1
            if self._last_channel not in self._channels:
                self._channels[self._last_channel] = channel
                return self._last_channel
        raise AviatoValidationError(f"{self.sandbox_id} has {MAX_CHANNELS} requests open at once")

    def _give_up(self, channel: int) -> None:
        if self._away is not None:
            self._channels.pop(channel, None)  # No process 1 knows of it that could answer.
        elif channel in self._channels:
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
        if exc is not None and self._second is not None:
            for data in self._second.read():
                _room[: len(data)] = data
                self.buffer_updated(len(data))
        self._close_second()
        message = "the connection to process 1 was lost" + (f": {exc}" if exc else "")
        self._was_lost(message)

    def _was_lost(self, message: str) -> None:
        self._lose(Ended(reason="lost", message=message))

    def _close_second(self) -> None:
        if self._second is not None:
            self._second.close()

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
        if self._beat is not None:
            self._beat.cancel()
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
