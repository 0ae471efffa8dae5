"""Streams: written on the loop thread, read in any thread and on any loop, bounded, and never silent about a gap."""

import asyncio
import gc
import os
import signal
import threading
import time

import pytest
import uvloop

from aviato.bridge.collection import Collection
from aviato.bridge.loop import loop_thread
from aviato.bridge.operation import OperationRef
from aviato.bridge.stream import HIGH_MARK_BYTES, MAX_LINE, StreamReader
from aviato.exceptions import AsyncUsageWarning, SandboxExecutionError, SandboxUnavailableError

MIB = 1 << 20


def start(coroutine):
    return OperationRef.start(coroutine, name="write")


def stream_of(text=True, **options):
    return StreamReader(name="stdout", text=text, **options)


async def write(stream, chunks, error=None, finish=True):
    for chunk in chunks:
        stream.feed(chunk, stream.total_bytes)
        await stream.ready()
    if finish:
        stream.finish(error)


def written(*chunks, error=None, **options):
    stream = stream_of(**options)
    start(write(stream, chunks, error)).result(5)
    return stream


def both(make, read=lambda stream: stream):
    """What each of the two faces yields."""

    async def main():
        return [piece async for piece in read(second)]

    first, second = make(), make()
    return list(read(first)), asyncio.run(main())


def feed_soon(stream, *steps):
    """Feed one chunk after the other, each after its delay in seconds; then end the stream."""

    async def work():
        for delay, chunk in steps:
            await asyncio.sleep(delay)
            stream.feed(chunk, stream.total_bytes)
        stream.finish()

    return start(work())


# -- what is read


def test_everything_in_both_worlds():
    for pieces in both(lambda: written(b"one", b"two\n", b"three")):
        assert "".join(pieces) == "onetwo\nthree"
    for pieces in both(lambda: written(b"\xff", b"\x00", text=False)):
        assert b"".join(pieces) == b"\xff\x00"


def test_an_empty_stream():
    assert both(written) == ([], [])
    assert both(written, StreamReader.lines) == ([], [])


def test_a_second_reading_begins_again():
    stream = written(b"one")
    assert list(stream) == list(stream) == ["one"]
    iterator = iter(stream)
    assert list(iterator) == ["one"]
    assert list(iterator) == []


def test_a_character_that_arrives_in_two_pieces_stays_whole():
    stream = stream_of()
    iterator = iter(stream)
    feed_soon(stream, (0, b"caf\xc3"), (0.1, b"\xa9!"), (0.1, b"\xf0\x9f"), (0.1, b"\x9a\x80"))
    pieces = list(iterator)
    assert pieces == ["caf", "é!", "🚀"]


def test_bytes_that_are_no_text_are_replaced():
    assert list(written(b"a\xffb", b"\xc3")) == ["a\ufffdb", "\ufffd"]


def test_raw_bytes_of_a_text_stream():
    chunks = [b"a\xff", b"\xc3", b"\xa9\r\n"]
    assert [b"".join(found) for found in both(lambda: written(*chunks), StreamReader.raw)] == [b"".join(chunks)] * 2
    stream = written(*chunks)
    assert b"".join(stream.raw()) == b"".join(chunks)
    assert "".join(stream) == "a\ufffdé\r\n"


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\nthree"], ["one", "two", "three"]),
        ([b"one\n", b"\n", b"two\n"], ["one", "", "two"]),
        ([b"o", b"n", b"e", b"\n", b"t", b"wo"], ["one", "two"]),
        ([b"one\r\ntwo\r", b"\nthree\r"], ["one", "two", "three\r"]),
        ([b"10%\r20%\r", b"done\n"], ["10%\r20%\rdone"]),
        ([b"\xc3", b"\xa9\n\xc3", b"\xa9"], ["é", "é"]),
        ([b"\n"], [""]),
    ],
)
def test_lines(chunks, lines):
    assert both(lambda: written(*chunks), StreamReader.lines) == (lines, lines)
    as_bytes = [line.encode() for line in lines]
    assert list(written(*chunks, text=False).lines()) == as_bytes


