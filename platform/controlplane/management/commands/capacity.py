"""`manage.py capacity`: what a model's weights and cache take, and the ceiling of sequences. Needs no store.

From a model's own `config.json`, or from single numbers. JSON on stdout with `--json`, else a table. docs/capacity.md.
"""

import json
import struct
from argparse import ArgumentParser
from itertools import islice
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.table import Table

from controlplane.capacity.given import KINDS
from controlplane.capacity.layers import CapacityRefused
from controlplane.capacity.plan import as_document, make_plan
from controlplane.capacity.reading import NUMBERS, Said, read_ask

_HEADER_MAX = 100_000_000
_WHOLE = {
    "layers": "layers of the model",
    "heads": "query heads (multi-head attention)",
    "kv_heads": "KV heads of a layer",
    "head_size": "size of a head; of `mla`, the latent vector with its rotary part",
    "window": "tokens that a sliding layer keeps",
    "latent_size": "MLA: kv_lora_rank + qk_rope_head_dim",
    "full_layers": "hybrid: how many layers keep every token",
    "state_bytes": "linear: bytes of a layer's state (else KV heads * head size squared * bytes)",
    "params": "parameters of the model",
    "kv_dtype_bytes": "bytes of a number in the cache (else those of a parameter)",
    "tokens": "cached tokens of a sequence, prompt and answer",
    "tp": "devices of the tensor-parallel group (1)",
    "block_size": "tokens of a block of the cache (16)",
    "shared_prefix_tokens": "assume that all sequences begin with so many equal tokens; told apart",
}
_DECIMAL = {
    "dtype_bytes": "bytes of a parameter; 0.5 for four bits",
    "budget_gib": "room for the cache on all devices together, in GiB",
    "device_memory_gib": "instead: memory of each device, in GiB",
    "utilization": "part of the device's memory that may be used (0.9)",
    "overhead_gib": "what the runtime takes of each device: activations, graphs, buffers",
}


class Command(BaseCommand):
    help = "Plan memory: weights, KV cache by layer kind, tensor parallelism, the ceiling of sequences."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--config", type=Path, help="a model's config.json, instead of single numbers")
        parser.add_argument("--attention", choices=KINDS, help="the kind of its attention (gqa)")
        for name, text in _WHOLE.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
        for name, text in _DECIMAL.items():
            parser.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=text)
        parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            said = Said(
                numbers={name: options[name] for name in _WHOLE},
                decimals={name: options[name] for name in _DECIMAL},
                attention=options["attention"],
                config=_config(options["config"]),
                params_of_weights=_params_beside(options["config"]),
            )
            document = as_document(make_plan(read_ask(said)))
        except CapacityRefused as refused:
            where = f"--{refused.param.replace('_', '-')}: " if refused.param else ""
            raise CommandError(f"{where}{refused}", returncode=2) from refused
        if options["json"]:
            self.stdout.write(json.dumps(document, ensure_ascii=False))
            return
        _print(document)


def _config(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CapacityRefused(f"{path} cannot be read as JSON: {error}", param="config") from error
    if not isinstance(found, dict):
        raise CapacityRefused(f"{path} is not an object.", param="config")
    return found


def _params_beside(config: Path | None) -> int | None:
    """Parameters as the weights beside the configuration have them: counted from the heads of their files."""
    if config is None:
        return None
    files = list(islice(config.parent.glob("*.safetensors"), 1_000))
    return sum(map(_params_in, files)) if files else None


def _params_in(path: Path) -> int:
    """Elements of all tensors of a safetensors file: a length, then a JSON head. Raises CapacityRefused."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _HEADER_MAX:
                raise ValueError("its head is too long")
            head = json.loads(file.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise CapacityRefused(f"{path.name} is no safetensors file: {error}", param="config") from error
    total = 0
    for name, tensor in head.items():
        if name != "__metadata__":
            elements = 1
            for size in tensor["shape"]:
                elements *= size
            total += elements
    return total


def _print(document: dict[str, Any]) -> None:
    table = Table(title="capacity", title_justify="left")
    for heading in ("what", "value", "how"):
        table.add_column(heading, justify="right" if heading == "value" else "left", overflow="fold")
    for name, formula in document["formulas"].items():
        value = document[name]
        table.add_row(name, "" if value is None else f"{value:,}", formula)
    shared = document.get("assuming_shared_prefix")
    if shared:
        title = f"ceiling_sequences, assuming {shared['tokens']} shared tokens"
        table.add_row(title, f"{shared['ceiling_sequences']:,}", shared["formula"])
    console = Console(highlight=False)
    console.print(table)
    for name, text in document["in_units"].items():
        console.print(f"{name.replace('_', ' ')}: {text}")
    console.print(document["ceiling_means"])


assert set(NUMBERS) <= set(_WHOLE)
