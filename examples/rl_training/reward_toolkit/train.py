"""Train on MBPP: rollouts graded in aviato sandboxes, W&B, and a clean end on SIGINT and SIGTERM.

python examples/rl_training/reward_toolkit/train.py --help
"""

import sys

if not __package__:
    # Run by its path: with this folder in front, its types.py would stand in for the standard library's.
    sys.path[0], _, __package__ = sys.path[0].rpartition("/")

import argparse
import asyncio
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

try:
    import openai
except ImportError as error:
    sys.exit(f"{error}. Install what this example needs: pip install -r examples/rl_training/reward_toolkit/requirements.txt")

from aviato import AviatoError, SandboxDefaults, Session

from .rewards import MBPPProblem, load_problems
from .rollout import rollout
from .types import OpenAIModel, TrainableModel, Trajectory, VLLMModel

VLLM_MODEL, VLLM_URL = "Qwen/Qwen2.5-3B-Instruct", "http://localhost:8000/v1"
OPENAI_MODEL = "gpt-4o-mini"
SAMPLE = "examples/rl_training/data/mbpp_sample.jsonl"
WIDTH = 60
logger = logging.getLogger(__name__)


class TrainingLoop:
    """Rollouts in parallel, their rewards, an update of the model: once a step.

    Attributes:
        trajectories: of all steps so far.
        steps_completed: whole ones.
        interrupted_by: the signal that ended it, or None.
    """

    def __init__(
        self,
        model: TrainableModel,
        problems: Sequence[MBPPProblem],
        *,
        num_steps: int = 10,
        batch_size: int = 4,
        max_attempts: int = 3,
        learning_rate: float = 2e-5,
        dry_run: bool = False,
        job_id: str = "",
        wandb_run: Any = None,
    ) -> None:
        self.model, self.learning_rate, self.dry_run = model, learning_rate, dry_run
        self.num_steps, self.batch_size, self.max_attempts = num_steps, batch_size, max_attempts
        self.job_id = job_id or uuid.uuid4().hex[:8]
        self.wandb_run = wandb_run
        self.trajectories: list[Trajectory] = []
        self.steps_completed = 0
        self.interrupted_by: signal.Signals | None = None
        self._problems = cycle(problems)

    async def run(self) -> None:
        """All steps. SIGINT and SIGTERM end it early, with every sandbox stopped; a second one ends the process at once."""
        work = asyncio.ensure_future(self._steps())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number, work)
        try:
            await work
        except asyncio.CancelledError:
            if self.interrupted_by is None:
                raise
        except AviatoError as error:
            # A rollout raises no such thing, so this is the end of the session. The trajectories are worth as much.
            if not error.is_infrastructure:
                raise
            logger.warning("The sandboxes could not be stopped: %s", error)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _interrupt(self, number: signal.Signals, work: asyncio.Future[None]) -> None:
        self.interrupted_by = signal.Signals(number)
        for other in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(other)
        work.cancel()

    async def _steps(self) -> None:
        async with Session(SandboxDefaults(tags=("art-rollout", f"job-{self.job_id}"))) as session:
            for step in range(self.num_steps):
                started = time.monotonic()
                batch = islice(self._problems, self.batch_size)
                found = await asyncio.gather(*(rollout(self.model, problem, session, self.max_attempts) for problem in batch))
                self.trajectories += found
                judged = [trajectory for trajectory in found if trajectory.reward is not None]
                metrics = {} if self.dry_run or not judged else await self.model.train(judged, self.learning_rate)
                self.steps_completed += 1
                self._report(step, found, time.monotonic() - started, metrics)
                session.log_metrics(step=step)

    def _report(self, step: int, found: list[Trajectory], seconds: float, metrics: dict[str, float]) -> None:
        rewards = [trajectory.reward for trajectory in found if trajectory.reward is not None]
        line = f"  Step {step}: "
        if rewards:
            mean, passed = sum(rewards) / len(rewards), sum(reward > 0 for reward in rewards)
            line += f"reward={mean:.3f}, success={passed / len(rewards):.1%} ({passed}/{len(rewards)}), "
            metrics = {"reward": mean, "success_rate": passed / len(rewards), **metrics}
        if missing := len(found) - len(rewards):
            line += f"without a verdict: {missing}, "
            logger.warning("Step %d: %s", step, next(t.error for t in found if t.reward is None))
        print(f"{line}time={seconds:.1f}s", flush=True)
        if self.wandb_run is not None:
            attempts = sum(trajectory.attempts for trajectory in found) / len(found)
            metrics |= {"attempts": attempts, "without_verdict": missing, "step_seconds": seconds}
            self.wandb_run.log({f"train/{name}": value for name, value in metrics.items()}, step=step)


