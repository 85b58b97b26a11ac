"""The engine's command line, held against vLLM's own parser: a flag that it does not know fails here, not at start.

GPU settings (tensor parallelism, FP8 KV cache, memory fraction) are parsed too; no GPU is needed to parse them.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.contract.workers.conftest import real_engine
from workers.engines.settings import EngineSettings
from workers.engines.vllm import vllm_command

PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
parsed = [vars(parser.parse_args(line)) for line in json.loads(sys.argv[1])]
print("PARSED" + json.dumps([{name: str(value) for name, value in line.items()} for line in parsed]))
"""
DEFAULTS = EngineSettings()
GPU = EngineSettings(
    device="cuda",
    tensor_parallel_size=4,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.92,
    max_model_len=32_768,
    max_num_batched_tokens=8_192,
    max_num_seqs=256,
    reasoning_parser="qwen3",
    tool_call_parser="hermes",
    extra_args="--pipeline-parallel-size 2 --distributed-executor-backend mp",
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(real_engine() is None, reason="the engine's environment is not made (`make engine`)"),
]


@pytest.fixture(scope="module")
def parsed() -> tuple[dict[str, str], dict[str, str]]:
    """What vLLM's own parser makes of both command lines, in one process: importing vLLM takes ten seconds."""
    found = real_engine()
    assert found is not None
    python, model = found
    commands = [
        vllm_command(
            engine=settings.model_copy(update={"python": str(python)}),
            model_dir=model,
            served="m",
            uds=Path("engine.sock"),
        )
        for settings in (DEFAULTS, GPU)
    ]
    done = subprocess.run(
        [str(python), "-c", PARSE, json.dumps([command.argv[3:] for command in commands])],
        capture_output=True, text=True, timeout=150, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(model.parent), **commands[0].environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    plain, gpu = json.loads(done.stdout.rpartition("PARSED")[2])
    return plain, gpu


class TestVllmCommand:
    def test_is_understood_with_its_defaults(self, parsed: tuple[dict[str, str], dict[str, str]]) -> None:
        plain, _ = parsed
        assert plain["uds"] == "engine.sock"
        assert plain["enable_prefix_caching"] == "True"
        assert plain["enable_prompt_tokens_details"] == "True"
        assert plain["enable_force_include_usage"] == "True"
        assert plain["enforce_eager"] == "True"

    def test_is_understood_with_the_settings_of_a_gpu(self, parsed: tuple[dict[str, str], dict[str, str]]) -> None:
        _, gpu = parsed
        assert gpu["tensor_parallel_size"] == "4"
        assert gpu["pipeline_parallel_size"] == "2"
        assert gpu["kv_cache_dtype"] == "fp8"
        assert gpu["gpu_memory_utilization"] == "0.92"
        assert gpu["enable_auto_tool_choice"] == "True"
        assert gpu["enforce_eager"] == "False"
