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
@click.option("--rounds", type=numbers.COUNT, metavar="N", help="Rounds of each benchmark. [each its own]")
@click.option("--quick", is_flag=True, help="Small sizes: to see that it runs.")
@click.option("--json", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Where figures and plots go.")
@common.base_url
def command(
    *,
    names: tuple[str, ...],
    listed: bool,
    rounds: int | None,
    quick: bool,
    folder: Path | None,
    base_url: str | None,
) -> None:
    """Measure how fast sandboxes are on this machine: all benchmarks, or those that are named.

    Every figure is a ratio to a floor that is measured in the same run.
    """
    from aviato.bench import BENCHMARKS, script

    if listed:
        click.echo("\n".join(f"{name:<13}{what}" for name, what in BENCHMARKS.items()))
        return
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise click.UsageError(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    chosen = {name: script.load(name) for name in names or BENCHMARKS}
    try:
        status = script.status(*script.several(chosen, base_url=base_url, rounds=rounds, quick=quick, folder=folder))
    except (AviatoError, ValueError) as error:
        click.echo(f"aviato: {common.printable(str(error))}", err=True)
        status = common.FAILED
    sys.exit(status)
