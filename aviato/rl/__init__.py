"""Rewards from running code: what a completion is worth, decided by what happened and never by an infrastructure failure.

::

    from aviato.rl import Task, evaluate, extract_code

    tasks = [Task(code=extract_code(text), tests=["assert double(2) == 4"]) for text in completions]
    rewards = [outcome.reward() for outcome in evaluate(tasks).result()]
"""

from aviato.results import CaseStatus
from aviato.rl.cases import CallCase, ProgramCase, TestCase
from aviato.rl.evaluation import Evaluation, evaluate
from aviato.rl.extraction import Extraction, completion_text, extract, extract_code
from aviato.rl.judges import checker, exact, floats, text, tokens, unordered, value
from aviato.rl.outcome import CaseOutcome, Outcome, Verdict
from aviato.rl.task import Task

__all__ = [
    "CallCase",
    "CaseOutcome",
    "CaseStatus",
    "Evaluation",
    "Extraction",
    "Outcome",
    "ProgramCase",
    "Task",
    "TestCase",
    "Verdict",
    "checker",
    "completion_text",
    "evaluate",
    "exact",
    "extract",
    "extract_code",
    "floats",
    "text",
    "tokens",
    "unordered",
    "value",
]
