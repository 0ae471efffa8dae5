"""Rewards from running code: what a completion is worth, decided by what happened and never by an infrastructure failure.

::

    from aviato.rl import Task, evaluate, extract_code

    tasks = [Task(code=extract_code(text), tests=["assert double(2) == 4"]) for text in completions]
    rewards = [outcome.reward() for outcome in evaluate(tasks).result()]
"""

from aviato.rl.evaluation import Evaluation, evaluate
from aviato.rl.extraction import completion_text, extract_code
from aviato.rl.outcome import CaseOutcome, Outcome, Task, TestCase, Verdict

__all__ = [
    "CaseOutcome",
    "Evaluation",
    "Outcome",
    "Task",
    "TestCase",
    "Verdict",
    "completion_text",
    "evaluate",
    "extract_code",
]
