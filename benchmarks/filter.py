"""What the filter of system calls costs: two servers, one of which makes sandboxes without it, in alternation.

    python benchmarks/filter.py [--rounds N] [--json PATH]

Only here and in the tests can it be left out: by changing the plan before the server starts.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from common import TRUE_ARGV, Series, alternate, describe_machine, milliseconds, ratio, table, timed
from common import write_json as save

import aviato
from aviato.bench.latency import creating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SERVE = "from aviato.cli.main import main; main()"
WITHOUT = """
from aviato.server.backends.local import plan
make_plan = plan.make_plan
plan.make_plan = lambda options: tuple(step for step in make_plan(options) if step.operation != "filter")
"""
CALLS = "import os\nfor _ in range(1_000_000): os.getppid()"


@contextmanager
def server(before: str) -> Iterator[aviato.Session]:
    """A session with a server of its own."""
    directory = Path(tempfile.mkdtemp(prefix="aviato-filter-", dir="/var/tmp"))
    directory.chmod(0o711)
    path = directory / "s"
    command = [sys.executable, "-c", before + SERVE, "serve", "--state-dir", str(directory / "state"), "--socket", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            while probe.connect_ex(str(path)):
                if process.poll() is not None:
                    raise SystemExit("the server did not start; see `aviato doctor`")
                time.sleep(0.02)
        with aviato.Session(aviato.SandboxDefaults(base_url=f"unix://{path}")) as session:
            yield session
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def command(*argv: str) -> Callable[[aviato.Session], Callable[[], float]]:
    """Times a command in a sandbox that runs."""

    def make(session: aviato.Session) -> Callable[[], float]:
        sandbox = session.sandbox()
        return timed(lambda: sandbox.exec(argv).result())

    return make


MEASURED = {
    "create + first exec of true": (creating, 1),
    "exec of true, .result()": (command(*TRUE_ARGV), 1),
    "a million system calls": (command("python3", "-I", "-c", CALLS), 20),
}
"""What, and how many times rarer than the first."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", default=None, help="where to write the figures (default: benchmarks/results/filter.json)")
    arguments = parser.parse_args()
    describe_machine()
    measured = {name: (Series(f"{name}, with"), Series(f"{name}, without")) for name in MEASURED}
    with ExitStack() as stack:
        sessions = [stack.enter_context(server(before)) for before in ("", WITHOUT)]
        for name, (make, rarer) in MEASURED.items():
            cases = [make(session) for session in sessions]
            alternate(max(arguments.rounds // rarer, 2), *zip(measured[name], cases, strict=True))
    rows, figures = [], {}
    for name, (having, lacking) in measured.items():
        quotient = ratio(having, lacking)
        rows.append([name, milliseconds(having.median), milliseconds(lacking.median), quotient])
        figures[name] = {"seconds": having.seconds, "without": lacking.seconds, "ratio": vars(quotient)}
    table("the filter of system calls", ("", "with, ms", "without, ms", "with / without"), rows)
    save("filter", {"rounds": arguments.rounds, "figures": figures}, arguments.json)


if __name__ == "__main__":
    main()
