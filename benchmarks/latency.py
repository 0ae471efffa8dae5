"""How long a sandbox and a command take, beside what the kernel charges for the same.

    python benchmarks/latency.py [--rounds N] [--json PATH]

Each figure is a median with p95, and a ratio of medians to its floor with a bootstrap 90 % interval. Floors run in a bare
interpreter in a process of its own, in alternation with what is measured.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from common import TRUE_ARGV, Floor, Series, alternate, bwrap_argv, console, describe_machine, milliseconds, ratio, table, timed
from common import write_json as save

import aviato

FIRST_RESULT = """
import sys, time
begin = time.perf_counter()
import aviato
sandbox = aviato.Sandbox.run()
result = sandbox.exec(["/bin/true"]).result()
print(time.perf_counter() - begin if result.returncode == 0 else "failed", flush=True)
"""


def import_case(statement: str) -> list[str]:
    """A fresh interpreter that runs one statement. -S is not used: the import must find the installed package."""
    return [sys.executable, "-c", statement]


def first_result() -> float:
    """Seconds from `import aviato` to the first result in a new process, with no server running."""
    with tempfile.TemporaryDirectory(prefix="aviato-first-", dir="/var/tmp", ignore_cleanup_errors=True) as directory:
        environment = {**os.environ, "AVIATO_STATE_DIR": directory, "AVIATO_IDLE_EXIT": "1"}
        environment.pop("AVIATO_BASE_URL", None)
        done = subprocess.run([sys.executable, "-c", FIRST_RESULT], env=environment, capture_output=True, text=True, check=True)
        end_servers(Path(directory))
        return float(done.stdout)


def end_servers(directory: Path) -> None:
    """End the embedded servers below a state directory, by the pid that each wrote into its lock."""
    for lock in directory.glob("embedded/*/lock"):
        pid = lock.read_text().strip()
        if pid.isdigit():
            descriptor = os.pidfd_open(int(pid))
            signal.pidfd_send_signal(descriptor, signal.SIGINT)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(20_000)
            os.close(descriptor)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--starts", type=int, default=20, help="how many fresh servers for the first result of all")
    parser.add_argument("--json", default=None, help="where to write the figures (default: benchmarks/results/latency.json)")
    arguments = parser.parse_args()
    describe_machine()
    bwrap = bwrap_argv()

    create, execute = Series("create + first exec of true"), Series("exec of true, .result()")
    nothing, package, names = Series("python -c pass"), Series("import aviato"), Series("from aviato import Sandbox, …")
    bwrap_floor, true_floor = Series("bwrap --unshare-all true"), Series("subprocess.run true")
    with ExitStack() as stack, aviato.Session() as session:
        running = session.sandbox()
        running.exec(TRUE_ARGV).result()
        left: list[aviato.Sandbox] = []

        def create_once() -> None:
            sandbox = session.sandbox()
            sandbox.exec(TRUE_ARGV).result()
            left.append(sandbox)

        def create_and_clear() -> float:
            while left:
                left.pop().stop().result()
            return timed(create_once)()

        cases = [
            (create, create_and_clear),
            (execute, timed(lambda: running.exec(TRUE_ARGV).result())),
            (true_floor, stack.enter_context(Floor(TRUE_ARGV))),
        ]
        console.print("floor:", shlex.join(TRUE_ARGV), highlight=False)
        if bwrap:
            console.print("floor:", shlex.join(["bwrap", *bwrap[1:]]), highlight=False)
            cases.append((bwrap_floor, stack.enter_context(Floor(bwrap))))
        else:
            console.print("bwrap is not installed or cannot run here: no floor for the create")
        alternate(arguments.rounds, *cases)
        imports = [
            (nothing, stack.enter_context(Floor(import_case("pass")))),
            (package, stack.enter_context(Floor(import_case("import aviato")))),
            (names, stack.enter_context(Floor(import_case("from aviato import Sandbox, Session, SandboxDefaults")))),
        ]
        alternate(max(arguments.rounds // 3, 5), *imports)
    first = Series("first result of all, no server running", [first_result() for _ in range(arguments.starts)])

    rows, figures = [], {}
    for series, floor in ((create, bwrap_floor), (execute, true_floor)):
        quotient = ratio(series, floor) if floor.seconds else None
        rows.append([series.name, milliseconds(series.median), milliseconds(series.percentile(95)), quotient or "–"])
        if floor.seconds:
            rows.append([f"  floor: {floor.name}", milliseconds(floor.median), milliseconds(floor.percentile(95)), ""])
        figures[series.name] = {"seconds": series.seconds, "floor_seconds": floor.seconds, "ratio": quotient and vars(quotient)}
    for series in (package, names):
        extra = series.median - nothing.median
        rows.append(
            [
                f"{series.name}, over a bare interpreter",
                milliseconds(extra),
                milliseconds(series.percentile(95) - nothing.median),
                "",
            ]
        )
        figures[series.name] = {"seconds": series.seconds, "floor_seconds": nothing.seconds, "extra_seconds": extra}
    rows.append([first.name, milliseconds(first.median), milliseconds(first.percentile(95)), ""])
    figures[first.name] = {"seconds": first.seconds}
    table("latency", ["", "median ms", "p95 ms", "× floor (90 %)"], rows)
    console.print(
        "written to", str(save("latency", {"argv": {"bwrap": bwrap, "true": TRUE_ARGV}, "figures": figures}, arguments.json))
    )


if __name__ == "__main__":
    main()
