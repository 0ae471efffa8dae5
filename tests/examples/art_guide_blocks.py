"""Runs the guide's blocks on ART, which come as JSON on stdin, with what they leave undefined.

Not a test: a program for a process of its own, with ART installed. `python art_guide_blocks.py FOLDER`
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import art
from art_on_cpu import FOLDER, CPUBackend
from openai.types.chat.chat_completion import Choice
from transformers import AutoTokenizer

from aviato import SandboxDefaults

blocks: dict[str, str] = json.load(sys.stdin)


def reply(token: int) -> Choice:
    """What the trained model's own server would answer, log-probabilities and all."""
    content = [{"token": f"token_id:{token}", "logprob": -1.0, "bytes": None, "top_logprobs": []}]
    message = {"role": "assistant", "content": "?"}
    return Choice.model_validate({"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content}})


schema: dict[str, Any] = {}
exec(blocks["schema"], {}, schema)
[tool] = schema["ROLLOUT_TOOLS"]
assert tool["function"]["name"] == "execute_code"

tags: dict[str, Any] = {
    "SandboxDefaults": SandboxDefaults,
    "args": SimpleNamespace(project="aviato-mbpp", run_name="train-001"),
}
exec(blocks["tags"], tags)
assert tags["sandbox_defaults"].tags == ("art-training", "aviato-mbpp", "train-001")

given: dict[str, Any] = {"art": art, **schema}
arguments = "messages_and_choices, passed, problem"
exec(f"def rollout({arguments}):\n{textwrap.indent(blocks['trajectory'], '    ')}", given)


async def collect_trajectories(problem: Any) -> art.TrajectoryGroup:
    """One that passes and one that does not."""
    histories = [[{"role": "user", "content": "Double."}, reply(token)] for token in (40, 41)]
    return art.TrajectoryGroup(
        [given["rollout"](messages, passed, problem) for messages, passed in zip(histories, (True, False), strict=True)]
    )


async def main() -> None:
    backend = CPUBackend(path=str(FOLDER / "art"))
    base_model = "Qwen/Qwen3-8B-Instruct"  # in its place the tiny one
    backend._tokenizers[base_model] = AutoTokenizer.from_pretrained(FOLDER / "model")
    backend._image_processors[base_model] = None
    names: dict[str, Any] = {
        "backend": backend,
        "problems": [SimpleNamespace(task_id=n) for n in (1, 2)],
        "collect_trajectories": collect_trajectories,
    }
    await eval(compile(blocks["train"], "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    assert [[t.reward for t in group] for group in names["groups"]] == [[1.0, 0.0]] * 2
    assert [t.metadata for group in names["groups"] for t in group] == [{"task_id": n} for n in (1, 1, 2, 2)]
    assert names["result"].step == 1 and names["result"].metrics["loss"] != 0
    print("ran", *blocks)


asyncio.run(main())
