"""Builds a worker from its settings. Called by `__main__` and by tests that run a worker in their own process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from contracts.clock import Clock
from fairqueue.queue import FairQueue, QueueBounds
from safety.engines.pool import ValidatorPool
from safety.published import PolicyStore
from stores.objects import Objects
from stores.redis import Client
from tenants.limits.buckets import Limits
from workers.attempts import AttemptLog
from workers.config import WorkerSettings
from workers.engines.base import EngineHost, EngineKind, capabilities_of
from workers.engines.child import ChildPaths, EngineChild, RemoteEngine
from workers.engines.http import HttpEngine
from workers.engines.settings import EngineSettings
from workers.engines.vllm import simulated_command, vllm_command
from workers.evaluation import EvaluationLog
from workers.loop import Worker
from workers.ports import Ports
from workers.publish import Publisher
from workers.uploads import Uploader


class _Late:
    """What the engine's host asks of the worker that is built after it."""

    worker: Worker | None = None
    publisher: Publisher | None = None

    def changed(self) -> None:
        if self.worker is not None:
            self.worker.poke()

    def working(self) -> bool:
        return self.publisher is not None and any(lane.waits_for_engine for lane in self.publisher.lanes)


def build_worker(
    *, settings: WorkerSettings, engine: EngineSettings, redis: Client, clock: Clock, host: EngineHost | None = None
) -> Worker:
    """`host`: an engine of the caller's own instead of the one in the settings.

    Raises ValueError for settings that do not fit together.
    """
    late = _Late()
    host = host or _build_host(settings, engine, clock, late)
    queue = FairQueue(redis, settings.pool_name, QueueBounds())
    publisher = late.publisher = Publisher(
        queue=queue,
        worker_id=settings.worker_name,
        clock=clock,
        progressing=host.progressing,
        step_seconds=settings.step_seconds,
        frames_pending_max=settings.frames_pending_max,
    )
    home = settings.home.absolute()
    ports = Ports(
        worker_id=settings.worker_name,
        queue=queue,
        limits=Limits(redis, clock=clock),
        policies=PolicyStore(redis),
        validators=ValidatorPool(monotonic=clock.monotonic),
        host=host,
        publisher=publisher,
        attempts=AttemptLog(
            home / "attempts" / f"{settings.worker_name}.jsonl",
            bytes_max=settings.attempt_log_bytes,
            files_max=settings.attempt_log_files,
        ),
        evaluation=EvaluationLog(
            uploader=_uploader(settings.s3_url),
            spool=home / "spool" / "evaluation" / settings.worker_name,
            spool_bytes_max=settings.evaluation_spool_bytes,
            object_bytes_max=settings.evaluation_object_bytes,
        ),
        clock=clock,
    )
    worker = late.worker = Worker(ports=ports, redis=redis, settings=settings, sequences_max=engine.max_num_seqs)
    return worker


def _uploader(s3_url: str) -> Uploader | None:
    """Raises ValueError for a URL that names no bucket."""
    if not s3_url:
        return None
    Objects.open(s3_url)
    return Uploader(s3_url=s3_url)


def _build_host(settings: WorkerSettings, engine: EngineSettings, clock: Clock, late: _Late) -> EngineHost:
    capabilities = capabilities_of(settings.engine)
    capabilities = replace(
        capabilities,
        tools=_calls_tools(settings, engine),
        replays=capabilities.replays and not _reasons(engine),
    )
    connections_max = engine.max_num_seqs + 16  # probes beside a full batch
    if settings.engine is EngineKind.OPENAI:
        if not settings.engine_url:
            raise ValueError("WEIR_ENGINE=openai needs ENGINE_URL")
        adapter = HttpEngine(
            model=settings.model,
            capabilities=capabilities,
            url=settings.engine_url,
            api_key=engine.api_key.get_secret_value(),
            connections_max=connections_max,
            count_tokens=_token_counter(settings.model_dir),
        )
        return RemoteEngine(adapter=adapter, on_change=late.changed)
    uds = settings.engine_socket
    command = (
        vllm_command(engine=engine, model_dir=settings.model_dir.absolute(), served=settings.model, uds=uds)
        if settings.engine is EngineKind.VLLM
        else simulated_command(model_dir=settings.model_dir.absolute(), served=settings.model, uds=uds)
    )
    return EngineChild(
        adapter=HttpEngine(
            model=settings.model,
            capabilities=capabilities,
            socket=str(uds),
            connections_max=connections_max,
            dtype=engine.dtype if settings.engine is EngineKind.VLLM else "auto",
        ),
        command=command,
        paths=ChildPaths(
            socket=uds,
            pid_file=settings.engine_pid_file,
            log=settings.log_dir / f"{settings.worker_name}.engine.log",
        ),
        settings=engine,
        clock=clock,
        working=late.working,
        on_change=late.changed,
    )


def _calls_tools(settings: WorkerSettings, engine: EngineSettings) -> bool:
    """vLLM refuses every tool choice but `none` without a parser; of others only their own answer tells."""
    parsers = engine.tool_call_parser or "--tool-call-parser" in engine.extra_args
    return settings.engine is not EngineKind.VLLM or bool(parsers)


def _reasons(engine: EngineSettings) -> bool:
    """A parser that parts thoughts from words has a state that token ids alone do not bring back."""
    return bool(engine.reasoning_parser) or "--reasoning-parser" in engine.extra_args


def _token_counter(folder: Path) -> Callable[[str], int]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
