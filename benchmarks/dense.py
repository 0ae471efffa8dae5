"""What sandboxes take in a pod of deploy/kubernetes, beside those of the same server on the bare machine.

    python benchmarks/dense.py --pod http://10.200.1.5:8700 --bare http://127.0.0.1:8800 [--pids POD BARE] [--rounds N]

Both are asked over TCP, by the key of AVIATO_API_KEY, and take turns in each round. The bare one runs on the pod's node as the
same ordinary user, by the same Python and with its state on the same disk, as in

    setpriv --reuid=10001 --regid=10001 --clear-groups aviato serve --port 8800 --api-key-file KEYS --state-dir DIR

With the processes of both, as the node sees them, processor time of the servers and all below them is compared, too: other
work on the machine is not in it. Where there is such, the bare one needs a control group with as many shares as the pod's.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from common import Series, alternate, console, describe_machine, milliseconds, ratio, table, timed
from common import write_json as save

from aviato import SandboxDefaults, Session
from aviato.bench.processes import tree_seconds
from aviato.rl import Task, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato import Sandbox

AT_ONCE = 32
ONE_BY_ONE = 10
LINGER_SECONDS = 0.3
"""Until what ends in the background has ended."""
TASK = Task(
    code="def add(a, b):\n    return a + b\n",
    tests=["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add(0, 0) == 0"],
)


def creates(session: Session) -> None:
    """A sandbox and its first command, one after the other."""
    for _ in range(ONE_BY_ONE):
        with session.sandbox() as sandbox:
            sandbox.exec(["true"]).result()


def commands(sandbox: Sandbox) -> None:
    """Further commands, one after the other."""
    for _ in range(ONE_BY_ONE):
        sandbox.exec(["true"]).result()


def batch(session: Session) -> None:
    """Many sandboxes at once, a command in each."""
    sandboxes = [session.sandbox() for _ in range(AT_ONCE)]
    for process in [sandbox.exec(["true"]) for sandbox in sandboxes]:
        process.result()
    for stopping in [sandbox.stop() for sandbox in sandboxes]:
        stopping.result()


def tasks(session: Session) -> None:
    """Completions with tests."""
    for outcome in evaluate([TASK] * AT_ONCE, session=session, max_concurrency=4, progress=False).result():
        assert outcome.reward() == 1, outcome


def works(session: Session) -> dict[str, tuple[Callable[[], float], int]]:
    """By name, what is measured of a server, and how many of a thing each is."""
    sandbox = session.sandbox()
    return {
        "create, first command": (timed(lambda: creates(session)), ONE_BY_ONE),
        "further command": (timed(lambda: commands(sandbox)), ONE_BY_ONE),
        f"create, {AT_ONCE} at once, each": (timed(lambda: batch(session)), AT_ONCE),
        f"task with three tests, {AT_ONCE} in a batch, each": (timed(lambda: tasks(session)), AT_ONCE),
    }


def also_processor(case: Callable[[], float], pid: int | None, spent: Series) -> Callable[[], float]:
    """The case, which notes what a server and all below it spent on it."""
    if pid is None:
        return case

    def watched() -> float:
        before = sum(tree_seconds(pid) or (0.0,))
        seconds = case()
        time.sleep(LINGER_SECONDS)
        spent.seconds.append(sum(tree_seconds(pid) or (0.0,)) - before)
        return seconds

    return watched


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pod", required=True)
    parser.add_argument("--bare", required=True)
    parser.add_argument("--pids", type=int, nargs=2, default=(None, None), metavar="PID")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json")
    options = parser.parse_args()
    describe_machine()
    rows, figures = [], {}
    with ExitStack() as stack:
        pod, bare = (
            works(stack.enter_context(Session(SandboxDefaults(base_url=url), report_to=[])))
            for url in (options.pod, options.bare)
        )
        for name, (case, count) in pod.items():
            ours, theirs = Series(f"{name}, pod"), Series(f"{name}, bare")
            spent = [Series(f"{series.name}, processor") for series in (ours, theirs)]
            cases = [also_processor(*one) for one in zip((case, bare[name][0]), options.pids, spent, strict=True)]
            alternate(options.rounds, (ours, cases[0]), (theirs, cases[1]))
            for what, pair in ((name, (ours, theirs)), (f"  processor of {name}", spent)):
                if pair[0].seconds:
                    rows.append((what, *(milliseconds(series.median / count) for series in pair), str(ratio(*pair))))
                    figures |= {series.name: [seconds / count for seconds in series.seconds] for series in pair}
    table("medians, ms", ("", "pod", "bare machine", "pod × bare (90 %)"), rows)
    console.print(f"[dim]{save('dense', {'seconds': figures}, options.json)}[/dim]")


if __name__ == "__main__":
    main()
