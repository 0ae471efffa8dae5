"""Train a model with ART on MBPP: a stronger one shows how, with tools in aviato sandboxes.

python examples/rl_training/art/train.py --help
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from problems import HUB, MBPPProblem, load_problems

from aviato import AviatoError, SandboxDefaults, Session, stop_on_sigterm

REQUIREMENTS = "examples/rl_training/art/requirements.txt"
README = "examples/rl_training/art/README.md"
TOOLKIT = "examples/rl_training/reward_toolkit/train.py"
FLAGS_OF_THE_TOOLKIT = ("--use-openai", "--batch-size", "--max-attempts", "--dataset-")
MAX_BROKEN_SHARE = 0.5
"""Of a step's rollouts. If more of them break, the servers need attention; it is no step to train on."""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description="Multi-step RL on MBPP with ART and aviato sandboxes.", allow_abbrev=False)
    add = parser.add_argument
    add("--backend", choices=("local", "tinker"), default="local", help="training backend (default: %(default)s)")
    add("--model", default="gpt-5.1-codex-mini", help="model for inference (default: %(default)s)")
    add("--base-model", default="Qwen/Qwen3-8B", help="base model for training (default: %(default)s)")
    add("--num-problems", type=at_least(1), default=10, help="number of MBPP problems (default: %(default)s)")
    add("--num-steps", type=at_least(1), default=5, help="training steps (default: %(default)s)")
    add("--trajectories-per-problem", type=at_least(2), default=2, help="per step, 2 or more (default: %(default)s)")
    add("--base-url", help="inference API base URL")
    add("--project", default="aviato-mbpp", help="W&B project name (default: %(default)s)")
    add("--run-name", default="train-001", help="training run name (default: %(default)s)")
    add("--learning-rate", type=float, default=1e-5, help="learning rate (default: %(default)s)")
    add("--problems", default="hub", metavar="{hub,sample,FILE}", help="where MBPP is read from (default: %(default)s)")
    add("--dry-run", action="store_true", help="validate setup without training")
    arguments, unknown = parser.parse_known_args(argv)
    for flag in unknown:
        if flag.startswith(FLAGS_OF_THE_TOOLKIT):
            parser.error(f"{flag} is a flag of the older toolkit, which is {TOOLKIT} now")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def at_least(least: int) -> Callable[[str], int]:
    """A type of flag."""

    def whole_number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more")
        return value

    return whole_number


def check_keys(backend: str) -> None:
    """End with a word on the key that is missing."""
    if not os.environ.get("OPENAI_API_KEY"):
        sys.exit("Set OPENAI_API_KEY to the key of the inference server; where it wants none, to any text.")
    if backend == "tinker":
        key = os.environ.get("ART_TINKER_API_KEY") or os.environ.get("TINKER_API_KEY")
        if not key:
            sys.exit("--backend tinker needs a key: set ART_TINKER_API_KEY.")
        os.environ["TINKER_API_KEY"] = key  # ART reads this name, and prints a key that it is given as an argument


def check_backend(name: str) -> None:
    """End with a word on what the backend lacks. ART imports what does its work only when a model is registered."""
    lacks = []
    try:
        importlib.import_module("art.tinker.service" if name == "tinker" else "art.unsloth.service")
    except ModuleNotFoundError as error:
        lacks.append(f"the package {error.name}, which its line in {README} installs")
    except (ImportError, NotImplementedError, RuntimeError) as error:
        lacks.append(f"packages that can be imported together ({error})")
    if name == "local":
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # Asks the driver, and makes nothing in this process.
        import torch

        if not torch.cuda.is_available():
            lacks.append("a GPU, and torch finds none; --backend tinker needs none")
    if lacks:
        sys.exit(f"--backend {name} needs {', and '.join(lacks)}.")


def check_base_model(name: str) -> None:
    """End with a word on a base model whose tokenizer, the first that training takes of it, cannot be had."""
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(name, local_files_only=not (os.path.isdir(name) or HUB["answers"]()))
    except (OSError, ValueError) as error:
        sys.exit(
            f"The tokenizer of --base-model {name} cannot be loaded: {error}\nWithout a hub: a folder that holds the model."
        )


async def check_inference_server(arguments: argparse.Namespace) -> None:
    """Ask a server whether it answers and takes the key.

    Raises:
        ConnectionError: it does not.
    """
    import openai

    async with openai.AsyncOpenAI(base_url=arguments.base_url, max_retries=1, timeout=10.0) as client:
        try:
            await client.models.list()
        except (openai.APIConnectionError, openai.AuthenticationError) as error:
            raise ConnectionError(
                f"the inference server at {client.base_url} cannot be used: {error} (--base-url names another)"
            ) from error
        except openai.APIStatusError:
            pass  # It is there. Not every server lists its models.


