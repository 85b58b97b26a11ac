"""T31: where a prompt stands in Redis while its request lives, and that it stands there no longer.

The worker here says other words than it was asked, so that what is found is the prompt and not the answer's log.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from contracts.jobs import Claim
from contracts.outcomes import Outcome
from contracts.tenancy import Limit, Metric, PolicyRef, Scope
from fairqueue.policy import QueueBounds
from gateway.settlement import Sweeper
from safety.policy import CompiledPolicy
from tests.e2e.kept import of_redis
from tests.functional.gateway.cast import CONTEXT, MODEL, POOL, WORKER, chat_frames
from tests.functional.gateway.conftest import Gateway, gateway, http_protocol, kept, receipts, settings, tokenizer
from tests.functional.gateway.sockets import event, say, socket

__all__ = ["gateway", "http_protocol", "kept", "receipts", "settings", "tokenizer"]

PATH = "/v1/chat/completions"
PROMPT = "axolotl tells ab"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
STREAM = BODY | {"stream": True}
PATIENCE_SECONDS = 20.0
JOB = f"w:{{p:{POOL}}}:job:"
DEAD = f"w:{{p:{POOL}}}:dead"


class Store:
    """The Redis of a gateway, and its settler."""

    def __init__(self, gateway: Gateway, url: str) -> None:
        async def pools() -> list[str]:
            return [POOL]

        self._gateway, self._url = gateway, url
        services = gateway.services
        self._sweeper = Sweeper(limits=services.limits, queue_of=services.queue_of, pools=pools, older_than_ms=0)

    def holds(self, text: str) -> list[str]:
        """The keys of every database that hold it."""
        found = [place for place, content in of_redis(self._url) if text.encode() in content]
        return [place.split(" ", 2)[2] for place in found]

    async def settled(self) -> None:
        """Until nothing waits, runs or is held."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                await self._sweeper.sweep()
                depths = await self._gateway.queue.depths()
                open_holds = await self._gateway.services.redis.zcard("w:{t:acme}:holds")
                if not (depths.waiting or depths.running or open_holds):
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
def store(gateway: Gateway, valkey_url: str) -> Store:
    return Store(gateway, valkey_url)


def key_of(gateway: Gateway, **changes: Any) -> dict[str, str]:
    """The header of a key of acme's that is not like the first."""
    return gateway.auth(gateway.directory.issue(replace(CONTEXT, api_key_id="another-key", **changes)))


def guarded(gateway: Gateway, action: str) -> dict[str, str]:
    rule = {
        "name": "ban", "kind": "ban_list", "stage": ["prompt"], "action": action, "fail": "closed",
        "config": {"words": ["axolotl"]},
    }  # fmt: skip
    gateway.directory.policy = CompiledPolicy.compile({"id": "pol", "version": 1, "rules": [rule]})
    return key_of(gateway, policy=PolicyRef(policy_id="pol", version=1))


