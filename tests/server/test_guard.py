"""Who is let in."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from aviato.server.app import make_app
from aviato.server.guard import Guard, hash_key
from aviato.server.run import listen_tcp
from aviato.server.service import Service
from aviato.server.settings import ServerSettings

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
    runner = web.AppRunner(make_app(service, guard), access_log=None)
    await runner.setup()
    listener = listen_tcp("127.0.0.1", 0)
    await web.SockSite(runner, listener).start()
    async with aiohttp.ClientSession() as http:
        yield http, f"http://127.0.0.1:{listener.getsockname()[1]}/v1/health"
    await runner.cleanup()


def basic(password):
    return "Basic " + base64.b64encode(f"aviato:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
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
    ],
)
async def test_over_tcp(tcp, headers, status, said):
    http, url = tcp
    async with http.get(url, headers=headers) as response:
        body = await response.json()
        assert response.status == status, body
        if said is not None:
            assert said in body["error"]["message"] and KEY not in str(body)
            assert "Bearer" in response.headers["WWW-Authenticate"]


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
