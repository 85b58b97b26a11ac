"""Settings of an engine (environment, or `.env` beside the process). Read once by the worker's `__main__`."""

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseSettings):
    """The engine and its size (`WEIR_ENGINE_*`). Unset options are left to the engine's own defaults."""

    model_config = SettingsConfigDict(env_prefix="WEIR_ENGINE_", env_file=".env", extra="ignore", frozen=True)

    python: str = ""  # interpreter of the engine's own environment
    device: str = Field(default="cpu", pattern="^(cpu|cuda)$")
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = Field(default=1, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)  # tokens
    max_num_seqs: int = Field(default=64, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    cpu_kv_cache_gib: int = Field(default=2, ge=1)
    enforce_eager: bool | None = None  # None: on the CPU only
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    extra_args: str = ""  # further flags, split as a shell would
    start_seconds: float = Field(default=600.0, gt=0)
    stall_seconds: float = Field(default=60.0, gt=0)  # no work done for so long, with work there: hung
    stop_seconds: float = Field(default=8.0, gt=0)
    restarts_max: int = Field(default=8, ge=1)  # in a row, without ever becoming ready
    api_key: SecretStr = SecretStr("")  # for ENGINE_URL

    @property
    def eager(self) -> bool:
        return self.device == "cpu" if self.enforce_eager is None else self.enforce_eager
