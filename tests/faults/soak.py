"""Everything at once, for as long as one likes: `python -m tests.faults.soak --rounds 10 --round-seconds 60 --seed 7`.

Two servers: one is killed and restarted all the time, at points and anywhere; the other lives through everything else, so
that its memory can be compared. Clients reach them through proxies that hurt connections, in coroutines and threads of this
program; stores, disks and backends fail for moments; other programs with sandboxes are killed.

Each round ends in a quiet, when figures are taken. The first round warms up; the last one's figures are compared with its.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import dataclasses
import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import aviato
from aviato.bridge.operation import OperationRef
from aviato.server.executor import fix_threads
from aviato.server.fault_injection import OF_MOVES, POINTS
from aviato.server.reaper import GARBAGE_SECONDS
from aviato.transport import aiohttp_session, http
from tests.conftest import free_port, make_state_dir, remove
from tests.faults import acts, figures
from tests.faults.conftest import FaultyServer, RunningProxy

PR_SET_CHILD_SUBREAPER = 36
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Large blocks go back to the system as soon as they are freed: else what a peak has left behind looks like a leak."""
IN_LOOP = IN_THREADS = 4
WARM_UP_FACTOR = 2
"""So many times more in the first round: what memory a peak leaves behind is there by its end."""
QUIET_SECONDS = 90.0
SETTINGS = {"max_sandboxes": 24, "lease": 8.0, "record_retention": 30.0}
"""All that a client asks, its heartbeats too, goes over one connection, which faults hit several times a second."""
IDLE_SECONDS = SETTINGS["lease"] / 4 + 2
"""An idle connection of a client, here. Heartbeats are a quarter of a lease apart: they keep the one that they need."""
STEADY_SECONDS = IDLE_SECONDS + 1
FAILING = ("store.before", "disk.before", "fork.before", "hello.before")
KILLED = [name for name in POINTS if name not in ("disk.before", *OF_MOVES)]
MEMORY_FACTOR = 1.05
MEMORY_SLACK_BYTES = 256 << 10
"""A zygote has a third of a MiB of its own, of which some pages are written now and not then."""
SERVER_SLACK_BYTES = 4 << 20
"""A server's 45 MiB move by some between two quiet moments, in a loop that may run for ever. What grows, more rounds
find."""
MEMORY_FROM_SECONDS = 30.0
"""Shorter rounds do not warm up."""
STORE_BYTES = 4 << 20
"""As many records as one retention of these rounds can have, and no more, however many rounds."""
FRESH_DESCRIPTORS = 1
"""Of the server that is killed, a new process each round: it watches this process where a sandbox of it still lived at the
restart, and forgets the lease after a period where none did."""
PAIR_DESCRIPTORS = 2
"""Of a zygote: the network of its child at hand is new, or was had before, and its files are put away in two sockets."""
FILES = 1000
"""Results that nobody has confirmed wait for those who may come back."""
LOG_BYTES = 32 << 20
"""It is as long as what was written between two checkpoints."""


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Soak:
    """All of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._seed: int = options.seed
        self.wrong = 0
        self.counts: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(IN_THREADS * WARM_UP_FACTOR, thread_name_prefix="soak")
        self._keys = Path(tempfile.mkdtemp(prefix="aviato-soak-", dir="/tmp"))
        (self._keys / "keys").write_text("the-key\n")
        os.environ["AVIATO_API_KEY"] = "the-key"
        port = free_port()
        self.killed = FaultyServer(make_state_dir(), **SETTINGS)
        self.lasting = FaultyServer(make_state_dir(), port=port, api_key_file=self._keys / "keys", **SETTINGS)
        self.proxies = [
            RunningProxy(where, self._seed + number, options.fault_seconds, None, listen)
            for number, (where, listen) in enumerate(
                [(self.killed.socket, None), (self.lasting.socket, None), (f"127.0.0.1:{port}", "127.0.0.1:0")]
            )
        ]
        self.sites = [
            acts.Site(name, server, proxy.url, f"{self._seed}/{name}")
            for name, server, proxy in zip(
                ("killed", "lasting", "lasting over TCP"), (self.killed, self.lasting, self.lasting), self.proxies, strict=True
            )
        ]

    def _is_wrong(self, what: str) -> None:
        self.wrong += 1
        print(f"wrong: {what}", file=sys.stderr, flush=True)

    # -- what happens

    async def round(self, number: int) -> None:
        """A round of everything; returns when all of it has ended."""
        for proxy in self.proxies:
            proxy.calm(False)
        for site in self.sites:
            site.open()
        # What all acts of a round share is there before anything fails: if it could not be made, all of them would fail.
        await asyncio.gather(*(box for site in self.sites for box in site.shared))
        until = time.monotonic() + self._options.round_seconds
        chaos = asyncio.gather(self._kill(number, until), *(self._fail(server, number, until) for server in self._servers))
        loop = asyncio.get_running_loop()
        factor = 1 if number else WARM_UP_FACTOR
        await asyncio.gather(
            *(self._work(f"{self._seed}/{number}/{n} in the loop", until) for n in range(IN_LOOP * factor)),
            *(
                loop.run_in_executor(self._threads, self._work_in_thread, f"{self._seed}/{number}/{n}", until)
                for n in range(IN_THREADS * factor)
            ),
        )
        await chaos
        for site in self.sites:
            try:
                await site.close()
            except Exception:
                self._is_wrong(f"the end of {site.name}: {traceback.format_exc()}")

    @property
    def _servers(self) -> tuple[FaultyServer, FaultyServer]:
        return self.killed, self.lasting

    def _draw(self, draw: random.Random) -> tuple[acts.Act, str]:
        site = draw.choice(self.sites)
        (act,) = draw.choices(list(acts.ACTS), list(acts.ACTS.values()))
        self.counts[act.__name__] += 1
        return act(site, draw), f"{act.__name__} at {site.name}"

    async def _work(self, seed: str, until: float) -> None:
        draw = random.Random(seed)
        while time.monotonic() < until:
            act, name = self._draw(draw)
            try:
                await acts.in_loop(act)
            except Exception as error:
                self._failed(name, error)

    def _work_in_thread(self, seed: str, until: float) -> None:
        draw = random.Random(seed)
        while time.monotonic() < until:
            act, name = self._draw(draw)
            try:
                acts.in_thread(act)
            except Exception as error:
                self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        """What was armed to fail may fail an act, and says so."""
        told = isinstance(error, aviato.AviatoError) and error.is_infrastructure
        if told and ("armed by a test" in str(error) or error.reason == "output_gap"):
            self.counts[f"failed as told: {error.reason}"] += 1
            return
        self._is_wrong(f"{name}: {''.join(traceback.format_exception(error))} {vars(error)}")

    async def _fail(self, server: FaultyServer, number: int, until: float) -> None:
        """The store, the disk or the backend fails for a moment."""
        draw = random.Random(f"{self._seed}/{number}/fail {server is self.killed}")
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, draw.uniform(1, 6)))
            server.arm("fail", draw.choice(FAILING))
            self.counts["failures armed"] += 1
            await asyncio.sleep(draw.uniform(0.1, 1))
            server.disarm()

    async def _kill(self, number: int, until: float) -> None:
        """The one server goes: at a point, anywhere, or because it is told to, and comes back at once or later."""
        draw = random.Random(f"{self._seed}/{number}/kill")
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, draw.uniform(1, 5)))
            how = draw.choice(["at a point", "at a point", "anywhere", "told to"])
            if how == "at a point":
                self.killed.arm("kill", draw.choice(KILLED))
                deadline = time.monotonic() + 2
                while not self.killed.died and time.monotonic() < deadline:
                    await asyncio.sleep(0.005)
            if how == "told to":
                await asyncio.to_thread(self.killed.running.stop, signal.SIGTERM)
            self.killed.kill()
            self.counts[f"killed {how}"] += 1
            await asyncio.sleep(draw.choice([0, draw.uniform(0, 1)]))
            await asyncio.to_thread(self.killed.start)

    # -- what is left

    async def quiet(self) -> dict[str, Any]:
        """Wait until nothing is left to end; what is held then. The one server is fresh each time, and nothing fails."""
        for proxy in self.proxies:
            proxy.calm(True)
        await asyncio.to_thread(self.killed.running.stop, signal.SIGTERM)
        await asyncio.to_thread(self.killed.start)
        for server in self._servers:
            while living := await aviato.Sandbox.list(base_url=server.url):
                await self._pass(f"sandboxes are left: {[self._story(server, one) for one in living]}")
            while places := server.places():
                await self._pass(f"places are left: {places}")
        self._began = time.monotonic()
        before, since = self._figures(), time.monotonic()
        moved: Counter[str] = Counter()
        while time.monotonic() < since + STEADY_SECONDS:
            await self._pass(f"figures do not settle: {dict(moved)} of {before}")
            now = self._figures()
            if more := [name for name, value in _counts(now).items() if value != _counts(before).get(name)]:
                moved.update(more)
                since = time.monotonic()
            before = now
        gc.collect()
        await asyncio.sleep(2 * GARBAGE_SECONDS + 1)  # A server that rests has given back by then what it can.
        return self._figures()

    def _story(self, server: FaultyServer, one: aviato.Sandbox) -> str:
        """What is known of a sandbox that should have ended."""
        lines = [line for line in server.running.log.read_text().splitlines() if one.sandbox_id in line]
        return f"{one} of the {'killed' if server is self.killed else 'lasting'} server, {one.tags}, {one.created_at}: {lines}"

    async def _pass(self, what: str) -> None:
        await asyncio.sleep(0.1)
        if time.monotonic() > self._began + QUIET_SECONDS:
            raise AssertionError(what)

    def _pids(self, below: dict[int, str]) -> dict[str, int]:
        """Whose figures are taken: this process, the servers, and of those below it, by their command lines, the zygotes."""
        pids = {"client": os.getpid(), "killed server": self.killed.running.pid, "lasting server": self.lasting.running.pid}
        of = figures.parents()
        zygote = [pid for pid, line in below.items() if "aviato-init zygote" in line]
        return pids | {f"zygote of the {name}": pid for pid in zygote for name, it in pids.items() if of.get(pid) == it}

    def _figures(self) -> dict[str, Any]:
        below = figures.descendants(os.getppid())
        found: dict[str, Any] = {
            "processes": len([line for line in below.values() if line]),
            "mounts": sum(figures.mounts(os.getpid(), server.state) for server in self._servers),
            "groups": figures.OwnGroups.count(os.getppid()),
        }
        for name, pid in self._pids(below).items():
            for what, value in dataclasses.asdict(figures.held(pid)).items():
                found[f"{what} of the {name}"] = value
        for name, server in zip(("killed", "lasting"), self._servers, strict=True):
            folder = server.state / "state" / "serve"
            found[f"store_bytes of the {name} server"] = (folder / "store.db").stat().st_size
            found[f"log_bytes of the {name} server's store"] = (folder / "store.db-wal").stat().st_size
            found[f"files of the {name} server"] = sum(len(names) for _, _, names in os.walk(folder))
        return found

    async def run(self) -> None:
        """All rounds."""
        fix_threads(asyncio.get_running_loop())
        await OperationRef.start(_fix_threads(), name="fix threads")
        first: dict[str, Any] = {}
        opened: list[dict[str, Counter[str]]] = []
        before: Counter[str] = Counter()
        for number in range(self._options.rounds):
            self._began = time.monotonic()
            await self.round(number)
            self._began = time.monotonic()
            now = await self.quiet()
            say(round=number, wrong=self.wrong, quiet_after=round(time.monotonic() - self._began, 1), **now)
            pids = self._pids(figures.descendants(os.getppid()))
            opened.append({f"descriptors of the {name}": figures.descriptors(pid) for name, pid in pids.items()})
            if self._options.descriptors:
                say(**opened[-1])
            if self._options.objects:
                objects = figures.objects()
                say(more_objects=dict((objects - before).most_common(40)))
                before = before or objects
            first = first or now
        self._compare(first, now, opened)
        faults = sum((proxy.counts for proxy in self.proxies), Counter())
        hits = Counter(f"{act} {point}" for server in self._servers for act, point, _, _ in server.hits)
        say(seed=self._seed, acts=self.counts, connections=faults, points=hits)

    def _compare(self, first: dict[str, Any], last: dict[str, Any], opened: list[dict[str, Counter[str]]]) -> None:
        for name, value in last.items():
            if name.startswith("memory"):
                slack = SERVER_SLACK_BYTES if name.endswith("server") and "zygote" not in name else MEMORY_SLACK_BYTES
                most = max(first[name] * MEMORY_FACTOR, first[name] + slack)
                most = most if self._options.round_seconds >= MEMORY_FROM_SECONDS else float("inf")
            elif name.startswith("log_bytes"):
                most = LOG_BYTES
            elif name.startswith("files"):
                most = FILES
            elif name.startswith("store"):
                most = STORE_BYTES
            elif name.startswith("descriptors of the zygote"):
                most = first[name] + PAIR_DESCRIPTORS
            elif name == "descriptors of the killed server":
                most = first[name] + FRESH_DESCRIPTORS
            else:
                most = first.get(name, 0)
            if value > most:
                more = f": {opened[-1][name] - opened[0].get(name, Counter())} more" if name in opened[-1] else ""
                self._is_wrong(f"{name}: {value}, after {first.get(name)} at first{more}")

    def end(self) -> None:
        """Leave nothing."""
        for server in self._servers:
            if server.died:
                server.start()
            server.running.stop()
            remove(server.state)
        for proxy in self.proxies:
            proxy.stop()
        remove(self._keys)


async def _fix_threads() -> None:
    """Give the loop of all handles its threads at once: it would make them one by one, when they are needed."""
    fix_threads(asyncio.get_running_loop())


def _counts(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if not name.startswith(("memory", "store", "log", "files"))}


def soak(options: argparse.Namespace) -> int:
    """The program itself."""
    http.IDLE_SECONDS = aiohttp_session.IDLE_SECONDS = IDLE_SECONDS
    logging.getLogger("aviato").setLevel(logging.CRITICAL)
    say(seed=options.seed, rounds=options.rounds, round_seconds=options.round_seconds)
    one = Soak(options)
    try:
        asyncio.run(one.run())
    finally:
        one.end()
    return bool(one.wrong)


def above() -> int:
    """Its parent: whatever loses its own parent becomes its child, so that nothing that is left goes unseen."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own = figures.OwnGroups()
    os.environ.update(ALLOCATOR)
    inner = subprocess.Popen([sys.executable, "-m", "tests.faults.soak", "--inside", *sys.argv[1:]])
    signal.signal(signal.SIGTERM, lambda *_: inner.kill())
    while True:
        pid, status = os.wait()
        if pid == inner.pid:
            inner.returncode = os.waitstatus_to_exitcode(status)
            break
    for left, line in figures.descendants(os.getpid()).items():
        print("left:", left, line, file=sys.stderr)
        with suppress(OSError):
            os.kill(left, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    own.leave()
    return inner.returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--round-seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 31))
    parser.add_argument("--fault-seconds", type=float, default=0.3, help="between faults on connections of a proxy")
    parser.add_argument("--descriptors", action="store_true", help="list them")
    parser.add_argument("--objects", action="store_true", help="count those of the client that are more than after the first")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.exit(soak(given) if given.inside else above())
