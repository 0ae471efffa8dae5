"""The example with a model that says what it is told: `python scripted_example.py FLAG…`. Nothing else of it is changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import training  # noqa: E402  (puts the examples' folder on the path)
import trl_grpo_integration as example  # noqa: E402

ANSWERS = dict(example.PROBLEMS)
said: list[str] = []


def says(index: int, prompt: str) -> str:
    """By turns of four: right and wrong, right and none, none and none, raising and right."""
    problem = next(text for text in ANSWERS if text in prompt)
    right = f"<answer>print({ANSWERS[problem]!r})</answer>"
    said.append(problem)
    turns = ((right, "<answer>print(0)</answer>"), (right, "Hm."), ("Hm.", ""), ("<answer>1/0</answer>", right))
    return turns[(len(said) - 1) // 2 % 4][index]


def from_pretrained(*args: Any, **kwargs: Any) -> Any:
    model = original(*args, **kwargs)
    training.script(model, example.AutoTokenizer.from_pretrained(*args), says)
    return model


original = example.AutoModelForCausalLM.from_pretrained
example.AutoModelForCausalLM.from_pretrained = from_pretrained
example.main()
