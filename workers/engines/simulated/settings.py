"""Settings of the simulated engine (environment `WEIR_SIM_*`)."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SimulatedSettings(BaseSettings):
    """Rates in tokens per second; 0 means as fast as the machine goes. Faults count generated tokens; 0 is never."""

    model_config = SettingsConfigDict(env_prefix="WEIR_SIM_", extra="ignore", frozen=True)

    block_tokens: int = Field(default=16, ge=1)
    blocks: int = Field(default=8192, ge=1)
    sequences_max: int = Field(default=256, ge=1)
    batched_tokens_max: int = Field(default=2048, ge=1)
    prefill_tokens_per_second: int = Field(default=0, ge=0)
    decode_tokens_per_second: int = Field(default=0, ge=0)  # of one stream; a batch decodes together
    startup_seconds: float = Field(default=0.0, ge=0)
    bytewise: bool = False
    die_after_tokens: int = Field(default=0, ge=0)
    hang_after_tokens: int = Field(default=0, ge=0)
