"""Multi-step RL with rewards from running code: rollouts on MBPP whose attempts are graded in aviato sandboxes."""

from typing import Any

from .rewards import MBPPProblem, feedback, grade, load_problems
from .rollout import rollout
from .types import OpenAIModel, TrainableModel, Trajectory, VLLMModel

__all__ = [
    "MBPPProblem",
    "OpenAIModel",
    "TrainableModel",
    "TrainingLoop",
    "Trajectory",
    "VLLMModel",
    "feedback",
    "grade",
    "load_problems",
    "rollout",
]


def __getattr__(name: str) -> Any:
    # Not before it is asked for: `python -m reward_toolkit.train` would load train.py twice.
    if name == "TrainingLoop":
        from .train import TrainingLoop

        return TrainingLoop
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
