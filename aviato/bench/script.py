"""Runs benchmarks: sizes from flags, tables to the terminal, JSON and plots to a folder."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import aviato
from aviato.bench import plot
from aviato.bench.machine import description, machine
from aviato.bench.report import Report, Table
from aviato.bench.run import Run, Size
from aviato.bench.use import Use, used
from aviato.exceptions import AviatoError
from aviato.installation import extra_command
from aviato.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKOUT = Path(aviato.__file__).resolve().parents[1] / "benchmarks"
"""Where this is one: the scripts that measure the project itself."""


def _width() -> int:
    """Of the tables: they are as wide in a pipe as on a terminal."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else 120


console = Console(width=_width(), markup=False, emoji=False)


def load(name: str) -> Any:
    """The module of a benchmark: `SIZES` and `measure`."""
    return import_module(f"aviato.bench.{name}")


def results() -> Path:
    """Where results go if nobody says: `benchmarks/results` of a checkout, else `aviato-bench` here."""
    return CHECKOUT / "results" if CHECKOUT.is_dir() else Path("aviato-bench")


def sizes(available: Mapping[str, Size], quick: bool, given: Mapping[str, int | None]) -> dict[str, int]:
    """What is given, else the default."""
    chosen = {name: size.quick if quick else size.value for name, size in available.items()}
    return chosen | {name: value for name, value in given.items() if value is not None and name in chosen}


def perform(module: Any, run: Run, target: Path | None) -> Report:
    """Run one, print it, and write JSON and PNG.

    Args:
        module: its `measure`.
        run: where and how large.
        target: a folder, or the JSON file itself.
    """
    with used(run) as use:
        report: Report = module.measure(run)
    if not any("client CPU" in table.columns for table in report.tables):
        report.tables.append(Table("meanwhile", Use.COLUMNS, [use.cells()]))
    report.figures["meanwhile"] = use.figures()
    return publish(report, target)


def publish(report: Report, target: Path | None) -> Report:
    """Print a report and write it; arguments as `perform`."""
    report.show(console)
    target = target or results()
    path = target if target.suffix == ".json" else target / f"{report.name}.json"
    said = [str(path)]
    try:
        report.write(path)
        if report.plots and plot.draw(f"aviato: {report.name}", report.plots, path.with_suffix(".png")):
            said.append(str(path.with_suffix(".png")))
        elif report.plots:
            said.append(f"no plot, since matplotlib is not installed; install it with: {extra_command('bench')}")
    except OSError as error:  # what was measured is in the tables all the same
        report.problems.append(f"the figures could not be written: {error}")
        console.print("failed:", report.problems[-1], highlight=False, soft_wrap=True)
    else:
        console.print("written to", ", ".join(said), highlight=False, soft_wrap=True)
    return report


def describe_machine() -> None:
    """Print one line about the machine."""
    console.print(description(machine()), highlight=False)


def add_sizes(parser: argparse.ArgumentParser, available: Mapping[str, Size]) -> None:
    """The flags of every benchmark."""
    for size, meant in available.items():
        said = f"{meant.help} (default: {meant.value:,}; {meant.quick:,} with --quick)"
        parser.add_argument(f"--{size.replace('_', '-')}", type=int, dest=size, help=said)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it runs")
    parser.add_argument("--base-url", help="server to measure (default: AVIATO_BASE_URL, else the embedded one)")
    parser.add_argument("--json", type=Path, help="file or folder for the figures and the plot (default: benchmarks/results)")


def main(name: str, module: Any = None) -> None:
    """A benchmark as a program: `python benchmarks/NAME.py`."""
    module = module or load(name)
    parser = argparse.ArgumentParser(description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(parser, module.SIZES)
    given = vars(parser.parse_args())
    describe_machine()
    run = Run(sizes(module.SIZES, given["quick"], given), given["base_url"], given["quick"])
    try:
        report = perform(module, run, given["json"])
    except AviatoError as error:
        sys.exit(f"{name}: {type(error).__name__}: {error}")
    sys.exit(1 if report.problems else 0)


def several(
    chosen: Mapping[str, Any], *, base_url: str | None, rounds: int | None, quick: bool, folder: Path | None
) -> tuple[dict[str, Report], dict[str, str]]:
    """Benchmarks one after the other: the reports, and why others broke off.

    Args:
        chosen: their modules, by name.
        base_url: of the server.
        rounds: of each.
        quick: with small sizes.
        folder: for figures and plots.
    """
    if rounds is not None and rounds < 1:
        raise ValueError(f"--rounds must be 1 or more, got {rounds}")
    if folder is not None:
        _make(folder.parent if folder.suffix == ".json" else folder)
    describe_machine()
    reports: dict[str, Report] = {}
    failures: dict[str, str] = {}
    # Nothing moves while something is measured: the processors are what is measured.
    with Progress("bench", len(chosen), ticking=False) as progress:
        for name, module in chosen.items():
            progress.what = f"bench: {name}"
            progress.show()
            run = Run(sizes(module.SIZES, quick, {"rounds": rounds}), base_url, quick)
            try:
                reports[name] = perform(module, run, folder)
            except Exception as error:  # whatever it was, the others are measured all the same
                failures[name] = f"{type(error).__name__}: {error}"
                console.print(f"failed: {name}: {failures[name]}", highlight=False, soft_wrap=True)
                if not isinstance(error, (AviatoError, RuntimeError)):
                    traceback.print_exception(error)
            progress.advance("failed" if name in failures else "")
    return reports, failures


def status(reports: Mapping[str, Report], failures: Mapping[str, str]) -> int:
    """The exit status, which is 1 where something failed; what did is said once more."""
    for name, reason in failures.items():
        console.print(f"failed: {name}: {reason}", highlight=False, soft_wrap=True)
    return 1 if failures or any(report.problems for report in reports.values()) else 0


def _make(folder: Path) -> None:
    """Have the folder for figures before anything is measured.

    Raises:
        ValueError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise ValueError(f"--json {str(folder)!r} cannot be made: {error.strerror}") from None
    if not writable:
        raise ValueError(f"--json {str(folder)!r} cannot be written to")
