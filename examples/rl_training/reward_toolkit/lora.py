"""A policy-gradient step on the machine that vLLM runs on. Needs torch, transformers and peft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from .types import Trajectory


class LoraTrainer:
    """A second copy of the model, whose LoRA weights are trained and saved for the server to load."""

    def __init__(self, name: str) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        base = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).to(self.device)
        self.model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
        self.optimizer = torch.optim.AdamW([weight for weight in self.model.parameters() if weight.requires_grad])

    def step(self, trajectories: Sequence[Trajectory], learning_rate: float, folder: str) -> dict[str, float]:
        """REINFORCE with the mean reward as its baseline; the weights are saved in the folder.

        Returns nothing, and saves nothing, where all rewards are equal: then there is nothing to learn.
        """
        mean = sum(trajectory.reward for trajectory in trajectories) / len(trajectories)
        advantages = [trajectory.reward - mean for trajectory in trajectories]
        if not any(advantages):
            return {}
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.zero_grad()
        loss = 0.0
        for trajectory, advantage in zip(trajectories, advantages, strict=True):
            # One after another: the gradients add up, and only one history is in memory.
            part = -advantage * self.log_probability(trajectory.messages()) / len(trajectories)
            part.backward()
            loss += part.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.optimizer.step()
        self.model.save_pretrained(folder)
        return {"loss": loss, "gradient_norm": norm}

    def log_probability(self, messages: list[dict[str, Any]]) -> torch.Tensor:
        """The mean log-probability of the tokens that the model wrote; those of its prompts do not count."""
        tokens = torch.tensor(self.rendered(messages), device=self.device)
        written = torch.zeros(len(tokens), dtype=torch.bool, device=self.device)
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                begin = len(self.rendered(messages[:turn], add_generation_prompt=True))
                written[begin : len(self.rendered(messages[: turn + 1]))] = True
        logits = self.model(tokens[None, :-1]).logits[0].float()
        return -torch.nn.functional.cross_entropy(logits[written[1:]], tokens[1:][written[1:]])

    def rendered(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """The tokens of a conversation."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return self.tokenizer.encode(text, add_special_tokens=False)
