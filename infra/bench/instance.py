"""A running platform as benches and end-to-end tests see it, and a private one that lives only for them.

Called by `manage.py bench` and tests/e2e. Invariant: a private platform is started and stopped by the very commands a
user types (`manage.py up`, `manage.py down`) in a state directory of its own; what already runs is never touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.bench.load import Target

ROOT = Path(__file__).resolve().parents[2]
# The simulated engine's pace here: like a small model on an accelerator, so that there is time to cancel and to fail.
SIMULATED_PACE = {"WEIR_SIM_PREFILL_TOKENS_PER_SECOND": "20000", "WEIR_SIM_DECODE_TOKENS_PER_SECOND": "100"}
UP_SECONDS = {"simulated": 180.0, "vllm": 1_500.0}  # vLLM: from nothing, with its environment to be installed
DOWN_SECONDS = 90.0
_LOG_LINES = 40
# What names a store or a secret of another platform must not reach a private one.
_FOREIGN = (
    "DATABASE_URL",
    "REDIS_URL",
    "BROKER_URL",
    "CLICKHOUSE_URL",
    "S3_URL",
    "ENGINE_URL",
    "ENGINE",
)


class InstanceFailed(Exception):
    """The platform did not start, stop or answer; the text holds what its commands and logs said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One line of run.json."""

    name: str
    role: str
    pid: int
    port: int | None


@dataclass(frozen=True, slots=True)
class Instance:
    """A platform that runs, by the files of its state directory."""

    home: Path

    @classmethod
    def find(cls, home: Path) -> Instance | None:
        """The platform of this state directory when its gateway runs, else None."""
        instance = cls(home)
        try:
            gateways = [item for item in instance.processes() if item.role == "gateway"]
        except (OSError, ValueError, KeyError):
            return None
        return instance if any(Path(f"/proc/{item.pid}").exists() for item in gateways) else None

    @property
    def demo(self) -> dict[str, Any]:
        """demo.json: base_url, api_key, other_api_key, model, admin_url, admin_user, admin_password. Raises OSError."""
        document: dict[str, Any] = json.loads((self.home / "demo.json").read_text())
        return document

    def processes(self) -> list[Process]:
        """What runs now. Raises OSError, ValueError, KeyError when run.json is not there or not whole."""
        document = json.loads((self.home / "run.json").read_text())
        return [
            Process(name=item["name"], role=item["role"], pid=int(item["pid"]), port=item.get("port"))
            for item in document["processes"]
            if item.get("pid")
        ]

    def pid_of(self, role: str) -> int:
        """The pid of the first process with this role. Raises InstanceFailed when none runs."""
        for item in self.processes():
            if item.role == role:
                return item.pid
        raise InstanceFailed(f"no process with the role {role} runs; run.json names {self.processes()}")

    def supervisor_pid(self) -> int:
        """Who starts the others, and again what dies. Raises OSError, ValueError, KeyError as `processes` does."""
        return int(json.loads((self.home / "run.json").read_text())["supervisor"])

    def engine_socket(self) -> Path:
        """The Unix socket of the first worker's engine. Raises InstanceFailed."""
        for report in sorted((self.home / "run").glob("*.engine.json")):
            named = json.loads(report.read_text()).get("socket")
            socket = Path(named) if named else report.with_name(report.name.replace(".engine.json", ".sock"))
            if socket.exists():
                return socket
        raise InstanceFailed(f"no worker reports an engine in {self.home / 'run'}")

    def platform_target(self, *, model: str) -> Target:
        """The public API as the first demo tenant."""
        demo = self.demo
        address = urlsplit(str(demo["base_url"]))
        return Target(
            name="weir",
            model=model,
            host=address.hostname or "127.0.0.1",
            port=address.port or 80,
            api_key=str(demo["api_key"]),
        )

    def unguarded_target(self, *, model: str) -> Target:
        """The public API as a tenant of the bench's own, which has no guardrail policy. Raises InstanceFailed."""
        made = self.manage("create_key", "--tenant", "Bench", "--plan", "Demo", "--name", "Bench", deadline=60.0)
        key = made.stdout.strip().rpartition("\n")[2]
        if made.returncode != 0 or not key.startswith("weir_"):
            raise InstanceFailed(f"`manage.py create_key` ended with {made.returncode}:\n{made.stdout}")
        return replace(self.platform_target(model=model), name="weir without guardrails", api_key=key)

    def engine_target(self, *, model: str) -> Target:
        """The engine itself, past the whole platform."""
        return Target(name="engine", model=model, host="localhost", unix_socket=self.engine_socket())

    def environment_of_role(self, role: str) -> dict[str, str]:
        """The environment of the first process with this role, as the kernel has it. Raises InstanceFailed, OSError."""
        text = Path(f"/proc/{self.pid_of(role)}/environ").read_bytes().decode()
        pairs = (item.partition("=") for item in text.split("\0") if item)
        return {name: value for name, _, value in pairs}

    def manage(
        self,
        *arguments: str,
        engine: str | None = None,
        settings: Mapping[str, str] | None = None,
        deadline: float,
    ) -> subprocess.CompletedProcess[str]:
        """`manage.py ARGUMENTS` on this platform's state. Raises InstanceFailed past the deadline (seconds)."""
        command = [sys.executable, str(ROOT / "manage.py"), *arguments]
        environment = environment_of(home=self.home, engine=engine, base=os.environ) | dict(settings or {})
        # A file, not a pipe: a detached child that inherits a pipe would keep us reading for ever.
        with tempfile.TemporaryFile("w+") as said:
            try:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    timeout=deadline,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                said.seek(0)
                raise InstanceFailed(
                    f"manage.py {' '.join(arguments)} took over {deadline:.0f} s:\n{said.read()}"
                ) from error
            said.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, said.read(), "")

    def log_tails(self, *, lines: int = _LOG_LINES) -> str:
        """The ends of all logs, for a failure's report."""
        tails = []
        for log in sorted((self.home / "logs").glob("*")):
            if log.is_file():
                text = log.read_text(errors="replace").splitlines()[-lines:]
                tails.append("\n".join([f"── {log.name}", *text]))
        return "\n".join(tails) or f"no logs in {self.home / 'logs'}"


