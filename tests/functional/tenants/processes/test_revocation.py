"""A key is revoked, or its tenant suspended, on one process while a stream of it runs on another; and while Redis dies.

The engine is slow: a stream has more than a minute before its natural end. What cuts it is the revocation or nothing.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.errors import AuthFailed
from tenants.limits.buckets import Limits
from tests.factories.customers import Customer
from tests.factories.gateways import TwoGateways
from tests.factories.valkeys import on_disk
from tests.functional.tenants.cast import request

PATH = "/chat/completions"
MAX_TOKENS = 1_500
PATIENCE_SECONDS = 90.0


class Stream:
    """A stream that one customer has open; `text` grows as it comes."""

    def __init__(self, pair: TwoGateways, customer: Customer, *, gateway: int) -> None:
        self.text = ""
        self.began = asyncio.Event()
        self.pieces = 0
        self.request_id = ""
        self._pair = pair
        self._headers = {"authorization": f"Bearer {customer.key}"}
        self._url = pair.urls[gateway] + PATH

    async def run(self, client: httpx.AsyncClient) -> None:
        body = {
            "model": self._pair.model, "messages": [{"role": "user", "content": "Count up."}], "stream": True,
            "max_tokens": MAX_TOKENS, "ignore_eos": True,
        }  # fmt: skip
        async with client.stream("POST", self._url, json=body, headers=self._headers) as answer:
            assert answer.status_code == 200
            self.request_id = answer.headers["x-request-id"]
            async for piece in answer.aiter_text():
                self.text += piece
                self.pieces += 1
                if '"content":"' in piece:
                    self.began.set()

    def assert_cut(self, *codes: str) -> None:
        """It ended with an error of these codes, and before its natural end."""
        last = [line for line in self.text.split("\n") if line.startswith("data: ")][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] in codes
        assert "[DONE]" not in self.text
        assert '"finish_reason":"' not in self.text


async def ask(client: httpx.AsyncClient, pair: TwoGateways, customer: Customer, *, gateway: int) -> int:
    body = {"model": pair.model, "prompt": "x", "max_tokens": 1}
    headers = {"authorization": f"Bearer {customer.key}"}
    return (await client.post(f"{pair.urls[gateway]}/completions", json=body, headers=headers)).status_code


async def resume(client: httpx.AsyncClient, pair: TwoGateways, customer: Customer, request_id: str) -> int:
    headers = {"authorization": f"Bearer {customer.key}"}
    return (await client.get(f"{pair.urls[1]}/requests/{request_id}/events", headers=headers)).status_code


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        yield client


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestOnAnotherProcess:
    @pytest.mark.parametrize(("ending", "refused"), [("revoke", 401), ("suspend", 403)])
    async def test_t10_streams_of_both_gateways_are_cut_and_the_next_request_is_refused(
        self, pair: TwoGateways, client: httpx.AsyncClient, ending: str, refused: int
    ) -> None:
        customer = pair.customers.make(caps={})
        other = pair.customers.make(caps={})
        end: Callable[[Customer], None] = getattr(pair.customers, ending)
        streams = [Stream(pair, customer, gateway=gateway) for gateway in (0, 1)]
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(stream.run(client))
                await stream.began.wait()
            await asyncio.to_thread(end, customer)
            statuses = [await ask(client, pair, customer, gateway=gateway) for gateway in (0, 1)]
            others = [await ask(client, pair, other, gateway=gateway) for gateway in (0, 1)]
        assert statuses == [refused] * 2
        assert others == [200, 200]
        for stream in streams:
            stream.assert_cut("key_revoked")


async def restarted(pair: TwoGateways, redis: Redis) -> None:
    """Kills Redis and waits until another process answers in its place."""
    dead = pair.pid_of("valkey")
    await on_disk(redis)
    os.kill(dead, signal.SIGKILL)
    await is_back(pair, redis, dead=dead)


async def is_back(pair: TwoGateways, redis: Redis, *, dead: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if pair.pid_of("valkey") != dead and (await redis.info("persistence"))["loading"] == 0:
                return
        except (RedisError, OSError, StopIteration, ValueError):
            pass
        assert time.monotonic() < until, "Redis did not come back"
        await asyncio.sleep(0.05)


async def in_state(pid: int, letter: str) -> None:
    """Waits for a state of proc(5): a signal is taken a moment after it was sent."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != letter:  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)


