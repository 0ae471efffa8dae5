"""A small run beside what `scale_model.py` says of it: so many sandboxes, alive all at once, on a server of its own.

Bytes, processes, files and requests are counted, and processor time; no clock is read, since other work would be in it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aviato import Sandbox
from aviato.bench.growth import tree_bytes
from aviato.bench.processes import descendants, tree_seconds
from aviato.transport.http import HttpTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVE = "from aviato.cli.main import main; main()"
AT_ONCE = 16
STILL_SECONDS = 0.3
WARM = 20
"""Sandboxes that come and go first: a server that has worked holds more than a new one."""


@dataclass
class Seen:
    """What so many live sandboxes took.

    Attributes:
        count: of them.
        server_bytes: proportional memory (PSS) of the server and its zygote, before them.
        bytes: the same with all of them, and of their process 1s.
        processes: beside the server's own.
        descriptors: open files of the server, beside what it had before.
        disk_bytes, disk_files: in the state directory, beside what is there before the first sandbox.
        requests: of the client, to make them and run a command in each.
        server_seconds: processor time of the server alone for that, which is one thread's.
        processor_seconds: of the server and all below it.
    """

    count: int
    server_bytes: int
    bytes: int
    processes: int
    descriptors: int
    disk_bytes: int
    disk_files: int
    requests: int
    server_seconds: float
    processor_seconds: float


def measure(count: int) -> Seen:
    """Make them on a server of its own, count, and end them."""
    with tempfile.TemporaryDirectory(prefix="aviato-scale-", dir="/var/tmp") as folder, _server(folder) as (pid, url, key):
        return asyncio.run(_measure(count, pid, url, key, f"{folder}/state"))


@contextmanager
def _server(folder: str) -> Iterator[tuple[int, str, str]]:
    """Its process, its address over TCP and its key."""
    os.chmod(folder, 0o711)
    keys, key = Path(folder, "keys"), secrets.token_urlsafe()
    keys.write_text(f"{key}\n")
    argv = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--api-key-file", str(keys), "--state-dir", f"{folder}/state"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            line = next(line for line in server.stdout if line.startswith("export AVIATO_BASE_URL="))
            yield server.pid, line.strip().partition("=")[2], key
        finally:
            server.send_signal(2)
            server.wait(60)


async def _measure(count: int, pid: int, url: str, key: str, state: str) -> Seen:
    os.environ["AVIATO_API_KEY"] = key
    requests = [0]
    open_request = HttpTransport.open

    async def counted(self: HttpTransport, method: str, path: str, *rest: object, **given: object) -> object:
        # What clients send by themselves goes by time, or for many commands at once.
        requests[0] += not path.startswith(("/v1/leases", "/v1/acknowledgements", "/v1/health"))
        return await open_request(self, method, path, *rest, **given)  # type: ignore[arg-type]

    HttpTransport.open = counted  # type: ignore[method-assign,assignment]
    disk = _disk(state)
    try:
        for sandbox in await _made(WARM, url):
            await sandbox.stop()
        await _still(pid)
        before, requests[0] = _held(pid), 0
        sandboxes = await _made(count, url)
        asked = requests[0]
        await _still(pid)
        after = _held(pid)
        grown_disk = [late - early for early, late in zip(disk, _disk(state), strict=True)]
        for sandbox in sandboxes:
            await sandbox.stop()
    finally:
        HttpTransport.open = open_request  # type: ignore[method-assign]
    _, processes, descriptors, own, below = (late - early for early, late in zip(before, after, strict=True))
    held = (int(before[0]), int(after[0]), int(processes), int(descriptors), *grown_disk)
    return Seen(count, *held, asked, own, own + below)


async def _made(count: int, url: str) -> list[Sandbox]:
    """So many sandboxes, in each of which a command was run."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> Sandbox:
        async with slots:
            sandbox = Sandbox(base_url=url)
            await sandbox.exec(["true"], check=True)
            return sandbox

    return await asyncio.gather(*(one() for _ in range(count)))


async def _still(pid: int) -> None:
    """Wait until the dead are gone, and the next child of the zygote is there ahead of its sandbox."""
    since, seen = time.monotonic(), descendants(pid)
    while time.monotonic() - since < STILL_SECONDS:
        await asyncio.sleep(STILL_SECONDS / 10)
        if (now := descendants(pid)) != seen:
            since, seen = time.monotonic(), now


def _held(pid: int) -> tuple[float, ...]:
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return tree_bytes(pid) or 0, len(descendants(pid)), files, *(tree_seconds(pid) or (0.0, 0.0))


def _disk(state: str) -> tuple[int, int]:
    """Bytes and files of a server's directory; places of sandboxes that have ended are taken again by later ones."""
    found = [os.lstat(os.path.join(at, name)) for at, folders, files in os.walk(state) for name in (*folders, *files)]
    return sum(one.st_blocks * 512 for one in found), len(found)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(measure(int(given)))
