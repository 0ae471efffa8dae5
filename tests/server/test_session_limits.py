"""What a tenant can make a server hold by sessions: requests, bodies that nobody reads, and answers that it does not read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.connections.guard import Guard, hash_key
from aviato.server.connections.listening import Listeners, listen_tcp
from aviato.server.front import Front
from aviato.server.operations import bodies
from aviato.server.service import Service
from aviato.server.service.execs import Execs
from aviato.server.service.registry import Registry
from aviato.server.session import session as one_session
from aviato.server.settings import ServerSettings
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_exec_id
from aviato.wire.session import WINDOW_BYTES
from tests.server.frames import Session, asked_for, exec_line

pytestmark = pytest.mark.anyio

KEYS = {"of one": "tenant=one", "of another": "tenant=another", "of few": "tenant=few /v1/health"}


ASKED = 400
"""Requests whose answers are more than sockets hold: each has some 100 kB."""


def of(name):
    return {"Authorization": f"Bearer {name}"}


@asynccontextmanager
async def serving(folder, backend):
    folder.make()
    guard = Guard([f"{hash_key(key)} {more}" for key, more in KEYS.items()])
    front = Front(Service(ServerSettings(), folder, backend), guard)
    listener = listen_tcp("127.0.0.1", 0)
    await front.open(Listeners(sockets=[listener]))
    try:
        yield front, listener.getsockname()
    finally:
        await front.close()


def held(front):
    """The server's end of the sessions."""
    return list(front.sessions._open)


async def until(condition, seconds=10):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


async def test_requests_under_way(folder, backend, monkeypatch):
    monkeypatch.setattr(one_session, "MOST_UNDER_WAY", 3)
    async with (
        serving(folder, backend) as (front, where),
        Session(where, of("of one")) as one,
        Session(where, of("of one")) as same,
        Session(where, of("of another")) as another,
    ):
        front._service._opened = asyncio.get_running_loop().create_future()  # Nothing is answered that needs a sandbox.
        waiting = [session.open("GET /v1/sandboxes") for session in (one, one, same)]
        await until(lambda: front.sessions._under_way["one"] == 3)
        status, _, body = await same.ask("GET /v1/sandboxes")
        assert status == 429 and b"3 requests under way" in body
        assert (await another.ask("GET /v1/health"))[0] == 200
        front._service._opened.set_result(None)
        for session, channel in zip((one, one, same), waiting, strict=True):
            assert (await session.answer(channel))[0] == 200
        assert (await same.ask("GET /v1/sandboxes"))[0] == 200
        await until(lambda: not +front.sessions._under_way)


async def test_bodies_that_nobody_reads(folder, backend, monkeypatch):
    """The one that is too much is cut; the others go on."""
    monkeypatch.setattr(bodies, "MOST_HELD_BYTES", 3 * WINDOW_BYTES)
    async with (
        serving(folder, backend) as (front, where),
        Session(where, of("of one")) as one,
        Session(where, of("of another")) as another,
    ):
        stuck = asyncio.Event()

        async def never(self, chunks, size_bytes, caller):
            await stuck.wait()
            return b"".join([chunk async for chunk in chunks])

        monkeypatch.setattr(bodies.Bodies, "read", never)
        line = exec_line("sb-" + "0" * 26)
        channels = [one.open(line, whole=False) for _ in range(4)]
        for channel in channels:
            one.data(channel, bytes(WINDOW_BYTES))
        assert (await one.next(channels[3])).type == FrameType.CUT
        other = another.open(line, whole=False)
        another.data(other, bytes(WINDOW_BYTES))
        await until(lambda: front._bodies._held == {"one": 3 * WINDOW_BYTES, "another": WINDOW_BYTES})
        stuck.set()
        for session, channel in ((one, channels[0]), (one, channels[1]), (one, channels[2]), (another, other)):
            session.end(channel)
            assert (await session.answer(channel))[0] == 400
        assert not front._bodies._held


async def test_bodies_that_come_with_their_requests_and_nobody_reads(folder, backend, monkeypatch):
    monkeypatch.setattr(bodies, "MOST_HELD_BYTES", 3 * WINDOW_BYTES)
    async with serving(folder, backend) as (front, where), Session(where, of("of one")) as one:
        stuck = asyncio.Event()

        async def never(self, chunks, size_bytes, caller):
            await stuck.wait()
            return b"".join([chunk async for chunk in chunks])

        monkeypatch.setattr(bodies.Bodies, "read", never)
        channels = [one.open(exec_line("sb-" + "0" * 26), bytes(WINDOW_BYTES)) for _ in range(4)]
        assert (await one.next(channels[3])).type == FrameType.CUT
        stuck.set()
        for channel in channels[:3]:
            assert (await one.answer(channel))[0] == 400
        await until(lambda: not front._bodies._held and not +front.sessions._under_way)