@pytest.mark.parametrize("chunk", [65_536, 3 * MIB])
def test_a_line_over_one_mebibyte_comes_in_pieces(chunk):
    data = b"x" * (2 * MIB + 5) + b"\nshort\n"
    stream = written(*(data[place : place + chunk] for place in range(0, len(data), chunk)))
    assert [len(line) for line in stream.lines()] == [MAX_LINE, MAX_LINE, 5, 5]


def test_a_line_of_many_small_pieces_costs_no_copy_for_each():
    stream = written(*[b"  10%\r"] * 150_000, b"\n")
    started = time.process_time()
    assert len(list(stream.lines())) == 1
    stream = stream_of()
    iterator = stream.lines()
    for _ in range(150_000):
        stream.feed(b"  10%\r", stream.total_bytes)
    stream.finish()
    assert len(next(iterator)) == 900_000
    assert time.process_time() - started < 3


# -- taken for its text


def test_a_stream_is_not_taken_for_its_text():
    """Each would be False without a word, though the text is there."""
    stream = written(b"42\n")
    for mistake in (lambda: stream == "42\n", lambda: stream != "42\n", lambda: "42" in stream, lambda: stream.strip()):
        with pytest.raises((TypeError, AttributeError), match="it is a stream: iterate it, or take the outcome of its command"):
            mistake()
    assert list(stream) == ["42\n"]


# -- when it is read


def test_a_thread_reads_live():
    """Each chunk is fed only after the one before it was read."""
    stream, arrived, pieces = stream_of(), threading.Semaphore(0), []

    async def work():
        for chunk in (b"one", b"two", b"three"):
            stream.feed(chunk, stream.total_bytes)
            await asyncio.to_thread(arrived.acquire)
        stream.finish()

    start(work())
    for piece in stream:
        pieces.append(piece)
        arrived.release()
    assert pieces == ["one", "two", "three"]


@pytest.mark.parametrize("debug", [False, True])
def test_an_otherwise_idle_loop_is_woken_within_100_ms(debug):
    sent = []

    async def main():
        return [(piece, time.monotonic()) async for piece in stream]

    async def work():
        for number in range(5):
            await asyncio.sleep(0.1)
            sent.append(time.monotonic())
            stream.feed(b"%d" % number, stream.total_bytes)
        stream.finish()

    stream = stream_of()
    start(work())
    arrivals = asyncio.run(main(), debug=debug)
    assert "".join(piece for piece, _ in arrivals) == "01234"
    for (_, arrived), sent_at in zip(arrivals, sent, strict=True):
        assert arrived - sent_at < 0.1


def test_a_uvloop_of_the_caller():
    async def main():
        return [piece async for piece in stream]

    stream = stream_of()
    feed_soon(stream, (0.05, b"one"), (0.05, b"two"))
    assert uvloop.run(main()) == ["one", "two"]


def test_on_the_loop_thread_itself_await_works_and_blocking_is_refused():
    async def main():
        with pytest.raises(RuntimeError, match="`await`"):
            next(iter(stream))
        feed_soon(stream, (0.05, b"one"))
        return [piece async for piece in stream]

    stream = stream_of()
    assert start(main()).result(5) == ["one"]


def test_blocking_on_a_running_loop_warns():
    async def main():
        with pytest.warns(AsyncUsageWarning, match="stdout") as caught:
            assert list(stream) == ["one"]
        assert caught[0].filename == __file__

    stream = stream_of()
    feed_soon(stream, (0.1, b"one"))
    asyncio.run(main())


# -- the end


@pytest.mark.parametrize("late", [False, True])
def test_an_error_comes_after_the_last_byte_in_both_worlds(late):
    async def main(stream):
        pieces = []
        with pytest.raises(SandboxUnavailableError, match="lost"):
            async for piece in stream:
                pieces.append(piece)  # noqa: PERF401 - what came before the error counts
        return pieces

    def make():
        if late:
            return written(b"one", b"two", error=SandboxUnavailableError("lost"))
        stream = stream_of()
        start(delayed(stream))
        return stream

    async def delayed(stream):
        await asyncio.sleep(0.1)
        await write(stream, [b"one", b"two"], SandboxUnavailableError("lost"))

    assert "".join(asyncio.run(main(make()))) == "onetwo"
    pieces = []
    with pytest.raises(SandboxUnavailableError, match="lost"):
        for piece in make():
            pieces.append(piece)  # noqa: PERF402 - what came before the error counts
    assert "".join(pieces) == "onetwo"