def make_backend(name: str) -> Any:
    """The backend that trains."""
    if name == "tinker":
        from art.tinker import TinkerBackend

        return TinkerBackend()
    from art.local import LocalBackend

    return LocalBackend()


async def run(arguments: argparse.Namespace) -> None:
    """Load, set up, train."""
    print("Loading MBPP problems...")
    problems = load_problems(arguments.problems, arguments.num_problems)
    print(f"Loaded {len(problems)} problems\n", flush=True)
    if not problems:
        sys.exit("There is nothing to train on.")
    check_keys(arguments.backend)

    import openai

    import art

    check_backend(arguments.backend)
    check_base_model(arguments.base_model)
    if arguments.dry_run:
        await check_inference_server(arguments)
    print(f"Creating {arguments.backend} backend...", flush=True)
    backend = make_backend(arguments.backend)
    print("Creating trainable model...", flush=True)
    model: Any = art.TrainableModel(name=arguments.run_name, project=arguments.project, base_model=arguments.base_model)
    defaults = SandboxDefaults(container_image="python:3.11", tags=("art-training", arguments.project, arguments.run_name))
    async with Session(defaults) as session:
        async with session.sandbox() as sandbox:
            await sandbox.exec(["python", "-c", ""], check=True)
        if arguments.dry_run:
            print("Dry run: packages, keys, problems, base model's tokenizer, inference server and sandboxes are there.")
            print("Nothing was registered or trained.")
            return
        print("Registering model with backend...", flush=True)
        try:
            await model.register(backend)
            print("\nStarting training...", flush=True)
            for step in range(1, arguments.num_steps + 1):
                print(f"\n=== Step {step} ===")
                await training_step(step, arguments, problems, session, model, backend)
                session.log_metrics(step=step)
        except openai.OpenAIError as error:
            sys.exit(f"Stopped: the inference server failed: {error}")
        finally:
            await backend.close()


async def training_step(
    step: int, arguments: argparse.Namespace, problems: list[MBPPProblem], session: Session, model: Any, backend: Any
) -> None:
    """A group of rollouts for each problem, and an update of the model."""
    from openai import AsyncOpenAI
    from rollout import rollout

    import art

    print(f"Collecting trajectories for {len(problems)} problems...", flush=True)
    async with AsyncOpenAI(base_url=arguments.base_url, max_retries=5) as client:
        collecting = art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(
                    rollout(client, arguments.model, problem, session) for _ in range(arguments.trajectories_per_problem)
                )
                for problem in problems
            ),
            pbar_desc=f"step {step}",
            max_exceptions=MAX_BROKEN_SHARE,
        )
        # ART takes a cancellation for one more rollout that broke, and goes on: so Ctrl-C would be lost.
        groups = await asyncio.shield(collecting)
    broken = [exception for group in groups for exception in group.exceptions]
    if broken:
        print(f"{len(broken)} rollouts broke and count for nothing, such as: {broken[0].type} {broken[0].message}")
    groups = [group for group in groups if group.trajectories]
    rewards = [trajectory.reward for group in groups for trajectory in group]
    print(f"Collected {len(rewards)} trajectories, avg reward: {sum(rewards) / len(rewards):.2f}")

    print("Training...", flush=True)
    # The replies of another model carry no log-probabilities of this one's tokens.
    result = await backend.train(model, groups, learning_rate=arguments.learning_rate, allow_training_without_logprobs=True)
    await model.log(groups, metrics=result.metrics, step=result.step, split="train")
    print(f"Training complete: step={result.step}, metrics={result.metrics}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags, say what will be done, do it."""
    arguments = parse_arguments(argv)
    print("ART Training with Aviato Sandboxes")
    print("=" * 40)
    print(f"Backend: {arguments.backend}\nModel: {arguments.model}\nBase model: {arguments.base_model}")
    print(f"Problems: {arguments.num_problems}\nSteps: {arguments.num_steps}")
    print(f"Trajectories per problem: {arguments.trajectories_per_problem}")
    print(f"Project: {arguments.project}\nRun name: {arguments.run_name}\n", flush=True)
    stop_on_sigterm()
    try:
        asyncio.run(run(arguments))
    except ModuleNotFoundError as error:
        sys.exit(f"{error}. Install what this example needs: pip install -r {REQUIREMENTS} (--backend local: see README.md)")
    except KeyboardInterrupt:
        sys.exit("Interrupted; the sandboxes are stopped.")
    except (AviatoError, OSError) as error:
        sys.exit(f"Stopped: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