def parse_arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description="Multi-step RL on MBPP with rewards from aviato sandboxes.")
    parser.add_argument("--model", help=f"model name (default: {VLLM_MODEL}, with --use-openai {OPENAI_MODEL})")
    parser.add_argument("--project", default="aviato-rl-demo", help="W&B project (default: %(default)s)")
    parser.add_argument("--num-steps", type=at_least(1), default=10, help="training steps (default: %(default)s)")
    parser.add_argument("--batch-size", type=at_least(1), default=4, help="problems a step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default="2e-5", help="learning rate (default: %(default)s)")
    parser.add_argument("--max-attempts", type=at_least(1), default=3, help="attempts a problem (default: %(default)s)")
    parser.add_argument("--dataset-split", choices=("train", "test", "validation"), help="split of MBPP (default: train)")
    parser.add_argument(
        "--dataset-limit", type=at_least(0), default=100, help="problems to load, 0 for all (default: %(default)s)"
    )
    parser.add_argument("--dataset-file", help="take the problems from a JSON-lines file in MBPP's schema, not from the hub")
    parser.add_argument("--dry-run", action="store_true", help="rollouts without training")
    parser.add_argument("--use-openai", action="store_true", help="the OpenAI API in place of vLLM")
    parser.add_argument("--base-url", help=f"of the model server (default: {VLLM_URL}, with --use-openai that of the API)")
    arguments = parser.parse_args()
    if arguments.dataset_file and arguments.dataset_split:
        parser.error("--dataset-split is a split of the hub's dataset; a --dataset-file is taken as it is")
    return arguments


def at_least(least: int) -> Callable[[str], int]:
    """A type of flag."""

    def whole_number(text: str) -> int:
        if (value := int(text)) < least:
            raise ValueError
        return value

    return whole_number


def make_model(arguments: argparse.Namespace) -> TrainableModel:
    """The model that the flags ask for."""
    if not arguments.use_openai:
        model = VLLMModel(arguments.model or VLLM_MODEL, arguments.base_url or VLLM_URL)
        print(f"Using vLLM at {arguments.base_url or VLLM_URL}\n  Start vLLM with: vllm serve {model.name}")
        return model
    if not os.environ.get("OPENAI_API_KEY"):
        sys.exit("--use-openai needs a key: set OPENAI_API_KEY")
    print("Using OpenAI API")
    return OpenAIModel(arguments.model or OPENAI_MODEL, arguments.base_url)


async def train(arguments: argparse.Namespace) -> int:
    """What the command line asks for; the exit status."""
    print("Loading MBPP problems...")
    try:
        problems = load_problems(arguments.dataset_split or "train", arguments.dataset_limit, arguments.dataset_file)
    except (OSError, ImportError) as error:
        offline = "" if arguments.dataset_file else f" Without a hub: --dataset-file {SAMPLE}"
        sys.exit(f"The problems cannot be loaded: {error}.{offline}")
    print(f"Loaded {len(problems)} problems")
    if not problems:
        sys.exit("There is nothing to train on.")
    model = make_model(arguments)
    async with model.client:
        return await run(model, problems, arguments)


async def run(model: TrainableModel, problems: Sequence[MBPPProblem], arguments: argparse.Namespace) -> int:
    """The training loop, with its banner and its summary; the exit status."""
    try:
        await model.client.models.list()
    except (openai.APIConnectionError, openai.AuthenticationError) as error:
        sys.exit(f"The model server at {model.client.base_url} cannot be used: {error}")
    except openai.APIStatusError:
        pass  # It is there. Not every server lists its models.

    job_id = uuid.uuid4().hex[:8]
    print(f"\nART Training (job: {job_id})\n{'=' * WIDTH}")
    print(f"Model: {model.name}\nProblems: {len(problems)}\nSteps: {arguments.num_steps}\nBatch size: {arguments.batch_size}")
    print(f"{'=' * WIDTH}\n")
    wandb_run = None
    if os.environ.get("WANDB_API_KEY"):
        import wandb

        wandb_run = wandb.init(project=arguments.project, config={**vars(arguments), "model": model.name, "job": job_id})
        print(f"W&B run: {wandb_run.url or wandb_run.dir}\n")

    loop = TrainingLoop(
        model,
        problems,
        num_steps=arguments.num_steps,
        batch_size=arguments.batch_size,
        max_attempts=arguments.max_attempts,
        learning_rate=arguments.learning_rate,
        dry_run=arguments.dry_run,
        job_id=job_id,
        wandb_run=wandb_run,
    )
    print("Dry run: rollouts only, nothing is trained..." if arguments.dry_run else "Starting training loop...")
    print("-" * WIDTH, flush=True)
    await loop.run()
    print("-" * WIDTH)
    if arguments.dry_run and isinstance(model, VLLMModel) and (lacking := await model.lacking()):
        print(f"A run that trains would lack something: {lacking}")
    status = summarize(loop)
    if wandb_run is not None:
        wandb_run.finish(exit_code=status)
    return status


def summarize(loop: TrainingLoop) -> int:
    """Print what came of it; the exit status."""
    rewards = [trajectory.reward for trajectory in loop.trajectories if trajectory.reward is not None]
    passed, missing = sum(reward > 0 for reward in rewards), len(loop.trajectories) - len(rewards)
    print(f"\nInterrupted by {loop.interrupted_by.name}." if loop.interrupted_by else "\nTraining complete!")
    print(f"  Total trajectories: {len(loop.trajectories)}")
    print(f"  Successful: {passed} ({passed / max(len(rewards), 1):.1%})")
    if missing:
        print(f"  Without a verdict: {missing} (infrastructure; not counted as failures)")
    print(f"  Steps completed: {loop.steps_completed}", flush=True)
    if loop.interrupted_by:
        return 128 + loop.interrupted_by
    return 0 if rewards else 1


def main() -> None:
    """Run from the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        sys.exit(asyncio.run(train(parse_arguments())))
    except (AviatoError, openai.OpenAIError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
