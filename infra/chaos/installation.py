"""The platform that chaos is done to: started by the command a user types, with a Valkey and a network of our own.

Beside the one gateway and the one worker of `manage.py up` a second of each runs here, with the command and the
environment of the first (read from the kernel), so that what one leaves the other takes up. Called by `run`.
Invariant: every process is ours, is known by pid, and is stopped at the end however that comes.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from controlplane.local import probes, stores
from controlplane.local.children import ChildSpec, NotReady, spawn
from controlplane.local.ports import find_free
from infra.bench.instance import DOWN_SECONDS, ROOT, UP_SECONDS, Instance, InstanceFailed, environment_of
from infra.chaos.network import Proxy

READY_SECONDS = 75.0
_LOOK_SECONDS = 0.2
TENANT = "Chaos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process that a fault can hit. `deaths`: in a row, by the supervisor's count."""

    name: str
    role: str
    pid: int
    deaths: int = 0


@dataclass(slots=True)
class Kept:
    """A process of our own beside the platform, started again whenever it ends."""

    spec: ChildSpec
    log: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self) -> None:
        self.process = spawn(spec=self.spec, log=self.log)
        self.starts += 1

    async def wait_ready(self, *, seconds: float = READY_SECONDS) -> None:
        """Until its probe is content. Raises InstanceFailed."""
        said = "not asked"
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        async with asyncio.timeout(_LOOK_SECONDS * 10):
                            await self.spec.probe()
                    except (NotReady, OSError, EOFError, TimeoutError) as error:
                        said = str(error) or type(error).__name__
                        await asyncio.sleep(_LOOK_SECONDS)
                    else:
                        return
        raise InstanceFailed(f"{self.spec.name} does not serve after {seconds:.0f} s: {said}; see {self.log}")

    async def stop(self) -> None:
        """SIGTERM to its group, SIGKILL past its deadline; also when it is frozen."""
        if self.process is None:
            return
        for signum, seconds in ((self.spec.stop_signal, self.spec.stop_deadline), (signal.SIGKILL, 5.0)):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signum)
                os.killpg(self.process.pid, signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, seconds)


@dataclass(slots=True, kw_only=True)
class Installation:
    """The platform while it runs. `gateways` are base URLs (they end in /v1); `keys` are API keys by tenant."""

    instance: Instance
    proxy: Proxy
    valkey_url: str  # past the proxy
    proxied_url: str  # as the platform knows it
    engine: str
    kept: dict[str, Kept]
    gateways: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """`$WEIR_HOME/env`: the addresses of the stores."""
        lines = (line.partition("=") for line in (self.instance.home / "env").read_text().splitlines() if "=" in line)
        return {name: value.strip("'") for name, _, value in lines}

    async def keep(self) -> None:
        """Starts our own processes again whenever they end, until cancelled."""
        while True:
            for kept in list(self.kept.values()):
                if kept.process is None or kept.process.poll() is not None:
                    kept.start()
            await asyncio.sleep(_LOOK_SECONDS)

    def running(self, role: str) -> list[Running]:
        """Every process with this role, in a stable order. "engine": the engines of all workers."""
        found = {item.name: item for item in _of_run_file(self.instance.home) if item.role == role}
        for name, kept in self.kept.items():
            if kept.spec.role == role and kept.process is not None and kept.process.poll() is None:
                found[name] = Running(name=name, role=role, pid=kept.process.pid)
        if role == "engine":
            for report in (self.instance.home / "run").glob("*.engine.json"):
                pid = _pid_in(report)
                if pid is not None:
                    name = report.name.removesuffix(".json")
                    found.setdefault(name, Running(name=name, role=role, pid=pid))
        return [found[name] for name in sorted(found)]

    async def wait_serving(self, *, seconds: float = READY_SECONDS) -> None:
        """Until every process serves again. Raises InstanceFailed naming what does not."""
        for kept in self.kept.values():
            await kept.wait_ready(seconds=seconds)
        missing = ["not looked"]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while missing:
                    missing = [name for name, state in _states(self.instance.home).items() if state != "serving"]
                    await asyncio.sleep(_LOOK_SECONDS if missing else 0)
                missing = list(self.gateways)
                while missing:
                    missing = [url for url in self.gateways if not await _is_ready(url)]
                    await asyncio.sleep(_LOOK_SECONDS if missing else 0)
                return
        raise InstanceFailed(f"these do not serve after {seconds:.0f} s: {missing}")


def _of_run_file(home: Path) -> list[Running]:
    try:
        rows = json.loads((home / "run.json").read_text())["processes"]
    except (OSError, ValueError, KeyError):
        return []
    return [
        Running(name=row["name"], role=row["role"], pid=int(row["pid"]), deaths=int(row.get("deaths", 0)))
        for row in rows
        if row.get("pid")
    ]


def _states(home: Path) -> dict[str, str]:
    """State by name of what the supervisor keeps. Empty text where the file cannot be read just now."""
    try:
        rows = json.loads((home / "run.json").read_text())["processes"]
        names = {row["name"]: str(row.get("state", "")) for row in rows}
    except (OSError, ValueError, KeyError):
        return {"run.json": ""}
    return {name: names.get(name, "missing") for name in ("gateway", "worker-1", "settler", "meter")}


