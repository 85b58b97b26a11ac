"""The processes of bench `gateway`: one mock upstream, a private platform and a LiteLLM proxy in front of it.

Called by the registry. Invariant: both sides have the same upstream process, over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from controlplane.local.model import MODEL
from infra.bench.gateway import Side
from infra.bench.instance import private_instance
from infra.bench.litellm_proxy import proxy
from infra.bench.load import Target
from infra.bench.servers import bare_server
from infra.setup.bootstrap import Environment


@asynccontextmanager
async def gateway_stage(environment: Environment, *, workers: int) -> AsyncIterator[dict[str, Side]]:
    """The sides by the names of `gateway.run`'s arguments. Raises InstanceFailed, NotReady."""
    with ExitStack() as stack:
        async with (
            bare_server(model=MODEL) as (port, bare),
            proxy(environment, model=MODEL, upstream=port, workers=workers) as (litellm, pids),
        ):
            given = {"ENGINE_URL": f"http://127.0.0.1:{port}"}
            instance = stack.enter_context(private_instance(engine="simulated", settings=given))
            roles = ("gateway", "worker", "valkey", "settler", "meter")
            yield {
                "weir": Side(
                    instance.platform_target(model=MODEL),
                    {**{role: instance.pid_of(role) for role in roles}, "upstream": bare},
                ),
                "peer": Side(litellm, {**pids, "upstream": bare}),
                "upstream": Side(Target(name="upstream", model=MODEL, port=port), {"upstream": bare}),
            }
