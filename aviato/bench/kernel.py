"""The kernel floor: what the kernel alone takes for the isolation that sandboxes of the local backend have.

A program in C (`kernel.c`) makes sandboxes by plans that the backend has recorded (`plans.py`), with the code that its
template has, and runs commands in them. It is compiled when it is wanted.
"""

from __future__ import annotations

import os
import shlex
import shutil
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

PROGRAM = Path(__file__).with_name("kernel.c")
TEMPLATE = Path(__file__).parents[1] / "server" / "backends" / "local"
PARTS = (TEMPLATE, Path(__file__).parents[1] / "server" / "supervisor")
ONCE, AHEAD, STAY, AGAIN = "once", "ahead", "stay", "again"
COLUMNS = ("kernel floor, of each sandbox", "processor ms", "machine: user ms", "machine: system ms")


class Missing(Exception):
    """Why there is no kernel floor."""


class KernelFloor(Asked):
    """Times sandboxes that a plain C program makes, with a command in each.

    Attributes:
        spent: of each time that was measured, the program's processor seconds with all that it started, and the whole
            machine's in user mode and in the kernel: those are counted by ticks, have also what the kernel does later and for
            nobody, and what others do.
    """

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self.spent: list[tuple[float, ...]] = []

    def _read(self, answer: str) -> float:
        seconds, *spent = map(float, answer.split())
        self.spent.append(tuple(spent))
        return seconds


@dataclass(frozen=True)
class Kernel:
    """The compiled program, with its plans.

    Attributes:
        directory: of both, and of the sandboxes that it makes.
    """

    directory: Path

    def floor(self, mode: str, command: Sequence[str] = TRUE_ARGV) -> KernelFloor:
        """One that does what `mode` says, see `kernel.c`."""
        return KernelFloor([str(self.directory / "kernel"), str(self.directory / "plans"), mode, *command])

    def batches(self, items: int, at_once: int, command: Sequence[str] = TRUE_ARGV) -> KernelFloor:
        """One that makes so many, so many at once."""
        return self.floor(f"{items}x{at_once}", command)


@contextmanager
def kernel(run: Run, report: Report, plans: int) -> Iterator[Kernel | None]:
    """The kernel floor, with plans for so many sandboxes that live at once; None where there is none: the report says why."""
    with ExitStack() as stack:
        try:
            found = _made(stack, str(run.health["backend"]), plans)
        except Missing as why:
            report.notes.append(f"the kernel floor was not measured: {why}")
            found = None
        yield found


def _made(stack: ExitStack, backend: str, plans: int) -> Kernel | None:
    if backend != "local":
        raise Missing(f"it is that of the local backend, and the server has {backend}")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise Missing(f"there is no C compiler {compiler[0]!r}; install one, or name it by CC")
    # Beside the state directory: on the file system that the sandboxes of a server have.
    beside = Path(os.environ.get("AVIATO_STATE_DIR") or embedded_key.default_state_directory()).absolute().parent
    try:
        made = tempfile.TemporaryDirectory(prefix="aviato-floor-", dir=beside)
    except OSError as error:
        raise Missing(f"a directory in {beside} cannot be made: {error.strerror}") from error
    directory = Path(stack.enter_context(made))
    directory.chmod(0o711)  # Sandboxes' own ids pass through.
    parts = [str(path) for place in PARTS for path in sorted(place.glob("*.c")) if path.name != "template.c"]
    # Bound at once, as what Python loads is: a function looked up at its first call needs more stack than the parts give.
    options = ["-O2", "-Wl,-z,now", "-I", str(TEMPLATE)]
    _run("compile it", [*compiler, *options, "-o", str(directory / "kernel"), str(PROGRAM), *parts])
    _run("record plans", [sys.executable, "-m", "aviato.bench.plans", str(directory), str(plans)])
    found = Kernel(directory)
    _run("make a sandbox", found.floor(ONCE).command)
    return found


def _run(what: str, command: list[str]) -> None:
    done = subprocess.run(command, input="\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"`{shlex.join(command[:3])} …` could not {what}: {done.stderr.strip()[-500:]}")


def tell(report: Report, floors: Sequence[tuple[Series, KernelFloor, int]]) -> None:
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
