"""How much of its peak throughput a server keeps when more is asked of it than it has room for.

    python benchmarks/overload.py [--rounds N] [--seconds S] [--capacity N] [--processes N] [--json PATH]

A server of its own with room for so many sandboxes. Client processes ask for 1, 2, 5 and 10 times as many at the same time, the
levels in alternation: each episode makes a sandbox, runs two commands in it and stops it; the next begins when one has ended.
A server is measured whose queue takes all of them, and one whose queue is short, so that most are refused and come back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import console, describe_machine, table
from common import write_json as save

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVELS = (1, 2, 5, 10)
RAMP_SECONDS = 1.0
"""Until the queue is as long as it will be."""
SERVE = "from aviato.cli.main import main; main()"


async def episode() -> None:
    """What an agent's turn costs the server, as short as can be."""
    from aviato import Sandbox

    async with Sandbox() as sandbox:
        for number in range(2):
            result = await sandbox.exec(["echo", str(number)])
            assert result.stdout == f"{number}\n"


async def ask(at_once: int, seconds: float) -> dict[str, int]:
    """So many episodes at once for so long; how many ended within that time, but for its beginning, and all by their kind."""
    from aviato import AviatoError

    begin = time.monotonic() + RAMP_SECONDS
    over = begin + seconds
    ends: Counter[str] = Counter()

    async def one_after_the_other() -> None:
        while time.monotonic() < over:
            try:
                await episode()
                ends["in time"] += begin <= time.monotonic() < over
                ends["ok"] += 1
            except AviatoError as error:
                ends[type(error).__name__ if error.is_infrastructure else f"not typed: {type(error).__name__}"] += 1

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return dict(ends)


def client() -> None:
    """A client process: each line of its input asks for a number of episodes at once and a number of seconds."""
    for line in sys.stdin:
        at_once, seconds = line.split()
        print(json.dumps(asyncio.run(ask(int(at_once), float(seconds)))), flush=True)


class Served:
    """A server and its clients."""

    def __init__(self, path: Path, capacity: int, queued: int, processes: int) -> None:
        self.capacity = capacity
        flags = ["--max-sandboxes", str(capacity), "--max-queued-sandboxes", str(queued)]
        command = [sys.executable, "-c", SERVE, "serve", "--state-dir", str(path / "state"), "--socket", str(path / "sock")]
        self.log = (path / "log").open("wb")
        self.server = subprocess.Popen([*command, *flags], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        environment = {**os.environ, "AVIATO_BASE_URL": f"unix://{path / 'sock'}"}
        argv = [sys.executable, __file__, "--client"]
        self.clients = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(processes)
        ]
        self.rates: dict[int, list[float]] = {level: [] for level in LEVELS}
        self.ends: dict[int, Counter[str]] = {level: Counter() for level in LEVELS}

    def measure(self, level: int, seconds: float, *, kept: bool = True) -> None:
        """One round of one level."""
        demand, count = level * self.capacity, len(self.clients)
        for index, process in enumerate(self.clients):
            assert process.stdin is not None
            print(demand // count + (index < demand % count), seconds, file=process.stdin, flush=True)
        found: Counter[str] = Counter()
        for process in self.clients:
            assert process.stdout is not None
            found.update(json.loads(process.stdout.readline()))
        if kept:
            self.rates[level].append(found.pop("in time", 0) / seconds)
            self.ends[level].update(found)

    def close(self) -> None:
        """End the clients and the server with what is in it."""
        for process in self.clients:
            process.communicate("")
        self.server.send_signal(2)
        self.server.wait(20)
        self.log.close()


@contextmanager
def served(capacity: int, queued: int, processes: int) -> Iterator[Served]:
    """One, up to its end."""
    with tempfile.TemporaryDirectory(prefix="aviato-overload-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        path = Path(directory)
        path.chmod(0o711)
        made = Served(path, capacity, queued, processes)
        try:
            deadline = time.monotonic() + 30
            while not (path / "sock").exists():
                assert made.server.poll() is None and time.monotonic() < deadline, (path / "log").read_text()
                time.sleep(0.02)
            yield made
        finally:
            made.close()


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one level in one round")
    parser.add_argument("--capacity", type=int, default=4 * (os.cpu_count() or 1), help="sandboxes at once (default: 4 a core)")
    parser.add_argument("--processes", type=int, default=4, help="that ask")
    parser.add_argument("--json", help="where to write the figures (default: benchmarks/results/overload.json)")
    arguments = parser.parse_args()
    if arguments.client:
        client()
        return
    describe_machine()
    with ExitStack() as stack:
        capacity, processes = arguments.capacity, arguments.processes
        servers = {
            "all wait": stack.enter_context(served(capacity, 10_000, processes)),
            "most are refused": stack.enter_context(served(capacity, max(1, capacity // processes), processes)),
        }
        cases = [(one, level) for one in servers.values() for level in LEVELS]
        for one in servers.values():
            one.measure(1, 1.0, kept=False)
        for _ in range(arguments.rounds):
            random.shuffle(cases)
            for one, level in cases:
                one.measure(level, arguments.seconds)
    rows: list[list[Any]] = []
    figures: dict[str, Any] = {}
    peak = max(sum(rates) / len(rates) for one in servers.values() for rates in one.rates.values())
    for name, one in servers.items():
        for level in LEVELS:
            rate = sum(one.rates[level]) / len(one.rates[level])
            others = {kind: count for kind, count in one.ends[level].items() if kind != "ok"}
            said = ", ".join(f"{count} {kind}" for kind, count in others.items()) or "none"
            rows.append([f"{level} × {capacity}, {name}", f"{rate:.1f}", f"{rate / peak:.2f}", one.ends[level]["ok"], said])
            rates = one.rates[level]
            figures[f"{level}, {name}"] = {"per_second": rates, "to_peak": rate / peak, "ends": dict(one.ends[level])}
    table("overload (means)", ["demand", "episodes/s", "× peak", "ended well", "typed errors"], rows)
    path = save("overload", {"capacity": capacity, "peak_per_second": peak, "figures": figures}, arguments.json)
    console.print("written to", str(path), soft_wrap=True)


if __name__ == "__main__":
    main()
