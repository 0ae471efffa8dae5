"""Streams and waiting: stdout, lines, a loop of `wait`, many commands at once.

Beside each figure its floor, measured in the same run: a bare pipe, a bare interpreter that iterates over the same lines.

    python benchmarks/streams.py [--bytes N] [--lines N] [--items N] [--waiting N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import common

import aviato

READ_LINES = "import subprocess as s, sys\nfor line in s.Popen(['seq', sys.argv[1]], stdout=s.PIPE, text=True).stdout: pass"


def peak_growth_bytes(action: object) -> int:
    """How much the peak of this process's resident memory grew in a call."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    action()  # type: ignore[operator]
    return _status("VmHWM") - before


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def megabytes(count: int, seconds: float) -> str:
    return f"{count / seconds / 1e6:,.0f} MB/s"


def measure_stdout(sandbox: aviato.Sandbox, count: int, rounds: int) -> tuple[list[list[str]], dict[str, object]]:
    """A gigabyte out of a command: kept up to the cap, and iterated."""
    command = ["head", "-c", str(count), "/dev/zero"]

    def collect() -> None:
        assert sandbox.exec(command).result().stdout_bytes_total == count

    def iterate() -> None:
        assert sum(len(text) for text in sandbox.exec(command).stdout) == count

    growth = peak_growth_bytes(collect)
    collected, iterated, pipe = common.Series("collected"), common.Series("iterated"), common.Series("bare pipe")
    argv = ["sh", "-c", f"head -c {count} /dev/zero | cat > /dev/null"]
    with common.Floor(argv) as floor:
        cases = ((collected, common.timed(collect)), (iterated, common.timed(iterate)), (pipe, floor))
        common.alternate(rounds, *cases, warmup=1)
    rows = [[f"stdout, {series.name}", megabytes(count, series.median), ""] for series in (collected, iterated, pipe)]
    for row, series in zip(rows[:2], (collected, iterated), strict=True):
        row[2] = str(common.ratio(series, pipe))
    rows.append(["the client's peak memory, collected", f"{growth / 2**20:+.0f} MiB", ""])
    facts = {"stdout_seconds": collected.seconds, "iterated_seconds": iterated.seconds, "pipe_seconds": pipe.seconds}
    return rows, {**facts, "peak_growth_bytes": growth, "pipe_argv": argv}


def measure_lines(sandbox: aviato.Sandbox, count: int, rounds: int) -> tuple[list[list[str]], dict[str, object]]:
    """Lines, one at a time, from blocking and from async code."""
    command = ["seq", str(count)]

    def blocking() -> None:
        assert sum(1 for _ in sandbox.exec(command).stdout.lines()) == count

    async def read() -> None:
        assert len([line async for line in sandbox.exec(command).stdout.lines()]) == count

    plain, awaited, bare = common.Series("for"), common.Series("async for"), common.Series("bare")
    argv = ["python3", "-I", "-c", READ_LINES, str(count)]
    with common.Floor(argv) as floor:
        cases = ((plain, common.timed(blocking)), (awaited, common.timed(lambda: asyncio.run(read()))), (bare, floor))
        common.alternate(rounds, *cases, warmup=1)
    rows = [
        [f"lines, {series.name}", f"{count / series.median:,.0f} lines/s", str(common.ratio(series, bare))]
        for series in (plain, awaited)
    ]
    rows.append(["lines, a bare interpreter (its start included)", f"{count / bare.median:,.0f} lines/s", ""])
    return rows, {"for_seconds": plain.seconds, "async_seconds": awaited.seconds, "bare_seconds": bare.seconds, "argv": argv}


def measure_wait(sandbox: aviato.Sandbox, count: int) -> tuple[list[list[str]], dict[str, object]]:
    """What `wait(num_returns=1)` itself costs over many items."""
    pending: list[aviato.Process] = [sandbox.exec(["true"]) for _ in range(count)]
    begin, own = time.perf_counter(), time.thread_time()
    while pending:
        _, pending = aviato.wait(pending, num_returns=1)
    own, wall = time.thread_time() - own, time.perf_counter() - begin
    rows = [[f"a wait(num_returns=1) loop over {count:,}", f"{own:.2f} s of its own", f"{wall:.1f} s in all"]]
    return rows, {"own_seconds": own, "wall_seconds": wall}


def measure_waiting(session: aviato.Session, sandbox: aviato.Sandbox, count: int) -> tuple[list[list[str]], dict[str, object]]:
    """An exec beside many that wait."""
    alone, beside = common.Series("alone"), common.Series("beside")
    case = common.timed(lambda: sandbox.exec(["true"]).result())
    common.alternate(100, (alone, case))
    boxes = [session.sandbox() for _ in range(-(-count // 250))]
    waiting = [boxes[index % len(boxes)].exec(["cat"], stdin=True) for index in range(count)]
    for process in waiting:
        process.stdin.write(b"x").result()
    common.alternate(100, (beside, case))
    begin = time.perf_counter()
    for process in waiting:
        process.stdin.close()
    assert all(process.result().stdout == "x" for process in waiting)
    ending = time.perf_counter() - begin
    rows = [
        [
            f"exec of true beside {count:,} waiting",
            f"{common.milliseconds(beside.median)} ms",
            str(common.ratio(beside, alone)),
        ],
        [f"the end of {count:,} at once", f"{ending:.2f} s", ""],
    ]
    return rows, {"alone_seconds": alone.seconds, "beside_seconds": beside.seconds, "ending_seconds": ending}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30, help="of stdout (default: 1 GiB)")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=10_000, help="of the wait loop")
    parser.add_argument("--waiting", type=int, default=1_000, help="commands at the same time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="where to write the result (default: benchmarks/results/streams.json)")
    arguments = parser.parse_args()
    common.describe_machine()
    rows: list[list[str]] = []
    content: dict[str, object] = {}
    with aviato.Session() as session:
        sandbox = session.sandbox().wait()
        for name, (more, facts) in {
            "stdout": measure_stdout(sandbox, arguments.bytes, arguments.rounds),
            "lines": measure_lines(sandbox, arguments.lines, arguments.rounds),
            "wait": measure_wait(sandbox, arguments.items),
            "waiting": measure_waiting(session, sandbox, arguments.waiting),
        }.items():
            rows += more
            content[name] = facts
    common.table("streams and waiting (medians)", ["what", "figure", "× floor (90 %)"], rows)
    common.console.print("result:", str(common.write_json("streams", content, arguments.json)), soft_wrap=True)


if __name__ == "__main__":
    main()
