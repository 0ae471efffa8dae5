"""After 200 sandboxes, a third of them stopped or abandoned at random points of their start, nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import aviato

ABANDON = """
import aviato, sys
session = aviato.Session()
sandboxes = [session.sandbox() for _ in range(3)]
print("go", flush=True)
for sandbox in sandboxes:
    sandbox.exec(["sleep", "100"])
sys.stdin.read()
"""


def descendants(pid: int) -> Counter[str]:
    """Names of all processes below `pid`."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(") ")
            except (FileNotFoundError, ProcessLookupError):
                continue
            names[int(entry.name)] = name
            children.setdefault(int(rest.split()[1]), []).append(int(entry.name))
    found: Counter[str] = Counter()
    queue = list(children.get(pid, []))
    while queue:
        child = queue.pop()
        found[names[child]] += 1
        queue += children.get(child, [])
    return found


def snapshot(server: Any) -> dict[str, Any]:
    """Everything that must be as before."""
    process = Path(f"/proc/{server.pid}")
    state = Path(server.state_dir)
    files = {
        str(path.relative_to(state)) for path in state.rglob("*") if "store.db" not in path.name and "log" not in path.parts
    }
    return {
        "processes": descendants(server.pid),
        "mounts": len((process / "mounts").read_text().splitlines()),
        "cgroups": sum(1 for _ in Path("/sys/fs/cgroup").rglob("*/")) if Path("/sys/fs/cgroup").exists() else 0,
        "files": files,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
    }


def memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


async def churn(count: int, at_once: int, pick: random.Random) -> None:
    """Create, use and stop; every fifth is stopped at a random point of its start."""
    gate = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with gate:
            sandbox = aviato.Sandbox()
            if number % 5 == 0:
                start = asyncio.ensure_future(sandbox.exec(["true"]))
                await asyncio.sleep(pick.random() * 0.05)
                await sandbox.stop(graceful_shutdown_seconds=0)
                with pytest.raises((aviato.SandboxNotRunningError, aviato.OperationCancelledError)):
                    if (await start).returncode == 0:
                        raise aviato.SandboxNotRunningError("it had ended before the stop")
                return
            assert (await sandbox.exec(["sh", "-c", "echo $$; echo x > /tmp/file"])).returncode == 0
            await sandbox.stop()

    await asyncio.gather(*(one(number) for number in range(count)))


def abandon(processes: int, pick: random.Random) -> None:
    """Clients killed at random points of their sandboxes' start, three each."""
    clients = [
        subprocess.Popen([sys.executable, "-c", ABANDON], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(processes)
    ]
    for client in clients:
        assert client.stdout is not None and client.stdin is not None
        assert client.stdout.readline() == b"go\n"
        time.sleep(pick.random() * 0.05)  # the point of the kill, not a wait
        client.kill()
        client.wait()
        client.stdout.close()
        client.stdin.close()


@pytest.mark.timeout(180)
def test_nothing_is_left(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    pick = random.Random(seed)
    asyncio.run(churn(50, 64, pick))
    with aviato.Session() as session:  # this process's own connection is part of the picture
        session.sandbox().exec(["true"]).result()
    before, memory_before = settled(server, None), memory_bytes(server.pid)
    asyncio.run(churn(167, 64, pick))
    abandon(11, pick)
    after = settled(server, before)
    assert after == before
    assert memory_bytes(server.pid) <= memory_before * 1.05 + (1 << 20)


def settled(server: Any, wanted: dict[str, Any] | None) -> dict[str, Any]:
    """The snapshot, once it is as wanted or (at the start) has stopped changing; 25 s at most."""
    deadline = time.monotonic() + 25
    last = snapshot(server)
    while time.monotonic() < deadline:
        time.sleep(0.5)  # the pace of looking
        now = snapshot(server)
        if (now == wanted) if wanted is not None else (now == last and not any("sb-" in name for name in now["files"])):
            return now
        last = now
    return last
