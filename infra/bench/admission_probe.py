"""Steps 2-5 of one gateway in a process of its own, as bench `admission` orders. Imported once Django is set up.

Reads one JSON order a line on stdin and answers each with one JSON line on stdout. The parts are a gateway's own
(`controlplane.wiring`) on the stores of the platform under test; only the pool is the bench's, so that no worker takes
what is queued. Invariant: what an order admitted is given back, off the clock, before it is answered.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import orjson
import uvloop
from redis.asyncio import Redis

from contracts.jobs import Endpoint
from controlplane.wiring import gateway_services
from gateway.admission import Admission, Admitted
from gateway.services import Catalogue, GatewayServices, ServedModel
from gateway.surface.json_text import parse_object
from gateway.surface.schema import check_request
from infra.bench.load import Target
from infra.bench.prompts import make_prompt
from stores.system import mint_request_id
from tenants.auth.keys import PREFIX, digest, hint_of, mint
from tenants.auth.resolve import Resolver
from tenants.models import ApiKey, Project
from tenants.services import create_key, revoke_key
from tenants.services.keys import pepper, pepper_id_of
from workers.registration import Heartbeat, publish_heartbeat, withdraw_heartbeat

ADDRESS = "127.0.0.1"
MAX_TOKENS = 32
PATIENT_SECONDS = 60.0
KEYS_AT_ONCE = 64  # as many as a resolver loads at once
WARM_PASSES = 20
TENANT, PROJECT = "Bench", "Default"


@dataclass(frozen=True, slots=True)
class OwnPool:
    """The platform's catalogue, with every model in the bench's pool."""

    inner: Catalogue
    pool: str

    async def get(self, model: str) -> ServedModel:
        """As the platform's own. Raises NotFound, Unavailable."""
        served = await self.inner.get(model)
        return replace(served, card=replace(served.card, pool=self.pool))

    async def list(self) -> list[ServedModel]:
        """Every served model. Raises Unavailable."""
        return [await self.get(served.card.model) for served in await self.inner.list()]


