"""Runs `train.py` with a backend that trains a tiny model on the CPU, and keeps what it was given to train on.

Not a test: a program for a process of its own, with ART installed. `python art_on_cpu.py FOLDER [flags of train.py]`
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rl_training" / "art"
sys.path[0] = str(EXAMPLE)

import art.local.backend  # noqa: E402
import torch  # noqa: E402
import train  # noqa: E402
from art.local import LocalBackend  # noqa: E402
from art.loss import loss_fn, shift_tensor  # noqa: E402
from art.preprocessing.inputs import create_train_inputs  # noqa: E402
from art.preprocessing.pack import packed_tensors_from_dir  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

TEMPLATE = """{% if tools %}{{ tools | tojson }}
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}"""


def make_model(folder: Path) -> None:
    """A tokenizer of bytes and a model of nothing."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<|im_start|>", "<|im_end|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["zq zq zq"], trainer)  # ART marks places with the last token, which must be a text
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=TEMPLATE)
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=len(fast), num_key_value_heads=2, **sizes)).save_pretrained(folder)


class CPUService:
    """ART's packing and ART's loss, and an optimizer."""

    def __init__(self, folder: str, output: Path) -> None:
        self._model = Qwen2ForCausalLM.from_pretrained(folder)
        self._output = output
        self._checkpoint(0)

    async def start_openai_server(self, config: Any) -> tuple[str, int]:
        return "127.0.0.1", 9

    async def vllm_engine_is_sleeping(self) -> bool:
        return True

    async def train(self, on_disk: Any, config: Any, more: Any, verbose: bool = False) -> AsyncIterator[dict[str, float]]:
        packed = packed_tensors_from_dir(**on_disk)
        optimizer = torch.optim.AdamW(self._model.parameters(), lr=config.learning_rate)
        for row in range(packed["tokens"].shape[0]):
            inputs = create_train_inputs(packed, row, config, more, False)
            tokens = inputs["tokens"]
            scores = torch.log_softmax(self._model(input_ids=tokens).logits, dim=-1)
            logprobs = scores.gather(-1, shift_tensor(tokens, 0).unsqueeze(-1)).squeeze(-1)
            loss = loss_fn(inputs, logprobs, None, None, more).mean_policy_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield {"loss": loss.item()}
        self._checkpoint(1 + max(int(path.name) for path in self._output.iterdir()))

    def _checkpoint(self, step: int) -> None:
        self._model.save_pretrained(self._output / f"{step:04d}")


class CPUBackend(LocalBackend):
    """A LocalBackend that needs no GPU."""

    async def _get_service(self, model: Any) -> Any:
        if model.name not in self._services:
            output = Path(self._path, model.project, "models", model.name, "checkpoints")
            self._services[model.name] = CPUService(str(FOLDER / "model"), output)
        return self._services[model.name]

    async def train(self, model: Any, groups: Any, **options: Any) -> Any:
        with (FOLDER / "groups.jsonl").open("a") as file:
            file.writelines(group.model_dump_json() + "\n" for group in groups)
        (FOLDER / "options.json").write_text(json.dumps(options))
        return await super().train(model, groups, **options)


art.local.backend.record_provenance = lambda *_: None  # asks W&B's service about the run, in offline mode too
make_model(FOLDER / "model")
if __name__ == "__main__":
    train.check_backend = lambda name: None  # of packages and a GPU that this backend does not need
    train.make_backend = lambda name: CPUBackend(path=str(FOLDER / "art"))
    train.main(["--base-model", str(FOLDER / "model"), *sys.argv[2:]])
