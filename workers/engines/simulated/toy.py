"""Writes a toy model directory (tokenizer, chat template, config; no weights) for the simulated engine and its tests.

Run as `python -m workers.engines.simulated.toy FOLDER`. The tokenizer is byte-level BPE over a small text, so that
characters outside ASCII are split over tokens, as in real models.
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from workers.engines.simulated.text import SENTENCES

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTEXT_TOKENS = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_toy_model(folder: Path) -> Path:
    """Make `folder` a model directory. Deterministic: the same files each time."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment,unused-ignore]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment,unused-ignore]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    ascii_only = [sentence for sentence in SENTENCES if sentence.isascii()]
    tokenizer.train_from_iterator(ascii_only, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "bos_token": None})
    _write(folder / "config.json", {**_CONFIG, "vocab_size": tokenizer.get_vocab_size()})
    return folder


_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 64,
    "max_position_embeddings": CONTEXT_TOKENS,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
}


def _write(path: Path, document: dict[str, object]) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_toy_model(Path(sys.argv[1]))
