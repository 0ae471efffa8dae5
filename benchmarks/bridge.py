"""What the way from blocking code to the loop costs: a command by `.result()`, by `await` on a handle, and on `AsyncClient`.

The bare hop is `asyncio.run_coroutine_threadsafe(…).result()` to a loop on another thread, in a bare interpreter, beside an
operation of aviato's that does nothing. The processor time of the client is that of all its threads.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import aviato
from aviato.bench.floor import TRUE_ARGV, Bare, Floor
from aviato.bench.latency import awaiting, client, executing
from aviato.bench.report import Report, Table
from aviato.bench.run import Run, Size
from aviato.bench.script import main
from aviato.bench.series import Series, alternate, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = {"rounds": Size(200, 15, "of each way"), "at_once": Size(50, 5, "commands of a gather")}

RESULT, AWAIT_HANDLE = "handle, .result()", "handle, await"
CLIENT, CLIENT_UVLOOP = "AsyncClient, await", "AsyncClient, await, uvloop"


def measure(run: Run) -> Report:
    """All of it."""
    report, cpu = Report("bridge"), dict[str, list[float]]()
    with ExitStack() as stack:
        session = stack.enter_context(run.session())
        cases = {
            RESULT: stack.enter_context(executing(session)),
            AWAIT_HANDLE: stack.enter_context(awaiting_handle(session)),
            CLIENT: stack.enter_context(awaiting(run)),
        }
        if (factory := uvloop()) is not None:
            cases[CLIENT_UVLOOP] = stack.enter_context(awaiting(run, factory))
        alone = [(Series(name), counted(case, cpu.setdefault(name, []))) for name, case in cases.items()]
        floor, hop, ours = (
            Series("  floor: subprocess.run true"),
            Series("  floor: a bare hop to a loop thread"),
            Series("an operation that does nothing"),
        )
        report.floors["true"] = TRUE_ARGV
        more: list[tuple[Series, Callable[[], float]]] = [
            (floor, stack.enter_context(Floor(TRUE_ARGV))),
            (hop, stack.enter_context(Bare("floors.py", {"hop": True}))),
            (ours, nothing()),
        ]
        alternate(run["rounds"], *alone, *more)
        many = [
            (Series(f"{run['at_once']} at once: {name}"), case)
            for name, case in gathering(run, session, stack, run["at_once"]).items()
        ]
        alternate(max(3, run["rounds"] // 10), *many)
    report.times("exec of true", [*((series, floor) for series, _ in alone), (floor, None)])
    report.times("the hop alone", [(ours, hop), (hop, None)])
    report.times("many at once", [(series, many[-1][0]) for series, _ in many])
    spent = Table("processor time of the client, each exec", ("", "p50 ms"))
    for name, seconds in cpu.items():
        spent.rows.append([name, f"{sorted(seconds)[len(seconds) // 2] * 1e3:.2f}"])
        report.figures[name]["client_cpu_seconds"] = seconds
    report.tables.append(spent)
    handle, bare = (
        next(series for series, _ in alone if series.name == RESULT),
        next(series for series, _ in alone if series.name == CLIENT),
    )
    report.ratios["a handle beside AsyncClient"] = ratio(handle, bare)
    return report


def uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loops of uvloop, where it is installed."""
    try:
        import uvloop as module
    except ImportError:
        return None
    return module.new_event_loop


def counted(case: Callable[[], float], into: list[float]) -> Callable[[], float]:
    """The case, and what it takes of processor time in all threads of this process."""

    def count() -> float:
        begin = time.process_time()
        seconds = case()
        into.append(time.process_time() - begin)
        return seconds

    return count


@contextmanager
def awaiting_handle(session: aviato.Session) -> Iterator[Callable[[], float]]:
    """A command by `await` of a handle, on a loop of the caller's."""

    async def case() -> float:
        begin = time.perf_counter()
        await sandbox.exec(TRUE_ARGV)
        return time.perf_counter() - begin

    with asyncio.Runner() as runner, session.sandbox() as sandbox:
        yield lambda: runner.run(case())


def nothing() -> Callable[[], float]:
    """An operation of aviato's whose coroutine does nothing: what its bridge takes."""
    from aviato.bridge.operation import OperationRef

    async def done() -> None:
        return None

    def case() -> float:
        begin = time.perf_counter()
        OperationRef.start(done(), name="nothing").result()
        return time.perf_counter() - begin

    return case


def gathering(run: Run, session: aviato.Session, stack: ExitStack, count: int) -> dict[str, Callable[[], float]]:
    """So many commands at once, by handles from blocking code, by `await` of handles, and on `AsyncClient`."""
    sandbox = stack.enter_context(session.sandbox())
    runner = stack.enter_context(asyncio.Runner())
    loop, other = stack.enter_context(client(run))

    def results() -> float:
        begin = time.perf_counter()
        aviato.results([sandbox.exec(TRUE_ARGV) for _ in range(count)])
        return time.perf_counter() - begin

    async def gather(target: Any) -> float:
        begin = time.perf_counter()
        await asyncio.gather(*(target.exec(TRUE_ARGV) for _ in range(count)))
        return time.perf_counter() - begin

    return {
        RESULT: results,
        AWAIT_HANDLE: lambda: runner.run(gather(sandbox)),
        CLIENT: lambda: loop.run(gather(other)),
    }


if __name__ == "__main__":
    main("bridge", sys.modules[__name__])
