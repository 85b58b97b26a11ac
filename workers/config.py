"""Settings of a worker process (environment, or `.env` beside the process). Read once by `__main__`."""

import os
import socket
from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from workers.engines.base import EngineKind


class WorkerSettings(BaseSettings):
    """One worker. Durations in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(
        env_prefix="WEIR_", env_file=".env", extra="ignore", frozen=True, populate_by_name=True
    )

    home: Path = Path(".weir")
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", alias="REDIS_URL")
    s3_url: str = Field(default="", alias="S3_URL")
    engine: EngineKind = EngineKind.VLLM
    engine_url: str = Field(default="", alias="ENGINE_URL")
    model: str = "smollm2-135m-instruct"
    model_dir: Path = Path("model")
    pool: str = ""
    worker_id: str = ""
    drain_seconds: float = Field(default=20.0, ge=0)
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    reap_seconds: float = Field(default=2.0, gt=0)
    step_seconds: float = Field(default=0.4, gt=0, le=0.5)  # leases are extended at least so often
    frames_pending_max: int = Field(default=4096, ge=1)
    attempt_log_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    attempt_log_files: int = Field(default=8, ge=1)
    evaluation_spool_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    evaluation_object_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: dict[str, object]) -> dict[str, object]:
        """ENGINE_URL alone is enough to choose an engine elsewhere."""
        url = values.get("ENGINE_URL") or values.get("engine_url")
        return {"engine": EngineKind.OPENAI, **values} if url else values

    @property
    def pool_name(self) -> str:
        return self.pool or self.model

    @property
    def worker_name(self) -> str:
        return self.worker_id or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def run_dir(self) -> Path:
        return self.home.absolute() / "run"

    @property
    def log_dir(self) -> Path:
        return self.home.absolute() / "logs"

    @property
    def engine_socket(self) -> Path:
        return self.run_dir / f"{self.worker_name}.sock"

    @property
    def engine_pid_file(self) -> Path:
        return self.run_dir / f"{self.worker_name}.engine.json"
