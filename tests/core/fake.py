"""A server that speaks the wire and misbehaves by script: cuts, silence, refusals. For faults only."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from aviato.wire.frames import FrameType, StreamId, encode
from aviato.wire.session import PATH

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def frame(kind: FrameType, payload: dict[str, Any] | None = None, stream: int = 0) -> bytes:
    return encode(kind, json.dumps(payload or {}).encode(), stream=stream)


def data(content: bytes, offset: int, stream: int = StreamId.STDOUT) -> bytes:
    return encode(FrameType.DATA, content, stream=stream, offset=offset)


def exit_frame(stdout: int = 0, **fields: Any) -> bytes:
    base = {"returncode": 0, "duration_seconds": 0.1, "stdout_bytes_total": stdout, "stderr_bytes_total": 0}
    return frame(FrameType.EXIT, {**base, **fields})


ACCEPTED = frame(FrameType.ACCEPTED, {"exec_id": "x"})
STARTED = frame(FrameType.STARTED, {"started_at": 1.0, "startup_seconds": 0.5})


class FakeServer:
    """Scripts are lists of replies, one used by each request to that kind of route; the last one stays."""

    def __init__(self) -> None:
        self.headers = {"Aviato-Wire": "1", "Aviato-Server-Pid": "77"}
        self.requests: list[tuple[str, str, bytes]] = []
        self.execs: list[Handler] = []
        self.resumes: list[Handler] = []
        self.others: list[Handler] = []
        self.url = ""

    def seen(self, method: str, part: str) -> list[bytes]:
        return [body for verb, path, body in self.requests if verb == method and part in path]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == PATH:
            return web.Response(status=404)  # As by a server of an earlier version: all of it is asked by HTTP.
        body = await request.read()
        self.requests.append((request.method, request.path_qs, body))
        parts = request.path.split("/")
        if request.path == "/v1/sandboxes" and request.method == "POST" and not self.others:
            return self.json({"sandbox_id": json.loads(body)["sandbox_id"], **_INFO}, status=201)
        if request.method == "POST" and parts[-1] == "execs":
            return await self.next(self.execs)(request)
        if request.method == "GET" and parts[-2] == "execs":
            return await self.next(self.resumes)(request)
        if parts[-1] in ("cancel", "acknowledgements", "stdin", "signal"):
            return web.Response(status=204, headers=self.headers)
        if parts[2] == "leases":
            return self.json({"lease_id": parts[3], "kind": "process", "period_seconds": 60})
        return await self.next(self.others)(request)

    @staticmethod
    def next(script: list[Handler]) -> Handler:
        return script.pop(0) if len(script) > 1 else script[0]

    def json(self, value: Any, status: int = 200, **headers: str) -> web.Response:
        return web.json_response(value, status=status, headers={**self.headers, **headers})

    def error(self, code: str, status: int, *, retry_after: str | None = None, **fields: Any) -> Handler:
        async def reply(_: web.Request) -> web.StreamResponse:
            headers = {} if retry_after is None else {"Retry-After": retry_after}
            return self.json({"error": {"code": code, "message": f"said {code}", **fields}}, status, **headers)

        return reply

    def stream(self, *chunks: bytes, cut: bool = False) -> Handler:
        """Send chunks one by one; with `cut` the connection is closed in place of a proper end."""

        async def reply(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers=self.headers)
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
                await asyncio.sleep(0.005)
            if cut:
                assert request.transport is not None
                request.transport.close()
            return response

        return reply

    async def hang_up(self, request: web.Request) -> web.StreamResponse:
        """Close without a word."""
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def stopped(self, request: web.Request) -> web.StreamResponse:
        """The sandbox has ended."""
        fields = {**_INFO, "status": "terminated", "status_reason": "stopped"}
        return self.json({"sandbox_id": request.path.split("/")[3], **fields})

    async def silence(self, _: web.Request) -> web.StreamResponse:
        """Never answer."""
        await asyncio.sleep(60)
        raise AssertionError


_INFO = {"status": "pending", "status_updated_at": time.time(), "created_at": time.time()}


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    path = tmp_path / "s"
    folder = os.open(tmp_path, os.O_PATH)  # the path may be longer than a socket's may be
    await web.UnixSite(runner, f"/proc/self/fd/{folder}/s").start()
    fake.url = f"unix://{path}"
    try:
        yield fake
    finally:
        await runner.cleanup()
        os.close(folder)
        path.unlink(missing_ok=True)
