"""A backend without processes, for the rules of the service: commands are scripts in this file."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aviato.exceptions import SandboxFileError, SandboxImageError
from aviato.server.backends.base import Backend, Capability, Check, Limit, ResolvedImage, SandboxSpec
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.link.subscription import Subscription
from aviato.wire.errors import ExecNotFoundError, RequestConflictError, to_wire
from aviato.wire.execution import Accepted, ExecExit, Started
from aviato.wire.frames import Frame, FrameType


class FakeExec:
    def __init__(self, spec):
        self.spec = spec
        self.frames = [Frame(FrameType.ACCEPTED, 0, 0, 0, Accepted(exec_id=spec.exec_id).model_dump_json().encode())]
        self.subscription = None
        self.runner = None
        self.written = 0
        self.stdin = b""

    def push(self, frame):
        self.frames.append(frame)
        if self.subscription is not None:
            self.subscription.frame(frame)

    def write(self, data):
        self.push(Frame(FrameType.DATA, 1, 0, self.written, data))
        self.written += len(data)

    def exit(self, returncode, **more):
        body = ExecExit(
            returncode=returncode, duration_seconds=0.0, stdout_bytes_total=self.written, stderr_bytes_total=0, **more
        )
        self.push(Frame(FrameType.EXIT, 0, 0, 0, body.model_dump_json().encode()))

    @property
    def over(self):
        return self.frames[-1].type == FrameType.EXIT


class FakeLink:
    """`echo TEXT`, `exit N`, `hang`, `sleep S`, `nodir` (a missing working directory)."""

    def __init__(self, backend, spec):
        self.sandbox_id = spec.sandbox_id
        self.backend = backend
        self.execs = {}
        self.files = {}
        self.active = set()
        self.acknowledged = []
        self.hello = {"execs": {}}
        self.has_wide_windows = False
        self.pings = 0
        self.stubborn = False
        self.heard = self.slow = 0
        self._ended = asyncio.get_running_loop().create_future()

    def ended(self):
        return self._ended.result() if self._ended.done() else None

    async def wait_ended(self):
        return await asyncio.shield(self._ended)

    def end(self, reason="lost", returncode=None):
        if self._ended.done():
            return
        ended = Ended(reason=reason, returncode=returncode)
        self._ended.set_result(ended)
        for run in self.execs.values():
            if run.runner is not None:
                run.runner.cancel()
            if run.subscription is not None:
                run.subscription.gone(ended)

    def _alive(self):
        if self.ended() is not None:
            raise SandboxGone(self.ended())

    def subscribe(self, spec, exec_id, stdout=0, stderr=0, *, read_along=True, memory=None):
        self._alive()
        subscription = Subscription(exec_id, self._unsubscribed)
        run = self.execs.get(exec_id)
        if run is None and spec is None:
            return self._refuse(subscription, ExecNotFoundError(f"no {exec_id}"))
        if run is not None and spec is not None and run.spec != spec:
            return self._refuse(subscription, RequestConflictError("another body"))
        if run is None:
            run = self.execs[exec_id] = FakeExec(spec)
            self.active.add(exec_id)
            run.runner = asyncio.ensure_future(self._run(run))
        if run.subscription is not None:
            run.subscription.replaced = True
            run.subscription._finish(None)
        run.subscription = subscription
        for frame in run.frames:
            if frame.type != FrameType.DATA or frame.offset + len(frame.payload) > stdout:
                cut = max(0, stdout - frame.offset) if frame.type == FrameType.DATA else 0
                piece = frame._replace(payload=frame.payload[cut:], offset=frame.offset + cut)
                subscription.frame(piece)
        return subscription

    def _refuse(self, subscription, error):
        subscription.frame(Frame(FrameType.ERROR, 0, 0, 0, to_wire(error).model_dump_json().encode()))
        return subscription

    def _unsubscribed(self, subscription):
        run = self.execs.get(subscription.exec_id)
        if run is not None and run.subscription is subscription:
            run.subscription = None

    async def _run(self, run):
        verb, *arguments = run.spec.command
        if verb == "nodir":
            self.active.discard(run.spec.exec_id)
            error = SandboxFileError("no such directory", filepath="/nodir", reason="no_such_file")
            run.push(Frame(FrameType.ERROR, 0, 0, 0, to_wire(error).model_dump_json().encode()))
            return
        run.push(Frame(FrameType.STARTED, 0, 0, 0, Started().model_dump_json().encode()))
        if verb == "echo":
            run.write(" ".join(arguments).encode() + b"\n")
        elif verb == "sleep":
            await asyncio.sleep(float(arguments[0]))
        elif verb == "hang":
            await asyncio.Event().wait()
        returncode = int(arguments[0]) if verb == "exit" else 0
        run.exit(returncode)
        if run.spec.main:
            self.end("exited", returncode)

    def acknowledge(self, exec_id, stdout, stderr, done):
        self.acknowledged.append((exec_id, stdout, stderr, done))
        if done:
            self.active.discard(exec_id)

    async def write_stdin(self, exec_id, data, offset, eof):
        self._alive()
        run = self._find(exec_id)
        run.stdin = run.stdin[:offset] + data

    def _find(self, exec_id):
        if exec_id not in self.execs:
            raise ExecNotFoundError(f"no {exec_id}")
        return self.execs[exec_id]

    async def resize(self, exec_id, width, height):
        self._find(exec_id)

    async def write_file(self, path, chunks, *, mode, size_bytes, part=None, memory=None):
        self.files[path] = b"".join([chunk async for chunk in chunks])

    async def write_tree(self, path, chunks, key=None, exact=False):
        self.files[path] = b"".join([chunk async for chunk in chunks])

    async def signal(self, exec_id, signal):
        self._find(exec_id)

    async def cancel(self, exec_id):
        self._alive()
        run = self._find(exec_id)
        if not run.over:
            run.runner.cancel()
            run.exit(137, signal=9, cancelled=True)

    async def stop(self, grace_seconds):
        if self.stubborn:
            await asyncio.Event().wait()
        self.end("stopped")
        return await self.wait_ended()

    def active_execs(self):
        return len(self.active)

    async def ping(self):
        self.pings += 1
        if self.stubborn:
            self.heard += self.slow
            await asyncio.Event().wait()

    def detach(self):
        for run in self.execs.values():
            if run.runner is not None and self.backend.stop_runners:
                run.runner.cancel()
            if run.subscription is not None:
                run.subscription.gone(Ended(reason="lost", message="detached"))


@dataclass
class Switches:
    """What goes wrong, and when."""

    create_waits: asyncio.Event | None = None
    create_error: Exception | None = None
    destroy_error: Exception | None = None
    resolve: dict[str, str] = field(default_factory=lambda: {"host": "host"})


class FakeBackend(Backend):
    name = "fake"
    capabilities = frozenset(Capability) - {
        Capability.PLACES,
        *(Capability.PACKAGES, Capability.IMAGE_STORE, Capability.SNAPSHOTS, Capability.POOLS),
    }

    def __init__(self):
        self.links = {}
        self.specs = {}
        self.places = set()
        self.switches = Switches()
        self.destroyed = []
        self.left = {}
        self.stop_runners = True

    async def open(self):
        pass

    async def close(self):
        pass

    def resolve_image(self, reference, *, fallback=None):
        if reference is not None and reference not in self.switches.resolve:
            raise SandboxImageError(f"{reference!r} is not there; there is host")
        return ResolvedImage(reference=reference or "host", kind="host")

    def limits(self, spec: SandboxSpec):
        return {"processes": Limit(value=512, strength="hard")}

    async def create(self, spec):
        self.places.add(spec.sandbox_id)
        if self.switches.create_waits is not None:
            await self.switches.create_waits.wait()
        if self.switches.create_error is not None:
            raise self.switches.create_error
        self.specs[spec.sandbox_id] = spec
        link = self.links[spec.sandbox_id] = FakeLink(self, spec)
        return link

    async def reconnect(self, sandbox_id):
        return self.links.get(sandbox_id)

    def remember_end(self, sandbox_id, reason):
        self.places.add(sandbox_id)
        self.left[sandbox_id] = reason

    def how_ended(self, sandbox_id):
        return self.left.get(sandbox_id)

    async def destroy(self, sandbox_id):
        if self.switches.destroy_error is not None:
            raise self.switches.destroy_error
        self.destroyed.append(sandbox_id)
        self.places.discard(sandbox_id)
        link = self.links.pop(sandbox_id, None)
        if link is not None:
            link.end("lost")

    async def place_ids(self):
        return list(self.places)

    async def probe(self):
        return [Check(name="fake", ok=True, detail="yes")]
