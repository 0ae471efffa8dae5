"""The toolkit's update, on a model that is made on the spot; needs torch, transformers and peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.examples.test_reward_toolkit import rows, solver, train
from tests.openai_server import OpenAIServer

pytest.importorskip("openai")
torch = pytest.importorskip("torch")
pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model(folder: Path) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([row["code"] for row in rows()], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Qwen2Config(vocab_size=len(fast), num_key_value_heads=2, **sizes)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_step_makes_what_passed_likelier_and_is_sampled_next(server: Any, tmp_path: Path, monkeypatch: Any) -> None:
    transformers.utils.logging.disable_progress_bar()  # they leave a thread behind
    name = tiny_model(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    play = solver(fails=lambda row, turn: row["task_id"] % 2 == 0)
    with OpenAIServer(play, key=None, models=[name], adapters=True) as api:
        flags = ["--model", name, "--num-steps", "2", "--max-attempts", "1", "--learning-rate", "1e-2"]
        done = train(api, server, *flags, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "Nothing is trained" not in done.stderr
    assert [request.body["model"] for request in api.requests] == [name] * 4 + [next(iter(api.adapters))] * 4
    assert [Path(path, "adapter_model.safetensors").exists() for path in api.adapters.values()] == [True, True]
    passed, failed = (likelihood_gain(api, name, request) for request in api.requests[:2])
    if "raise ValueError" in json.dumps(api.requests[0].conversation):
        passed, failed = failed, passed
    assert passed > failed


def likelihood_gain(api: OpenAIServer, name: str, request: Any) -> float:
    """By how much the first adapter raises the mean log-probability of the reply to a request."""
    from peft import PeftModel

    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    reply = solver(fails=lambda row, turn: row["task_id"] % 2 == 0)(request).text
    prompt = tokenizer.apply_chat_template(request.conversation, tokenize=False, add_generation_prompt=True)
    begin = len(tokenizer.encode(prompt))
    tokens = torch.tensor(tokenizer.encode(f"{prompt}{reply}<|im_end|>\n"))

    def mean_log_probability(model: Any) -> float:
        with torch.no_grad():
            logits = model(tokens[None, :-1]).logits[0]
        return -torch.nn.functional.cross_entropy(logits[begin - 1 :], tokens[begin:]).item()

    before = mean_log_probability(transformers.AutoModelForCausalLM.from_pretrained(name))
    adapted = PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(name), next(iter(api.adapters.values()))
    )
    return mean_log_probability(adapted) - before
