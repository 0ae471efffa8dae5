"""A connection that is lost while process 1 lives on: the link goes on over another; nothing is lost, doubled or run twice."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Self, TypeVar

import pytest

from aviato.server.link import lasting_connection
from aviato.server.link.at_rest import Done
from aviato.server.link.handshake import NotAuthentic, prove
from aviato.server.link.link import Configuration, ExecSpec, Process1Link, SandboxGone
from aviato.wire.frames import FrameType, encode
from tests.protocol.networked import Place, place
from tests.protocol.test_over_a_network import CONFIGURATION

pytestmark = pytest.mark.anyio

T = TypeVar("T")
LINES = 3000
COUNT = f"""
echo x >> /tmp/runs; i=0
while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 0.02; done
wc -l < /tmp/runs
"""


class Way:
    """The network between: connections lead through it until it is cut."""

    def __init__(self, there: Place) -> None:
        self.there = there
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def dial(self) -> socket.socket:
        """A connection that can be cut."""
        own, theirs = socket.socketpair()
        out = self.there.dial()
        for one in (own, theirs):
            one.setblocking(False)
        self._open += [theirs, out]
        for source, target in ((theirs, out), (out, theirs)):
            task = asyncio.create_task(_pump(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return own

    async def hold(self) -> None:
        """Let nothing through any more, as a network that has gone without a word."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def cut(self) -> None:
        """All at once, in both directions, whatever is on its way."""
        self.cuts += 1
        await self.hold()
        made, self._open = self._open, []
        for sock in made:
            sock.close()


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await loop.sock_recv(source, 4096):
            await loop.sock_sendall(target, data)


async def linked(there: Place, way: Way, *, may: asyncio.Event | None = None, **configuration: object) -> Process1Link:
    """The link of a server that knows how to come back, once it may."""

    async def reopen() -> socket.socket:
        while True:
            if may is not None:
                await may.wait()
            sock = await way.dial()
            try:
                assert await prove(sock, there.key) == "running"
                return sock
            except (NotAuthentic, OSError):
                sock.close()  # It was cut off, too.

    (await there.begun()).close()  # It has its plan, and no server.
    told = Configuration.of({**CONFIGURATION, **configuration})
    return await Process1Link.connect("sb", await reopen(), told, reopen=reopen)


async def back(link: Process1Link) -> None:
    """Until it is heard again."""
    async with asyncio.timeout(20):
        while True:
            with suppress(SandboxGone):
                return await link.ping()
            await asyncio.sleep(0.05)


def command(exec_id: str, script: str, **options: object) -> ExecSpec:
    given: dict[str, object] = {"environment": {}, "working_dir": None, "stdin": False, "timeout_seconds": None, **options}
    return ExecSpec(exec_id=exec_id, command=["sh", "-c", script], **given)  # type: ignore[arg-type]


async def read(link: Process1Link, exec_id: str, script: str) -> tuple[bytes, list[int]]:
    """All output, each byte at its place, and the kinds of the frames that are no output."""
    subscription = link.subscribe(command(exec_id, script), exec_id)
    found, kinds = bytearray(), []
    async for frame in subscription:
        if frame.type == FrameType.DATA:
            assert frame.offset == len(found)
            found += frame.payload
            link.acknowledge(exec_id, len(found), 0, False)
        else:
            kinds.append(int(frame.type))
    link.acknowledge(exec_id, len(found), 0, True)
    return bytes(found), kinds


async def test_commands_go_on_over_cuts() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        scripts = [COUNT.replace("runs", f"runs{number}") for number in range(3)]
        reading = [asyncio.create_task(read(link, f"ex-{number}", script)) for number, script in enumerate(scripts)]
        while not all(task.done() for task in reading):
            await asyncio.sleep(0.1)
            await way.cut()
        expected = b"".join(b"line %d\n" % number for number in range(LINES)) + b"1\n"
        once = [int(FrameType.ACCEPTED), int(FrameType.STARTED), int(FrameType.EXIT)]
        assert [task.result() for task in reading] == [(expected, once)] * 3
        assert way.cuts > 1 and link.ended() is None
        link.detach()


async def test_what_has_no_place_to_go_on_from_is_told() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        await link.make_directory("/tmp/there")
        cut = asyncio.create_task(way.cut())
        with pytest.raises(SandboxGone) as caught:
            for _ in range(1000):
                await link.stat("/tmp/there")
        assert caught.value.ended.reason == "cut"
        await cut
        async with asyncio.timeout(20):
            while True:
                with suppress(SandboxGone):
                    assert (await link.stat("/tmp/there"))["type"] == "directory"
                    break
                await asyncio.sleep(0.05)
        link.detach()


async def test_results_that_were_confirmed_are_forgotten_though_the_word_was_lost() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        assert (await read(link, "ex-1", "echo on"))[0] == b"on\n"
        await way.cut()  # With the confirmation on its way, or not.
        await back(link)
        other = await Process1Link.connect("sb", await _proved(there))
        assert other.hello["execs"] == {}
        other.detach()
        async with asyncio.timeout(20):
            assert (await link.wait_ended()).reason == "taken"
        link.detach()


