"""A registry on loopback that fails as it is told to."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from tests.images.layouts import Image, digest_of

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class FaultyRegistry:
    """What it has, what was asked of it, and what it does in place of an answer.

    Attributes:
        tags: what a tag means: the digest of a blob.
        blobs: by digest.
        asked: method, path and Range of each request.
        faults: looked up by the beginning of a path; None of one is an honest answer.
        password: what `user` has to say; None lets anybody in.
        elsewhere: where uploads go; empty: here.
    """

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.kinds: dict[str, str] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        self.authorizations: list[tuple[str, str | None]] = []
        self.faults: dict[str, Fault] = {}
        self.password: str | None = None
        self.scheme = "bearer"
        self.scope = "pull"
        self.host = ""
        self.elsewhere = ""

    def add(self, tag: str, image: Image) -> str:
        """Have an image; answers what it is called."""
        self.blobs |= image.blobs
        self.tags[tag] = image.manifest
        return self.reference(tag)

    def reference(self, tag: str) -> str:
        return f"{self.host}/some/image:{tag}"

    def count(self, part: str) -> int:
        return Counter(part in path for method, path, _ in self.asked if method == "GET")[True]

    def ranges(self) -> list[str | None]:
        return [asked for _, path, asked in self.asked if "/blobs/" in path]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append((request.method, path, request.headers.get("Range")))
        self.authorizations.append((path, request.headers.get("Authorization")))
        for start, fault in self.faults.items():
            if path.startswith(start) and (answer := await fault(request)) is not None:
                return answer
        if path == "/token":
            return self._token(request)
        if self.password is not None and request.headers.get("Authorization") != self._wanted():
            return self._challenge()
        if request.method in ("POST", "PUT"):
            return await self._take(request)
        return self._serve(request)

    async def _take(self, request: web.Request) -> web.StreamResponse:
        """An upload, as a registry has it: a place for it, then the blob there, then a manifest of what is here."""
        start = "/v2/some/image/"
        kind, _, name = request.path.removeprefix(start).partition("/")
        if not request.path.startswith(start):
            return web.json_response({"errors": [{"code": "NAME_UNKNOWN"}]}, status=404)
        if request.method == "POST" and (kind, name) == ("blobs", "uploads/"):
            return web.Response(status=202, headers={"Location": f"{self.elsewhere}{start}blobs/uploads/a-place?state=x%2Fy"})
        data = await request.read()
        if kind == "blobs":
            assert request.query["state"] == "x/y"
            if (digest := digest_of(data)) != request.query["digest"]:
                return web.json_response({"errors": [{"code": "DIGEST_INVALID"}]}, status=400)
        else:
            document, digest = json.loads(data), digest_of(data)
            if not {one["digest"] for one in (document["config"], *document["layers"])} <= self.blobs.keys():
                return web.json_response({"errors": [{"code": "MANIFEST_BLOB_UNKNOWN"}]}, status=404)
            self.tags[name] = digest
            self.kinds[digest] = request.content_type
        self.blobs[digest] = data
        return web.Response(status=201)

    def _serve(self, request: web.Request) -> web.StreamResponse:
        start = "/v2/some/image/"
        kind, _, name = request.path.removeprefix(start).partition("/")
        if not request.path.startswith(start):
            return web.json_response({"errors": [{"code": "NAME_UNKNOWN"}]}, status=404)
        if kind == "tags":
            return web.json_response({"name": "some/image", "tags": sorted(self.tags)})
        data = self.blobs.get(self.tags.get(name, name))
        if data is None:
            code = "MANIFEST_UNKNOWN" if kind == "manifests" else "BLOB_UNKNOWN"
            return web.json_response({"errors": [{"code": code}]}, status=404)
        asked = request.headers.get("Range")
        if kind == "blobs" and asked:
            offset = int(asked.removeprefix("bytes=").rstrip("-"))
            headers = {"Content-Range": f"bytes {offset}-{len(data) - 1}/{len(data)}"}
            return web.Response(body=data[offset:], status=206, headers=headers)
        headers = {"Docker-Content-Digest": self.tags.get(name, name)} if kind == "manifests" else {}
        media = self.kinds.get(self.tags.get(name, name), "application/vnd.oci.image.manifest.v1+json")
        return web.Response(
            body=data, content_type=media if kind == "manifests" else "application/octet-stream", headers=headers
        )

    def _basic(self) -> str:
        return "Basic " + base64.b64encode(f"user:{self.password}".encode()).decode()

    def _wanted(self) -> str:
        return "Bearer a.b.c" if self.scheme == "bearer" else self._basic()

    def _challenge(self) -> web.Response:
        scope = f"repository:some/image:{self.scope}"
        realm = f'Bearer realm="http://{self.host}/token",service="the, \\"service\\"",scope="{scope}"'
        header = realm if self.scheme == "bearer" else 'Basic realm="some where"'
        return web.json_response({"errors": [{"code": "UNAUTHORIZED"}]}, status=401, headers={"WWW-Authenticate": header})

    def _token(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != self._basic():
            return web.json_response({"details": "no"}, status=401)
        assert request.query["service"] == 'the, "service"' and request.query["scope"] == f"repository:some/image:{self.scope}"
        return web.json_response({"token": "a.b.c", "expires_in": 300})


@asynccontextmanager
async def faulty_registry() -> AsyncIterator[FaultyRegistry]:
    registry = FaultyRegistry()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", registry.answer)
    # On Python's own loop as on uvloop: what a fault does to a connection is done by hand.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    registry.host = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield registry
    finally:
        await runner.cleanup()


def always(status: int, body: str = "{}", kind: str = "application/json", **headers: str) -> Fault:
    async def fault(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, content_type=kind, headers=headers)

    return fault


def times(count: int, fault: Fault) -> Fault:
    """So often, and then no more."""
    left = [count]

    async def limited(request: web.Request) -> web.StreamResponse | None:
        left[0] -= 1
        return await fault(request) if left[0] >= 0 else None

    return limited


def cut_after(registry: FaultyRegistry, count: int, *, hang: bool = False) -> Fault:
    """Send so many bytes of a blob, from where it was asked for, then end the connection or send nothing more."""

    async def fault(request: web.Request) -> web.StreamResponse:
        data = registry.blobs[request.path.rpartition("/")[2]]
        asked = request.headers.get("Range")
        offset = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        response = web.StreamResponse(status=206 if offset else 200)
        response.content_length = len(data) - offset
        if offset:
            response.headers["Content-Range"] = f"bytes {offset}-{len(data) - 1}/{len(data)}"
        await response.prepare(request)
        await response.write(data[offset : offset + count])
        if hang:
            await asyncio.sleep(60)
        await asyncio.sleep(0.05)  # So that what was sent arrives before the end does.
        assert request.transport is not None
        request.transport.abort()
        return response

    return fault