async def test_bodies_that_are_worked_on(folder, backend, monkeypatch):
    """What an operation has in hand counts, too: it may wait with that for as long as a command likes."""
    monkeypatch.setattr(bodies, "MOST_HELD_BYTES", 3 * WINDOW_BYTES)
    stuck = asyncio.Event()

    async def write(self, sandbox_id, exec_id, pieces, offset, eof):
        async for _ in pieces:
            await stuck.wait()

    monkeypatch.setattr(Execs, "write_stdin", write)
    monkeypatch.setattr(Registry, "check", lambda *_: None)
    async with serving(folder, backend) as (front, where), Session(where, of("of one")) as one:
        line = f"{exec_line('sb-' + '0' * 26)}/{new_exec_id()}/stdin"
        channels = [one.open(line, bytes(WINDOW_BYTES)) for _ in range(3)]
        await until(lambda: front._bodies._held == {"one": 3 * WINDOW_BYTES} and all(not one._held for one in _channels(front)))
        assert (await one.next(one.open(line, b"x"))).type == FrameType.CUT
        stuck.set()
        for channel in channels:
            assert (await one.answer(channel))[0] == 204
        await until(lambda: not front._bodies._held and not +front.sessions._under_way)


def _channels(front):
    return [channel for session in held(front) for channel in session.channels.values()]


async def test_bodies_of_a_connection_that_is_gone(folder, backend):
    async with serving(folder, backend) as (front, where):
        front._service._opened = asyncio.get_running_loop().create_future()
        async with Session(where, of("of one")) as one:
            channel = one.open(f"PUT /v1/sandboxes/sb-{'0' * 26}/files?path=x", whole=False)
            one.data(channel, bytes(1000))
            await until(lambda: front._bodies._held == {"one": 1000})
        await until(lambda: not front._bodies._held and not +front.sessions._under_way and not front.connections.all())
        front._service._opened.set_result(None)


async def test_answers_that_nobody_reads(folder, backend):
    """Requests are not heard while their answers would only pile up."""
    async with serving(folder, backend) as (front, where), Session(where, of("of one")) as one:
        assert (await one.ask("GET /v1/health"))[0] == 200
        (session,) = held(front)
        for number in range(2, ASKED):
            one.open("GET /v1/openapi.json", channel=number)
        await until(lambda: session.is_paused)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert session.transport.get_write_buffer_size() < 2 << 20
        for number in range(2, ASKED):
            assert (await one.answer(number))[0] == 200
        await until(lambda: not session.is_paused and not +front.sessions._under_way)


async def test_a_key_for_few_routes_is_looked_at_with_each_request(folder, backend):
    async with serving(folder, backend) as (_, where), Session(where, of("of few")) as few:
        assert (await few.ask("GET /v1/health"))[0] == 200
        for line in ("GET /v1/sandboxes", "GET /v1/nothing", f"POST /v1/sandboxes/sb-{'0' * 26}/execs"):
            status, _, body = await few.ask(line, b"{}")
            assert status == 401 and b"for /v1/health only" in body and line.split(" ")[1].encode() in body
        assert (await few.ask("GET /v1/health"))[0] == 200


async def test_who_has_a_session_has_brought_a_key(folder, backend):
    async with serving(folder, backend) as (front, where), Session(where, of("of one")):
        assert (await asked_for(where, of("made up")))[0] == 401
        _, silent = await asyncio.open_connection(*where)
        await until(lambda: len(front.connections.all()) == 2)
        front.unauthenticated.look(100.0)
        front.unauthenticated.look(1000.0)
        await until(lambda: len(front.connections.all()) == 1)
        assert held(front)[0].transport is not None
        silent.close()


async def test_nothing_is_left_of_refused_ones(folder, backend):
    async with serving(folder, backend) as (front, where):
        for headers in ({}, of("made up"), {"Host": "evil.example"}):
            assert (await asked_for(where, headers))[0] == 401
        await until(
            lambda: not front.connections.all() and not any(map(front.connection_limit.is_busy, front.connections.all()))
        )


async def test_who_comes_by_http_while_that_is_loaded(folder, backend, monkeypatch):
    """All are answered; who goes meanwhile is forgotten. Where it fails they are cut off, and the next one tries again."""
    async with serving(folder, backend) as (front, where):
        go_on, make, fails = asyncio.Event(), front._http._make_runner, [True]

        async def slowly(function, *args):
            await go_on.wait()
            return function(*args)

        def made(make_runner):
            if fails:
                raise SandboxUnavailableError(f"it is {fails.pop()} that this fails once")
            return make(make_runner)

        monkeypatch.setattr(asyncio, "to_thread", slowly)
        monkeypatch.setattr(front._http, "_make_runner", made)
        get = f"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {next(iter(KEYS))}\r\n\r\n".encode()
        pairs = [await asyncio.open_connection(*where) for _ in range(5)]
        for _, writer in pairs:
            writer.write(get)
        await until(lambda: len(front.connections.all()) == 5)
        go_on.set()
        for reader, writer in pairs:
            assert await reader.read() == b""
            writer.close()
        go_on.clear()
        pairs = [await asyncio.open_connection(*where) for _ in range(5)]
        for _, writer in pairs:
            writer.write(get)
        await until(lambda: len(front.connections.all()) == 5)
        pairs[0][1].transport.abort()
        go_on.set()
        for reader, _ in pairs[1:]:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        for _, writer in pairs:
            writer.close()
        await until(lambda: not front.connections.all())
