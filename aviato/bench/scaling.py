"""What one more sandbox costs as there are more of them: a create, a command, the processor time of client and server, a stop.

They are made one after the other and all stay; between them runs bwrap, and aviato-init alone makes sandboxes that stay, so
that what the kernel charges for more namespaces, mounts and memory is seen by
itself. The cost must stay flat: the last third is compared with the first.
"""

from __future__ import annotations

from aviato.bench.growth import drift, grown, median
from aviato.bench.memory import figures
from aviato.bench.report import Lines, Report, Table, milliseconds, percent
from aviato.bench.run import Run, Size
from aviato.bench.series import Series, ratio

SIZES = {
    "rounds": Size(1, 1, "of all of it"),
    "live": Size(1_000, 20, "sandboxes in the end"),
    "step": Size(100, 10, "sandboxes a line"),
}

CREATE, EXEC = "create, last third to first", "exec, last third to first"
BWRAP, ALONE = "bwrap, last third to first", "aviato-init alone, last third to first"


def measure(run: Run) -> Report:
    """All of it."""
    report = Report("scaling")
    growth = grown(run, report, run.room(report, run["live"]))
    stages = growth.stages
    table = Table(
        "cost by number",
        (
            "live",
            "create p50 ms",
            "p95 ms",
            "bwrap p50 ms",
            "× bwrap",
            "exec p50 ms",
            "client CPU",
            "server CPU",
            "sandboxes' CPU",
            "others' CPU",
            "succeeded",
        ),
    )
    for stage in stages:
        floor, made = median(stage.floors.seconds), median(stage.creates.seconds)
        times = [milliseconds(made), milliseconds(stage.creates.percentile(95)), milliseconds(floor), f"{made / floor:.2f}"]
        used = stage.use.cells(len(stage.creates.seconds))[:4]
        table.rows.append(
            [f"{stage.live:,}", *times, milliseconds(median(stage.executes.seconds)), *used, percent(stage.creates.success)]
        )
        report.problems += [f"{stage.creates.name}: {error}" for error in stage.creates.errors]
    report.tables.append(table)
    report.times("stops of all of them, one after the other", [(growth.stops, None)])
    thirds: list[tuple[str, tuple[Series, Series]]] = [
        (CREATE, drift([stage.creates for stage in stages])),
        (EXEC, drift([stage.executes for stage in stages])),
    ]
    if growth.floor_argv is not None:
        report.floors["bwrap"] = growth.floor_argv
        thirds.append((BWRAP, drift([stage.floors for stage in stages])))
    if stages[0].alone.seconds:
        thirds.append((ALONE, drift([stage.alone for stage in stages])))
    flat = Table("flat?", ("", "× the first third (90 %)"))
    for name, (first, last) in thirds:
        report.ratios[name] = ratio(last, first)
        flat.rows.append([name, report.ratios[name]])
    report.tables.append(flat)
    report.figures["stages"] = [figures(stage) for stage in stages]
    lives = [float(stage.live) for stage in stages]
    lines = {
        "create": (lives, [median(stage.creates.seconds) * 1e3 for stage in stages]),
        "bwrap": (lives, [median(stage.floors.seconds) * 1e3 for stage in stages]),
    }
    report.plots.append(Lines("cost by number", "live sandboxes", "ms", lines))
    return report