def _pid_in(report: Path) -> int | None:
    try:
        pid = int(json.loads(report.read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if Path(f"/proc/{pid}").exists() else None


async def _is_ready(base_url: str) -> bool:
    """/health/ready: it serves and hears its streams. A frozen one does not answer."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS * 10):
            status, _ = await probes.http_status(port=urlsplit(base_url).port or 80, path="/health/ready")
    except (OSError, EOFError, ValueError, TimeoutError):
        return False
    return status == 200


@asynccontextmanager
async def installed(*, engine: str, pace: Mapping[str, str]) -> AsyncIterator[Installation]:
    """A platform of our own, whole and serving; stopped and removed at the end. Raises InstanceFailed.

    Its caller must run `keep` while it is used.
    """
    home = _make_home()
    try:
        async with _with_valkey(home, engine) as installation, _with_platform(installation, pace):
            yield installation
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _make_home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="weir-chaos-"))
    home.chmod(0o711)  # PostgreSQL may run as another user
    (home / "logs").mkdir(mode=0o700)
    return home


@asynccontextmanager
async def _with_valkey(home: Path, engine: str) -> AsyncIterator[Installation]:
    password = secrets.token_hex(16)
    port = find_free(taken=[])
    outside = find_free(taken=[port])
    proxy = Proxy(port=outside, upstream=port)
    kept = Kept(stores.valkey(data=home / "chaos-valkey", port=port, password=password), home / "logs" / "valkey.log")
    installation = Installation(
        instance=Instance(home),
        proxy=proxy,
        valkey_url=stores.valkey_url(port=port, password=password),
        proxied_url=stores.valkey_url(port=outside, password=password),
        engine=engine,
        kept={"valkey": kept},
    )
    kept.start()
    try:
        async with proxy.serving():
            await kept.wait_ready()
            yield installation
    finally:
        await kept.stop()


@asynccontextmanager
async def _with_platform(installation: Installation, pace: Mapping[str, str]) -> AsyncIterator[None]:
    instance, engine = installation.instance, installation.engine
    environment = environment_of(home=instance.home, engine=engine, base=os.environ) | dict(pace)
    environment |= {"REDIS_URL": installation.proxied_url, "PORT": str(find_free(taken=[]))}
    try:
        up = ("up", "--detach", "--until-pid", str(os.getpid()))
        said = await _manage(environment, *up, seconds=UP_SECONDS[engine])
        if Instance.find(instance.home) is None:
            raise InstanceFailed(f"`manage.py up` left no gateway:\n{said}\n{instance.log_tails()}")
        installation.keys = await _keys(instance, environment)
        installation.gateways = [str(instance.demo["base_url"])]
        if engine == "simulated":
            _add_seconds(installation)
        await installation.wait_serving()
        yield
    finally:
        for name in ("gateway-2", "worker-2"):
            if name in installation.kept:
                await installation.kept.pop(name).stop()
        await _manage(environment, "down", seconds=DOWN_SECONDS)


async def _keys(instance: Instance, environment: Mapping[str, str]) -> dict[str, str]:
    """Three tenants: the two of the demo, and one without guardrails."""
    made = await _manage(
        environment, "create_key", "--tenant", TENANT, "--plan", "Demo", "--name", TENANT, seconds=90.0
    )
    demo = instance.demo
    return {
        "Acme": str(demo["api_key"]),
        "Bakery": str(demo["other_api_key"]),
        TENANT: made.strip().rpartition("\n")[2],
    }


def _add_seconds(installation: Installation) -> None:
    """A second gateway and a second worker, each with the command line and the environment of the first."""
    first = {item.name: item.pid for role in ("gateway", "worker") for item in installation.running(role)}
    port = find_free(taken=[])
    command, environment = _of_process(first["gateway"])
    command[command.index("--port") + 1] = str(port)
    _add(
        installation,
        ChildSpec(
            name="gateway-2",
            role="gateway",
            command=tuple(command),
            env=environment | {"WEIR_GATEWAY_ID": "gateway-2", "WEIR_PORT": str(port)},
            cwd=ROOT,
            probe=probes.http(port=port, path="/health/live"),
            stop_deadline=15.0,
        ),
    )
    command, environment = _of_process(first["worker-1"])
    _add(
        installation,
        ChildSpec(
            name="worker-2",
            role="worker",
            command=tuple(command),
            env=environment | {"WEIR_WORKER_ID": "worker-2"},
            cwd=ROOT,
            probe=probes.worker(redis_url=installation.valkey_url, worker_id="worker-2"),
            stop_deadline=35.0,
        ),
    )
    installation.gateways.append(f"http://127.0.0.1:{port}/v1")


def _add(installation: Installation, spec: ChildSpec) -> None:
    kept = installation.kept[spec.name] = Kept(spec, installation.instance.home / "logs" / f"{spec.name}.log")
    kept.start()


def _of_process(pid: int) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of a process of ours, as the kernel has them (proc(5))."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    pairs = (item.partition("=") for item in Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0") if item)
    return command, {name: value for name, _, value in pairs}


async def _manage(environment: Mapping[str, str], *arguments: str, seconds: float) -> str:
    """What `manage.py ARGUMENTS` said. Raises InstanceFailed when it fails, or past the deadline."""
    with tempfile.TemporaryFile("w+") as said:  # a file: a detached child would keep a pipe open
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "manage.py"), *arguments),
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        said.seek(0)
        text = said.read()
    if code != 0:
        raise InstanceFailed(f"`manage.py {' '.join(arguments)}` ended with {code}:\n{text}")
    return text