def test_every_reading_ends_with_the_error():
    stream = written(b"one", error=SandboxUnavailableError("lost"))
    for _ in range(2):
        iterator = iter(stream)
        assert next(iterator) == "one"
        with pytest.raises(SandboxUnavailableError):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


def test_the_first_end_counts_and_nothing_comes_after_it():
    stream = written(b"one")
    stream.finish(SandboxUnavailableError("late"))
    stream.feed(b"late", 3)
    assert list(stream) == ["one"]


def test_bytes_that_come_twice_are_read_once_and_a_hole_is_an_error():
    stream = stream_of()
    stream.feed(b"abcdef", 0)
    stream.feed(b"cdefgh", 2)
    stream.feed(b"abc", 0)
    assert stream.total_bytes == 8
    with pytest.raises(ValueError, match="2 bytes before offset 10 are missing"):
        stream.feed(b"x", 10)
    stream.finish()
    assert "".join(stream) == "abcdefgh"


# -- bounds


def test_a_live_reader_holds_the_writer_back_and_sees_every_byte():
    stream = stream_of(text=False, max_output_bytes=1000)
    iterator = iter(stream)
    writer = start(write(stream, [bytes([number % 251]) * 65_536 for number in range(160)]))
    held = wait_until_still(lambda: stream.total_bytes)
    assert HIGH_MARK_BYTES <= held <= HIGH_MARK_BYTES + 65_536
    assert not writer.done()
    data = b"".join(iterator)
    assert data == b"".join(bytes([number % 251]) * 65_536 for number in range(160))
    writer.result(5)


def test_an_async_reader_holds_the_writer_back_too():
    async def main():
        iterator = aiter(stream)
        writer = start(write(stream, [b"x" * 65_536] * 160))
        total = len(await anext(iterator))
        await asyncio.sleep(0.2)
        assert not writer.done()
        async for piece in iterator:
            total += len(piece)
        return total

    stream = stream_of(text=False)
    assert asyncio.run(main()) == 160 * 65_536


def test_nobody_reading_never_holds_the_writer_back():
    stream = stream_of(max_output_bytes=MIB)
    start(write(stream, [b"x" * 65_536] * 160)).result(5)
    assert stream.total_bytes == 10 * MIB


def test_200_mb_unread_cost_little_memory(lines):
    code = """
        import resource
        from aviato.bridge.stream import StreamReader
        stream = StreamReader(name="stdout", text=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async def work():
            for number in range(3200):
                stream.feed(os.urandom(1024) * 64, stream.total_bytes)
                await stream.ready()
            stream.finish()
        start(work()).result()
        kept = stream.collected()
        say(len(kept.data), kept.head_bytes, kept.total)
        say(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024)
    """
    assert lines(code) == [f"{16 * MIB} {8 * MIB} {3200 * 65536}", "True"]


@pytest.mark.parametrize("chunk", [1, 7, 100, 5000])
def test_head_and_tail_are_kept(chunk):
    data = bytes(number % 251 for number in range(5000))
    collection = Collection(1001)
    for place in range(0, len(data), chunk):
        collection._add(data[place : place + chunk])
    kept = collection.collected()
    assert kept.data == data[:501] + data[-500:]
    assert (kept.head_bytes, kept.total, collection._dropped) == (501, 5000, 3999)


def test_all_is_kept_up_to_the_cap():
    collection = Collection(1000)
    for number in range(10):
        collection._add(bytes([number]) * 100)
    assert collection.collected() == (b"".join(bytes([number]) * 100 for number in range(10)), None, 1000)
    assert collection._dropped == 0


