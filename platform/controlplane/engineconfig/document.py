"""What one version of a pool's engine configuration says, and the worker's environment made from it. Pure.

Called by the services, the command and the admin. Invariants: an unknown field is refused; a flag that the platform
sets itself, or that would open a second way into the engine, is refused; the same document gives the same digest.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

FLAGS_MAX = 64
FLAG_LENGTH_MAX = 2_000
# Ours by design (workers/engines/vllm.py, the fair queue, the guard), or a door that must stay shut.
_RESERVED = frozenset(
    {
        "--model", "--served-model-name", "--uds", "--host", "--port", "--api-key", "--config", "--root-path",
        "--dtype", "--kv-cache-dtype", "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp",
        "--data-parallel-size", "-dp", "--max-num-seqs", "--max-model-len", "--max-num-batched-tokens", "--block-size",
        "--gpu-memory-utilization", "--speculative-config", "--enable-lora", "--enable-sleep-mode",
        "--distributed-executor-backend", "--reasoning-parser", "--tool-call-parser", "--enforce-eager",
        "--enable-prefix-caching", "--no-enable-prefix-caching", "--enable-prompt-tokens-details",
        "--enable-force-include-usage", "--enable-log-requests", "--no-enable-log-requests",
        "--disable-uvicorn-access-log", "--revision", "--middleware", "--trust-remote-code",
        "--allowed-local-media-path", "--enable-log-outputs", "--kv-events-config",
    }
)  # fmt: skip
_SHA256 = r"^([0-9a-f]{64})?$"
Hash = Annotated[str, Field(pattern=_SHA256)]
Size = Annotated[int, Field(ge=1, le=100_000_000)]
Ways = Annotated[int, Field(ge=1, le=1_024)]


class ConfigurationRefused(ValueError):
    """The document is none that an engine could be started with; the text names the field."""


class Speculation(BaseModel):
    """vLLM's speculative configuration: which tokens are guessed, and how many at once."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    method: Literal["ngram", "draft_model", "eagle", "eagle3", "medusa", "mtp", "suffix"]
    num_speculative_tokens: int = Field(ge=1, le=32)
    model: str = Field(default="", max_length=500)
    prompt_lookup_min: int | None = Field(default=None, ge=1, le=64)
    prompt_lookup_max: int | None = Field(default=None, ge=1, le=64)
    draft_tensor_parallel_size: int | None = Field(default=None, ge=1, le=1_024)

    @model_validator(mode="after")
    def _whole(self) -> Speculation:
        if self.method in ("draft_model", "eagle", "eagle3", "medusa") and not self.model:
            raise ValueError(f"`{self.method}` needs the `model` that guesses")
        return self


class EngineDocument(BaseModel):
    """One configuration. Sizes in tokens, memory in GiB; None leaves the engine its own default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: str = Field(min_length=1, max_length=300)
    revision: str = Field(min_length=1, max_length=300)
    weights_sha256: Hash = ""
    tokenizer_sha256: Hash = ""
    device: Literal["cpu", "cuda"] = "cuda"
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    tensor_parallel_size: Ways = 1
    pipeline_parallel_size: Ways = 1
    data_parallel_size: Ways = 1
    distributed_executor_backend: Literal["", "mp", "ray"] = ""
    max_num_seqs: Size = 64
    max_model_len: Size | None = None
    max_num_batched_tokens: Size | None = None
    block_size: Literal[1, 8, 16, 32, 64, 128, 256] | None = None
    gpu_memory_utilization: Decimal | None = Field(default=None, gt=0, le=1, max_digits=6, decimal_places=5)
    cpu_kv_cache_gib: int = Field(default=2, ge=1, le=100_000)
    speculation: Speculation | None = None
    lora: bool = False
    sleep_mode: bool = False
    reasoning_parser: str = Field(default="", max_length=60, pattern=r"^[a-z0-9_]*$")
    tool_call_parser: str = Field(default="", max_length=60, pattern=r"^[a-z0-9_]*$")
    flags: tuple[Annotated[str, Field(min_length=1, max_length=FLAG_LENGTH_MAX)], ...] = Field(
        default=(), max_length=FLAGS_MAX
    )

    @field_validator("flags")
    @classmethod
    def _not_ours(cls, flags: tuple[str, ...]) -> tuple[str, ...]:
        for flag in flags:
            name = flag.partition("=")[0].replace("_", "-")
            # argparse takes the beginning of a flag for the flag: none may begin one of ours.
            if name in _RESERVED or (name.startswith("--") and any(own.startswith(name) for own in _RESERVED)):
                raise ValueError(f"{name} is set by the platform, or must not be set")
        return flags

    @model_validator(mode="after")
    def _fits(self) -> EngineDocument:
        if self.device == "cpu" and self.gpu_memory_utilization is not None:
            raise ValueError("`gpu_memory_utilization` is of use on a GPU only")
        if self.device == "cpu" and (self.sleep_mode or self.kv_cache_dtype.startswith("fp8")):
            raise ValueError("`sleep_mode` and an FP8 cache need a GPU")
        return self


def read_document(raw: Mapping[str, Any]) -> EngineDocument:
    """Raises ConfigurationRefused."""
    try:
        return EngineDocument.model_validate(dict(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationRefused(f"{where}: {first['msg']}" if where else str(first["msg"])) from error


def as_json(document: EngineDocument) -> dict[str, Any]:
    return document.model_dump(mode="json")


def digest_of(document: EngineDocument) -> str:
    """SHA-256 of the document in its one spelling."""
    return hashlib.sha256(json.dumps(as_json(document), sort_keys=True).encode()).hexdigest()


def environment_of(document: EngineDocument) -> dict[str, str]:
    """The worker's variables (workers/engines/settings.py). All that this document decides is in them."""
    given = {
        "DEVICE": document.device,
        "DTYPE": document.dtype,
        "KV_CACHE_DTYPE": document.kv_cache_dtype,
        "TENSOR_PARALLEL_SIZE": document.tensor_parallel_size,
        "MAX_NUM_SEQS": document.max_num_seqs,
        "MAX_MODEL_LEN": document.max_model_len,
        "MAX_NUM_BATCHED_TOKENS": document.max_num_batched_tokens,
        "GPU_MEMORY_UTILIZATION": document.gpu_memory_utilization,
        "CPU_KV_CACHE_GIB": document.cpu_kv_cache_gib,
        "REASONING_PARSER": document.reasoning_parser,
        "TOOL_CALL_PARSER": document.tool_call_parser,
        "EXTRA_ARGS": shlex.join(_further(document)),
    }
    return {f"WEIR_ENGINE_{name}": str(value) for name, value in given.items() if value is not None}


def _further(document: EngineDocument) -> list[str]:
    """Flags that the worker has no setting of its own for."""
    flags: list[str] = []
    for flag, value in (
        ("--pipeline-parallel-size", document.pipeline_parallel_size),
        ("--data-parallel-size", document.data_parallel_size),
    ):
        if value > 1:
            flags += [flag, str(value)]
    if document.distributed_executor_backend:
        flags += ["--distributed-executor-backend", document.distributed_executor_backend]
    if document.block_size is not None:
        flags += ["--block-size", str(document.block_size)]
    if document.speculation is not None:
        said = document.speculation.model_dump(exclude_none=True, exclude_defaults=True)
        flags += ["--speculative-config", json.dumps(said, sort_keys=True)]
    if document.lora:
        flags.append("--enable-lora")
    if document.sleep_mode:
        flags.append("--enable-sleep-mode")
    return [*flags, *document.flags]
