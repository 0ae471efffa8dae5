"""What episodes do: a sandbox and its first operation, of every kind, and a command beside a process that lives.

A real episode is never plain: it gives input, leaves something running, writes files. Each kind is timed from the call that
makes the sandbox to the end of the operation, in alternation with `true`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from aviato.bench.floor import NO_BWRAP, TRUE_ARGV, Floor, bwrap_argv
from aviato.bench.latency import creating, run_true
from aviato.bench.report import Report
from aviato.bench.run import Run, Size
from aviato.bench.series import Series, alternate, timed

if TYPE_CHECKING:
    from collections.abc import Callable

    import aviato

SIZES = {"rounds": Size(60, 4, "of each kind")}

PLAIN = "create + true"
MEBIBYTE = 1 << 20
ALONE, BESIDE = "exec of true, nothing else inside", "exec of true beside a process that lives"


def _background(sandbox: aviato.Sandbox) -> None:
    sandbox.exec(["/bin/sh", "-c", "sleep 60 >/dev/null 2>&1 & true"]).result()


def _two(sandbox: aviato.Sandbox) -> None:
    both = [sandbox.exec(TRUE_ARGV) for _ in range(2)]
    for process in both:
        process.result()


def _file(sandbox: aviato.Sandbox) -> None:
    sandbox.write_file("main.py", b"print(6 * 7)\n" * 100).result()
    run_true(sandbox)


KINDS: dict[str, Callable[[aviato.Sandbox], object]] = {
    "create + cat with input": lambda sandbox: sandbox.exec(["/bin/cat"], stdin=b"in\n").result(),
    "create + true on a terminal": lambda sandbox: sandbox.shell(TRUE_ARGV).result(),
    "create + sh that leaves a process": _background,
    "create + a listing": lambda sandbox: sandbox.list_files("/").result(),
    "create + two at once": _two,
    "create + a file of 1 KiB and true": _file,
    "create + a MiB of output": lambda sandbox: sandbox.exec(["/usr/bin/head", "-c", str(MEBIBYTE), "/dev/zero"]).result(),
}


def measure(run: Run) -> Report:
    """All of it."""
    report, plain, bwrap = Report("episodes"), Series(PLAIN), bwrap_argv()
    alone, beside, floor = Series(ALONE), Series(BESIDE), Series("  floor: bwrap --unshare-all true")
    with ExitStack() as stack:
        session = stack.enter_context(run.session())
        kinds = [(Series(name), creating(session, operation)) for name, operation in KINDS.items()]
        quiet, busy = (stack.enter_context(session.sandbox()) for _ in range(2))
        busy.exec(["/bin/sleep", "600"])
        cases = [(plain, creating(session)), *kinds]
        cases += [(series, timed(partial(run_true, sandbox))) for series, sandbox in ((alone, quiet), (beside, busy))]
        if bwrap is None:
            report.notes.append(NO_BWRAP)
        else:
            report.floors["bwrap"] = bwrap
            cases.append((floor, stack.enter_context(Floor(bwrap))))
        alternate(run["rounds"], *cases)
    rows: list[tuple[Series, Series | None]] = [(plain, floor if floor.seconds else None)]
    rows += [(floor, None)] if floor.seconds else []
    report.times("a sandbox and its first operation", [*rows, *((series, plain) for series, _ in kinds)])
    report.times("a command in a sandbox that runs", [(alone, None), (beside, alone)])
    return report