@asynccontextmanager
async def no_redis(pair: TwoGateways, redis: Redis) -> AsyncIterator[None]:
    """It is dead, and who would start it again stands still; with the block it comes back with what it had."""
    await on_disk(redis)
    supervisor, dead = pair.instance.supervisor_pid(), pair.pid_of("valkey")
    os.kill(supervisor, signal.SIGSTOP)
    try:
        await in_state(supervisor, "T")
        os.kill(dead, signal.SIGKILL)
        await in_state(dead, "Z")  # nobody has taken note
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)
    await is_back(pair, redis, dead=dead)


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestRedisRestarts:
    async def test_t10_a_revoked_key_stays_refused_and_is_never_let_in_between(
        self, pair: TwoGateways, client: httpx.AsyncClient, its_redis: Redis
    ) -> None:
        customer = pair.customers.make(caps={})
        assert await ask(client, pair, customer, gateway=1) == 200  # its context is cached there
        pair.customers.revoke(customer)
        seen: set[int] = set()
        async with asyncio.TaskGroup() as tasks:
            back = tasks.create_task(restarted(pair, its_redis))
            while not back.done():
                seen |= {await ask(client, pair, customer, gateway=gateway) for gateway in (0, 1)}
        seen |= {await ask(client, pair, customer, gateway=gateway) for gateway in (0, 1)}
        assert seen <= {401, 503}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await ask(client, pair, customer, gateway=1) != 401:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.2)

    async def test_a_stream_is_cut_although_its_key_was_revoked_while_redis_was_away(
        self, pair: TwoGateways, client: httpx.AsyncClient, its_redis: Redis
    ) -> None:
        customer = pair.customers.make(caps={})
        stream = Stream(pair, customer, gateway=1)
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(stream.run(client))
            await stream.began.wait()
            os.kill(pair.pid_of("valkey"), signal.SIGSTOP)
            try:
                await asyncio.to_thread(pair.customers.revoke, customer)
            finally:
                os.kill(pair.pid_of("valkey"), signal.SIGCONT)
            await restarted(pair, its_redis)
            await running
        # `worker_lost`: its log could not be read for so long. It may be resumed, but not with this key.
        stream.assert_cut("key_revoked", "worker_lost")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await ask(client, pair, customer, gateway=0) == 503:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.2)
            assert await ask(client, pair, customer, gateway=0) == 401
        assert await resume(client, pair, customer, stream.request_id) == 401

    async def test_t10_a_key_revoked_while_there_is_no_redis_is_refused_and_its_streams_are_cut(
        self, pair: TwoGateways, client: httpx.AsyncClient, its_redis: Redis
    ) -> None:
        customer = pair.customers.make(caps={})
        streams = [Stream(pair, customer, gateway=gateway) for gateway in (0, 1)]
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(stream.run(client))
                await stream.began.wait()
            async with no_redis(pair, its_redis):
                await asyncio.to_thread(pair.customers.revoke, customer)
        for stream in streams:
            stream.assert_cut("key_revoked")
            assert await resume(client, pair, customer, stream.request_id) == 401
        assert [await ask(client, pair, customer, gateway=gateway) for gateway in (0, 1)] == [401, 401]
        stale = request(1, tenant_id=customer.tenant_id, project_id=customer.project_id, api_key_id=customer.key_id)
        with pytest.raises(AuthFailed):  # so asks a gateway that still had the key in its cache
            await Limits(its_redis).hold(stale)

    async def test_the_stream_of_a_good_key_outlives_it(
        self, pair: TwoGateways, client: httpx.AsyncClient, its_redis: Redis
    ) -> None:
        """So that what is cut above is cut by the revocation."""
        stream = Stream(pair, pair.customers.make(caps={}), gateway=1)
        running = asyncio.ensure_future(stream.run(client))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await stream.began.wait()
            await restarted(pair, its_redis)
            pieces = stream.pieces
            while stream.pieces < pieces + 5:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.05)
        assert '"error"' not in stream.text
        running.cancel()