class Probe:
    """A gateway without sockets."""

    def __init__(self) -> None:
        self._pool = f"bench-{uuid4().hex[:12]}"
        given = gateway_services()
        self._services: GatewayServices = replace(given, catalogue=OwnPool(given.catalogue, self._pool))
        self._admission = Admission(self._services)

    async def close(self) -> None:
        """Leaves nothing of the pool behind."""
        redis = self._services.redis
        await withdraw_heartbeat(redis, self._pool)
        names = [name async for name in redis.scan_iter(f"w:{{p:{self._pool}}}:*", count=1_000)]
        if names:
            await redis.unlink(*names)
        if self._services.validators is not None:
            await self._services.validators.close()
        await redis.aclose()

    async def admit(
        self, *, key: str, model: str, requests: int, concurrency: int, first: int, prompt_words: int
    ) -> dict[str, float]:
        """Admits `requests` prompts, `concurrency` at once. Monotonic seconds, which all processes share."""
        bodies = [
            orjson.dumps({
                "model": model,
                "messages": [{"role": "user", "content": make_prompt(seed=2, index=first + i, words=prompt_words)}],
                "max_tokens": MAX_TOKENS,
                "stream": True,
            })
            for i in range(requests)
        ]  # fmt: skip
        await self._beat(model)
        await self._services.catalogue.get(model)  # a gateway that serves has read it long ago
        admitted: list[Admitted] = []
        waiting = iter(bodies)

        async def work() -> None:
            for body in waiting:
                admitted.append(await self._one(key, body))

        store_before = await _store_seconds(self._services.redis)
        began, cpu_before = time.monotonic(), time.process_time()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(work())
        ended, cpu = time.monotonic(), time.process_time() - cpu_before
        store = await _store_seconds(self._services.redis) - store_before
        await self._give_back(admitted)
        return {"requests": requests, "began": began, "ended": ended, "cpu": cpu, "store_cpu": store}

    async def _one(self, key: str, body: bytes) -> Admitted:
        """What `edge.inference` does between the last byte of a request and its answer's first."""
        caller = await self._admission.identify(key, address=ADDRESS)
        received_at = self._services.clock.monotonic()
        asked = check_request(parse_object(body), endpoint=Endpoint.CHAT)
        return await self._admission.admit(
            caller, asked, request_id=mint_request_id(), idempotency=None, received_at=received_at
        )

    async def _give_back(self, admitted: list[Admitted]) -> None:
        for one in admitted:
            self._services.mailbox.close(one.inbox)
            ticket = one.ticket
            await one.queue.cancel(request_id=ticket.request_id, generation=None, reason="cancelled")
            await self._services.limits.void(
                tenant_id=ticket.tenant_id, request_id=ticket.request_id, reason="cancelled"
            )

    async def _beat(self, model: str) -> None:
        """A sign of life of a worker that the pool does not have: else nothing is let in."""
        beat = Heartbeat(
            worker_id=self._pool, pool=self._pool, model=model, engine="none", pid=0, state="ready", running=0,
            free_kv_tokens=0, free_slots=0, at_ms=self._services.clock.now_ms(), attempt_log_failures=0,
            evaluation_logs_dropped=0,
        )  # fmt: skip
        await publish_heartbeat(self._services.redis, beat)

    async def authenticate(self, *, keys: int) -> dict[str, float]:
        """`keys` distinct keys, each for the first time and then from the cache. Their rows are removed again."""
        texts = [mint() for _ in range(keys)]
        made = await asyncio.to_thread(_insert_keys, texts)
        try:
            resolver = self._services.resolver
            waiting = iter(texts)
            began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(KEYS_AT_ONCE):
                    tasks.create_task(_resolve(resolver, waiting))
            cold = time.monotonic() - began
            began = time.monotonic()
            for _ in range(WARM_PASSES):
                await _resolve(resolver, iter(texts))
            warm = time.monotonic() - began
        finally:
            await asyncio.to_thread(ApiKey.objects.filter(id__in=[key.id for key in made]).delete)
        return {"keys": keys, "cold": cold, "warm": warm, "warm_keys": keys * WARM_PASSES}

    async def revoke(self, *, host: str, port: int, model: str, max_tokens: int) -> dict[str, float]:
        """Seconds from the revoking call to the error frame of a stream that the key has open, commit included."""
        key, text = await asyncio.to_thread(_make_key)
        target = Target(name="weir", model=model, host=host, port=port, api_key=text)
        body = {"model": model, "messages": [{"role": "user", "content": f"Count up. {uuid4()}"}], "stream": True}
        request = target.request(
            method="POST", path="/v1/chat/completions", body=orjson.dumps(body | {"max_tokens": max_tokens})
        )
        async with asyncio.timeout(PATIENT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                await _read_until(reader, b'"content":')
                began = time.monotonic()
                revoking = asyncio.ensure_future(asyncio.to_thread(revoke_key, key=key))
                await _read_until(reader, b'"error":')
                seconds = time.monotonic() - began
                await revoking
            finally:
                writer.close()
        return {"seconds": seconds}


def _insert_keys(texts: list[str]) -> list[ApiKey]:
    """Rows alone: a thousand keys of a bench are no news for the audit trail."""
    project = Project.objects.select_related("tenant").get(tenant__name=TENANT, name=PROJECT, deleted_at=None)
    secret = pepper()
    return ApiKey.objects.bulk_create(
        ApiKey(
            tenant=project.tenant, project=project, name="Bench", prefix=PREFIX, last4=hint_of(text),
            digest=digest(text, secret), pepper_id=pepper_id_of(secret),
        )
        for text in texts
    )  # fmt: skip


def _make_key() -> tuple[ApiKey, str]:
    project = Project.objects.select_related("tenant").get(tenant__name=TENANT, name=PROJECT, deleted_at=None)
    return create_key(project=project, name="Bench revocation")


async def _resolve(resolver: Resolver, texts: Any) -> None:
    for text in texts:
        await resolver.resolve(text)


async def _store_seconds(redis: Redis) -> float:
    info = await redis.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def _read_until(reader: asyncio.StreamReader, mark: bytes) -> None:
    """Raises EOFError with what came when the answer ends before the mark."""
    while mark not in (line := await reader.readline()):
        if not line or line.startswith(b"data: [DONE]"):
            raise EOFError(f"the answer ended without {mark!r}")


async def serve() -> None:
    """Orders from stdin until it ends. Whatever fails ends the process with its traceback on stderr."""
    probe = Probe()
    orders: dict[str, Callable[..., Awaitable[dict[str, float]]]]
    orders = {"admit": probe.admit, "authenticate": probe.authenticate, "revoke": probe.revoke}
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, given = json.loads(line)
            answer = await orders[name](**given)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        await probe.close()


def main() -> None:
    """On the event loop that gateways have."""
    uvloop.run(serve())
