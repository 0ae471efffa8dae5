"""MBPP's references in fresh sandboxes, every verdict compared with a bare subprocess's.

    python benchmarks/mbpp.py [--data PATH] [--limit N] [--concurrency N] [--json PATH]

The data are problems of MBPP's schema, one JSON object a line (`task_id`, `code`, `test_setup_code`, `test_list`). Both
sides run the same interpreter with the same arguments. Ends with status 1 if a verdict differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common import console, describe_machine, table, write_json
from rich.progress import track

import aviato

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TIMEOUT_SECONDS = 20.0
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "mbpp.jsonl"


@dataclass(frozen=True)
class Problem:
    """One problem and the program that checks its reference."""

    task_id: int
    program: str


@dataclass(frozen=True)
class Side:
    """All verdicts of one way of running, and how long it took."""

    verdicts: dict[int, str]
    seconds: float

    @property
    def rate(self) -> float:
        """Problems a second."""
        return len(self.verdicts) / self.seconds


def read_problems(path: Path, limit: int | None) -> list[Problem]:
    """Read problems; a row's tests follow its solution in one program."""
    problems = []
    with path.open(encoding="utf-8") as rows:
        for line in rows:
            if limit is not None and len(problems) == limit:
                break
            row = json.loads(line)
            program = "\n".join([row.get("test_setup_code", ""), row["code"], *row["test_list"], ""])
            problems.append(Problem(row["task_id"], program))
    return problems


async def in_sandbox(client: aviato.AsyncClient, python: list[str], problem: Problem) -> str:
    """The verdict of a fresh sandbox."""
    async with await client.sandbox() as sandbox:
        try:
            result = await sandbox.exec([*python, problem.program], timeout_seconds=TIMEOUT_SECONDS)
        except aviato.SandboxCommandTimeoutError:
            return "timeout"
        return verdict(result.returncode)


async def bare(python: list[str], problem: Problem) -> str:
    """The verdict of a subprocess without isolation."""
    process = await asyncio.create_subprocess_exec(
        *python, problem.program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return verdict(await process.wait())
    except TimeoutError:
        process.kill()
        await process.wait()
        return "timeout"


def verdict(returncode: int) -> str:
    """Pass or fail, by the exit code of assertions."""
    return "pass" if returncode == 0 else "fail"


async def measure(name: str, problems: list[Problem], concurrency: int, check: Callable[[Problem], Awaitable[str]]) -> Side:
    """Check every problem, `concurrency` at a time, with a progress bar."""
    gate = asyncio.Semaphore(concurrency)

    async def one(problem: Problem) -> tuple[int, str]:
        async with gate:
            return problem.task_id, await check(problem)

    begin = time.perf_counter()
    verdicts = {}
    tasks = [asyncio.create_task(one(problem)) for problem in problems]
    for done in track(asyncio.as_completed(tasks), description=name, total=len(tasks), console=console):
        task_id, found = await done
        verdicts[task_id] = found
    return Side(verdicts, time.perf_counter() - begin)


async def run(problems: list[Problem], concurrency: int) -> tuple[Side, Side]:
    """Both sides, with the interpreter that a sandbox calls `python`."""
    async with aviato.AsyncClient() as client:
        async with await client.sandbox() as sandbox:
            found = await sandbox.exec(
                ["python", "-I", "-c", "import os, sys; print(os.path.realpath(sys.executable))"], check=True
            )
            python = [found.stdout.strip(), "-I", "-c"]
        console.print("interpreter on both sides:", python[0], highlight=False)
        sandboxed = await measure("fresh sandboxes", problems, concurrency, lambda p: in_sandbox(client, python, p))
    unprotected = await measure("bare subprocesses", problems, concurrency, lambda p: bare(python, p))
    return sandboxed, unprotected


def main() -> int:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    problems = read_problems(arguments.data, arguments.limit)
    describe_machine()
    sandboxed, unprotected = asyncio.run(run(problems, arguments.concurrency))
    different = [task for task, found in sandboxed.verdicts.items() if unprotected.verdicts[task] != found]
    rows = [
        [
            name,
            len(side.verdicts),
            *(sum(v == kind for v in side.verdicts.values()) for kind in ("pass", "fail", "timeout")),
            f"{side.rate:.1f}",
        ]
        for name, side in (("fresh sandboxes", sandboxed), ("bare subprocesses", unprotected))
    ]
    table(
        f"MBPP references, {arguments.concurrency} at a time", ["", "problems", "pass", "fail", "timeout", "problems/s"], rows
    )
    console.print(f"sandboxes run at {sandboxed.rate / unprotected.rate:.2f} of the bare rate")
    console.print("verdicts that differ:", ", ".join(map(str, different)) if different else "none")
    content = {
        "concurrency": arguments.concurrency,
        "rates": {"sandbox": sandboxed.rate, "bare": unprotected.rate},
        "different": different,
        "verdicts": {"sandbox": sandboxed.verdicts, "bare": unprotected.verdicts},
    }
    console.print("written to", str(write_json("mbpp", content, arguments.json)))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
