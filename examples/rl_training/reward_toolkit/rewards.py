"""MBPP problems, and what an attempt at one is worth."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aviato import Session
from aviato.rl import Outcome, Task, Verdict, evaluate

logger = logging.getLogger(__name__)

DATASET = "google-research-datasets/mbpp"
EXECUTION_TIMEOUT_SECONDS = 30.0
RETRY_BUDGET_SECONDS = 60.0
FEEDBACK_CHARACTERS = 2000


@dataclass(frozen=True)
class MBPPProblem:
    """A coding problem.

    Attributes:
        task_id: its unique number.
        prompt: what is to be written.
        test_cases: assertions that a solution satisfies, each with its set-up code.
    """

    task_id: int
    prompt: str
    test_cases: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.test_cases:
            raise ValueError("it has no tests, so anything would pass")

    @classmethod
    def from_row(cls, row: Any) -> MBPPProblem:
        """The problem of a row of the dataset.

        Raises:
            ValueError: the row is no object, or has no id, no text or no tests.
        """
        types = {"task_id": int, "text": str, "test_list": list}
        for name, kind in types.items():
            if not isinstance(row, dict) or not isinstance(row.get(name), kind):
                raise ValueError(f"it has no {name}")
        setup = (row.get("test_setup_code") or "").replace("\r\n", "\n")
        return cls(row["task_id"], row["text"], tuple(f"{setup}\n{test}".strip() for test in row["test_list"]))


def load_problems(split: str = "train", limit: int = 100, path: str | None = None) -> list[MBPPProblem]:
    """The first problems of a split of MBPP, or of a local JSON-lines file in its schema; `limit=0` is all of them.

    A row that is no problem is left out, with a warning.
    """
    problems = []
    for number, row in enumerate(_lines(path) if path else _split(split), 1):
        try:
            problems.append(MBPPProblem.from_row(json.loads(row) if isinstance(row, str) else row))
        except ValueError as error:
            logger.warning("Row %d of the dataset is left out: %s", number, error)
        if len(problems) == limit:
            break
    return problems


def _lines(path: str) -> Iterable[str]:
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        yield from (line for line in file if line.strip())


def _split(split: str) -> Iterable[dict[str, Any]]:
    from hub import rows  # the module beside this folder; a local file does not need it

    found: Iterable[dict[str, Any]] = rows(DATASET, split)
    return found


async def grade(session: Session, problem: MBPPProblem, code: str | None) -> Outcome:
    """Run code with the problem's test cases in a fresh sandbox.

    The outcome knows why an attempt failed, and `outcome.reward()` is None where the sandbox did.
    """
    task = Task(code=code, tests=problem.test_cases, timeout_seconds=EXECUTION_TIMEOUT_SECONDS)
    tags = [f"problem-{problem.task_id}"]
    [outcome] = await evaluate([task], session=session, retry_budget_seconds=RETRY_BUDGET_SECONDS, tags=tags)
    return outcome


def feedback(problem: MBPPProblem, outcome: Outcome) -> str:
    """What the model is told of an attempt that did not pass."""
    if outcome.verdict is Verdict.SKIPPED:
        return "There is no code in your reply. Put the whole solution into one ```python block."
    reports = [f"Your solution did not pass ({outcome.verdict}: {outcome.message})."]
    failed = [(test, case) for test, case in zip(problem.test_cases, outcome.cases, strict=False) if not case.passed]
    reports += [f"{test}\n{case.message}" for test, case in failed]
    if failed:
        case = failed[0][1]
        _, mark, frames = case.traceback.partition('  File "solution.py"')
        reports += [part for part in (mark + frames, case.stdout, case.stderr) if part]
    return "\n\n".join(reports)[:FEEDBACK_CHARACTERS] + "\n\nCorrect it and send the whole solution again."
