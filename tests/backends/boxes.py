"""Real sandboxes for tests, driven through the link by hand."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aviato.server.backends.base import ResolvedImage, SandboxSpec
from aviato.server.backends.landlock.remains import pid_of
from aviato.server.link.link import ExecSpec
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_exec_id, new_sandbox_id


@dataclass
class Result:
    exec_id: str
    frames: list = field(default_factory=list)
    streams: dict = field(default_factory=lambda: {1: b"", 2: b""})
    exit: dict | None = None
    error: dict | None = None

    def take(self, frame):
        self.frames.append(frame)
        if frame.type == FrameType.DATA:
            self.streams[frame.stream] += frame.payload
        elif frame.type == FrameType.EXIT:
            self.exit = json.loads(frame.payload)
        elif frame.type == FrameType.ERROR:
            self.error = json.loads(frame.payload)

    @property
    def stdout(self):
        return self.streams[1].decode(errors="replace")

    @property
    def stderr(self):
        return self.streams[2].decode(errors="replace")

    @property
    def returncode(self):
        return self.exit["returncode"]


def make_spec(*command, exec_id=None, env=None, cwd=None, timeout=None, stdin=False, main=False, terminal=None, user=None):
    return ExecSpec(
        exec_id=exec_id or new_exec_id(),
        command=list(command),
        environment=env or {},
        working_dir=cwd,
        stdin=stdin,
        timeout_seconds=timeout,
        main=main,
        terminal=terminal,
        user=user,
    )


class Box:
    def __init__(self, backend, link, sandbox_id):
        self.backend = backend
        self.link = link
        self.id = sandbox_id

    @property
    def process_1(self):
        """Its number outside."""
        return pid_of(self.backend._held[self.id].pidfd)

    def start(self, *command, stdin=False, memory=None, **options):
        spec = make_spec(*command, stdin=stdin, **options)
        return spec.exec_id, self.link.subscribe(spec, spec.exec_id, memory=memory)

    async def finish(self, exec_id, subscription, *, acknowledge=True, done=True):
        result = Result(exec_id)
        async for frame in subscription:
            result.take(frame)
            if acknowledge and frame.type == FrameType.DATA:
                got = {1: 0, 2: 0, frame.stream: frame.offset + len(frame.payload)}
                self.link.acknowledge(exec_id, got[1], got[2], False)
        if done:
            self.link.acknowledge(exec_id, len(result.streams[1]), len(result.streams[2]), True)
        return result

    async def run(self, *command, stdin=None, **options):
        exec_id, subscription = self.start(*command, stdin=stdin is not None, **options)
        if stdin is not None:
            await self.link.write_stdin(exec_id, stdin, 0, True)
        return await asyncio.wait_for(self.finish(exec_id, subscription), 60)

    async def sh(self, script, **options):
        return await self.run("sh", "-c", script, **options)

    async def python(self, source, *arguments, **options):
        return await self.run("python3", "-I", "-c", source, *arguments, **options)

    async def put(self, path, data, **options):
        async def chunks():
            yield data

        await self.link.write_file(path, chunks(), **{"size_bytes": len(data), **options})

    async def get(self, path, **options):
        return b"".join([piece async for piece in self.link.read_file(path, **options)])


@asynccontextmanager
async def make_box(backend, image=None, **options):
    resolved = image if isinstance(image, ResolvedImage) else backend.resolve_image(image)
    spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=resolved, **options)
    try:
        link = await backend.create(spec)
        yield Box(backend, link, spec.sandbox_id)
    finally:
        await backend.destroy(spec.sandbox_id)
