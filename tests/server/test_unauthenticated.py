"""What the network can do to a server without a key. That it cannot hold all connections is in `tests/attacks/pairs`."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket

import pytest

from aviato.server.connections.guard import Guard, hash_key
from aviato.server.connections.listening import Listeners, listen_tcp, listen_unix
from aviato.server.connections.unauthenticated import UNAUTHENTICATED_SECONDS, Unauthenticated
from aviato.server.front import Front
from aviato.server.service import Service
from aviato.server.settings import ServerSettings

pytestmark = pytest.mark.anyio
KEY = "av-key-of-the-tests"
GET = f"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()


@pytest.fixture
async def place(folder, backend):
    """Yields `connect`, which opens connections and says what they are answered, and the watch over them."""
    folder.make()
    guard = Guard([hash_key(KEY)])
    front = Front(Service(ServerSettings(), folder, backend), guard)
    path = os.path.join(folder.path, "sock")
    listener = listen_tcp("127.0.0.1", 0)
    await front.open(Listeners(sockets=[listener, listen_unix(path)]))
    opened = []

    async def connect(said=b"", unix=False):
        pair = await (asyncio.open_unix_connection(path) if unix else asyncio.open_connection(*listener.getsockname()))
        opened.append(pair)
        pair[1].write(said)
        if said.endswith(b"\r\n\r\n"):
            await pair[0].readuntil(b"\r\n\r\n")
        return pair[0]

    async def is_cut(reader):
        try:
            while await asyncio.wait_for(reader.read(1 << 16), 0.1):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    async def settled(count):
        while len(front.connections.all()) != count:
            await asyncio.sleep(0.005)

    unauthenticated = Unauthenticated(front.connections, guard.let_in)
    yield connect, is_cut, settled, unauthenticated
    for _, writer in opened:
        writer.close()
    await front.close()


async def test_they_are_cut_off_after_a_while(place):
    connect, is_cut, settled, unauthenticated = place
    silent, slow = await connect(), await connect(b"GET /v1/health HT")
    refused = await connect(GET.replace(KEY.encode(), b"made-up"))
    known, own = await connect(GET), await connect(GET, unix=True)
    await settled(5)
    unauthenticated.look(100.0)
    unauthenticated.look(100.0 + UNAUTHENTICATED_SECONDS - 0.1)
    assert not any([await is_cut(one) for one in (silent, slow, refused, known, own)])
    unauthenticated.look(100.0 + UNAUTHENTICATED_SECONDS)
    assert all([await is_cut(one) for one in (silent, slow, refused)])
    assert not await is_cut(known) and not await is_cut(own)


async def test_the_oldest_go_where_there_are_too_many(place):
    connect, is_cut, settled, unauthenticated = place
    unauthenticated.most = lambda: 2
    old = [await connect(), await connect()]
    await settled(2)
    unauthenticated.look(100.0)
    new = [await connect(), await connect()]
    known = await connect(GET)
    await settled(5)
    unauthenticated.look(101.0)
    assert [await is_cut(one) for one in (*old, *new, known)] == [True, True, False, False, False]


# -- A server of its own process


@pytest.fixture
def port(make_server, tmp_path):
    """And the log of a server."""
    (tmp_path / "keys").write_text(f"{KEY}\n")
    running = make_server(port=0, api_key_file=tmp_path / "keys")
    return running.port(), running.log


def ask(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(data)
        return connection.recv(1 << 16)


def test_malformed_requests_are_not_in_the_log(port):
    """They could fill it, and they could quote a key."""
    number, log = port
    before = log.read_text()
    for wrong in (
        GET.replace(b"\r\n\r\n", b"\x00\r\n\r\n"),
        GET.replace(b"/v1/health", b"/\xff"),
        GET.replace(b"Host:", b"Host: a\r\nHost:"),
        GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        GET.replace(b"Authorization", b"Author ization"),
        GET.replace(b"GET", b"G\xffT"),
    ):
        assert b" 400 " in ask(number, wrong).partition(b"\r\n")[0]
    assert ask(number, GET.replace(KEY.encode(), b"\xff\xfe")).startswith(b"HTTP/1.1 401")
    assert ask(number, GET).startswith(b"HTTP/1.1 200")
    assert log.read_text() == before


def test_a_compressed_body_is_refused(port):
    """What it becomes could be large: a limit of sizes would count what came."""
    number, log = port
    before = log.read_text()
    body = gzip.compress(json.dumps({"sandbox_id": "x" * 100_000}).encode())
    for data, named in ((body, b"gzip"), (b"abc", b"deflate"), (body, b"GZIP"), (body, b"identity, gzip")):
        head = GET.replace(b"GET /v1/health", b"POST /v1/sandboxes").replace(
            b"\r\n\r\n", b"\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (named, len(data))
        )
        answer = ask(number, head + data)
        assert answer.startswith(b"HTTP/1.1 415") and b'"reason":"encoding"' in answer, answer
    assert log.read_text() == before
