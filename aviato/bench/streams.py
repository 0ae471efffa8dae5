"""Streams and waiting: stdout, lines, a loop of `wait`, many commands at once.

Beside each figure its floor, measured in the same run: a bare pipe, a bare interpreter that iterates over the same lines.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aviato
from aviato.bench.floor import TRUE_ARGV, Floor
from aviato.bench.report import Report, Table
from aviato.bench.run import Run, Size
from aviato.bench.series import Series, alternate, interval, timed

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {
    "rounds": Size(7, 1, "of stdout and of lines"),
    "bytes": Size(1 << 30, 20_000_000, "of stdout"),
    "lines": Size(100_000, 2_000, "of output"),
    "items": Size(10_000, 100, "of the wait loop"),
    "waiting": Size(1_000, 20, "commands at the same time"),
    "beside": Size(100, 10, "commands beside those"),
}

STDOUT = "stdout, MB/s"
READ_LINES = "import subprocess as s, sys\nfor line in s.Popen(['seq', sys.argv[1]], stdout=s.PIPE, text=True).stdout: pass"


def measure(run: Run) -> Report:
    """All of it."""
    report = Report("streams")
    with run.session() as session:
        sandbox = session.sandbox().wait()
        measure_stdout(report, sandbox, run["bytes"], run["rounds"])
        measure_lines(report, sandbox, run["lines"], run["rounds"])
        measure_wait(report, sandbox, run["items"])
        measure_waiting(report, session, sandbox, run["waiting"], run["beside"])
    return report


def measure_stdout(report: Report, sandbox: aviato.Sandbox, count: int, rounds: int) -> None:
    """A gigabyte out of a command: kept up to the cap, and iterated."""
    command = ["head", "-c", str(count), "/dev/zero"]

    def collect() -> None:
        assert sandbox.exec(command).result().stdout_bytes_total == count

    def iterate() -> None:
        assert sum(len(text) for text in sandbox.exec(command).stdout) == count

    growth = peak_growth_bytes(collect)
    collected, iterated, pipe = Series("stdout, collected"), Series("stdout, iterated"), Series("  floor: a bare pipe")
    argv = report.floors["a bare pipe"] = ["sh", "-c", f"head -c {count} /dev/zero | cat > /dev/null"]
    with Floor(argv) as floor:
        alternate(rounds, (collected, timed(collect)), (iterated, timed(iterate)), (pipe, floor), warmup=1)
    report.times(f"{count / 1e6:,.0f} MB of stdout", [(collected, pipe), (iterated, pipe), (pipe, None)])
    report.values[STDOUT] = interval([count / seconds / 1e6 for seconds in collected.seconds])
    report.costs[STDOUT] = f"{count / pipe.median / 1e6:,.0f} MB/s"
    report.values["stdout, growth of the client's peak, MiB"] = growth / 2**20
    rates = Table("the same as rates", ("", "p50 MB/s", "slowest MB/s"))
    for series in (collected, iterated, pipe):
        rates.rows.append([series.name, *(f"{count / seconds / 1e6:,.0f}" for seconds in (series.median, max(series.seconds)))])
    rates.rows.append([f"the client's peak memory grew by {growth / 2**20:.0f} MiB", "", ""])
    report.tables.append(rates)


def measure_lines(report: Report, sandbox: aviato.Sandbox, count: int, rounds: int) -> None:
    """Lines, one at a time, from blocking and from async code."""
    command = ["seq", str(count)]

    def blocking() -> None:
        assert sum(1 for _ in sandbox.exec(command).stdout.lines()) == count

    async def read() -> None:
        assert len([line async for line in sandbox.exec(command).stdout.lines()]) == count

    plain, awaited, bare = Series("lines, for"), Series("lines, async for"), Series("  floor: a bare interpreter's for")
    argv = report.floors["a bare interpreter, its start included"] = ["python3", "-I", "-c", READ_LINES, str(count)]
    with Floor(argv) as floor:
        alternate(rounds, (plain, timed(blocking)), (awaited, timed(lambda: asyncio.run(read()))), (bare, floor), warmup=1)
    report.times(f"{count:,} lines", [(plain, bare), (awaited, bare), (bare, None)])
    report.values["lines a second"] = count / plain.median


def measure_wait(report: Report, sandbox: aviato.Sandbox, count: int) -> None:
    """What `wait(num_returns=1)` itself costs over many items."""
    pending: list[aviato.Process] = [sandbox.exec(["true"]) for _ in range(count)]
    begin, own = time.perf_counter(), time.thread_time()
    while pending:
        _, pending = aviato.wait(pending, num_returns=1)
    own, wall = time.thread_time() - own, time.perf_counter() - begin
    rows = [[f"a wait(num_returns=1) loop over {count:,}", f"{own:.2f}", f"{wall:.1f}"]]
    report.tables.append(Table("waiting", ("", "s of its own", "s in all"), list(rows)))
    report.figures["wait"] = {"own_seconds": own, "wall_seconds": wall}


def measure_waiting(report: Report, session: aviato.Session, sandbox: aviato.Sandbox, count: int, times: int) -> None:
    """An exec beside many that wait."""
    alone, beside = Series("exec of true, alone"), Series(f"exec of true beside {count:,} that wait")
    case = timed(lambda: sandbox.exec(TRUE_ARGV).result())
    alternate(times, (alone, case))
    boxes = [session.sandbox() for _ in range(-(-count // 250))]
    waiting = [boxes[index % len(boxes)].exec(["cat"], stdin=True) for index in range(count)]
    for process in waiting:
        assert process.stdin is not None
        process.stdin.write(b"x").result()
    alternate(times, (beside, case))
    begin = time.perf_counter()
    for process in waiting:
        assert process.stdin is not None
        process.stdin.close()
    assert all(process.result().stdout == "x" for process in waiting)
    ending = time.perf_counter() - begin
    report.times(f"beside {count:,} commands (× alone)", [(alone, None), (beside, alone)])
    report.values[f"the end of {count:,} at once, s"] = ending


def peak_growth_bytes(action: Callable[[], object]) -> int:
    """How much the peak of this process's resident memory grew in a call."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    action()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)
