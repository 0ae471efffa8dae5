"""MBPP problems: from the hub, from a file in its schema, or the sample beside the examples."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATASET = "google-research-datasets/mbpp"
EXAMPLES = Path(__file__).resolve().parents[1]
SAMPLE = EXAMPLES / "data" / "mbpp_sample.jsonl"
HUB = runpy.run_path(str(EXAMPLES / "hub.py"))
"""Not imported: with that folder in `sys.path`, this one would stand in for the package `art`."""

SYSTEM_PROMPT = """You solve Python programming tasks.
Try your code out with the tool execute_code until you are sure that it passes the tests. What it prints is what you see.
Then call submit_solution once, with code that defines what the task asks for and nothing else."""


@dataclass(frozen=True)
class MBPPProblem:
    """One problem. A solution is graded by its tests, which the model is shown."""

    task_id: int
    text: str
    tests: tuple[str, ...]
    setup: str = ""

    @classmethod
    def from_row(cls, row: Any) -> MBPPProblem:
        """A row of the dataset. Anything would pass without tests, so that is an error."""
        if not isinstance(row, dict) or not isinstance(row.get("task_id"), int):
            raise ValueError("a row without a task_id")
        text, tests, setup = row.get("text"), row.get("test_list"), row.get("test_setup_code")
        if not isinstance(text, str) or not text or not isinstance(tests, list) or not tests:
            raise ValueError(f"problem {row['task_id']} has no text or no tests")
        return cls(row["task_id"], text, tuple(map(str, tests)), setup or "")

    @property
    def cases(self) -> list[str]:
        """The source of each test, after what it needs."""
        return [f"{self.setup}\n{test}" for test in self.tests]

    def messages(self) -> list[dict[str, str]]:
        """What the model is told."""
        task = f"{self.text}\n\nThe tests:\n\n" + "\n".join(self.tests)
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task}]


def load_problems(source: str, limit: int) -> list[MBPPProblem]:
    """The first problems of `hub`, of `sample` or of a JSON-lines file; a row that is no problem is left out, and it says so.

    Raises:
        OSError: the hub or the file cannot be read.
    """
    problems: list[MBPPProblem] = []
    for row in rows_of_the_hub() if source == "hub" else rows_of_file(SAMPLE if source == "sample" else Path(source)):
        if len(problems) == limit:
            break
        try:
            problems.append(MBPPProblem.from_row(row))
        except ValueError as error:
            print(f"Left out: {error}")
    return problems


def rows_of_the_hub() -> Iterable[Any]:
    """The training split."""
    try:
        rows: Iterable[Any] = HUB["rows"](DATASET, "train")
    except OSError as error:
        raise OSError(
            f"{DATASET} cannot be loaded: {error}. Without a hub: --problems sample, or --problems FILE with lines of it"
        ) from error
    return rows


def rows_of_file(path: Path) -> Iterable[Any]:
    """A row a line; None for a line that is no JSON."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError:
                    yield None
