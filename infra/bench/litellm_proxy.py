"""The LiteLLM proxy as a peer, in an environment of its own from a lock file with hashes. Called by the registry.

Only what is under the MIT licence is installed (`requirements/litellm-overrides.txt`). It gets a home of its own and
none of our settings, keeps nothing, and is told to read its price list from its own package instead of the network.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from controlplane.local import probes
from controlplane.local.ports import find_free
from infra.bench.load import Target
from infra.bench.servers import children_of, serving
from infra.setup.bootstrap import GIB, REQUIREMENTS, Environment, ensure, user_cache

LOCK = REQUIREMENTS / "litellm.txt"
_KEY = "sk-bench"
_READY_SECONDS = 120.0
_CONFIG = """model_list:
  - model_name: {model}
    litellm_params: {{model: "openai/{model}", api_base: "http://127.0.0.1:{port}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
general_settings: {{master_key: {key}}}
"""


def ensure_proxy() -> Environment:
    """Its environment, made if it is not there. Raises SetupFailed with a sentence that says what to do."""
    digest = sha256(LOCK.read_bytes()).hexdigest()[:12]
    environment = Environment("LiteLLM proxy", LOCK, user_cache() / f"litellm-{digest}", GIB)
    ensure(environment)
    return environment


def locked_version() -> str:
    """The version in the lock file. Raises StopIteration where it names none."""
    return next(line.split()[0] for line in LOCK.read_text().splitlines() if line.startswith("litellm=="))


@asynccontextmanager
async def proxy(
    environment: Environment, *, model: str, upstream: int, workers: int
) -> AsyncIterator[tuple[Target, dict[str, int]]]:
    """The proxy in front of the server on port `upstream`, with so many processes. Raises NotReady."""
    port = find_free(taken=[upstream])
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        config = Path(folder, "config.yaml")
        config.write_text(_CONFIG.format(model=model, port=upstream, key=_KEY))  # noqa: ASYNC240 - before anything runs
        env = {
            "PATH": f"{environment.directory / 'bin'}{os.pathsep}/usr/bin:/bin",
            "HOME": folder,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "LITELLM_LOG": "ERROR",
        }
        command = (
            *(str(environment.python), str(environment.directory / "bin" / "litellm"), "--config", str(config)),
            *("--host", "127.0.0.1", "--port", str(port), "--num_workers", str(workers)),
        )
        probe = probes.http(port=port, path="/health/liveliness")
        async with serving(command, name="litellm", env=env, probe=probe, ready_seconds=_READY_SECONDS) as pid:
            pids = {f"litellm {number}": child for number, child in enumerate([pid, *children_of(pid)])}
            yield Target(name="litellm", model=model, port=port, api_key=_KEY), pids
