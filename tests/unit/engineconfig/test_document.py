"""What a configuration may say, and what a worker is told because of it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from contracts.models import ModelCard
from controlplane.engineconfig.document import ConfigurationRefused, digest_of, environment_of, read_document
from controlplane.engineconfig.parser import ParserAway, ask_parser, settings_of
from controlplane.engineconfig.running import compare
from workers.engines.vllm import vllm_command

SMALL = {"repository": "acme/model", "revision": "abc", "device": "cpu"}
GPU = {
    "repository": "acme/model", "revision": "abc", "tensor_parallel_size": 4, "pipeline_parallel_size": 2,
    "distributed_executor_backend": "ray", "kv_cache_dtype": "fp8", "gpu_memory_utilization": "0.92",
    "max_num_seqs": 256, "max_model_len": 32_768, "block_size": 32, "lora": True, "sleep_mode": True,
    "speculation": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
    "flags": ["--max-loras", "2"],
}  # fmt: skip
CARD = ModelCard(
    model="m", pool="p", repository="acme/model", revision="abc", weights_sha256="0" * 64, tokenizer_sha256="1" * 64,
    dtype="bfloat16", kv_cache_dtype="bfloat16", layers=2, heads=2, kv_heads=1, head_size=8, vocabulary=9,
    context_tokens=8_192, block_tokens=128, engine="vllm", engine_version="0.32.0", created_at_ms=0,
)  # fmt: skip


class TestReadDocument:
    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"unheard": 1}, "unheard"), ({"revision": ""}, "revision"), ({"weights_sha256": "abc"}, "weights_sha256"),
            ({"tensor_parallel_size": 0}, "tensor_parallel_size"), ({"dtype": "int3"}, "dtype"),
            ({"kv_cache_dtype": "fp8"}, "GPU"), ({"gpu_memory_utilization": "0.9"}, "GPU"),
            ({"speculation": {"method": "draft_model", "num_speculative_tokens": 3}}, "model"),
            ({"speculation": {"method": "guess", "num_speculative_tokens": 3}}, "method"),
        ],
    )  # fmt: skip
    def test_names_the_field_that_is_wrong(self, changes: dict[str, Any], field: str):
        with pytest.raises(ConfigurationRefused, match=field):
            read_document({**SMALL, **changes})

    @pytest.mark.parametrize(
        "flag",
        [
            "--host", "--port=1", "--api-key", "--model=other", "--no-enable-prefix-caching", "--trust-remote-code",
            "--trust_remote_code", "--tensor-parallel", "--enable-log-req", "-tp", "--mod",
        ],
    )  # fmt: skip
    def test_refuses_flags_that_are_the_platform_s_or_open_a_door_however_they_are_spelled(self, flag: str):
        with pytest.raises(ConfigurationRefused, match="flags"):
            read_document({**SMALL, "flags": [flag]})

    def test_gives_the_same_digest_for_the_same_configuration(self):
        assert digest_of(read_document(SMALL)) == digest_of(read_document({**SMALL, "max_num_seqs": 64}))
        assert digest_of(read_document(SMALL)) != digest_of(read_document({**SMALL, "max_num_seqs": 65}))


class TestEnvironmentOf:
    def test_is_read_by_the_worker_into_vllm_s_command_line(self):
        settings = settings_of(read_document(GPU), python="/engine/python")
        line = " ".join(vllm_command(engine=settings, model_dir=Path("model"), served="m", uds=Path("s"), cores=8).argv)
        for wanted in (
            "--tensor-parallel-size 4", "--pipeline-parallel-size 2", "--distributed-executor-backend ray",
            "--kv-cache-dtype fp8", "--gpu-memory-utilization 0.92", "--max-num-seqs 256", "--max-model-len 32768",
            "--block-size 32", "--enable-lora", "--enable-sleep-mode", "--max-loras 2",
            '--speculative-config {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}',
        ):  # fmt: skip
            assert wanted in line

    def test_keeps_a_flag_with_spaces_whole(self):
        made = environment_of(read_document({**SMALL, "flags": ["--x", "a b; $(c)"]}))
        assert shlex.split(made["WEIR_ENGINE_EXTRA_ARGS"]) == ["--x", "a b; $(c)"]

    def test_says_nothing_of_what_is_left_to_the_engine(self):
        assert "WEIR_ENGINE_MAX_MODEL_LEN" not in environment_of(read_document(SMALL))


class TestCompare:
    def test_tells_what_was_read_back_what_differs_and_what_is_not_known(self):
        document = read_document({**SMALL, "max_model_len": 4_096, "block_size": 128, "dtype": "float16"})
        found = compare(document, CARD)
        assert {one.field: (one.configured, one.running) for one in found.different} == {
            "dtype": ("float16", "bfloat16"),
            "max_model_len": ("4096", "8192"),
            "kv_cache_dtype": ("float16", "bfloat16"),
        }
        assert set(found.same) == {"repository", "revision", "block_size"}
        assert "max_num_seqs" in found.unread

    def test_finds_other_weights(self):
        found = compare(read_document({**SMALL, "weights_sha256": "2" * 64}), CARD)
        assert [one.field for one in found.different] == ["weights_sha256"]


class TestAskParser:
    def test_knows_nothing_without_the_engine_s_environment(self, tmp_path: Path):
        with pytest.raises(ParserAway):
            ask_parser(read_document(SMALL), python=tmp_path / "no-python", model_dir=tmp_path)
