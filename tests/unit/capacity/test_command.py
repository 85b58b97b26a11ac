"""`manage.py capacity` as a person and a program type it."""

from __future__ import annotations

import json
import struct
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.env import ROOT

MODEL = ROOT / "infra" / "models" / "smollm2-135m-instruct" / "config.json"
REFERENCE = "--params 70000000000 --dtype-bytes 2 --budget-gib 400 --tp 1 --block-size 16 --layers 80 --head-size 128"


def plan(line: str, *more: Any) -> dict[str, Any]:
    out = StringIO()
    call_command("capacity", *line.split(), *more, "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


class TestCapacity:
    def test_gives_the_four_numbers_and_a_formula_for_each(self) -> None:
        found = plan(f"{REFERENCE} --kv-heads 64 --attention mha --tokens 4096")
        assert {name: found[name] for name in found["formulas"]} == {
            "weights_bytes": 140_000_000_000,
            "weights_bytes_per_device": 140_000_000_000,
            "kv_bytes_per_sequence": 10_737_418_240,
            "kv_bytes_per_sequence_per_device": 10_737_418_240,
            "kv_budget_bytes_per_device": 400 * 2**30,
            "kv_cache_tokens": 163_840,
            "ceiling_sequences": 40,
        }
        assert "64 KV heads" in found["formulas"]["kv_bytes_per_sequence"]

    def test_of_the_committed_model_needs_nothing_but_its_configuration(self) -> None:
        found = plan("--tokens 8192 --budget-gib 2 --block-size 128 --config", MODEL)
        assert found["weights_bytes"] == 2 * 134_515_008
        assert found["kv_bytes_per_sequence"] == 188_743_680
        assert found["ceiling_sequences"] == 11

    def test_counts_the_weights_that_lie_beside_the_configuration(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(MODEL.read_text())
        head = json.dumps({"__metadata__": {}, "a": {"shape": [3, 5]}, "b": {"shape": [7]}}).encode()
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
        found = plan("--tokens 1 --budget-gib 2 --config", tmp_path / "config.json")
        assert found["weights_bytes"] == 2 * (3 * 5 + 7)

    @pytest.mark.parametrize(
        ("line", "named"),
        [
            (f"{REFERENCE} --kv-heads 8 --tokens 0", "--tokens"),
            (f"{REFERENCE} --tokens 1", "--kv-heads"),
            (f"{REFERENCE} --kv-heads 8 --tokens 1 --dtype-bytes 0", "--dtype-bytes"),
            (f"{REFERENCE} --kv-heads 8 --tokens 1 --dtype-bytes 0.5", "--kv-dtype-bytes"),
            (f"{REFERENCE} --kv-heads 8 --tokens 1 --budget-gib nan", "--budget-gib"),
            (f"{REFERENCE} --kv-heads 8 --tokens 1 --utilization 0.5", "--utilization"),
            (f"{REFERENCE} --kv-heads 8 --tokens 1 --device-memory-gib 80", "--budget-gib"),
            (f"{REFERENCE} --kv-heads 8 --tokens 1 --config {MODEL}", "--layers"),
            (f"--tokens 1 --budget-gib 1 --config {MODEL.parent / 'manifest.json'}", "--dtype-bytes"),
            ("--tokens 1 --budget-gib 1 --config nowhere.json", "--config"),
        ],
    )
    def test_names_the_option_that_is_wrong(self, line: str, named: str) -> None:
        with pytest.raises(CommandError, match=named) as refused:
            plan(line)
        assert refused.value.returncode == 2
