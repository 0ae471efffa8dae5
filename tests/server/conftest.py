"""A real HTTP server over a fake or a real backend, in the test's own loop."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from aviato.server.connections.guard import Guard
from aviato.server.connections.listening import Listeners, listen_unix
from aviato.server.front import Front
from aviato.server.service import Service
from aviato.server.settings import ServerSettings
from aviato.server.state_dir import StateDirectory
from aviato.wire.frames import FrameDecoder, FrameType
from aviato.wire.ids import new_exec_id, new_lease_id, new_sandbox_id
from tests.base_roots import share
from tests.real_backend import end_sandboxes


def _load_fakes():
    spec = importlib.util.spec_from_file_location("aviato_server_fakes", Path(__file__).parent / "fakes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


fakes = _load_fakes()


@pytest.fixture
def passable_path():
    """Not below pytest's own 0700 directory: the sandboxes' uids pass through."""
    path = Path(tempfile.mkdtemp(prefix="aviato-test-", dir="/var/tmp"))
    path.chmod(0o711)
    yield path
    end_sandboxes(path / "server")
    shutil.rmtree(path)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Client:
    """The HTTP API by hand."""

    def __init__(self, http, base="http://server"):
        self.http = http
        self.base = base
        self.lease_id = new_lease_id()

    async def call(self, method, path, *, body=None, expect=None, **kwargs):
        if body is not None:
            kwargs["data"] = io.BytesIO(json.dumps(body).encode())
        async with self.http.request(method, self.base + path, **kwargs) as response:
            raw = await response.read()
            answer = json.loads(raw) if response.content_type == "application/json" else raw
            if expect is not None:
                assert response.status == expect, (response.status, answer)
            return answer

    async def create(self, *, expect=201, **fields):
        body = {"sandbox_id": new_sandbox_id(), **fields}
        if not fields.get("detached"):
            body.setdefault("lease_id", self.lease_id)
        return await self.call("POST", "/v1/sandboxes", body=body, expect=expect)

    async def running(self, **fields):
        created = await self.create(**fields)
        return await self.wait(created["sandbox_id"], "running")

    async def wait(self, sandbox_id, what, timeout=20):
        return await self.call("GET", f"/v1/sandboxes/{sandbox_id}?wait={what}&timeout_seconds={timeout}", expect=200)

    async def exec(self, sandbox_id, *command, exec_id=None, expect=200, **fields):
        body = {"exec_id": exec_id or new_exec_id(), "command": list(command), **fields}
        answer = await self.call("POST", f"/v1/sandboxes/{sandbox_id}/execs", body=body, expect=expect)
        return decode(answer) if isinstance(answer, bytes) else answer["error"]


def decode(data):
    """Frames as `(type name, payload)`, JSON decoded."""
    decoder = FrameDecoder()
    frames = decoder.feed(data)
    assert decoder.pending_bytes == 0
    return [(FrameType(f.type).name, f.payload if f.type == FrameType.DATA else json.loads(f.payload or b"{}")) for f in frames]


def output_of(frames):
    return b"".join(payload for kind, payload in frames if kind == "DATA")


@asynccontextmanager
async def _serving(folder, backend, *, secrets=None, **settings):
    """A server on a Unix socket; yields `(service, client, socket path)`."""
    folder.make()
    service = Service(ServerSettings(**settings), folder, backend, secrets)
    front = Front(service, Guard())
    path = os.path.join(folder.path, "sock")
    await front.open(Listeners(sockets=[listen_unix(path)]))
    try:
        # Connections are closed after use, so that descriptors can be counted.
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path, limit=0, force_close=True)) as http:
            client = Client(http)
            client.sessions, client.connections = front.sessions, front.connections
            client.connection_limit = front.connection_limit
            yield service, client, path
    finally:
        await front.close()


@pytest.fixture
def serving():
    """The context manager that serves: a module under importlib mode has no name to import it by."""
    return _serving


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "server"
    made.mkdir(mode=0o711)
    share(made)  # A backend of the tests has no directory besides.
    return StateDirectory(str(made))


@pytest.fixture
def backend():
    return fakes.FakeBackend()


@pytest.fixture
async def server(folder, backend):
    async with _serving(folder, backend) as (service, client, _):
        service.backend = backend
        client.service, client.backend = service, backend
        yield client
