"""Command lines, Prometheus text, settings, room: the small pure parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.unit.workers.cast import ticket
from workers.admission import KV_TOKENS_UNKNOWN, Room, compute_room
from workers.config import WorkerSettings
from workers.engines import prometheus
from workers.engines.base import EngineKind
from workers.engines.settings import EngineSettings
from workers.engines.vllm import vllm_command

METRICS = """# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:generation_tokens_total{engine="0",model_name="a, \\"b\\" {c}"} 1.25e+03
vllm:cache_config_info{block_size="128",cache_dtype="auto",num_gpu_blocks="728"} 1.0
"""


class TestPrometheus:
    def test_sums_a_sample_over_its_label_sets(self):
        names = frozenset({"vllm:num_requests_running", "vllm:generation_tokens_total", "absent"})
        assert prometheus.read_sums(METRICS, names) == {
            "vllm:num_requests_running": 5.0,
            "vllm:generation_tokens_total": 1250.0,
        }

    def test_reads_labels(self):
        assert prometheus.read_labels(METRICS, "vllm:cache_config_info") == {
            "block_size": "128",
            "cache_dtype": "auto",
            "num_gpu_blocks": "728",
        }
        assert prometheus.read_labels(METRICS, "absent") == {}


def command(cores=8, **settings):
    return vllm_command(
        engine=EngineSettings(_env_file=None, python="py", **settings),
        model_dir=Path("model"),
        served="name",
        uds=Path("e.sock"),
        cores=cores,
    )


class TestVllmCommand:
    def test_switches_on_what_the_platform_needs(self):
        argv = command().argv
        assert argv[:3] == ("py", "-m", "vllm.entrypoints.openai.api_server")
        for flag in (
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",
            "--enable-force-include-usage",
            "--enforce-eager",
        ):
            assert flag in argv
        assert argv[argv.index("--uds") + 1] == "e.sock"
        assert argv[argv.index("--served-model-name") + 1] == "name"

    def test_is_quiet_and_offline_on_the_cpu(self):
        environment = command(cpu_kv_cache_gib=3).environment
        assert environment["VLLM_TARGET_DEVICE"] == "cpu"
        assert environment["VLLM_CPU_KVCACHE_SPACE"] == "3"
        assert environment["HF_HUB_OFFLINE"] == environment["VLLM_NO_USAGE_STATS"] == "1"

    @pytest.mark.parametrize(
        ("cores", "ranks", "apart"), [(1, 1, False), (2, 1, False), (3, 1, True), (64, 1, True), (2, 2, True)]
    )
    def test_gives_the_model_a_process_of_its_own_only_where_threads_are_bound(self, cores, ranks, apart):
        environment = command(cores, tensor_parallel_size=ranks).environment
        assert ("VLLM_ENABLE_V1_MULTIPROCESSING" not in environment) is apart
        assert ("OMP_NUM_THREADS" not in environment) is apart

    def test_takes_the_options_of_a_gpu(self):
        made = command(
            device="cuda",
            tensor_parallel_size=4,
            gpu_memory_utilization=0.85,
            kv_cache_dtype="fp8",
            max_model_len=32768,
            extra_args="--seed 7 --swap-space '0'",
        )
        text = " ".join(made.argv)
        for part in (
            "--tensor-parallel-size 4",
            "--gpu-memory-utilization 0.85",
            "--kv-cache-dtype fp8",
            "--max-model-len 32768",
            "--seed 7 --swap-space 0",
        ):
            assert part in text
        assert "--enforce-eager" not in text
        assert "VLLM_TARGET_DEVICE" not in made.environment

    def test_needs_the_engines_python(self):
        with pytest.raises(ValueError, match="WEIR_ENGINE_PYTHON"):
            vllm_command(
                engine=EngineSettings(_env_file=None, python=""), model_dir=Path("m"), served="n", uds=Path("s")
            )


class TestSettings:
    def test_come_from_the_environment(self, monkeypatch):
        monkeypatch.setenv("REDIS_URL", "redis://elsewhere:1/0")
        monkeypatch.setenv("WEIR_MODEL", "big")
        monkeypatch.setenv("WEIR_ENGINE", "simulated")
        monkeypatch.setenv("WEIR_ENGINE_MAX_NUM_SEQS", "7")
        settings = WorkerSettings(_env_file=None)
        assert (settings.redis_url, settings.pool_name) == ("redis://elsewhere:1/0", "big")
        assert settings.engine is EngineKind.SIMULATED
        assert EngineSettings(_env_file=None).max_num_seqs == 7

    def test_choose_a_server_elsewhere_by_its_url_alone(self, monkeypatch):
        monkeypatch.delenv("WEIR_ENGINE", raising=False)
        monkeypatch.setenv("ENGINE_URL", "http://gpu:8000/v1")
        assert WorkerSettings(_env_file=None).engine is EngineKind.OPENAI

    def test_refuse_an_engine_that_is_not_known(self, monkeypatch):
        monkeypatch.setenv("WEIR_ENGINE", "abacus")
        with pytest.raises(ValidationError):
            WorkerSettings(_env_file=None)


class TestRoom:
    def test_counts_choices_as_sequences_and_worst_cases_as_tokens(self):
        running = [ticket(prompt_tokens=100, max_tokens=50, choices=2), ticket(prompt_tokens=10, max_tokens=10)]
        room = compute_room(tickets=running, sequences_max=8, kv_tokens=1_000)
        assert room == Room(free_slots=5, free_kv_tokens=1_000 - 200 - 20)

    def test_is_never_negative(self):
        room = compute_room(tickets=[ticket(choices=5, max_tokens=5_000)], sequences_max=4, kv_tokens=10)
        assert room == Room(free_slots=0, free_kv_tokens=0)

    def test_of_an_empty_worker_takes_any_request(self):
        room = compute_room(tickets=[], sequences_max=4, kv_tokens=10)
        assert room == Room(free_slots=4, free_kv_tokens=KV_TOKENS_UNKNOWN)
