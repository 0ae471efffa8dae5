"""MBPP scored by `aviato.rl.evaluate`, a fresh sandbox a problem, every verdict compared with a bare subprocess's.

    python benchmarks/mbpp.py [--data PATH] [--limit N] [--concurrency N] [--references-only] [--json PATH]

The data are problems of MBPP's schema, one JSON object a line (`task_id`, `code`, `test_setup_code`, `test_list`). Scored are
the references and, of each, a variant that one small change broke. All sides run the same interpreter. The rate of
`bwrap --unshare-all … python3 -I` at the same concurrency is the floor. Ends with status 1 if a verdict differs.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common import bwrap_argv, console, describe_machine, table, write_json
from mbpp_problems import Problem, broken, read_problems

import aviato
from aviato.progress import Progress
from aviato.rl import Outcome, Task, Verdict, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

REFERENCE_SECONDS = 20.0
VARIANT_SECONDS = 4.0
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "mbpp.jsonl"
IN_A_ROW = 100
"""Problems on one side before it is the next one's turn, so that what else the machine does hits all alike."""
KINDS = ("pass", "assertion", "exception", "timeout")


@dataclass(frozen=True)
class Side:
    """What became of each problem in one way of running, and how long all took."""

    kinds: dict[int, str]
    seconds: float

    @property
    def rate(self) -> float:
        """Problems a second."""
        return len(self.kinds) / self.seconds


def in_sandboxes(session: aviato.Session, problems: list[Problem], limit: float, concurrency: int) -> Side:
    """By `evaluate`."""
    begin = time.perf_counter()
    tasks = [Task(code=problem.code, tests=problem.tests) for problem in problems]
    outcomes = evaluate(tasks, session=session, timeout_seconds=limit, max_concurrency=concurrency).result()
    seconds = time.perf_counter() - begin
    return Side({problem.task_id: kind(outcome) for problem, outcome in zip(problems, outcomes, strict=True)}, seconds)


def kind(outcome: Outcome) -> str:
    """In the words of both sides."""
    if outcome.verdict in (Verdict.PASSED, Verdict.TIMED_OUT):
        return "pass" if outcome.passed else "timeout"
    if outcome.verdict is Verdict.INFRASTRUCTURE:
        return "infrastructure"
    reason = next((case.reason for case in outcome.cases if not case.passed), "")
    return "assertion" if reason == "assertion" else "exception"


async def as_processes(argv: list[str], problems: list[Problem], limit: float, concurrency: int) -> Side:
    """By one subprocess a problem, `concurrency` at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def one(problem: Problem) -> str:
        async with gate:
            process = await asyncio.create_subprocess_exec(
                *argv, problem.program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            try:
                _, err = await asyncio.wait_for(process.communicate(), limit)
            except TimeoutError:
                process.kill()
                await process.communicate()
                return "timeout"
        if process.returncode == 0:
            return "pass"
        last = err.decode(errors="replace").rstrip().rsplit("\n", 1)[-1]
        return "assertion" if last.startswith("AssertionError") else "exception"

    async def shown(problem: Problem) -> str:
        found = await one(problem)
        progress.advance(found)
        return found

    begin = time.perf_counter()
    with Progress("bare subprocesses", len(problems)) as progress:
        kinds = await asyncio.gather(*map(shown, problems))
    return Side({problem.task_id: found for problem, found in zip(problems, kinds, strict=True)}, time.perf_counter() - begin)


def compare(
    name: str, problems: list[Problem], sides: dict[str, Side], again: Callable[[str, list[Problem]], Side]
) -> list[int]:
    """Print the sides; the problems whose verdicts differ. A busy machine times out by chance: those run once more, alone."""
    names = ["evaluate()", "bare subprocesses"]
    timed_out = [p for p in problems if len({sides[side].kinds[p.task_id] for side in names} | {"timeout"}) > 1]
    timed_out = [p for p in timed_out if "timeout" in {sides[side].kinds[p.task_id] for side in names}]
    if timed_out:
        for side in names:
            sides[side].kinds.update(again(side, timed_out).kinds)
    rows = []
    for side, found in sides.items():
        counts = Counter(found.kinds.values())
        others = sum(count for each, count in counts.items() if each not in KINDS)
        rows.append([side, len(found.kinds), *(counts[each] for each in KINDS), others, f"{found.rate:.1f}"])
    table(name, ["", "problems", *KINDS, "other", "problems/s"], rows)
    scored, bare = (sides[side].kinds for side in names)
    different = [
        task for task in scored if (scored[task] == "pass") != (bare[task] == "pass") or scored[task] == "infrastructure"
    ]
    console.print("verdicts that differ:", ", ".join(map(str, different)) if different else "none")
    return different


def score(
    session: aviato.Session, problems: list[Problem], limit: float, concurrency: int, name: str, floor: bool
) -> tuple[dict[str, Side], list[int]]:
    """All sides of one set of problems."""
    with session.sandbox() as sandbox:
        where = ["python3", "-I", "-c", "import os, sys; print(os.path.realpath(sys.executable))"]
        python = [sandbox.exec(where, check=True).result().stdout.strip(), "-I", "-c"]
    console.print("interpreter on all sides:", python[0], highlight=False)
    processes = {"bare subprocesses": python}
    if floor and (bwrap := bwrap_argv()) is not None:
        processes["bwrap --unshare-all"] = [*bwrap[:-1], *python]

    def run(side: str, some: list[Problem], limit: float, concurrency: int) -> Side:
        if side == "evaluate()":
            return in_sandboxes(session, some, limit, concurrency)
        return asyncio.run(as_processes(processes[side], some, limit, concurrency))

    sides: dict[str, Side] = {side: Side({}, 0.0) for side in ("evaluate()", *processes)}
    for start in range(0, len(problems), IN_A_ROW):
        for side, before in sides.items():
            found = run(side, problems[start : start + IN_A_ROW], limit, concurrency)
            sides[side] = Side({**before.kinds, **found.kinds}, before.seconds + found.seconds)

    def again(side: str, some: list[Problem]) -> Side:
        return run(side, some, limit * 3, 1)

    different = compare(f"{name}, {concurrency} at a time", problems, sides, again)
    for other, side in sides.items():
        if other != "evaluate()":
            console.print(f"evaluate() runs at {sides['evaluate()'].rate / side.rate:.2f} of the rate of {other}")
    return sides, different


def main() -> int:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--references-only", action="store_true")
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    problems = read_problems(arguments.data, arguments.limit)
    sets = {"references": (problems, REFERENCE_SECONDS)}
    if not arguments.references_only:
        sets["broken variants"] = ([variant for problem in problems if (variant := broken(problem))], VARIANT_SECONDS)
    describe_machine()
    content: dict[str, object] = {"concurrency": arguments.concurrency}
    wrong = 0
    with aviato.Session() as session:
        for name, (some, limit) in sets.items():
            sides, different = score(session, some, limit, arguments.concurrency, f"MBPP {name}", name == "references")
            wrong += len(different)
            content[name] = {
                "different": different,
                "rates": {side: found.rate for side, found in sides.items()},
                "kinds": {side: found.kinds for side, found in sides.items()},
            }
    console.print("written to", str(write_json("mbpp", content, arguments.json)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
