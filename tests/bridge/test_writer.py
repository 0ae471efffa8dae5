"""Standard input: in order, exactly once, closed once."""

import asyncio
import threading

import pytest

from aviato.bridge.operation import OperationRef
from aviato.bridge.writer import StreamWriter
from aviato.core.command_input import PIECE_BYTES
from aviato.exceptions import OperationCancelledError, SandboxExecutionError, SandboxUnavailableError


class Sink:
    """The other end: keeps what arrives, and holds each write until the gate is open."""

    def __init__(self, *, open_at_once=True):
        self.received = bytearray()
        self.eof_at = []
        self.busy = False
        self.gate = asyncio.Event()
        self.arrived = threading.Event()
        if open_at_once:
            self.gate.set()
        self.writer = StreamWriter(self.send, self.send_eof, name="stdin")

    async def send(self, data, offset):
        assert not self.busy
        self.busy = True
        try:
            self.arrived.set()
            await self.gate.wait()
            await asyncio.sleep(0)
            assert offset == len(self.received)
            self.received += data
        finally:
            self.busy = False

    async def send_eof(self, offset):
        assert offset == len(self.received)
        self.eof_at.append(offset)

    def open(self):
        async def work():
            self.gate.set()

        OperationRef.start(work(), name="open").result(5)


def test_bytes_arrive_in_the_order_of_the_calls():
    sink = Sink()
    refs = [sink.writer.write(b"%d," % number) for number in range(200)]
    sink.writer.close().result(5)
    assert all(ref.done() and ref.result() is None for ref in refs)
    assert bytes(sink.received) == b"".join(b"%d," % number for number in range(200))
    assert sink.eof_at == [len(sink.received)]


def test_lines_and_other_kinds_of_bytes():
    sink = Sink()
    sink.writer.writeline("naïve").result(5)
    sink.writer.write(bytearray(b"array")).result(5)
    sink.writer.write(memoryview(b"view")).result(5)
    assert bytes(sink.received) == "naïve\narrayview".encode()


def test_the_caller_may_reuse_its_buffer_at_once():
    sink = Sink(open_at_once=False)
    buffer = bytearray(b"before")
    ref = sink.writer.write(buffer)
    buffer[:] = b"after!"
    sink.open()
    ref.result(5)
    assert bytes(sink.received) == b"before"


def test_a_long_write_goes_in_pieces():
    sink = Sink()
    data = bytes(range(256)) * (PIECE_BYTES // 100)
    sink.writer.write(data).result(5)
    assert bytes(sink.received) == data


def test_many_threads_write_whole_messages():
    sink = Sink()

    def work(number):
        for _ in range(50):
            sink.writer.write(b"%02d" % number * 10)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.writer.close().result(10)
    messages = [bytes(sink.received[place : place + 20]) for place in range(0, len(sink.received), 20)]
    assert len(messages) == 400
    assert all(message == message[:2] * 10 for message in messages)


def test_the_wrong_type_is_refused_at_the_call():
    writer = Sink().writer
    with pytest.raises(TypeError, match="writeline"):
        writer.write("text")
    with pytest.raises(TypeError, match="write"):
        writer.writeline(b"bytes")


def test_closing_twice_is_closing_once():
    sink = Sink()
    assert not sink.writer.closed
    first, second = sink.writer.close(), sink.writer.close()
    first.result(5)
    second.result(5)
    assert sink.writer.closed
    assert sink.eof_at == [0]


def test_writing_after_close_says_closed():
    sink = Sink()
    sink.writer.close().result(5)
    for write in (lambda: sink.writer.write(b"late"), lambda: sink.writer.writeline("late")):
        with pytest.raises(SandboxExecutionError, match="closed") as caught:
            write()
        assert caught.value.reason == "stdin_closed"
    assert bytes(sink.received) == b""


def test_writing_after_the_end_of_the_command_says_closed():
    sink = Sink()
    sink.writer.mark_closed("the command has ended")
    with pytest.raises(SandboxExecutionError, match="closed: the command has ended"):
        sink.writer.write(b"late")
    sink.writer.close().result(5)
    assert sink.eof_at == []


def test_after_a_cancelled_write_nothing_is_written_at_an_offset_that_may_be_taken():
    sink = Sink(open_at_once=False)
    ref = sink.writer.write(b"lost?")
    assert sink.arrived.wait(5)
    ref.cancel()
    with pytest.raises(OperationCancelledError):
        ref.result(5)
    sink.open()
    assert sink.writer.closed
    with pytest.raises(SandboxExecutionError, match="cancelled"):
        sink.writer.write(b"more")


def test_a_write_queued_behind_a_cancelled_one_is_not_sent():
    sink = Sink(open_at_once=False)
    first, second = sink.writer.write(b"lost?"), sink.writer.write(b"behind")
    assert sink.arrived.wait(5)
    first.cancel()
    with pytest.raises(OperationCancelledError):
        first.result(5)
    sink.open()
    with pytest.raises(SandboxExecutionError, match="cancelled"):
        second.result(5)
    assert bytes(sink.received) == b""


def test_after_a_failed_write_too_and_the_input_still_ends():
    class Lost(Sink):
        async def send(self, data, offset):
            self.received += data
            await self.gate.wait()
            raise SandboxUnavailableError("the answer was lost")

        async def send_eof(self, offset):
            self.eof_at.append(offset)

    sink = Lost(open_at_once=False)
    first, second = sink.writer.write(b"one"), sink.writer.write(b"two")
    sink.open()
    with pytest.raises(SandboxUnavailableError):
        first.result(5)
    with pytest.raises(SandboxExecutionError, match="closed: a write failed"):
        second.result(5)
    with pytest.raises(SandboxExecutionError, match="closed: a write failed"):
        sink.writer.write(b"three")
    sink.writer.close().result(5)
    assert bytes(sink.received) == b"one"
    assert sink.eof_at == [0]
