"""Limits as a client meets them: headers on every answer, refusals that tell the truth, and stores that are away."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai import AsyncOpenAI

from contracts.clock import FakeClock
from contracts.tenancy import Limit, Metric, Scope
from stores.redis import open_redis
from tenants.auth.resolve import Resolver
from tenants.limits.buckets import Limits
from tenants.limits.gate import FAILURES_MAX
from tests.functional.gateway.cast import CONTEXT, MODEL, PEPPER, POOL, PRICE
from tests.functional.gateway.conftest import Gateway

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
PATH = "/v1/chat/completions"


def limit(metric: Metric, cap: int, scope: Scope = Scope.TENANT, *, model: str | None = None) -> Limit:
    return Limit(scope=scope, metric=metric, cap=cap, model=model)


def key_with(gateway: Gateway, *limits: Limit, **changes: Any) -> str:
    return gateway.directory.issue(replace(CONTEXT, limits=limits, **changes))


def rates(answer: httpx.Response) -> dict[str, str]:
    return {
        name.removeprefix("x-ratelimit-"): value
        for name, value in answer.headers.items()
        if name.startswith("x-ratelimit-")
    }


async def served(gateway: Gateway, key: str, body: dict[str, Any] = BODY) -> httpx.Response:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(gateway.worker.serve(["a"]))
        answer = tasks.create_task(gateway.http.post(PATH, json=body, headers=gateway.auth(key)))
    return answer.result()


async def prompt_tokens(gateway: Gateway) -> int:
    """What the prompt counts, by one request of another tenant."""
    async with asyncio.TaskGroup() as tasks:
        worker = tasks.create_task(gateway.worker.serve(["a"]))
        tasks.create_task(gateway.http.post(PATH, json=BODY, headers=gateway.auth(gateway.mallory)))
    return worker.result().ticket.prompt_tokens


class TestHeaders:
    limits = (
        limit(Metric.REQUESTS_PER_MINUTE, 60),
        limit(Metric.TOKENS_PER_DAY, 10_000),
        limit(Metric.TOKENS_PER_DAY, 50, model="another"),
    )

    async def test_count_the_limits_of_the_model_that_is_named(self, gateway: Gateway) -> None:
        own = limit(Metric.REQUESTS_PER_MINUTE, 7, model=MODEL)
        auth = gateway.auth(key_with(gateway, limit(Metric.REQUESTS_PER_MINUTE, 60), own))
        named = await gateway.http.get(f"/v1/models/{MODEL}", headers=auth)
        wrong = await gateway.http.post(PATH, json={**BODY, "temperature": 9}, headers=auth)
        every = await gateway.http.get("/v1/models", headers=auth)
        assert [rates(answer)["limit-requests"] for answer in (named, wrong, every)] == ["7", "7", "60"]
        assert (named.status_code, wrong.status_code) == (200, 400)

    async def test_are_on_every_answer_once_the_key_is_known(self, gateway: Gateway) -> None:
        auth = gateway.auth(key_with(gateway, *self.limits))
        answers = [
            await gateway.http.get("/v1/models", headers=auth),
            await gateway.http.get("/v1/models/none", headers=auth),
            await gateway.http.get("/v1/requests/none", headers=auth),
            await gateway.http.post(PATH, json={"model": MODEL}, headers=auth),
            await gateway.http.post(PATH, content=b"{", headers=auth | {"content-type": "application/json"}),
            await gateway.http.post(PATH, json=BODY | {"model": "none"}, headers=auth),
        ]
        assert [answer.status_code for answer in answers] == [200, 404, 404, 400, 400, 404]
        whole = {
            "limit-requests": "60", "remaining-requests": "60", "reset-requests": "0ms",
            "limit-tokens": "10000", "remaining-tokens": "10000",
        }  # fmt: skip
        for answer in answers:
            found = rates(answer)
            found.pop("reset-tokens")
            assert found == whole

    async def test_count_what_was_let_in(self, gateway: Gateway) -> None:
        key = key_with(gateway, *self.limits)
        first = rates(await served(gateway, key))
        assert (first["limit-requests"], first["remaining-requests"], first["reset-requests"]) == ("60", "59", "1s")

    async def test_a_stranger_learns_nothing(self, gateway: Gateway) -> None:
        answer = await gateway.http.get("/v1/models", headers={"authorization": "Bearer weir_nothing"})
        assert (answer.status_code, rates(answer)) == (401, {})


class TestRefusals:
    async def test_a_client_that_waits_as_told_gets_in(self, gateway: Gateway) -> None:
        holds = gateway.services.limits
        holds.time_ms = gateway.services.clock.now_ms()
        key = key_with(gateway, limit(Metric.REQUESTS_PER_MINUTE, 2, Scope.KEY))
        for _ in range(2):
            assert (await served(gateway, key)).status_code == 200
        refused = await gateway.http.post(PATH, json=BODY, headers=gateway.auth(key))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "requests per minute of the API key reached: limit 2" in refused.json()["error"]["message"]
        assert rates(refused)["remaining-requests"] == "0"
        wait_ms = int(refused.headers["retry-after-ms"])
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("30", "true")
        holds.time_ms += wait_ms - 1
        assert (await gateway.http.post(PATH, json=BODY, headers=gateway.auth(key))).status_code == 429
        holds.time_ms += 1
        assert (await served(gateway, key)).status_code == 200

    @pytest.mark.parametrize(
        ("metric", "says"),
        [
            (Metric.SPEND_PER_MONTH, "only an operator raises it, at /api/v1/limits"),
            (Metric.PREPAID_CREDIT, "more credit raises it"),
        ],
    )
    async def test_a_spent_budget_is_402_and_the_sdk_does_not_ask_again(
        self, gateway: Gateway, metric: Metric, says: str
    ) -> None:
        key = key_with(gateway, limit(metric, 1_000))
        asked: list[httpx.Request] = []

        async def note(request: httpx.Request) -> None:
            asked.append(request)

        async with httpx.AsyncClient(event_hooks={"request": [note]}) as http:
            sdk = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=2, http_client=http)
            unit = "spend per month" if metric is Metric.SPEND_PER_MONTH else "prepaid credit"
            with pytest.raises(openai.APIStatusError, match=f"{unit} of the organization reached.*{says}") as caught:
                await sdk.chat.completions.create(**BODY)
        assert caught.value.status_code == 402
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert len(asked) == 1

    async def test_the_sdk_does_ask_again_where_waiting_helps(self, gateway: Gateway) -> None:
        key = key_with(gateway, limit(Metric.CONCURRENT_REQUESTS, 1))
        async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=3, timeout=20) as sdk:
            async with gateway.http.stream("POST", PATH, json=BODY | {"stream": True}, headers=gateway.auth(key)):
                second = asyncio.ensure_future(sdk.chat.completions.create(**BODY))
                await gateway.worker.serve(["a"])
            await gateway.worker.serve(["b"])
            assert (await second).choices[0].message.content == "b"

    async def test_a_key_bound_to_networks_is_refused_from_elsewhere(self, gateway: Gateway) -> None:
        away = key_with(gateway, allowed_networks=("198.51.100.0/24",))
        here = key_with(gateway, allowed_networks=("127.0.0.0/8",))
        lies = {"x-forwarded-for": "198.51.100.1"}
        answers = [await gateway.http.get("/v1/models", headers=gateway.auth(key) | lies) for key in (away, here)]
        assert [answer.status_code for answer in answers] == [403, 200]
        assert answers[0].json()["error"]["code"] == "network_not_allowed"

    async def test_a_limit_of_one_model_leaves_the_others_alone(self, gateway: Gateway) -> None:
        key = key_with(gateway, limit(Metric.REQUESTS_PER_MINUTE, 0, model="another"))
        assert (await served(gateway, key)).status_code == 200

    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_answer_cut_to_its_budget_says_so(self, gateway: Gateway, stream: bool) -> None:
        left = await prompt_tokens(gateway) * PRICE.input_nano + 3 * PRICE.output_nano
        key = key_with(gateway, limit(Metric.SPEND_PER_DAY, left), cut_to_affordable=True)
        body = BODY | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
        async with asyncio.TaskGroup() as tasks:
            claim = tasks.create_task(gateway.worker.serve(["a", "b"], finish="length"))
            answer = tasks.create_task(gateway.http.post(PATH, json=body, headers=gateway.auth(key)))
        ticket = claim.result().ticket
        assert (ticket.max_tokens, ticket.budget_cut) == (3, True)
        lines = [line.removeprefix("data: ") for line in answer.result().text.split("\n") if line.startswith("data: {")]
        document = orjson.loads(lines[-1]) if stream else answer.result().json()
        assert document["weir"]["stopped_by"] == "budget"
        found = await gateway.http.get(f"/v1/requests/{ticket.request_id}", headers=gateway.auth(key))
        assert (found.json()["finish_reason"], found.json()["stopped_by"]) == ("length", "budget")

    async def test_a_repeat_of_what_a_crash_left_unqueued_is_cut_to_the_same_budget(self, gateway: Gateway) -> None:
        prompt = await prompt_tokens(gateway)
        left = limit(Metric.SPEND_PER_DAY, prompt * PRICE.input_nano + 3 * PRICE.output_nano)
        headers = gateway.auth(key_with(gateway, left, cut_to_affordable=True)) | {"idempotency-key": "cut"}
        body = BODY | {"stream": True, "on_disconnect": "continue"}
        async with gateway.http.stream("POST", PATH, json=body, headers=headers) as first:
            request_id = first.headers["x-request-id"]
        await gateway.services.redis.delete(
            *[key async for key in gateway.services.redis.scan_iter(f"w:{{p:{POOL}}}:*")]
        )
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(["a"]))
            tasks.create_task(gateway.http.post(PATH, json=body, headers=headers))
        ticket = worker.result().ticket
        assert (ticket.request_id, ticket.max_tokens, ticket.budget_cut) == (request_id, 3, True)


class TestPostgresAway:
    async def test_warm_keys_serve_for_a_quarter_of_an_hour_and_no_longer(self, gateway: Gateway) -> None:
        clock = FakeClock()
        resolver = Resolver(gateway.directory.load_context, clock=clock, peppers=(PEPPER,))
        object.__setattr__(gateway.services, "resolver", resolver)
        auth = gateway.auth()
        assert (await gateway.http.get("/v1/models", headers=auth)).status_code == 200
        gateway.directory.away = True
        cold = gateway.auth(gateway.mallory)
        assert (await gateway.http.get("/v1/models", headers=cold)).status_code == 503
        clock.advance(ms=14 * 60_000)
        assert (await served(gateway, gateway.key)).status_code == 200
        clock.advance(ms=2 * 60_000)
        late = await gateway.http.get("/v1/models", headers=auth)
        assert (late.status_code, late.headers["retry-after"]) == (503, "2")


@pytest.fixture
async def mute() -> AsyncIterator[str]:
    """A store that takes connections and never answers."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0, family=socket.AF_INET)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"redis://127.0.0.1:{port}/0"


class TestRedisSlow:
    async def test_fails_closed_in_time_and_then_at_once(
        self, gateway: Gateway, mute: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenants.limits.gate.DEADLINE_SECONDS", 0.2)
        redis = open_redis(mute)
        limits = Limits(redis)
        object.__setattr__(gateway.services, "limits", limits)
        key = key_with(gateway, limit(Metric.SPEND_PER_DAY, 10**9))
        answers = []
        for _ in range(FAILURES_MAX + 3):
            answers.append(await gateway.http.post(PATH, json=BODY, headers=gateway.auth(key)))
        await redis.aclose(close_connection_pool=True)
        assert {answer.status_code for answer in answers} == {503}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
        assert limits.gate.breaker.opened_at is not None
        assert orjson.loads(answers[-1].content)["error"]["code"] == "service_unavailable"
