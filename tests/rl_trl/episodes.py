"""GRPO with `environment_factory` under the real TRL, in a process of its own: `python episodes.py RESULTS NAME…`."""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import training  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from transformers.utils import get_json_schema  # noqa: E402

from aviato.rl.trl import SandboxEnvironment, SelfGradingEnvironment, environment_reward  # noqa: E402

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
GROUP = training.GROUP


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def says(index: int, prompt: str) -> str:
    """Two turns of tools and a last word; by its place in the group: right, wrong, an unknown tool, broken JSON."""
    number = int(re.findall(r"#(\d+)#", prompt)[-1])
    turns = prompt.count("<tool_response>")
    if turns == 0:
        return [
            call("write_file", path="solution.py", content=f"def answer(): return {number}"),
            call("write_file", path="solution.py", content=f"def answer(): return {number + 1}"),
            call("fly", to="the moon"),
            '<tool_call>\n{"name": "bash", "arguments": {"command": \n</tool_call>',
        ][index % GROUP]
    if turns == 1:
        return call("bash", command="cat solution.py; seq 1000")
    return "Done."


class EveryThirdLost(SandboxEnvironment):
    """The sandboxes of the third and the sixth of each batch of eight are killed from the host."""

    _begun = 0

    def reset(self, **row: Any) -> None:
        super().reset(**row)
        place = EveryThirdLost._begun % (2 * GROUP)
        EveryThirdLost._begun += 1
        if place % 3 == 2 and self._sandbox is not None:
            training.kill_supervisor(self._sandbox.sandbox_id)


def train(folder: Path, factory: Any, rewards: list[Any]) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Write answer() that returns #{number}# to solution.py."}],
            "number": number,
            "tests": [f"assert answer() == {number}"],
        }
        for number in range(training.PROBLEMS)
    ]
    trainer = training.Trainer(
        model=model,
        reward_funcs=rewards,
        args=training.config(max_steps=3, max_completion_length=1500),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=factory,
    )
    heard: list[str] = []

    def say(index: int, prompt: str) -> str:
        heard.append(prompt)
        return says(index, prompt)

    training.script(model, tokenizer, say)
    trainer.train()
    return {"batches": trainer.batches, "log": trainer.state.log_history, "heard": heard[-1]}


def main() -> None:
    results, *names = sys.argv[1:]
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    folder = training.local_models.make_tiny(Path(tempfile.mkdtemp()), chat_template=template)
    found: dict[str, Any] = {"schemas": [get_json_schema(getattr(SandboxEnvironment(), name)) for name in training.TOOLS]}
    factory = functools.partial(SandboxEnvironment, observation_bytes=200)
    for name in names:
        if name == "whole":
            found[name] = train(folder, factory, [environment_reward()])
        elif name == "own reward":
            found[name] = train(folder, SelfGradingEnvironment, [])
        elif name == "lost":
            found[name] = train(folder, EveryThirdLost, [environment_reward()])
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