async def answered(gateway: Gateway, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(gateway.worker.serve(["one", "two"]))
        asked = tasks.create_task(gateway.http.post(PATH, json=body, headers=headers or gateway.auth()))
    assert asked.result().status_code == 200


async def whole(gateway: Gateway) -> None:
    await answered(gateway, BODY)


async def streamed(gateway: Gateway) -> None:
    await answered(gateway, STREAM)


async def redacted(gateway: Gateway) -> None:
    await answered(gateway, BODY, guarded(gateway, "redact"))


async def repeated(gateway: Gateway) -> None:
    headers = gateway.auth() | {"idempotency-key": "once"}
    await answered(gateway, BODY, headers)
    assert (await gateway.http.post(PATH, json=BODY, headers=headers)).status_code == 200


async def in_a_session(gateway: Gateway) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": PROMPT}]}
    async with socket(gateway, key=gateway.key) as connection:
        await say(connection, type="response.create", response={"model": MODEL, "input": [item]})
        await gateway.worker.serve(["one"])
        while (await event(connection))["type"] != "response.done":
            pass


async def left_while_it_waited(gateway: Gateway) -> None:
    async with gateway.http.stream("POST", PATH, json=STREAM, headers=gateway.auth()):
        pass


async def left_while_it_ran(gateway: Gateway) -> None:
    async with gateway.http.stream("POST", PATH, json=STREAM, headers=gateway.auth()):
        claim = await gateway.worker.claim()
        await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
    await gateway.worker.aborted(claim)
    await gateway.worker.end(claim, last_seq=1, outcome=Outcome.CANCELLED, finish="", error="request_cancelled")


async def refused_by_the_engine(gateway: Gateway) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(gateway.worker.refuse())
        asked = tasks.create_task(gateway.http.post(PATH, json=BODY, headers=gateway.auth()))
    assert asked.result().status_code == 400


async def refused(gateway: Gateway, headers: dict[str, str], status: int, **changes: Any) -> None:
    answer = await gateway.http.post(PATH, json=BODY | changes, headers=headers)
    assert answer.status_code == status
    async with asyncio.timeout(PATIENCE_SECONDS):  # what was refused is noted after its answer
        while answer.headers["x-request-id"].encode() not in await noted(gateway):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def noted(gateway: Gateway) -> bytes:
    streams = [await gateway.services.redis.xrange(name) for name in ("w:{t:acme}:refused", "w:refused")]
    return b"".join(fields[b"d"] for stream in streams for _, fields in stream)


async def refused_by_a_limit(gateway: Gateway) -> None:
    limit = Limit(scope=Scope.KEY, metric=Metric.REQUESTS_PER_MINUTE, cap=0)
    await refused(gateway, key_of(gateway, limits=(limit,)), 429)


async def refused_by_the_queue(gateway: Gateway) -> None:
    await refused(gateway, key_of(gateway, queued_max=0), 429)


async def refused_by_the_guard(gateway: Gateway) -> None:
    await refused(gateway, guarded(gateway, "block"), 400)


async def refused_for_a_field(gateway: Gateway) -> None:
    await refused(gateway, gateway.auth(), 400, temperature=9)


async def refused_for_its_length(gateway: Gateway) -> None:
    await refused(gateway, gateway.auth(), 400, max_tokens=500)


async def refused_for_its_key(gateway: Gateway) -> None:
    await refused(gateway, gateway.auth("weir_" + "x" * 38), 401)


ENDS: list[Callable[[Gateway], Awaitable[None]]] = [
    whole, streamed, redacted, repeated, in_a_session, left_while_it_waited, left_while_it_ran, refused_by_the_engine,
    refused_by_a_limit, refused_by_the_queue, refused_by_the_guard, refused_for_a_field, refused_for_its_length,
    refused_for_its_key,
]  # fmt: skip


class TestAPrompt:
    async def test_t31_stands_in_its_job_alone_while_it_waits_and_runs(self, gateway: Gateway, store: Store) -> None:
        async with gateway.http.stream("POST", PATH, json=STREAM, headers=gateway.auth()) as answer:
            mine = [JOB + answer.headers["x-request-id"]]
            assert store.holds(PROMPT) == mine
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
            assert store.holds(PROMPT) == mine

    @pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
    async def test_t31_is_in_redis_no_more_once_its_request_has_ended(
        self, gateway: Gateway, store: Store, end: Callable[[Gateway], Awaitable[None]]
    ) -> None:
        await end(gateway)
        await store.settled()
        assert store.holds("axolotl") == []

    async def test_t31_is_kept_by_the_dead_letter_of_what_killed_engines(self, gateway: Gateway, store: Store) -> None:
        """The one that is: an operator may run it once more."""
        async with gateway.http.stream("POST", PATH, json=STREAM, headers=gateway.auth()):
            for _ in range(QueueBounds().deaths_max + 1):
                claim: Claim = await gateway.worker.claim()
                gateway.worker.holding.clear()
                await gateway.queue.engine_died(worker_id=WORKER, fences={claim.ticket.request_id: claim.fence})
        await store.settled()
        assert store.holds(PROMPT) == [DEAD]
