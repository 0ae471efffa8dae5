"""A batch: a fresh sandbox each, `python3 -I -c`, its output collected, the sandbox stopped.

Beside it the same programs in `bwrap --unshare-all` and as bare subprocesses, as many at once, from threads of a bare
interpreter, and in sandboxes that aviato-init alone makes; batches in alternation. Two ways are measured: a sandbox of which a
command is asked and that is stopped then, and `evaluate`, which does all of it in one request. The interpreter is the same on
all sides.

Code with three tests is graded besides, in each mode: in one process, and `separate` with tests that are compared by `evaluate`
itself and with tests that need a grader's sandbox.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from aviato.bench.floor import NO_BWRAP, Floor, bwrap_argv
from aviato.bench.init_floor import InitFloor, init_floor, tell
from aviato.bench.report import Bars, Report, Table, percent
from aviato.bench.run import Run, Size
from aviato.bench.series import Series, alternate, ratio
from aviato.bench.use import Use, used
from aviato.exceptions import AviatoError

if TYPE_CHECKING:
    from collections.abc import Callable

    import aviato

SIZES = {
    "rounds": Size(7, 2, "batches of each kind"),
    "items": Size(256, 16, "in a batch"),
    "at_once": Size(2 * len(os.sched_getaffinity(0)), 4, "items at the same time"),
}

SANDBOX, EVALUATE = "Sandbox: exec, stop", "evaluate(Task(command=…))"
IN_PROCESS, SEPARATE, GRADER = "evaluate: in_process", "evaluate: separate", "evaluate: separate, a grader"
SUBPROCESS, BWRAP, ALONE = "subprocess.run", "bwrap --unshare-all", "aviato-init alone"
BATCH = "batch: rate of bwrap's"
PROGRAM = "print(6 * 7)"
WHERE = ["python3", "-I", "-c", "import os, sys; print(os.path.realpath(sys.executable))"]


def measure(run: Run) -> Report:
    """All of it."""
    report, items, at_once = Report("throughput"), run["items"], run["at_once"]
    with ExitStack() as stack:
        session = stack.enter_context(run.session())
        with session.sandbox() as sandbox:
            python = sandbox.exec(WHERE, check=True).result().stdout.strip()
        command = [python, "-I", "-c", PROGRAM]
        ways = {SANDBOX: one_after_the_other, EVALUATE: evaluated}
        ways |= {name: functools.partial(graded, name) for name in (IN_PROCESS, SEPARATE, GRADER)}
        uses: dict[str, list[Use]] = {name: [] for name in ways}
        failed: dict[str, int] = dict.fromkeys(ways, 0)

        def batch(name: str, *, watched: bool = False) -> float:
            with used(run, facade=watched, answers=watched) as use:
                begin = time.perf_counter()
                failed[name] += ways[name](session, command, items, at_once)
                seconds = time.perf_counter() - begin
            uses[name].append(use)
            return seconds

        def case(name: str) -> Callable[[], float]:
            return lambda: batch(name)

        cases = [(Series(name), case(name)) for name in ways]
        floors = {SUBPROCESS: command, BWRAP: bwrap_argv(command)}
        for name, argv in floors.items():
            if argv is None:
                report.notes.append(NO_BWRAP)
                continue
            report.floors[f"{name}, {at_once} at once"] = argv
            cases.append((Series(name), stack.enter_context(Floor(argv, items, at_once))))
        found, inits = stack.enter_context(init_floor(run, report, at_once)), list[tuple[Series, InitFloor]]()
        if found is not None:
            inits = [(Series(ALONE), stack.enter_context(found.batches(items, at_once, command)))]
        alternate(run["rounds"], *cases, *inits, warmup=1)
        for name in ways:
            # By itself: who asks the server all the time takes from what is compared, and of the floors nothing is asked.
            batch(name, watched=True)
    _tell(report, [series for series, _ in (*cases, *inits)], uses, failed, items)
    if inits:
        tell(report, [(*inits[0], items)])
    return report


def one_after_the_other(session: aviato.Session, command: list[str], items: int, at_once: int) -> int:
    """Each item makes a sandbox, asks for a command in it and stops it; how many failed."""

    async def batch() -> int:
        places = asyncio.Semaphore(at_once)

        async def item() -> bool:
            async with places:
                sandbox = session.sandbox(start=False)
                try:
                    return (await sandbox.exec(command)).stdout == "42\n"
                except AviatoError:
                    return False
                finally:
                    await sandbox.stop(0, missing_ok=True)

        return (await asyncio.gather(*(item() for _ in range(items)))).count(False)

    return asyncio.run(batch())


def evaluated(session: aviato.Session, command: list[str], items: int, at_once: int) -> int:
    """By `evaluate`; how many failed."""
    from aviato.rl import Task, evaluate

    tasks = [Task(command=command)] * items
    outcomes = evaluate(tasks, session=session, max_concurrency=at_once).result()
    return sum(outcome.result is None or outcome.result.stdout != "42\n" for outcome in outcomes)


def graded(name: str, session: aviato.Session, command: list[str], items: int, at_once: int) -> int:
    """Code with tests, by `evaluate`; how many failed."""
    from aviato.rl import Task, evaluate

    tests = [f"{'n = 1; ' if name == GRADER else ''}assert f({n}) == {2 * n}" for n in range(3)]
    mode = "in_process" if name == IN_PROCESS else "separate"
    tasks = [Task(code=f"def f(n): return 2 * n  # {item}", tests=tests, grading=mode) for item in range(items)]
    outcomes = evaluate(tasks, session=session, max_concurrency=at_once, progress=False).result()
    return sum(not outcome.passed for outcome in outcomes)


def _tell(report: Report, found: list[Series], uses: dict[str, list[Use]], failed: dict[str, int], items: int) -> None:
    columns = ("", "p50 items/s", "slowest", "succeeded", f"× {SUBPROCESS}", f"× {BWRAP} (90 %)")
    table, bars, meanwhile = (
        Table(f"batches of {items}", columns),
        Bars("rate", f"× {BWRAP}"),
        Table("meanwhile", ("", *Use.COLUMNS)),
    )
    floors = {series.name: series for series in found if series.name in (SUBPROCESS, BWRAP)}
    for series in found:
        lost, done = failed.get(series.name, 0), items * len(uses.get(series.name, series.seconds))
        rates = [f"{items / series.median:.1f}", f"{items / max(series.seconds):.1f}", percent(1 - lost / done)]
        beside = [ratio(series, floors[name]).inverse() if name in floors else None for name in (SUBPROCESS, BWRAP)]
        table.rows.append([series.name, *rates, *(quotient or "–" for quotient in beside)])
        report.figures[series.name] = {"seconds": series.seconds, "failed": lost}
        if lost:
            report.problems.append(f"{series.name}: {lost} of {done} items failed")
        if beside[1] is not None and series.name != BWRAP:
            if series.name == ALONE:
                report.init[BATCH] = beside[1]
            bars.bars.append((series.name, beside[1].value, beside[1].low, beside[1].high))
        if series.name in uses:
            use = _together(uses[series.name])
            meanwhile.rows.append([series.name, *use.cells()])
            report.figures[series.name]["meanwhile"] = use.figures()
            if beside[1] is not None:
                report.ratios[f"{BATCH}, {series.name}"] = beside[1]
                report.costs[BATCH] = f"{items / floors[BWRAP].median:.1f} /s"
            assert beside[0] is not None
            report.ratios[f"batch: rate of bare subprocesses', {series.name}"] = beside[0]
    ways = [name for name in (f"{BATCH}, {way}" for way in (SANDBOX, EVALUATE)) if name in report.ratios]
    if ways:
        report.ratios[BATCH] = max((report.ratios[name] for name in ways), key=lambda quotient: quotient.value)
    report.tables += [table, meanwhile]
    report.plots.append(bars)


def _together(uses: list[Use]) -> Use:
    """What several stretches used."""
    whole = Use()
    for use in uses:
        whole.add(use)
    return whole