def environment_of(*, home: Path, engine: str | None, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command on the platform at `home`: ours without what points elsewhere."""
    kept = {
        name: value
        for name, value in base.items()
        if name not in _FOREIGN and not name.startswith(("WEIR_", "DJANGO_", "PYTEST_"))
    }
    kept |= SIMULATED_PACE
    kept["WEIR_HOME"] = str(home)
    if engine is not None:
        kept["ENGINE"] = engine
    return kept


@contextmanager
def private_instance(*, engine: str, settings: Mapping[str, str] | None = None) -> Iterator[Instance]:
    """A platform of our own with this engine ("simulated" or "vllm"), stopped and removed at the end.

    `settings`: environment variables of all its processes, over those that we have; ENGINE_URL among them names an
    engine elsewhere instead.
    Raises InstanceFailed with the output of `up` and the ends of its logs when it does not serve.
    """
    home = Path(tempfile.mkdtemp(prefix=f"weir-{engine}-"))
    home.chmod(0o711)  # PostgreSQL may run as another user
    instance = Instance(home)
    try:
        up = ("up", "--detach", "--until-pid", str(os.getpid()))  # also when nobody is left to say `down`
        started = instance.manage(*up, engine=engine, settings=settings, deadline=UP_SECONDS[engine])
        if started.returncode != 0 or Instance.find(home) is None:
            raise InstanceFailed(
                f"`ENGINE={engine} manage.py up --detach` ended with {started.returncode}:\n"
                f"{started.stdout}\n{instance.log_tails()}"
            )
        yield instance
    finally:
        stopped = instance.manage("down", engine=engine, deadline=DOWN_SECONDS)
        shutil.rmtree(home, ignore_errors=True)
    if stopped.returncode != 0:
        raise InstanceFailed(f"`manage.py down` ended with {stopped.returncode}:\n{stopped.stdout}")
