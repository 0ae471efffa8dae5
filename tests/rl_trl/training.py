"""Training runs of a tiny model under the real TRL, in a process of their own: `python training.py RESULTS NAME…`.

What the model says is scripted by replacing `generate()`; everything else is the trainer's own. Each run's rewards, advantages
and logs go to RESULTS as JSON, by name; a run that raised leaves its error.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples" / "rl_training"), str(ROOT)]

import local_models  # noqa: E402
import torch  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import aviato  # noqa: E402
from aviato.rl.trl import code_reward  # noqa: E402
from tests.rl.machine import kill_supervisor  # noqa: E402

STEPS = 10
GROUP = 4
PROBLEMS = 5
TOOLS = ("bash", "read_file", "write_file")


def config(**more: Any) -> trl.GRPOConfig:
    settings = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": 2 * GROUP,
        "num_generations": GROUP,
        "max_completion_length": 400,
        "max_steps": STEPS,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
    }
    return trl.GRPOConfig(**{**settings, **more})


class Trainer(trl.GRPOTrainer):
    """Keeps what TRL logged and what it trained on, batch by batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.batches: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        self.batches.append(
            {
                "numbers": [row["number"] for row in inputs],
                "rewards": [none(list(values)) for values in zip(*self._logs["rewards"].values(), strict=True)],
                "names": list(self._logs["rewards"]),
                "logged_advantages": list(self._logs["advantages"]),
                "advantages": output["advantages"].tolist(),
            }
        )
        return output


def none(values: list[float]) -> list[float | None]:
    return [None if value != value else value for value in values]


def script(model: Any, tokenizer: Any, say: Callable[[int, str], str]) -> None:
    """Replace what the model generates: `say` has the place in the batch and the prompt's text."""

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        texts = tokenizer.batch_decode(input_ids)
        said = [tokenizer(say(index, text))["input_ids"] + [tokenizer.eos_token_id] for index, text in enumerate(texts)]
        width = max(map(len, said))
        padded = [ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids in said]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)

    model.generate = generate


def dataset(conversational: bool) -> Dataset:
    def prompt(number: int) -> Any:
        text = f"Define answer() that returns #{number}#."
        return [{"role": "user", "content": text}] if conversational else text

    rows = [
        {"prompt": prompt(number), "number": number, "unit_tests": [f"assert answer() == {number}"]}
        for number in range(PROBLEMS)
    ]
    return Dataset.from_list(rows)


def says(index: int, prompt: str) -> str:
    """By its place in its group: right, wrong, without code, right."""
    number = int(re.findall(r"#(\d+)#", prompt)[-1])
    if index % GROUP == 2:
        return "I would rather not."
    return f"Sure. <answer>def answer(): return {number + (index % GROUP == 1)}</answer>"


def says_slowly(index: int, prompt: str) -> str:
    """Always code, so each completion uses a sandbox; every third one is still running when it is killed."""
    number = int(re.findall(r"#(\d+)#", prompt)[-1])
    pause = "import time; time.sleep(20)\n" if index % 3 == 2 else ""
    return f"<answer>{pause}def answer(): return {number + index % 2}</answer>"


def brevity(completions: list[Any], **_: Any) -> list[float]:
    return [1.0 if len(str(completion)) < 200 else 0.5 for completion in completions]


def train(folder: Path, say: Callable[[int, str], str], reward: Any, conversational: bool, **more: Any) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    before = {name: value.clone() for name, value in model.named_parameters()}
    trainer = Trainer(
        model=model,
        reward_funcs=reward,
        args=config(**more),
        train_dataset=dataset(conversational),
        processing_class=tokenizer,
    )
    script(model, tokenizer, say)
    outcome: dict[str, Any] = {"error": None}
    try:
        trainer.train()
    except Exception as error:
        outcome["error"] = [type(error).__name__, str(error), *getattr(error, "__notes__", ())]
    moved = any(not torch.equal(before[name], value) for name, value in model.named_parameters())
    return {**outcome, "batches": trainer.batches, "log": trainer.state.log_history, "moved": moved}


class EveryThirdLost(aviato.Session):
    """The process 1s of the third, sixth, … sandbox of each batch are killed from the host."""

    made = 0

    def _state(self, *args: Any, **options: Any) -> Any:
        state = super()._state(*args, **options)
        place = self.made % (2 * GROUP)
        self.made += 1
        if place % 3 == 2:
            threading.Thread(target=kill_supervisor, args=(state.sandbox_id,)).start()
        return state


def main() -> None:
    results, *names = sys.argv[1:]
    folder = local_models.make_tiny(Path(tempfile.mkdtemp()))
    found: dict[str, Any] = {"version": trl.__version__}
    for name in names:
        if name == "blocking, strings":
            found[name] = train(folder, says, code_reward(tests_column="unit_tests", name="unit"), conversational=False)
        elif name == "async, messages":
            reward = code_reward(tests_column="unit_tests", asynchronous=True, name="unit")
            found[name] = train(folder, says, reward, conversational=True)
        elif name == "lost beside another":
            reward = code_reward(tests_column="unit_tests", retry_budget_seconds=0, session=EveryThirdLost())
            found[name] = train(folder, says_slowly, [reward, brevity], conversational=True)
        elif name == "lost":
            reward = code_reward(tests_column="unit_tests", retry_budget_seconds=0, session=EveryThirdLost())
            found[name] = train(folder, says_slowly, reward, conversational=True)
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
