"""What many live sandboxes hold: proportional memory (PSS) of the server, its zygote and every process 1.

They are made one after the other, with a command in each, and all stay. The machine's available memory falls by what the
kernel holds for them, too (namespaces, mounts, sockets): it is printed beside. Whether the rate stays flat is told by the
first and the last third. Among them aviato-init alone makes sandboxes that stay, too. Then as many are made in bwrap and as
many by aviato-init alone, each kind by itself: what more namespaces and mounts cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.bench.growth import BWRAP, Growth, drift, floors_grown, grown, median, rate
from aviato.bench.report import Lines, Report, Table, milliseconds, percent
from aviato.bench.run import Run, Size
from aviato.bench.series import Ratio, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.bench.growth import Stage
    from aviato.bench.series import Series

SIZES = {
    "rounds": Size(1, 1, "of all of it"),
    "live": Size(1_000, 20, "sandboxes in the end"),
    "step": Size(100, 10, "sandboxes a line"),
}

EACH, FAILED, RATE = (
    "live sandboxes: MiB each (PSS), server included",
    "live sandboxes: failures",
    "live sandboxes: create rate, last third to first",
)
UNREADABLE = (
    "the memory of the server cannot be read: another machine's, or process 1s that hide from their own user (root sees them)"
)
MIB = 2**20


def measure(run: Run) -> Report:
    """All of it."""
    report = Report("memory")
    count = run.room(report, run["live"])
    tell(report, grown(run, report, count), run["live"])
    tell_floors(report, floors_grown(run, report, count), complete=run["live"] == count)
    return report


def tell(report: Report, growth: Growth, wanted: int) -> None:
    """Tables, figures and targets of what was measured; with fewer sandboxes than were wanted no target is."""
    table = Table(
        "live sandboxes",
        (
            "live",
            "server and sandboxes, MiB (PSS)",
            "MiB each",
            "the machine's, MiB each",
            "creates a second",
            "create p50 ms",
            "aviato-init alone, p50 ms",
            "succeeded",
        ),
    )
    for stage in growth.stages:
        taken = (growth.empty_available_bytes - stage.available_bytes) / stage.live / MIB
        table.rows.append(
            [
                f"{stage.live:,}",
                *(
                    [f"{stage.server_bytes / MIB:.1f}", f"{stage.server_bytes / stage.live / MIB:.2f}"]
                    if stage.server_bytes
                    else ["–", "–"]
                ),
                f"{taken:.2f}",
                f"{rate(stage.creates):.1f}",
                milliseconds(median(stage.creates.seconds)),
                milliseconds(median(stage.alone.seconds)),
                percent(stage.creates.success),
            ]
        )
        report.problems += [f"{stage.creates.name}: {error}" for error in stage.creates.errors]
    report.tables.append(table)
    if growth.empty_bytes is not None:
        report.notes.append(
            f"the server held {growth.empty_bytes / MIB:.0f} MiB before; one that has worked holds more than a new one"
        )
    last = growth.stages[-1]
    if last.server_bytes is None:
        report.notes.append(UNREADABLE)
    if last.live == wanted:
        if last.server_bytes is not None:
            report.values[EACH] = last.server_bytes / last.live / MIB
        report.values[FAILED] = float(sum(len(stage.creates.errors) for stage in growth.stages))
        if last.alone.seconds:
            report.init[RATE] = flat([stage.alone for stage in growth.stages])
        report.ratios[RATE] = flat([stage.creates for stage in growth.stages])
    report.figures["stages"] = [figures(stage) for stage in growth.stages]
    report.figures["empty_bytes"] = growth.empty_bytes
    lives = [float(stage.live) for stage in growth.stages]
    held = [stage.server_bytes / stage.live / MIB for stage in growth.stages if stage.server_bytes]
    if len(held) == len(lives):
        report.plots.append(Lines("memory of each", "live sandboxes", "MiB (PSS)", {"server included": (lives, held)}))
    report.plots.append(
        Lines("creates", "live sandboxes", "a second", {"rate": (lives, [rate(stage.creates) for stage in growth.stages])})
    )


def tell_floors(report: Report, found: dict[str, list[Series]], *, complete: bool) -> None:
    """Rates of the floors as they grow; beside the target only if there were as many as it is about."""
    if not found:
        return
    sizes = [step.name.rpartition(" ")[2] for step in next(iter(found.values()))]
    table = Table("floors: creates a second, by how many live", ("", *sizes, "last third to first (90 %)"))
    for name, steps in found.items():
        quotient = flat(steps)
        table.rows.append([name, *(f"{rate(step):.0f}" for step in steps), quotient])
        report.figures[f"{name}, staying"] = {step.name: step.seconds for step in steps}
        report.values[f"{name}: create rate, last third to first"] = quotient
        if complete and name == BWRAP:
            report.costs[RATE] = f"bwrap: {quotient.value:.2f}"
    report.tables.append(table)


def flat(steps: Sequence[Series]) -> Ratio:
    """The rate of the last third as a part of that of the first."""
    first, last = drift(steps)
    return ratio(last, first).inverse()


def figures(stage: Stage) -> dict[str, object]:
    """For JSON."""
    return {
        "live": stage.live,
        "create_seconds": stage.creates.seconds,
        "floor_seconds": stage.floors.seconds,
        "init_seconds": stage.alone.seconds,
        "exec_seconds": stage.executes.seconds,
        "server_bytes": stage.server_bytes,
        "available_bytes": stage.available_bytes,
        "meanwhile": stage.use.figures(),
    }
