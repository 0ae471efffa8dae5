"""How long a sandbox and a command take, beside what the kernel charges for the same.

Each figure is a median with p95 and p99, and a ratio of medians to its floor with a bootstrap 90 % interval. Floors run in a
bare interpreter in a process of its own, in alternation with what is measured.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aviato
from aviato.bench.floor import NO_BWRAP, TRUE_ARGV, Floor, bwrap_argv
from aviato.bench.init_floor import AGAIN, ONCE, InitFloor, init_floor, tell
from aviato.bench.processes import APART
from aviato.bench.report import Report, Table, milliseconds
from aviato.bench.run import Run, Size
from aviato.bench.series import Series, alternate, ratio, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = {
    "rounds": Size(100, 15, "of each command and sandbox"),
    "starts": Size(20, 2, "fresh servers for the first result of all"),
}

CREATE = "create + first exec of true"
EXEC = "exec of true, .result()"
AWAIT = "exec of true, await on AsyncClient"
FIRST = "first result of all, no server running"

IN_A_ROW = 256
"""Sandboxes of the init floor, by which its processor time is divided: one is too short for that."""
END_SECONDS = 20.0
"""How long a server may take to end."""

FIRST_RESULT = """
import sys, time
begin = time.perf_counter()
import aviato
sandbox = aviato.Sandbox.run()
result = sandbox.exec(["/bin/true"]).result()
print(time.perf_counter() - begin if result.returncode == 0 else "failed", flush=True)
"""


def measure(run: Run) -> Report:
    """All of it."""
    report, bwrap = Report("latency"), bwrap_argv()
    create, execute, awaited = Series(CREATE), Series(EXEC), Series(AWAIT)
    true_floor, bwrap_floor = Series("  floor: subprocess.run true"), Series("  floor: bwrap --unshare-all true")
    alone = Series("  floor: aviato-init alone")
    again = Series("  floor: aviato-init alone, one more command")
    report.floors["true"] = TRUE_ARGV
    with ExitStack() as stack:
        session = stack.enter_context(run.session())
        cases: list[tuple[Series, Callable[[], float]]] = [
            (create, creating(session)),
            (execute, stack.enter_context(executing(session))),
            (awaited, stack.enter_context(awaiting(run))),
            (true_floor, stack.enter_context(Floor(TRUE_ARGV))),
        ]
        if bwrap is not None:
            report.floors["bwrap"] = bwrap
            cases.append((bwrap_floor, stack.enter_context(Floor(bwrap))))
        found = stack.enter_context(init_floor(run, report, 2))
        inits: list[tuple[Series, InitFloor, int]] = []
        if found is not None:
            inits = [(alone, stack.enter_context(found.floor(ONCE)), 1)]
            cases += [(series, floor) for series, floor, _ in inits]
            # Its processor time is not told: that of a process that lives on is not in it.
            one_more = stack.enter_context(found.floor(AGAIN))
            cases.append((again, one_more))
            report.floors["aviato-init alone, one more command"] = one_more.command
            inits.append(
                (Series(f"aviato-init alone, {IN_A_ROW} in a row"), stack.enter_context(found.batches(IN_A_ROW, 1)), IN_A_ROW)
            )
        alternate(run["rounds"], *cases)
        if inits:
            inits[-1][1]()
        imports = measure_imports(run["rounds"])
    first = Series(FIRST)
    with tempfile.TemporaryDirectory(prefix="aviato-first-", dir="/var/tmp", ignore_cleanup_errors=True) as directory:
        for number in range(run["starts"]):
            first.take(partial(first_result, Path(directory, str(number))))
    rows: list[tuple[Series, Series | None]] = [(create, bwrap_floor)]
    rows += [(bwrap_floor, None)] if bwrap_floor.seconds else []
    rows += [(alone, bwrap_floor)] if alone.seconds else []
    rows += [(execute, true_floor), (awaited, true_floor), (true_floor, None)]
    rows += [(again, true_floor)] if again.seconds else []
    rows.append((first, None))
    report.times("latency", rows)
    report.tables.append(imports)
    if inits:
        tell(report, inits)
        report.init |= dict.fromkeys((EXEC, AWAIT), ratio(again, true_floor))
        if bwrap_floor.seconds:
            report.init[CREATE] = ratio(alone, bwrap_floor)
    report.values[f"{FIRST}, p95 seconds"] = first.percentile(95)
    if bwrap is None:
        report.notes.append(NO_BWRAP)
    return report


def run_true(sandbox: aviato.Sandbox) -> None:
    """The plain operation."""
    sandbox.exec(TRUE_ARGV).result()


def creating(session: aviato.Session, operation: Callable[[aviato.Sandbox], object] = run_true) -> Callable[[], float]:
    """Times a sandbox with its first operation; the one before is stopped first."""
    left: list[aviato.Sandbox] = []

    def once() -> None:
        left.append(session.sandbox())
        operation(left[0])

    def case() -> float:
        while left:
            left.pop().stop().result()
        return timed(once)()

    return case


@contextmanager
def executing(session: aviato.Session) -> Iterator[Callable[[], float]]:
    """Times a command in a sandbox that runs, by blocking code."""
    with session.sandbox() as sandbox:
        yield timed(lambda: sandbox.exec(TRUE_ARGV).result())


@contextmanager
def awaiting(run: Run, loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Iterator[Callable[[], float]]:
    """Times the same on the caller's own loop: that of `asyncio.run`, or another."""

    async def case() -> float:
        begin = time.perf_counter()
        await sandbox.exec(TRUE_ARGV)
        return time.perf_counter() - begin

    with client(run, loop) as (runner, sandbox):
        yield lambda: runner.run(case())


