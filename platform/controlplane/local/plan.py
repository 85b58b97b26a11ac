"""Local mode: which processes make a platform here, in which order, with which environment. Called by `manage.py up`.

Invariant: a store or engine whose URL is given (environment or `.env`) is not started; everything else is. The
children differ from production only by what starts them: each is configured by the same variables there.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from controlplane.local import model, probes, stores
from controlplane.local.children import ChildSpec
from controlplane.local.paths import Layout
from controlplane.local.ports import PortBook, find_gateway_port, find_holder, find_refusal
from controlplane.local.postgres import Cluster
from controlplane.local.secrets_file import LocalSecrets
from gateway.surface.limits import REALTIME_FRAME_BYTES_MAX
from stores.clickhouse_url import local_url
from stores.pulse import pulse_file

GATEWAY_PORT = 8080
PORT_MAX = 65_535
PORT_DIGITS_MAX = 5
ENGINES = ("vllm", "simulated")
WORKER = "worker-1"


# What `manage.py` typed by hand must know to find what runs here.
SHARED = ("DATABASE_URL", "REDIS_URL", "BROKER_URL", "CLICKHOUSE_URL", "S3_URL", "ENGINE_URL")


class PlanFailed(Exception):
    """What was asked for cannot be started; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The children in order, the environment they share, and what the person at the terminal should know."""

    specs: tuple[ChildSpec, ...]
    env: Mapping[str, str]
    gateway_port: int
    engine: str
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    """What is being planned: filled step by step by `make_plan`."""

    layout: Layout
    settings: Mapping[str, str]
    secrets: LocalSecrets
    ports: PortBook
    env: dict[str, str]
    specs: list[ChildSpec] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def is_given(self, name: str) -> bool:
        return bool(self.settings.get(name))

    def manage(self, *arguments: str) -> tuple[str, ...]:
        return (sys.executable, str(self.layout.root / "manage.py"), *arguments)


def read_settings(*, layout: Layout) -> dict[str, str]:
    """The environment, and below it `.env` in the clone."""
    from dotenv import dotenv_values

    written = {name: value for name, value in dotenv_values(layout.root / ".env").items() if value is not None}
    return {**written, **os.environ}


def choose_engine(*, settings: Mapping[str, str]) -> str:
    """`vllm`, `simulated`, or `openai` when ENGINE_URL names a server. Raises PlanFailed."""
    if settings.get("ENGINE_URL"):
        return "openai"
    chosen = settings.get("ENGINE") or settings.get("WEIR_ENGINE") or "vllm"
    if chosen not in ENGINES:
        raise PlanFailed(f"ENGINE={chosen} is not known; say ENGINE=vllm or ENGINE=simulated, or set ENGINE_URL")
    return chosen


def make_plan(
    *, layout: Layout, settings: Mapping[str, str], secrets: LocalSecrets, engine: str, engine_python: Path | None
) -> Plan:
    """Chooses ports and places, and describes every child. Makes the PostgreSQL cluster when there is none.

    Raises PlanFailed, NoFreePort, ClusterFailed.
    """
    ports = PortBook(path=layout.ports_file)
    draft = _Draft(layout, settings, secrets, ports, env=dict(settings))
    port = _gateway_port(draft)
    draft.env.update(_shared_env(draft, engine, engine_python, port))
    _plan_stores(draft)
    _plan_jobs(draft)
    _plan_services(draft, engine, port)
    return Plan(
        specs=tuple(replace(spec, env=draft.env) if not spec.env else spec for spec in draft.specs),
        env=draft.env,
        gateway_port=port,
        engine=engine,
        notes=tuple(draft.notes),
    )


def _gateway_port(draft: _Draft) -> int:
    asked = find_asked_port(settings=draft.settings)
    if asked is not None:
        return draft.ports.keep(name="gateway", port=_require_free(asked))
    # The port of the last start first: base URLs that people wrote down stay true.
    before = draft.ports.find(name="gateway")
    wanted = before or GATEWAY_PORT
    port = find_gateway_port(preferred=wanted)
    if port != wanted:
        draft.notes.append(f"the gateway listens on {port}: {wanted} is another program's")
    elif port != GATEWAY_PORT:
        draft.notes.append(f"the gateway listens on {port}, as it did before: PORT=… moves it")
    return draft.ports.keep(name="gateway", port=port)


def find_asked_port(*, settings: Mapping[str, str]) -> int | None:
    """The port that PORT names, free or not; None when it names none. Raises PlanFailed."""
    asked = settings.get("PORT") or settings.get("WEIR_PORT")
    if not asked:
        return None
    is_number = asked.isascii() and asked.isdigit() and len(asked) <= PORT_DIGITS_MAX
    if not is_number or not 1 <= int(asked) <= PORT_MAX:
        raise PlanFailed(f"PORT={asked} is not a port: give a number from 1 to {PORT_MAX}, or leave it out")
    return int(asked)


def _require_free(port: int) -> int:
    """The port, when a server may listen there now. Raises PlanFailed."""
    refusal = find_refusal(port)
    if refusal == errno.EACCES:
        raise PlanFailed(f"PORT={port} is kept for root: choose one from 1024 on, or leave it out")
    if refusal is not None:
        raise PlanFailed(f"PORT={port} is taken by {find_holder(port)}: choose another, or leave it out")
    return port


def _shared_env(draft: _Draft, engine: str, engine_python: Path | None, port: int) -> dict[str, str]:
    layout = draft.layout
    root = layout.root
    directory = model.committed_directory(root=root)
    if engine == "vllm":
        directory = model.cached_directory(root=root)
    env = {
        "PYTHONPATH": os.pathsep.join([str(root / "platform"), str(root)]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # empty is unset: what was compiled is kept for the next start
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "WEIR_HOME": str(layout.home),
        "WEIR_SECRET": draft.settings.get("WEIR_SECRET") or draft.secrets.root,
        "WEIR_MODEL": draft.settings.get("WEIR_MODEL") or model.MODEL,
        "WEIR_MODEL_DIR": draft.settings.get("WEIR_MODEL_DIR") or str(directory),
        "WEIR_ENGINE": engine,
        "WEIR_GATEWAY_ID": "gateway-1",
        "WEIR_WORKER_ID": WORKER,
        "WEIR_HOST": "127.0.0.1",
        "WEIR_PORT": str(port),
    }
    if engine_python is not None:
        env["WEIR_ENGINE_PYTHON"] = str(engine_python)
    return env


def _plan_stores(draft: _Draft) -> None:
    layout, secrets, ports = draft.layout, draft.secrets, draft.ports
    if not draft.is_given("DATABASE_URL"):
        port = ports.choose(name="postgres")
        cluster = Cluster.choose(wanted=layout.data / "postgres", digest=layout.digest, password=secrets.postgres)
        cluster.ensure_initialised()
        if not cluster.directory.is_relative_to(layout.state.resolve()):
            who = f"PostgreSQL runs as user {cluster.run_as}, who cannot enter {layout.state}"
            draft.notes.append(f"{who}: its data is in {cluster.directory}")
        draft.specs.append(stores.postgres(cluster=cluster, port=port))
        draft.env["DATABASE_URL"] = stores.postgres_url(port=port, password=secrets.postgres)
    if not draft.is_given("REDIS_URL"):
        port = ports.choose(name="valkey")
        draft.specs.append(stores.valkey(data=layout.data / "valkey", port=port, password=secrets.valkey))
        draft.env["REDIS_URL"] = stores.valkey_url(port=port, password=secrets.valkey)
    if not draft.is_given("S3_URL"):
        names = ("s3", "s3_grpc", "master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc")
        chosen = {name: ports.choose(name=name) for name in names}
        keys = {"access_key": secrets.s3_access_key, "secret_key": secrets.s3_secret_key}
        draft.specs.append(
            stores.seaweed(data=layout.data / "s3", sockets=layout.home / "run", ports=stores.S3Ports(**chosen), **keys)
        )
        draft.env["S3_URL"] = stores.s3_url(port=chosen["s3"], **keys)
    if not draft.is_given("CLICKHOUSE_URL"):
        draft.env["CLICKHOUSE_URL"] = local_url(layout.home / "run" / "meter.sock")


def _needs(draft: _Draft, *names: str) -> tuple[str, ...]:
    """Those of the names that are started here."""
    planned = {spec.name for spec in draft.specs}
    return tuple(name for name in names if name in planned)


def _child(draft: _Draft) -> ChildSpec:
    """What all processes of the platform itself have in common; `make_plan` gives them their environment."""
    return ChildSpec(name="", role="", command=(), env={}, cwd=draft.layout.root, probe=probes.started)


def _plan_jobs(draft: _Draft) -> None:
    job = replace(_child(draft), role="job", once=True, wave=1)
    seed = (sys.executable, "-m", "controlplane.local.seeding")
    draft.specs.append(replace(job, name="seed", command=seed, after=_needs(draft, "postgres", "valkey")))


def _plan_services(draft: _Draft, engine: str, port: int) -> None:
    """In order of importance; what takes longest to start, the worker with its engine, needs least and so is first."""
    redis = _needs(draft, "valkey")
    base = replace(_child(draft), after=("seed", *redis))
    run = draft.layout.home / "run"
    meter_probe = probes.started if draft.is_given("CLICKHOUSE_URL") else probes.unix_socket(path=run / "meter.sock")
    draft.specs += [
        replace(_worker(base, draft, engine), after=redis),
        replace(base, name="meter", role="meter", command=draft.manage("meter"), probe=meter_probe, wave=2),
        _pulsing(replace(base, name="settler", role="settler", command=draft.manage("settler"), wave=2), draft),
        _gateway(base, port),
        *_celery(base, draft),
    ]


def _pulsing(spec: ChildSpec, draft: _Draft) -> ChildSpec:
    """A child that listens nowhere, and shows that it lives by touching its pulse file."""
    path = pulse_file(home=draft.layout.home, name=spec.name)
    return replace(spec, probe=probes.file_exists(path=path), pulse=probes.file_changes(path=path), pulse_file=path)


def _worker(base: ChildSpec, draft: _Draft, engine: str) -> ChildSpec:
    report = draft.layout.home / "run" / f"{WORKER}.engine.json"
    return replace(
        base,
        name=WORKER,
        role="worker",
        command=(sys.executable, "-m", "workers"),
        probe=probes.worker(redis_url=draft.env["REDIS_URL"], worker_id=WORKER),
        pulse=probes.worker_beats(redis_url=draft.env["REDIS_URL"], worker_id=WORKER),
        reports=() if engine == "openai" else (("engine", report),),
        ready_deadline=600.0,
        stop_deadline=35.0,
        wave=3,
    )


def _gateway(base: ChildSpec, port: int) -> ChildSpec:
    command = (
        *(sys.executable, "-m", "uvicorn", "controlplane.asgi:application"),
        *("--host", "127.0.0.1", "--port", str(port), "--loop", "uvloop"),
        *("--no-access-log", "--no-server-header", "--no-proxy-headers"),
        *("--http", "gateway.edge.http:HttpProtocol", "--ws", "gateway.edge.websocket:WebSocketProtocol"),
        *("--ws-max-size", str(2 * REALTIME_FRAME_BYTES_MAX), "--timeout-graceful-shutdown", "10"),
    )
    probe = probes.http(port=port, path="/health/live")
    return replace(
        base,
        name="gateway",
        role="gateway",
        command=command,
        probe=probe,
        pulse=probe,
        port=port,
        stop_deadline=15.0,
        wave=4,
    )


def _celery(base: ChildSpec, draft: _Draft) -> tuple[ChildSpec, ChildSpec]:
    program = (sys.executable, "-m", "celery", "-A", "controlplane.celery")
    worker = (
        *program,
        "worker",
        "--pool=threads",
        "-c",
        "2",
        "--loglevel=INFO",
        "--without-gossip",
        "--without-mingle",
    )
    beat = (
        *program,
        "beat",
        "-S",
        "controlplane.beat.PulsingScheduler",
        "-s",
        str(draft.layout.data / "beat-schedule"),
        "--pidfile=",
        "--loglevel=INFO",
    )
    return (
        # Beside the door, not after it: each takes seconds to stop, and what celery has not done waits in its queues.
        _pulsing(replace(base, name="celery", role="celery", command=worker, wave=4), draft),
        _pulsing(replace(base, name="beat", role="beat", command=beat, wave=4), draft),
    )