def test_reading_after_bytes_were_left_out_names_the_gap():
    stream = written(b"x" * 500, b"y" * 500, max_output_bytes=100)
    for begin in (iter, aiter, StreamReader.lines):
        with pytest.raises(SandboxExecutionError, match="900 of 1000 bytes were left out") as caught:
            begin(stream)
        assert caught.value.reason == "output_gap"


def test_a_reader_from_the_start_sees_what_the_collection_leaves_out():
    stream = stream_of(max_output_bytes=100)
    iterator = iter(stream)
    start(write(stream, [b"x" * 500, b"y" * 500]))
    assert "".join(iterator) == "x" * 500 + "y" * 500
    assert len(stream.collected().data) == 100


# -- who reads


def test_a_second_iterator_on_a_stream_in_use_is_refused():
    stream = stream_of()
    iterator = iter(stream)
    for begin in (iter, aiter, StreamReader.lines):
        with pytest.raises(RuntimeError, match="one iterator at a time"):
            begin(stream)
    iterator.close()
    feed_soon(stream, (0, b"one"))
    assert list(stream) == ["one"]


@pytest.mark.parametrize("world", ["for", "async for"])
def test_leaving_a_loop_lets_the_writer_go_on(world):
    async def main():
        async for _ in stream:
            break

    stream = stream_of(text=False)
    writer = start(write(stream, [b"x" * 65_536] * 160))
    if world == "for":
        for _ in stream:
            break
    else:
        asyncio.run(main())
    writer.result(5)
    assert not stream.reading


def test_an_error_in_the_body_of_the_loop_lets_the_writer_go_on():
    stream = stream_of(text=False)
    writer = start(write(stream, [b"x" * 65_536] * 160))

    def read():
        for _ in stream:
            raise ValueError("in the body")

    with pytest.raises(ValueError, match="in the body"):
        read()
    writer.result(5)


@pytest.mark.parametrize("read_first", [False, True])
def test_who_waits_for_the_result_lets_go_of_what_it_holds_half_read(read_first):
    stream = stream_of(text=False)
    iterator = iter(stream)
    writer = start(write(stream, [b"x" * 65_536] * 160))
    total = len(next(iterator)) if read_first else 0
    stream.detach_own()
    writer.result(5)
    assert total + sum(map(len, iterator)) == 160 * 65_536


def test_a_task_that_waits_lets_go_of_what_it_holds_half_read():
    async def main():
        iterator = aiter(stream)
        writer = start(write(stream, [b"x" * 65_536] * 160))
        await anext(iterator)
        stream.detach_own()
        await asyncio.wait_for(writer, 5)
        return iterator

    stream = stream_of(text=False)
    asyncio.run(main())


def test_what_another_thread_reads_is_left_to_it():
    stream = stream_of(text=False)
    total = []

    def read():
        for piece in stream:
            total.append(len(piece))
            reading.set()

    reading = threading.Event()
    thread = threading.Thread(target=read)
    thread.start()
    stream.feed(b"x", 0)
    assert reading.wait(5)
    stream.detach_own()
    assert stream.reading
    start(write(stream, [b"x" * 65_536] * 160)).result(5)
    thread.join(5)
    assert sum(total) == 1 + 160 * 65_536


@pytest.mark.parametrize("world", ["thread", "task"])
def test_an_iterator_whose_reader_has_ended_holds_nobody_back(world):
    async def main():
        await anext(held[0])

    stream = stream_of(text=False)
    held = [iter(stream)]
    writer = start(write(stream, [b"x" * 65_536] * 160))
    if world == "thread":
        reader = threading.Thread(target=lambda: next(held[0]))
        reader.start()
        reader.join()
    else:
        asyncio.run(main())
        gc.collect()
    wait_until_still(lambda: stream.total_bytes)
    assert not writer.done()
    stream.detach_own()
    writer.result(5)


def test_a_reader_whose_loop_has_closed_is_dropped():
    stream = stream_of(text=False)
    held = []

    async def main():
        held.append(aiter(stream))
        held.append(asyncio.ensure_future(anext(held[0])))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    start(write(stream, [b"x" * 65_536] * 160)).result(5)
    assert not stream.reading
    held[1]._log_destroy_pending = False


