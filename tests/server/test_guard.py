"""Who is let in."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from aviato.server.connections.guard import Guard, hash_key
from aviato.server.connections.listening import Listeners, listen_tcp
from aviato.server.front import Front
from aviato.server.service import Service
from aviato.server.settings import ServerSettings
from tests.server.frames import asked_for, connected, opening

pytestmark = pytest.mark.anyio

KEY = "av-test-key"

CALL = r"""
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
print(s.recv(9999).decode())
"""


@pytest.fixture
async def tcp(folder, backend):
    folder.make()
    service = Service(ServerSettings(), folder, backend)
    guard = Guard([hash_key(KEY)], hosts=["sandboxes.example", "*.pods.example"])
    front = Front(service, guard)
    listener = listen_tcp("127.0.0.1", 0)
    await front.open(Listeners(sockets=[listener]))
    async with aiohttp.ClientSession() as http:
        yield http, f"http://127.0.0.1:{listener.getsockname()[1]}/v1/health"
    await front.close()


def address(url):
    parts = urlsplit(url)
    return parts.hostname, parts.port


def basic(password):
    return "Basic " + base64.b64encode(f"aviato:{password}".encode()).decode()


CALLERS = [
    ({}, 401, "AVIATO_API_KEY"),
    ({"Authorization": f"Bearer {KEY}"}, 200, None),
    ({"Authorization": f"bearer {KEY}"}, 200, None),
    ({"Authorization": basic(KEY)}, 200, None),
    ({"Authorization": "Bearer wrong"}, 401, "not known"),
    ({"Authorization": basic("wrong")}, 401, "not known"),
    ({"Authorization": "Basic !!!"}, 401, "AVIATO_API_KEY"),
    ({"X-Wandb-Api-Key": "k"}, 401, "W&B keys are not accepted"),
    ({"Authorization": f"Bearer {KEY}", "Host": "evil.example"}, 401, "evil.example"),
    ({"Authorization": f"Bearer {KEY}", "Host": "sandboxes.example:80"}, 200, None),
    ({"Authorization": f"Bearer {KEY}", "Host": "Sandboxes.Example.:80"}, 200, None),
    ({"Authorization": f"Bearer {KEY}", "Host": "a.b.pods.example"}, 200, None),
    ({"Authorization": f"Bearer {KEY}", "Host": "pods.example"}, 401, "--allowed-host"),
    ({"Authorization": f"Bearer {KEY}", "Host": "evilpods.example"}, 401, "evilpods.example"),
    ({"Authorization": f"Bearer {KEY}", "Host": "sandboxes.example.evil.example"}, 401, "evil.example"),
    ({"Authorization": f"Bearer {KEY}", "Host": "sandboxes.example@evil.example"}, 401, "evil.example"),
    ({"Authorization": f"Bearer {KEY}", "Host": "[::1]:80"}, 200, None),
    ({"Authorization": f"Bearer {KEY}", "Origin": "http://evil.example"}, 401, "evil.example"),
    ({"Authorization": f"Bearer {KEY}", "Origin": "null"}, 401, "null"),
    ({"Authorization": f"Bearer {KEY}", "Origin": "http://127.0.0.1:1"}, 401, "pages of 'http://127.0.0.1:1'"),
    ({"Authorization": f"Bearer {KEY}", "Origin": "http://127.0.0.1:81", "Host": "127.0.0.1:81"}, 200, None),
    ({"Authorization": f"Bearer {KEY}", "Origin": "http://127.0.0.1", "Host": "127.0.0.1:80"}, 200, None),
    ({"Authorization": f"Bearer {KEY}", "Origin": "https://sandboxes.example", "Host": "sandboxes.example"}, 200, None),
    ({"Authorization": f"Bearer {KEY}", "Origin": "https://sandboxes.example:8", "Host": "sandboxes.example"}, 401, ":8"),
    ({"Authorization": basic(KEY), "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 401, "other origins"),
    ({"Authorization": basic(KEY), "Sec-Fetch-Site": "cross-site"}, 401, "other origins"),
    ({"Authorization": basic(KEY), "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200, None),
    ({"Authorization": basic(KEY), "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200, None),
]


@pytest.mark.parametrize(("headers", "status", "said"), CALLERS)
async def test_over_tcp(tcp, headers, status, said):
    http, url = tcp
    async with http.get(url, headers=headers) as response:
        body = await response.json()
        assert response.status == status, body
        if said is not None:
            assert said in body["error"]["message"] and KEY not in str(body)
            assert "Bearer" in response.headers["WWW-Authenticate"]


@pytest.mark.parametrize(("headers", "status", "said"), CALLERS)
async def test_who_gets_a_session_over_tcp(tcp, headers, status, said):
    _, url = tcp
    where = address(url)
    got, head, body = await asked_for(where, {"Host": f"127.0.0.1:{where[1]}", **headers})
    assert got == (101 if status == 200 else status), body
    if said is not None:
        assert said in body["error"]["message"] and KEY not in str(body)
        assert "\r\nWWW-Authenticate: Bearer" in head


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (opening({"Authorization": f"Bearer {KEY}", "Aviato-Wire": 7}), 426),
        (opening({"Authorization": f"Bearer {KEY}"}).replace(b"Host:", b"Host: localhost\r\nhost:"), 400),
        (opening({"Authorization": f"Bearer {KEY}"}).replace(b"Host:", b"Host :"), 400),
        (opening({"Authorization": f"Bearer {KEY}"}).replace(b"Host:", b": x\r\nHost:"), 400),
        (opening({"Authorization": f"Bearer {KEY}"}).replace(b"Host:", b"x\r\nHost:"), 400),
        (opening({"Authorization": f"Bearer {KEY}"}).replace(b"Host:", b"X: \x00\r\nHost:"), 400),
        (opening({"Authorization": f"Bearer {KEY}"}).replace(b"Host:", b" X: folded\r\nHost:"), 400),
        (opening({"Authorization": f"Bearer {KEY}"}).replace(b"Upgrade: aviato-session", b"Upgrade: websocket"), 400),
    ],
)
async def test_openings_that_are_none(tcp, sent, status):
    reader, writer = await connected(address(tcp[1]))
    writer.write(sent)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
    assert b"error" in await reader.read(1 << 16)
    writer.close()


async def test_an_opening_that_is_too_large(tcp):
    reader, writer = await connected(address(tcp[1]))
    writer.write(opening({"Authorization": f"Bearer {KEY}", "X": "x" * 20_000}))
    assert b" 400 Bad Request\r\n" in await reader.readuntil(b"\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("cut", range(1, len(opening()), 7))
async def test_an_opening_that_comes_in_pieces(tcp, cut):
    reader, writer = await connected(address(tcp[1]))
    sent = opening({"Authorization": f"Bearer {KEY}"})
    writer.write(sent[:cut])
    await asyncio.sleep(0.01)
    writer.write(sent[cut:])
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    writer.close()


async def test_a_request_of_http_that_comes_byte_by_byte(tcp):
    reader, writer = await connected(address(tcp[1]))
    for byte in f"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode():
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
    writer.close()


async def test_a_lease_over_tcp_is_a_heartbeat(tcp):
    http, url = tcp
    lease = url.replace("health", "leases/ls-" + "0" * 26)
    async with http.put(lease, headers={"Authorization": f"Bearer {KEY}"}) as response:
        assert (await response.json())["kind"] == "heartbeat"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become someone else")
async def test_over_a_unix_socket_only_the_servers_uid_and_root(serving, folder, backend):
    async with serving(folder, backend) as (_, client, path):
        os.chmod(path, 0o777)
        for directory in (Path(folder.path), *Path(folder.path).parents):
            if directory.stat().st_uid == 0 and not directory.stat().st_mode & 0o001:
                directory.chmod(0o755)
        process = await asyncio.create_subprocess_exec(
            "/usr/bin/python3", "-I", "-S", "-c", CALL, path, user=65534, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
        assert b" 401 " in out and b"uid 0 only" in out, (out, err)
        assert (await client.call("GET", "/v1/health", expect=200))["status"] == "ok"
