"""What the parts of the toolkit hand to each other: trajectories and models."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from openai import AsyncOpenAI, BadRequestError, NotFoundError
from openai.types.chat.chat_completion import Choice

logger = logging.getLogger(__name__)


@dataclass
class Trajectory:
    """The whole history of one rollout.

    Attributes:
        task_id: of the problem.
        messages_and_choices: all prompts (dicts) and all replies of the model (`Choice`), in order.
        reward: 1.0 for success, 0.0 for failure, None where the model server or the sandboxes failed: that is no verdict on
            the model, so leave such a trajectory out of what you train on.
        attempts: verdicts on the model's replies.
        error: why there is no reward, or why the rollout ended early.
    """

    task_id: int
    messages_and_choices: list[dict[str, Any] | Choice] = field(default_factory=list)
    reward: float | None = None
    attempts: int = 0
    error: str = ""

    def messages(self) -> list[dict[str, Any]]:
        """The history as messages for the next request. Tool calls, which nobody offered, are left out."""
        return [
            item if isinstance(item, dict) else {"role": "assistant", "content": item.message.content or ""}
            for item in self.messages_and_choices
        ]


class TrainableModel(Protocol):
    """A model that is sampled over an OpenAI-compatible API, and updated after each step."""

    name: str
    client: AsyncOpenAI

    async def train(self, trajectories: Sequence[Trajectory], learning_rate: float) -> dict[str, float]:
        """Update the weights once, from trajectories that all have a reward. What it returns is logged."""
        ...


class VLLMModel:
    """A model behind a vLLM server on this machine. Training updates LoRA weights, which the server loads after each step."""

    def __init__(
        self,
        name: str = "Qwen/Qwen2.5-3B-Instruct",
        base_url: str = "http://localhost:8000/v1",
        adapters: str = "adapters",
    ) -> None:
        self.name = self.base_name = name
        self.client = AsyncOpenAI(base_url=base_url, api_key=os.environ.get("VLLM_API_KEY", "EMPTY"))
        self.adapters = Path(adapters).resolve() / uuid.uuid4().hex[:8]
        self._trainer: Any = None
        self._updates = 0

    async def train(self, trajectories: Sequence[Trajectory], learning_rate: float) -> dict[str, float]:
        """A step on a second copy of the model. Where that cannot be done a warning says why, once, and nothing changes."""
        if self._trainer is None:
            self._trainer = await self._make_trainer()
        folder = str(self.adapters / f"step-{self._updates + 1}")
        metrics = await asyncio.to_thread(self._trainer.step, trajectories, learning_rate, folder) if self._trainer else {}
        if metrics:
            self._updates += 1
            adapter = f"{self.base_name}-{self.adapters.name}-{self._updates}"
            await self._load(adapter, folder)
            self.name = adapter  # what the next step samples
        return metrics

    async def lacking(self) -> str | None:
        """What keeps this model from being trained, and how to have it."""
        try:
            await self._load("", "")
        except NotFoundError:
            return "this server loads no adapters. The README says how to start one that does."
        except BadRequestError:
            pass  # It knows the call, and there was no adapter in it.
        try:
            from . import lora  # noqa: F401
        except ImportError as error:
            return f"pip install torch transformers peft ({error})"
        return None

    async def _make_trainer(self) -> Any:
        if lacking := await self.lacking():
            logger.warning("Nothing is trained: %s", lacking)
            return False
        from .lora import LoraTrainer

        return await asyncio.to_thread(LoraTrainer, self.base_name)

    async def _load(self, name: str, folder: str) -> None:
        await self.client.post("/load_lora_adapter", cast_to=str, body={"lora_name": name, "lora_path": folder})


class OpenAIModel:
    """A model of the OpenAI API (`OPENAI_API_KEY`). Its weights are out of reach: it is sampled and scored, not trained."""

    def __init__(self, name: str = "gpt-4o-mini", base_url: str | None = None) -> None:
        self.name = name
        self.client = AsyncOpenAI(base_url=base_url)
        self._warned = False

    async def train(self, trajectories: Sequence[Trajectory], learning_rate: float) -> dict[str, float]:
        """Nothing but a warning, once."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "Nothing is trained: the weights of OpenAI's models are out of reach. --dry-run says it from the start."
            )
        return {}