@contextmanager
def client(run: Run, loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Iterator[tuple[asyncio.Runner, Any]]:
    """A loop, and a sandbox of an `AsyncClient` on it."""
    with asyncio.Runner(loop_factory=loop) as runner:
        made = aviato.AsyncClient(base_url=run.base_url)
        runner.run(made.__aenter__())
        try:
            yield runner, runner.run(made.sandbox())
        finally:
            runner.run(made.__aexit__(None, None, None))


def measure_imports(rounds: int) -> Table:
    """What an import adds to a fresh interpreter. `-S` is not used: it must find the installed package."""
    statements = ("pass", "import aviato", "from aviato import Sandbox, Session, SandboxDefaults")
    with ExitStack() as stack:
        floors = [(Series(line), stack.enter_context(Floor([sys.executable, "-c", line]))) for line in statements]
        alternate(max(rounds // 3, 5), *floors)
    nothing, *others = (series for series, _ in floors)
    table = Table("imports, over a bare interpreter", ("", "p50 ms", "p95 ms", "p99 ms"))
    for series in others:
        extra = (milliseconds(series.percentile(part) - nothing.median) for part in (50, 95, 99))
        table.rows.append([series.name, *extra])
    return table


def first_result(directory: Path) -> float:
    """Seconds from `import aviato` to the first result in a new process, with no server running.

    Args:
        directory: for what the server keeps. Whoever calls removes it after the last one: for five seconds ext4 passes over
            each name that was freed, for every name that the next server makes, which took it up to half a second.
    """
    directory.mkdir()
    environment = {**os.environ, "AVIATO_STATE_DIR": str(directory), "AVIATO_IDLE_EXIT": "1"}
    environment.pop("AVIATO_BASE_URL", None)
    done = subprocess.run([sys.executable, "-c", FIRST_RESULT], env=environment, capture_output=True, text=True, check=False)
    end_servers(directory)
    if done.returncode:
        raise RuntimeError(f"the first result did not come (returncode {done.returncode}): {done.stderr.strip()[-2000:]}")
    return float(done.stdout)


def end_servers(directory: Path) -> None:
    """End the embedded servers below a state directory, by the pid that each wrote into its lock."""
    for lock in directory.glob("embedded/*/lock"):
        pid = lock.read_text().strip()
        if pid.isdigit():
            descriptor = os.pidfd_open(int(pid))
            signal.pidfd_send_signal(descriptor, signal.SIGINT)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            APART.follow_server(int(pid), partial(_has_ended, poll, time.monotonic() + END_SECONDS))
            os.close(descriptor)


def _has_ended(poll: select.poll, deadline: float) -> bool:
    """Whether it is over, or has had its time; waits a moment."""
    return bool(poll.poll(10)) or time.monotonic() > deadline
