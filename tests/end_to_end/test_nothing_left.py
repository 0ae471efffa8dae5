"""After many sandboxes, a third of them stopped or abandoned at random points of their start, nothing is left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

CHURN = Path(__file__).with_name("churn.py")
IDLE_THREADS_SECONDS = 11
"""Idle workers of the server's thread pool live for ten seconds."""

ABANDON = """
import aviato, sys
session = aviato.Session()
sandboxes = [session.sandbox() for _ in range(3)]
print("go", flush=True)
for sandbox in sandboxes:
    sandbox.exec(["sleep", "100"])
sys.stdin.read()
"""


def descendants(pid: int) -> dict[int, str]:
    """All processes below `pid`, by name."""
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
    found: dict[int, str] = {}
    queue = list(children.get(pid, []))
    while queue:
        child = queue.pop()
        found[child] = names[child]
        queue += children.get(child, [])
    return found


def groups_of(pids: set[int]) -> int:
    """Control groups by which sandboxes of these templates share the processors; others have them at the same time."""
    # Those of others come and go meanwhile, which `os.walk` passes over.
    found = {name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith("aviato-share-")}
    return sum(int(name.split("-")[2]) in pids for name in found)


def snapshot(server: Any, threads: bool) -> dict[str, Any]:
    """Everything that must be as before.

    Args:
        server: whose.
        threads: how many of them it has, too.
    """
    process = Path(f"/proc/{server.pid}")
    state = Path(server.state_dir)
    # The zygote's child at hand is nobody's yet: it comes when nobody asks for a moment, and goes when nobody has for long.
    # So does the group in which it shares the processors.
    all_below = descendants(server.pid)
    below = {pid: name for pid, name in all_below.items() if name != "aviato-spare"}
    # `os.walk` passes over what is removed meanwhile.
    paths = [Path(folder) / name for folder, folders, names in os.walk(state) for name in (*folders, *names)]
    files = {str(path.relative_to(state)) for path in paths if "store.db" not in path.name and "log" not in path.parts}
    found: dict[str, Any] = {
        "processes": Counter(below.values()),
        "mounts": len((process / "mounts").read_text().splitlines()),
        "cgroups": max(0, groups_of({server.pid, *below}) - (len(all_below) - len(below))),
        "files": files,
        "descriptors": len(list((process / "fd").iterdir())),
    }
    return {**found, "threads": len(list((process / "task").iterdir()))} if threads else found


def memory_bytes(pid: int) -> int:
    """Its own: its share of what it only reads becomes more as other processes of the same programs end."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss_Anon")


def churn(count: int, seed: int) -> None:
    """Create, use and stop in a client process of its own, 64 at a time, so that its connections end with it."""
    subprocess.run([sys.executable, str(CHURN), str(count), "64", str(seed)], check=True, timeout=250)


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


@pytest.mark.parametrize(
    ("warming", "count", "abandoned", "stable_seconds"),
    [(16, 24, 3, 2), pytest.param(167, 167, 11, IDLE_THREADS_SECONDS, marks=[pytest.mark.slow, pytest.mark.deep])],
)
def test_nothing_is_left(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, warming: int, count: int, abandoned: int, stable_seconds: float
) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    pick = random.Random(seed)
    churn(warming, seed)
    before, memory_before = settled(server, None, stable_seconds), memory_bytes(server.pid)
    churn(count, seed + 1)
    abandon(abandoned, pick)
    after = settled(server, before, stable_seconds)
    assert after == before
    # Few sandboxes are no measure, before or after: a server fills its pools and its records.
    assert count < 100 or memory_bytes(server.pid) <= memory_before * 1.05 + (1 << 20)


def settled(server: Any, wanted: dict[str, Any] | None, stable_seconds: float) -> dict[str, Any]:
    """The snapshot, once it is as wanted or (at the start) has not changed for so long; 40 s at most."""
    threads = stable_seconds >= IDLE_THREADS_SECONDS
    begin = since = time.monotonic()
    last = snapshot(server, threads)
    while time.monotonic() < begin + 40 and (wanted is not None or time.monotonic() < since + stable_seconds):
        time.sleep(0.5)  # the pace of looking
        now = snapshot(server, threads)
        if now == wanted:
            return now
        if now != last:
            last, since = now, time.monotonic()
    return last