def test_a_reader_that_is_cancelled_reads_on_where_it_was():
    async def main():
        iterator = aiter(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(iterator), 0.05)
        feed_soon(stream, (0, b"one"), (0.05, b"two"))
        return [piece async for piece in iterator]

    stream = stream_of()
    assert "".join(asyncio.run(main())) == "onetwo"


def test_a_reader_that_is_cancelled_holds_the_writer_back_until_it_reads_on():
    async def main():
        iterator = aiter(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(iterator), 0.05)
        writer = start(write(stream, [b"x" * 65_536] * 160))
        await asyncio.to_thread(wait_until_still, lambda: stream.total_bytes)
        assert not writer.done()
        return sum([len(piece) async for piece in iterator])

    stream = stream_of(text=False, max_output_bytes=1000)
    assert asyncio.run(main()) == 160 * 65_536


@pytest.mark.parametrize("world", ["for", "async for", "another loop"])
def test_a_reader_that_was_cancelled_lets_another_begin(world):
    """What was raised holds the iterator while it is looked at."""

    async def read():
        return [piece async for piece in stream]

    async def main():
        iterator = aiter(stream)
        assert await anext(iterator) == "one"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(iterator), 0.05)
        held.append(iterator)
        return await read() if world == "async for" else None

    async def work():
        stream.feed(b"one", 0)
        await asyncio.sleep(0.3)
        stream.feed(b"two", 3)
        await asyncio.sleep(0.1)
        assert stream.reading
        stream.finish()

    stream, held = stream_of(), []
    writer = start(work())
    pieces = asyncio.run(main())
    if world == "for":
        pieces = list(stream)
    elif world == "another loop":
        pieces = asyncio.run(read())
    assert "".join(pieces) == "onetwo"
    writer.result(5)


def test_whoever_waits_lets_go_of_what_a_reader_that_was_cancelled_holds():
    """In a task of its own, as by `asyncio.gather`, where it is not the reader itself that waits."""

    async def wait(writer):
        stream.detach_own()
        await writer

    async def main():
        iterator = aiter(stream)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(iterator)
        await asyncio.wait_for(wait(start(write(stream, [b"x" * 65_536] * 160))), 10)
        return iterator

    stream = stream_of(text=False)
    asyncio.run(main())


def test_one_iterator_is_read_in_one_task_at_a_time():
    async def main():
        iterator = aiter(stream)
        first = asyncio.create_task(anext(iterator))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task with this iterator"):
            await anext(iterator)
        stream.feed(b"one", 0)
        assert await asyncio.wait_for(first, 10) == "one"
        stream.feed(b"two", 3)
        assert await anext(iterator) == "two"
        stream.finish()

    stream = stream_of()
    asyncio.run(main())


def test_a_child_of_a_fork_reads_what_is_over_and_is_refused_what_is_live():
    over, live = written(b"whole"), stream_of()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # a child that hangs must not outlive the test
        try:
            os.write(writer, "".join(over).encode())
            next(iter(live))
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    assert text.startswith("whole")
    assert f"written by process {os.getpid()}" in text


def test_many_threads_each_with_a_stream_of_its_own():
    streams = [stream_of() for _ in range(32)]
    outcomes = {}

    def read(number):
        outcomes[number] = "".join(streams[number])

    readers = [threading.Thread(target=read, args=(number,)) for number in range(32)]
    for reader in readers:
        reader.start()
    refs = [start(write(stream, [b"%d," % number] * 500)) for number, stream in enumerate(streams)]
    for ref in refs:
        ref.result(10)
    for reader in readers:
        reader.join(10)
    assert outcomes == {number: f"{number}," * 500 for number in range(32)}
    assert loop_thread().usable


def wait_until_still(value):
    """Wait until a number that is not 0 has stayed the same for a while."""
    last, since, deadline = value(), time.monotonic(), time.monotonic() + 5
    while time.monotonic() < deadline and (last == 0 or time.monotonic() - since < 0.2):
        time.sleep(0.01)
        if value() != last:
            last, since = value(), time.monotonic()
    return last
