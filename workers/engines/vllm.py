"""The command lines of engine children. Pure; called by `__main__` to build an `EngineChild`.

vLLM's console script cannot start in the CPU build (its metadata has another name), so its server module is run.
"""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from workers.engines.settings import EngineSettings

# vLLM leaves one core of its own to the processes around the model: up to here one core is left to compute on.
ONE_PROCESS_CORES_MAX = 2
# Numba, which looks up n-grams, shares torch's threads; with two of them on two cores, all seem to wait for each other.
_ONE_PROCESS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCommand:
    """What to run and the variables that are added to the parent's environment."""

    argv: tuple[str, ...]
    environment: dict[str, str]


def vllm_command(
    *, engine: EngineSettings, model_dir: Path, served: str, uds: Path, cores: int | None = None
) -> ChildCommand:
    """`vllm serve` on a Unix socket, with what the platform needs switched on. Raises ValueError without a python.

    `cores`: how many processors it may use; by default those of this process.
    """
    if not engine.python:
        raise ValueError("WEIR_ENGINE_PYTHON must name the python of the engine's environment")
    argv = [engine.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir), "--uds", str(uds)]
    argv += ["--served-model-name", served, "--dtype", engine.dtype, "--kv-cache-dtype", engine.kv_cache_dtype]
    argv += ["--tensor-parallel-size", str(engine.tensor_parallel_size), "--max-num-seqs", str(engine.max_num_seqs)]
    argv += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-force-include-usage"]
    argv += ["--no-enable-log-requests", "--disable-uvicorn-access-log"]
    for flag, value in (
        ("--max-model-len", engine.max_model_len),
        ("--max-num-batched-tokens", engine.max_num_batched_tokens),
        ("--gpu-memory-utilization", engine.gpu_memory_utilization if engine.device == "cuda" else None),
        ("--reasoning-parser", engine.reasoning_parser or None),
        ("--tool-call-parser", engine.tool_call_parser or None),
    ):
        if value is not None:
            argv += [flag, str(value)]
    if engine.tool_call_parser:
        argv.append("--enable-auto-tool-choice")
    if engine.eager:
        argv.append("--enforce-eager")
    environment = _vllm_environment(engine, cores or len(os.sched_getaffinity(0)))
    return ChildCommand(argv=(*argv, *shlex.split(engine.extra_args)), environment=environment)


def _vllm_environment(engine: EngineSettings, cores: int) -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
    if engine.device == "cuda":
        return quiet
    cpu = {**quiet, "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": str(engine.cpu_kv_cache_gib)}
    if engine.eager:  # else small parts are compiled all the same: a slower start, and a machine needs a C++ compiler
        cpu["TORCHDYNAMO_DISABLE"] = "1"
    if cores > ONE_PROCESS_CORES_MAX or engine.tensor_parallel_size > 1:
        return cpu
    # One thread computes here, so there is nothing to bind to cores, which is all that the process of its own which the
    # CPU build gives its model is for: without it a third of the start and 650 MB are saved, and a hop per step.
    return {**cpu, **_ONE_PROCESS}


def simulated_command(*, model_dir: Path, served: str, uds: Path) -> ChildCommand:
    """The simulated engine in this very environment; its rates come from `WEIR_SIM_*`."""
    argv = (sys.executable, "-m", "workers.engines.simulated", "--uds", str(uds))
    # The same import roots as here, however this process came by them.
    roots = os.pathsep.join(entry for entry in sys.path if entry)
    return ChildCommand(
        argv=(*argv, "--model", str(model_dir), "--served-model-name", served), environment={"PYTHONPATH": roots}
    )
