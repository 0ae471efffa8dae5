"""The init floor: what `aviato-init` takes for the sandboxes of the local backend, without a server and a client.

A program of its own (`alone.py`) asks `aviato-init zygote` for them, by requests that the backend has made (`plans.py`), and
their process 1 for commands.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aviato.bench.floor import TRUE_ARGV, Asked
from aviato.bench.report import Table, milliseconds
from aviato.transport import embedded_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aviato.bench.report import Report
    from aviato.bench.run import Run
    from aviato.bench.series import Series

ONCE, STAY, AGAIN = "once", "stay", "again"
COLUMNS = ("init floor, of each sandbox", "processor ms", "machine: user ms", "machine: system ms")


class Missing(Exception):
    """Why there is no init floor."""


class InitFloor(Asked):
    """Times sandboxes that `alone.py` has made, with a command in each.

    Attributes:
        spent: of each time that was measured, the processor seconds of that program with all that it started, and the whole
            machine's in user mode and in the kernel. All are counted by ticks; the machine's have also what the kernel does
            later and for nobody, and what others do.
    """

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self.spent: list[tuple[float, ...]] = []

    def _read(self, answer: str) -> float:
        seconds, *spent = map(float, answer.split())
        self.spent.append(tuple(spent))
        return seconds


@dataclass(frozen=True)
class Floors:
    """Requests for sandboxes.

    Attributes:
        directory: of them, and of the sandboxes.
    """

    directory: Path

    def floor(self, mode: str, command: Sequence[str] = TRUE_ARGV) -> InitFloor:
        """One that does what `mode` says, see `alone.py`."""
        return InitFloor([sys.executable, "-m", "aviato.bench.alone", str(self.directory), mode, *command])

    def batches(self, items: int, at_once: int, command: Sequence[str] = TRUE_ARGV) -> InitFloor:
        """One that makes so many, so many at once."""
        return self.floor(f"{items}x{at_once}", command)


@contextmanager
def init_floor(run: Run, report: Report, plans: int) -> Iterator[Floors | None]:
    """The init floor, with requests for so many sandboxes that live at once; None where there is none: the report says why."""
    with ExitStack() as stack:
        try:
            found = _made(stack, str(run.health["backend"]), plans)
        except Missing as why:
            report.notes.append(f"the init floor was not measured: {why}")
            found = None
        yield found


def _made(stack: ExitStack, backend: str, plans: int) -> Floors | None:
    if backend != "local":
        raise Missing(f"it is that of the local backend, and the server has {backend}")
    # Beside the state directory: on the file system that the sandboxes of a server have.
    beside = Path(os.environ.get("AVIATO_STATE_DIR") or embedded_key.default_state_directory()).absolute().parent
    try:
        made = tempfile.TemporaryDirectory(prefix="aviato-floor-", dir=beside)
    except OSError as error:
        raise Missing(f"a directory in {beside} cannot be made: {error.strerror}") from error
    directory = Path(stack.enter_context(made))
    directory.chmod(0o711)  # Sandboxes' own ids pass through.
    _run("make requests", [sys.executable, "-m", "aviato.bench.plans", str(directory), str(plans)])
    found = Floors(directory)
    _run("make a sandbox", found.floor(ONCE).command)
    return found


def _run(what: str, command: list[str]) -> None:
    done = subprocess.run(command, input="\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"`{shlex.join(command[:3])} …` could not {what}: {done.stderr.strip()[-500:]}")


def tell(report: Report, floors: Sequence[tuple[Series, InitFloor, int]]) -> None:
    """Say how each was run, and on the mean what each of so many sandboxes took of the processors."""
    table = Table("processor time", COLUMNS)
    for series, floor, each in floors:
        name = series.name.removeprefix("  floor: ")
        means = [statistics.fmean(some) / each for some in zip(*floor.spent, strict=True)]
        report.floors[name] = floor.command
        report.figures.setdefault(series.name, {})["spent"] = floor.spent
        # A tick is longer than one sandbox: only many tell where its time goes.
        table.rows.append([name, *map(milliseconds, means[: None if each > 1 else 1]), *(["–"] * 2 if each == 1 else [])])
    report.tables.append(table)
