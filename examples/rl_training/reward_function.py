"""Rewards from running code: one sandbox a completion, results as they arrive.

    python examples/rl_training/reward_function.py [--shuffle]

A completion that runs to its end is worth 1.0, one that fails 0.0. If the sandboxes themselves cannot be had, there is no
reward to give: the script says so and ends with status 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import uuid
from dataclasses import dataclass

import aviato
from aviato import AviatoError, SandboxCommandTimeoutError, SandboxDefaults, Session

EXECUTION_TIMEOUT_SECONDS = 30.0
WIDTH = 60


@dataclass(frozen=True)
class Completion:
    """One toy completion, and whether it is supposed to pass."""

    name: str
    code: str
    sleep_seconds: float
    should_pass: bool

    def source(self) -> str:
        """The code as a model would have written it, the pause in front."""
        return f"import time\ntime.sleep({self.sleep_seconds})\n{self.code}" if self.sleep_seconds else self.code


COMPLETIONS = [
    Completion("slow-sum", "total = sum(range(1_000_000))\nassert total == 499_999_500_000\nprint(total)", 1.0, True),
    Completion(
        "string-ops", "words = 'reward the code that runs'.split()\nprint(' '.join(reversed(words)).title())", 0.0, True
    ),
    Completion("delayed-error", "raise ValueError('wrong on purpose, after a pause')", 0.5, False),
    Completion("syntax-error", "def broken(:\n    return 1", 0.0, False),
    Completion(
        "slow-list", "squares = [n * n for n in range(1_000)]\nassert squares[-1] == 998_001\nprint(len(squares))", 1.5, True
    ),
]


def passed(process: aviato.Process) -> bool:
    """Whether the completion ran to its end. A command that takes too long has failed; a lost server is no verdict."""
    try:
        return process.result().returncode == 0
    except SandboxCommandTimeoutError:
        return False


def evaluate(session: Session, completions: list[Completion]) -> list[float]:
    """Run all completions at once and return their rewards in the given order."""
    processes = [
        session.sandbox().exec(["python", "-c", completion.source()], timeout_seconds=EXECUTION_TIMEOUT_SECONDS)
        for completion in completions
    ]
    index_of = {process: index for index, process in enumerate(processes)}
    rewards = [0.0] * len(completions)
    pending = list(processes)
    while pending:
        [process], pending = aviato.wait(pending, num_returns=1)
        index = index_of[process]
        rewards[index] = 1.0 if passed(process) else 0.0
        verdict = "PASS" if rewards[index] else "FAIL"
        print(
            f"  [{len(processes) - len(pending)}/{len(processes)}] Problem {index} ({completions[index].name}): {verdict}",
            flush=True,
        )
    return rewards


def main() -> None:
    """Parse the flags, run the toy completions, print the rewards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shuffle", action="store_true", help="deal the pauses out at random")
    arguments = parser.parse_args()
    completions = COMPLETIONS
    if arguments.shuffle:
        pauses = [completion.sleep_seconds for completion in completions]
        random.shuffle(pauses)
        completions = [Completion(c.name, c.code, pause, c.should_pass) for c, pause in zip(completions, pauses, strict=True)]

    job = uuid.uuid4().hex[:8]
    print(f"RL Training Reward Function Example (job: {job})")
    print("=" * WIDTH)
    print(f"\nEvaluating {len(completions)} completions...\n")
    print("Progress (results arrive as executions complete):")
    print("-" * WIDTH)
    defaults = SandboxDefaults(tags=("reward-function", f"job:{job}", f"wandb-run:{os.environ.get('WANDB_RUN_ID', 'local')}"))
    with Session(defaults) as session:
        rewards = evaluate(session, completions)
    print("-" * WIDTH)

    print("\nFinal summary (original order):")
    print("-" * WIDTH)
    for index, (completion, reward) in enumerate(zip(completions, rewards, strict=True)):
        verdict = "PASS" if reward else "FAIL"
        expected = "OK" if bool(reward) == completion.should_pass else "UNEXPECTED"
        print(f"  Problem {index} ({completion.name}): reward={reward} [{verdict}] {expected}")
    print("-" * WIDTH)
    passes = sum(reward > 0 for reward in rewards)
    print(f"Total reward: {sum(rewards)}/{len(rewards)}")
    print(f"Pass rate: {passes}/{len(rewards)} ({passes / len(rewards):.0%})")


if __name__ == "__main__":
    try:
        main()
    except AviatoError as error:
        sys.exit(f"No reward: {type(error).__name__}: {error}")