async def test_a_result_whose_confirmation_was_lost_keeps_no_sandbox_busy() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        async for _ in link.subscribe(command("ex-1", "true"), "ex-1"):
            pass
        await way.hold()
        link.acknowledge("ex-1", 0, 0, True)
        await asyncio.sleep(0.05)
        await way.cut()
        await back(link)
        assert link.active_execs() == 0
        link.detach()


async def test_uploads_go_on_after_one_that_was_held_back_when_the_connection_was_cut() -> None:
    async def much() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(256 << 10)

    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        await way.hold()
        writing = asyncio.create_task(link.write_file("/tmp/much", much()))
        await asyncio.sleep(0.2)  # It has sent what goes, and waits for room.
        await way.cut()
        async with asyncio.timeout(10):
            with pytest.raises(SandboxGone):
                await writing
            await back(link)
            await link.write_file("/tmp/much", much())
            assert (await link.stat("/tmp/much"))["size_bytes"] == 16 << 20
        link.detach()


async def test_a_connection_that_came_to_nothing_is_done_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says late is not heard, and no descriptor of it is left."""
    monkeypatch.setattr(lasting_connection, "HELLO_SECONDS", 0.2)
    silent: list[socket.socket] = []
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        reopen = link._reopen
        assert reopen is not None

        async def first_silent() -> socket.socket | None:
            if len(silent) == 3:
                return await reopen()
            own, theirs = socket.socketpair()
            own.setblocking(False)
            silent.append(theirs)
            return own

        link._reopen = first_silent
        before = len(os.listdir("/proc/self/fd"))
        await way.cut()
        await back(link)
        for sock in silent:
            with suppress(OSError):
                sock.send(encode(FrameType.REPLACED))
            sock.close()
        await asyncio.sleep(0.1)
        await link.ping()
        assert link.ended() is None
        assert len(os.listdir("/proc/self/fd")) <= before
        link.detach()


async def test_a_connection_that_ends_before_process_1_has_spoken_is_not_waited_for() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        reopen, tries = link._reopen, 0
        assert reopen is not None

        async def first_closed() -> socket.socket | None:
            nonlocal tries
            tries += 1
            if tries > 2:
                return await reopen()
            own, theirs = socket.socketpair()
            own.setblocking(False)
            theirs.close()
            return own

        link._reopen = first_closed
        await way.cut()
        async with asyncio.timeout(5):
            await back(link)
        link.detach()


async def test_each_connection_is_kept_alive_by_one_timer_alone() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way, orphan_timeout_seconds=4.0)
        for _ in range(8):
            await way.cut()
            await back(link)
        said = 0

        def count(kind: int, *args: object, **options: object) -> None:
            nonlocal said
            said += kind == FrameType.KEEPALIVE

        link._send = count  # type: ignore[method-assign]
        await asyncio.sleep(2.2)
        assert said <= 3
        del link._send  # type: ignore[attr-defined]
        link.detach()


async def test_a_subscription_that_is_closed_between_two_connections_leaves_nothing() -> None:
    may = asyncio.Event()
    may.set()
    async with place() as there, Way(there) as way:
        link = await linked(there, way, may=may)
        subscription = link.subscribe(command("ex-1", "sleep 1000"), "ex-1")
        await subscription.wait()
        may.clear()
        await _away(link, way)
        subscription.close()
        may.set()
        await back(link)
        await link.cancel("ex-1")
        async for _ in (again := link.subscribe(None, "ex-1")):
            pass
        again.close()
        link.acknowledge("ex-1", 0, 0, True)
        await link.ping()
        assert link.is_quiet
        link.detach()


async def test_a_command_that_is_asked_for_between_two_connections_runs_over_the_next() -> None:
    may = asyncio.Event()
    may.set()
    async with place() as there, Way(there) as way:
        link = await linked(there, way, may=may)
        may.clear()
        await _away(link, way)
        reading = asyncio.create_task(read(link, "ex-1", "echo runs"))
        await asyncio.sleep(0.05)
        may.set()
        async with asyncio.timeout(10):
            assert (await reading)[0] == b"runs\n"
        link.detach()


@pytest.mark.parametrize("lost", ["on_its_way", "between"])
async def test_what_has_no_answer_is_said_over_the_next_connection(lost: str) -> None:
    may = asyncio.Event()
    may.set()
    async with place() as there, Way(there) as way:
        link = await linked(there, way, may=may)
        await link.ping()
        may.clear()
        await (way.hold() if lost == "on_its_way" else _away(link, way))
        link.configure(Configuration.of({**CONFIGURATION, "environment": {"WHO": "me"}}), "sb")
        link.remember(Done(("ex-0",), ()))
        await asyncio.sleep(0.05)
        if lost == "on_its_way":
            await _away(link, way)
        may.set()
        await back(link)
        assert (await read(link, "ex-1", "echo $WHO"))[0] == b"me\n"
        output, kinds = await read(link, "ex-0", "echo again")
        assert (output, kinds) == (b"", [int(FrameType.ERROR)])
        may.clear()
        await (way.hold() if lost == "on_its_way" else _away(link, way))
        stopping = asyncio.create_task(link.stop(0))
        await asyncio.sleep(0.05)
        if lost == "on_its_way":
            await _away(link, way)
        may.set()
        async with asyncio.timeout(5):
            assert (await stopping).reason == "stopped"
        link.detach()


async def test_a_full_window_moves_on_though_its_confirmation_and_many_others_were_lost() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        subscription = link.subscribe(command("ex-1", "head -c 3000000 /dev/zero"), "ex-1")
        had = 0
        while had < 1 << 20:  # All of its window.
            had += len((await anext(subscription)).payload)
        await way.hold()
        link.acknowledge("ex-1", had, 0, False)
        for number in range(300):
            link.acknowledge(f"ex-a{number}", 0, 0, True)
        await asyncio.sleep(0.05)
        await way.cut()
        async with asyncio.timeout(10):
            async for frame in subscription:
                if frame.type == FrameType.DATA:
                    had = frame.offset + len(frame.payload)
                    link.acknowledge("ex-1", had, 0, False)
        assert had == 3000000
        link.detach()


async def test_input_that_the_server_gives_comes_whole() -> None:
    """Else a program would wait for the rest until its time is over, which looks like its own fault."""
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        subscription = link.subscribe(command("ex-1", "sleep 0.3; wc -c", stdin=True), "ex-1")
        feeding = asyncio.create_task(link.feed("ex-1", bytes(3_000_000)))
        await asyncio.sleep(0.1)
        await way.cut()
        async with asyncio.timeout(10):
            said = b"".join([frame.payload async for frame in subscription if frame.type == FrameType.DATA])
            await feeding
        assert said.strip() == b"3000000"
        link.detach()


class Work:
    """What goes on over a link until a time, and whoever is told of a cut asks again."""

    def __init__(self, link: Process1Link) -> None:
        self.link = link
        self.until = asyncio.get_running_loop().time() + 4
        self.cuts = 0

    @property
    def goes_on(self) -> bool:
        return asyncio.get_running_loop().time() < self.until

    async def again(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except SandboxGone as gone:
                assert gone.ended.reason == "cut"
                self.cuts += 1
                await asyncio.sleep(0.02)

    async def run(self, name: str) -> None:
        number = 0
        while self.goes_on:
            number += 1
            runs = f"/tmp/{name}-{number}"
            script = f"echo x >> {runs}; head -c 300000 /dev/zero | tr '\\0' y; wc -l < {runs}"
            assert (await read(self.link, f"ex-{name}-{number}", script))[0] == b"y" * 300_000 + b"1\n"

    async def feed(self) -> None:
        number = 0
        while self.goes_on:
            number += 1
            exec_id = f"ex-fed-{number}"
            subscription = self.link.subscribe(command(exec_id, "wc -c", stdin=True), exec_id)
            await self.again(lambda: self.link.write_stdin(exec_id, bytes(500_000), 0, True))  # noqa: B023
            said = b"".join([frame.payload async for frame in subscription if frame.type == FrameType.DATA])
            assert said.strip() == b"500000"
            self.link.acknowledge(exec_id, len(said), 0, True)

    async def copy(self) -> None:
        while self.goes_on:
            content = os.urandom(1) * 2_000_000

            async def pieces(content: bytes = content) -> AsyncIterator[bytes]:
                for at in range(0, len(content), 100_000):
                    yield content[at : at + 100_000]

            await self.again(lambda: self.link.write_file("/tmp/copied", pieces()))
            assert await self.again(self.contents) == content

    async def contents(self) -> bytes:
        reader = self.link.read_file("/tmp/copied")
        try:
            return b"".join([piece async for piece in reader])
        finally:
            await reader.aclose()


async def test_all_at_once_over_many_cuts() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        work = Work(link)
        tasks = [asyncio.create_task(one) for one in (work.run("a"), work.run("b"), work.feed(), work.copy())]
        while work.goes_on:
            await asyncio.sleep(0.15)
            if way.cuts % 3 == 0:
                await way.hold()
                await asyncio.sleep(0.05)
            await way.cut()
        async with asyncio.timeout(30):
            await asyncio.gather(*tasks)
            await back(link)
        assert work.cuts and link.is_quiet
        link.detach()


async def _away(link: Process1Link, way: Way) -> None:
    """Cut, and the link knows it."""
    await way.cut()
    async with asyncio.timeout(10):
        while True:
            try:
                await link.ping()
            except SandboxGone:
                return
            await asyncio.sleep(0.01)


async def _proved(there: Place) -> socket.socket:
    sock = there.dial()
    assert await prove(sock, there.key) == "running"
    return sock
