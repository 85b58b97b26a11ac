"""A gateway whose Redis is not there: it starts, says so, and lets nobody pass."""

import asyncio
import socket
from dataclasses import replace

import httpx
import pytest

from contracts.errors import Unavailable
from gateway import services as module
from gateway.settlement import Sweeper
from gateway.stream.mailbox import Mailbox
from stores.redis import open_redis
from stores.subscription import Subscriber
from tenants.limits.buckets import Limits
from tests.functional.gateway.cast import MODEL, POOL
from tests.functional.gateway.conftest import Gateway, serving


class TestWithoutRedis:
    async def test_answers_503_everywhere_and_never_a_free_pass(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "START_SECONDS", 0.1)
        url = f"redis://127.0.0.1:{_free_port()}/0"
        redis = open_redis(url)
        services = replace(
            gateway.services,
            redis=redis,
            limits=Limits(redis),
            mailbox=Mailbox(channel="w:mb:away", listen=Subscriber(url).listen),
        )
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        async with serving(services) as base, httpx.AsyncClient(base_url=base, timeout=30) as http, asyncio.timeout(60):
            ready = await http.get("/health/ready")
            live = await http.get("/health/live")
            answer = await http.post("/v1/chat/completions", json=body, headers=gateway.auth())
        await redis.aclose(close_connection_pool=True)
        assert (ready.status_code, live.status_code, answer.status_code) == (503, 200, 503)
        assert answer.json()["error"]["code"] == Unavailable.code
        assert int(answer.headers["retry-after"]) >= 1


class TestSweeperWithoutRedis:
    async def test_counts_its_failures_and_goes_on(self, gateway: Gateway) -> None:
        redis = open_redis(f"redis://127.0.0.1:{_free_port()}/0")

        async def pools() -> list[str]:
            return [POOL]

        sweeper = Sweeper(limits=Limits(redis), queue_of=gateway.services.queue_of, pools=pools)
        await sweeper.sweep()
        await redis.aclose(close_connection_pool=True)
        assert (sweeper.report.failures, sweeper.report.settled) == (1, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
