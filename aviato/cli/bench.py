"""`aviato bench`: the benchmarks, against any server."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from aviato.cli import common, numbers
from aviato.exceptions import AviatoError


@click.command(name="bench")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--list", "listed", is_flag=True, help="Say what there is.")
@click.option("--targets", is_flag=True, help="Measure what the targets are about, and end with their table.")
@click.option("--check", is_flag=True, help="Compare ratios with the recorded ones; the exit status is 1 if one is slower.")
@click.option("--record", is_flag=True, help="Record the ratios of this machine for --check.")
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help="The recorded ratios. [aviato's own]")
@click.option("--slow-down", type=numbers.PART, default=0.0, metavar="PART", help="Busy-wait in what --check measures.")
@click.option(
    "--busy", type=numbers.PART, metavar="PART", help="Of the processors is what others may have while --check measures. [0.2]"
)
@click.option("--patience", type=numbers.SECONDS, metavar="S", help="How long --check waits for that, and measures. [150]")
@click.option("--rounds", type=numbers.COUNT, metavar="N", help="Rounds of each benchmark. [each its own]")
@click.option("--quick", is_flag=True, help="Small sizes: to see that it runs.")
@click.option("--json", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Where figures and plots go.")
@common.base_url
def command(
    *,
    names: tuple[str, ...],
    listed: bool,
    targets: bool,
    check: bool,
    record: bool,
    baseline: Path | None,
    slow_down: float,
    busy: float | None,
    patience: float | None,
    rounds: int | None,
    quick: bool,
    folder: Path | None,
    base_url: str | None,
) -> None:
    """Measure how fast sandboxes are on this machine: all benchmarks, or those that are named.

    Every figure is a ratio to a floor that is measured in the same run. With no NAME all of them run, and the table of targets
    follows.
    """
    from aviato.bench import script

    available = script.names()
    if listed:
        click.echo("\n".join(f"{name:<13}{what}" for name, what in available.items()))
        return
    unknown = [name for name in names if name not in available]
    if unknown:
        raise click.UsageError(f"there is no benchmark {unknown[0]!r}; there are {', '.join(available)}")
    if (check or record) and names:
        flag = "--record" if record else "--check"
        raise click.UsageError(f"{flag} measures what is recorded, whatever is named; leave {names[0]} out")
    try:
        if check or record:
            asked = {"rounds": rounds, "foreign": busy, "patience_seconds": patience}
            given = {name: value for name, value in asked.items() if value is not None}
            status = script.check(base_url, baseline, slow_down, recording=record, **given)
        else:
            status = script.several(names, targeted=targets, base_url=base_url, rounds=rounds, quick=quick, folder=folder)
    except (AviatoError, ValueError) as error:
        click.echo(f"aviato: {common.printable(str(error))}", err=True)
        status = common.FAILED
    sys.exit(status)
