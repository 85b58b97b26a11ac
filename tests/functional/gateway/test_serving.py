"""Requests through the whole edge: HTTP in, a real queue and real limits behind it, a worker's frames out."""

import asyncio
import gzip
import json
import re
from dataclasses import replace
from typing import Any

import httpx
import openai
import orjson
import pytest

from contracts.outcomes import Outcome
from contracts.tenancy import Limit, Metric, PolicyRef, Scope
from fairqueue.messages import AbortReason
from gateway.edge.app import InferenceApp
from gateway.services import GatewaySettings
from gateway.surface.openapi import document
from safety.policy import CompiledPolicy
from tests.functional.gateway.cast import CONTEXT, MODEL, POOL, chat_frames
from tests.functional.gateway.conftest import Gateway

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
BODY = {"model": MODEL, "messages": HELLO}
LONG = {"model": MODEL, "prompt": "x" * 512}
TEXTS = ["Grü", "ße", " 🦊", "日", "本"]


class TestStream:
    async def test_the_sdk_reads_tokens_usage_and_cost(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(TEXTS))
            stream = await gateway.sdk.chat.completions.create(
                model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}, max_tokens=9
            )
            chunks = [chunk async for chunk in stream]
        ticket = worker.result().ticket
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Grüße 🦊日本"
        assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * 5 + ["stop"]
        usage = chunks[-1].usage
        assert chunks[-1].choices == []
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (ticket.prompt_tokens, 6)
        assert usage.model_extra == {"cost": _cost(ticket.prompt_tokens, 6), "currency": "USD"}
        assert {c.id for c in chunks} == {f"chatcmpl-{ticket.request_id}"}
        assert all(c.usage is None for c in chunks[:-1])

    async def test_bytes_are_openais_with_ids_and_no_usage_unasked(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(["a"]))
            answer = await gateway.http.post(
                "/v1/chat/completions", json=BODY | {"stream": True}, headers=gateway.auth()
            )
        claim = worker.result()
        one, two = chat_frames(claim.ticket, ["a"])
        epoch = claim.fence.encode()
        comment, _, events = answer.content.partition(b"\n")
        assert comment.startswith(b": queued")
        assert events == b"id: %b-1\ndata: %b\n\nid: %b-2\ndata: %b\n\ndata: [DONE]\n\n" % (epoch, one, epoch, two)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache, no-transform"
        assert answer.headers["content-encoding"] == "identity"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-request-id"] == claim.ticket.request_id

    async def test_the_first_byte_comes_before_any_worker_does(self, gateway: Gateway) -> None:
        request = gateway.http.stream(
            "POST", "/v1/chat/completions", json=BODY | {"stream": True}, headers=gateway.auth()
        )
        async with request as answer:
            pieces = answer.aiter_raw()
            assert re.fullmatch(rb": queued position=1 waited_ms=\d+\n", await anext(pieces))
            await gateway.worker.serve(["x"])
            assert (b"".join([piece async for piece in pieces])).endswith(b"data: [DONE]\n\n")

    async def test_a_failure_is_an_error_frame_and_never_done(self, gateway: Gateway) -> None:
        async def fail() -> None:
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["half"])[:1], first_seq=1)
            await gateway.worker.end(claim, last_seq=1, outcome=Outcome.FAILED, finish="", error="engine_error")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            answer = await gateway.http.post(
                "/v1/chat/completions", json=BODY | {"stream": True}, headers=gateway.auth()
            )
        assert b"[DONE]" not in answer.content
        last = answer.content.decode().rstrip("\n").split("\n\n")[-1]
        said = json.loads(last.removeprefix("data: "))
        error = said["error"]
        assert (error["type"], error["code"], error["param"]) == ("api_error", "engine_error", None)
        assert (said["usage"]["completion_tokens"], said["usage"]["cost"]) == (
            1,
            "0.000051",
        )  # the prompt is billed too
        assert said["weir"]["request_id"] == answer.headers["x-request-id"]
        assert b'"finish_reason":"' not in answer.content

    async def test_the_sdk_raises_on_an_error_frame(self, gateway: Gateway) -> None:
        async def fail() -> None:
            claim = await gateway.worker.claim()
            await gateway.worker.end(claim, last_seq=0, outcome=Outcome.FAILED, finish="", error="engine_error")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            stream = await gateway.sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            with pytest.raises(openai.APIError, match="engine could not finish"):
                [chunk async for chunk in stream]

    async def test_survives_a_lost_subscription(self, gateway: Gateway) -> None:
        request = gateway.http.stream(
            "POST", "/v1/chat/completions", json=BODY | {"stream": True}, headers=gateway.auth()
        )
        async with request as answer:
            pieces = answer.aiter_raw()
            await anext(pieces)
            claim = await gateway.worker.claim()
            frames = chat_frames(claim.ticket, TEXTS)
            await gateway.worker.step(claim, frames[:2], first_seq=1)
            await gateway.services.redis.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
            await gateway.worker.step(claim, frames[2:], first_seq=3)
            await gateway.worker.end(claim, last_seq=len(frames))
            data = b"".join([piece async for piece in pieces])
        assert [line for line in data.split(b"\n") if line.startswith(b"data: {")] == [b"data: " + f for f in frames]
        assert data.endswith(b"data: [DONE]\n\n")


class TestHead:
    """What is known before the first frame is said by the status, also to a client that asked for a stream."""

    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, head_hold_seconds=60.0, heartbeat_seconds=60.0)

    async def streamed(self, gateway: Gateway, **fields: Any) -> httpx.Response:
        headers = gateway.auth() | fields.pop("headers", {})
        return await gateway.http.post("/v1/chat/completions", json=BODY | {"stream": True} | fields, headers=headers)

    async def test_what_only_the_engine_refuses_is_an_error_answer(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(self.streamed(gateway))
            claim = await gateway.worker.refuse()
        answer, error = client.result(), client.result().json()["error"]
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_value", "seed")
        request_id = claim.ticket.request_id
        assert answer.headers["x-request-id"] == request_id
        found = (await gateway.http.get(f"/v1/requests/{request_id}", headers=gateway.auth())).json()
        assert found["error"] == error
        resumed = await gateway.http.get(f"/v1/requests/{request_id}/events", headers=gateway.auth())
        [frame] = [line for line in resumed.content.splitlines() if line.startswith(b"data: ")]
        assert orjson.loads(frame.removeprefix(b"data: "))["error"] == error

    async def test_the_sdk_raises_by_the_status(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.refuse())
            with pytest.raises(openai.BadRequestError):
                await gateway.sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True)

    async def test_a_failure_before_the_first_frame_is_not_retried_by_itself(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(self.streamed(gateway))
            claim = await gateway.worker.claim()
            await gateway.worker.end(claim, last_seq=0, outcome=Outcome.FAILED, finish="", error="engine_error")
        assert (client.result().status_code, client.result().headers["x-should-retry"]) == (502, "false")

    async def test_the_head_comes_with_the_first_frame(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(self.streamed(gateway))
            claim = await gateway.worker.claim()
            frames = chat_frames(claim.ticket, ["a"])
            await gateway.worker.step(claim, frames, first_seq=1)
            await gateway.worker.end(claim, last_seq=2, outcome=Outcome.FAILED, finish="", error="engine_error")
        answer = client.result()
        assert answer.status_code == 200
        assert answer.content.startswith(b"id: %b-1\ndata: %b\n\n" % (claim.fence.encode(), frames[0]))
        assert b'"code":"engine_error"' in answer.content.split(b"\n\n")[-2]

    async def test_an_answer_of_no_frames_still_has_its_head_and_its_end(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(self.streamed(gateway))
            claim = await gateway.worker.claim()
            await gateway.worker.end(claim, last_seq=0)
        assert (client.result().status_code, client.result().content) == (200, b"data: [DONE]\n\n")

    async def test_a_repeat_of_a_refused_request_is_refused_alike(self, gateway: Gateway) -> None:
        once = {"idempotency-key": "once"}
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(self.streamed(gateway, headers=once))
            await gateway.worker.refuse()
        again = await self.streamed(gateway, headers=once)
        assert (again.status_code, again.json()) == (400, client.result().json())

    async def test_a_client_that_leaves_before_the_head_has_its_request_cancelled(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(self.streamed(gateway))
            claim = await gateway.worker.claim()
            client.cancel()
        assert (await gateway.worker.aborted(claim)).reason is AbortReason.CANCELLED


class TestHeldHead:
    """A request that waits longer than its head is held."""

    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, head_hold_seconds=0.05)

    async def test_gets_its_head_and_then_the_refusal_as_a_frame(self, gateway: Gateway) -> None:
        body = BODY | {"stream": True}
        async with gateway.http.stream("POST", "/v1/chat/completions", json=body, headers=gateway.auth()) as answer:
            pieces = answer.aiter_raw()
            assert answer.status_code == 200
            assert (await anext(pieces)).startswith(b": queued position=1 ")
            await gateway.worker.refuse()
            data = b"".join([piece async for piece in pieces])
        assert data.startswith(b'data: {"error":')
        assert b"[DONE]" not in data


class TestPlain:
    async def test_the_sdk_gets_a_whole_answer(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(TEXTS))
            raw = await gateway.sdk.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, user="u-1")
        answer, ticket = raw.parse(), worker.result().ticket
        assert answer.choices[0].message.content == "Grüße 🦊日本"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 6
        assert raw.headers["x-request-id"] == ticket.request_id
        assert raw.headers["server-timing"].endswith("ttft;dur=1, total;dur=2")
        assert (raw.headers["x-weir-ttft-ms"], raw.headers["x-weir-total-ms"]) == ("1", "2")
        assert raw.headers["openai-processing-ms"].isdigit()
        assert await gateway.hold_state(ticket.request_id) == "settled"

    async def test_the_ticket_carries_what_was_checked(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(["x"]))
            await gateway.sdk.chat.completions.create(
                model=MODEL, messages=HELLO, temperature=0, max_completion_tokens=7, user="u-1", stop="E", n=1
            )
        ticket = worker.result().ticket
        assert orjson.loads(ticket.body) == {"messages": HELLO, "temperature": 0, "max_tokens": 7, "stop": ["E"]}
        assert (ticket.max_tokens, ticket.stream, ticket.tenant_id, ticket.model) == (7, False, "acme", MODEL)
        assert ticket.prompt_tokens == len("system\nYou are helpful\nuser\nHello\nassistant\n") + 5
        assert (len(ticket.cache_salt), len(ticket.end_user_hash)) == (64, 32)

    async def test_a_completion_by_text_and_by_token_ids(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.serve(["upon", " a time"], finish="length"))
            answer = await gateway.sdk.completions.create(model=MODEL, prompt="Once", max_tokens=3)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("upon a time", "length")
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(["x"]))
            await gateway.sdk.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=3)
        assert orjson.loads(worker.result().ticket.body)["prompt"] == [5, 6, 7]

    async def test_a_failure_is_an_error_answer_that_is_not_retried(self, gateway: Gateway) -> None:
        async def fail() -> None:
            claim = await gateway.worker.claim()
            await gateway.worker.end(claim, last_seq=0, outcome=Outcome.FAILED, finish="", error="worker_lost")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            answer = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_lost")
        assert answer.json()["usage"]["completion_tokens"] == 0
        assert answer.headers["x-should-retry"] == "false"

    async def test_gzip_is_taken(self, gateway: Gateway) -> None:
        headers = gateway.auth() | {"content-encoding": "gzip", "content-type": "application/json"}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.serve(["x"]))
            answer = await gateway.http.post(
                "/v1/chat/completions", content=gzip.compress(json.dumps(BODY).encode()), headers=headers
            )
        assert answer.json()["choices"][0]["message"]["content"] == "x"

    async def test_a_trailing_slash_is_the_same_path(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.serve(["x"]))
            answer = await gateway.http.post("/v1/chat/completions/", json=BODY, headers=gateway.auth())
        assert answer.status_code == 200


class TestRefusals:
    @pytest.mark.parametrize(
        ("method", "path", "fields", "status", "code"),
        [
            ("GET", "/v1/nothing", {}, 404, "not_found"),
            ("GET", "/v1", {}, 404, "not_found"),
            ("POST", "/v1/requests//cancel", {}, 404, "not_found"),
            ("GET", "/v1/chat/completions", {}, 405, "method_not_allowed"),
            ("DELETE", "/v1/models", {}, 405, "method_not_allowed"),
            ("GET", "/v1/models?" + "a=1&" * 2_000, {}, 400, "query_too_long"),
            ("POST", "/v1/chat/completions", {"content": b"x" * 4_194_305}, 413, "request_too_large"),
            ("POST", "/v1/chat/completions", {"data": {"a": "b"}}, 415, "unsupported_media_type"),
            ("POST", "/v1/chat/completions", {"content": b"{"}, 400, "invalid_json"),
            ("POST", "/v1/chat/completions", {"json": BODY | {"temperature": 9}}, 400, "invalid_value"),
            ("POST", "/v1/chat/completions", {"json": BODY | {"model": "nope"}}, 404, "model_not_found"),
            ("POST", "/v1/chat/completions", {"json": BODY | {"max_tokens": 500}}, 400, "context_length_exceeded"),
            ("POST", "/v1/chat/completions", {"json": BODY | {"logit_bias": {"258": 1}}}, 400, "unknown_token"),
            ("POST", "/v1/completions", {"json": {"model": MODEL, "prompt": ""}}, 400, "invalid_value"),
            ("POST", "/v1/completions", {"json": LONG}, 400, "context_length_exceeded"),
        ],
    )  # fmt: skip
    async def test_answers_with_openais_error_object(
        self, gateway: Gateway, method: str, path: str, fields: dict[str, Any], status: int, code: str
    ) -> None:
        headers = gateway.auth() | ({"content-type": "application/json"} if "content" in fields else {})
        answer = await gateway.http.request(method, path, headers=headers, **fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code)
        assert set(error) == {"message", "type", "param", "code"}
        assert len(answer.headers["x-request-id"]) == 36
        assert (await gateway.queue.depths()).waiting == 0
        assert await gateway.services.redis.keys("w:{t:acme}:hold:*") == []

    @pytest.mark.parametrize(
        "bearer", ["", "Bearer", "Bearer x' OR pg_sleep(8)--", "Basic abc", "Bearer weir_" + "a" * 300]
    )
    async def test_a_wrong_key_is_401_before_the_body_is_read(self, gateway: Gateway, bearer: str) -> None:
        answer = await gateway.http.post("/v1/chat/completions", content=b"{", headers={"authorization": bearer})
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        assert "pg_sleep" not in answer.text

    async def test_405_names_what_is_allowed(self, gateway: Gateway) -> None:
        answer = await gateway.http.put("/v1/chat/completions", headers=gateway.auth())
        assert answer.headers["allow"] == "OPTIONS, POST"

    async def test_a_model_outside_the_allow_list_is_403(self, gateway: Gateway) -> None:
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="k2", allowed_models=frozenset({"other"})))
        answer = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth(key))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_allowed")

    @pytest.mark.parametrize(
        ("method", "path"),
        [("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/usage"),
         ("GET", "/v1/requests/01890000-0000-7000-8000-000000000000")],
    )  # fmt: skip
    async def test_a_management_key_is_403_on_every_route(self, gateway: Gateway, method: str, path: str) -> None:
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="manager", scopes=frozenset({"manage"})))
        answer = await gateway.http.request(method, path, json=BODY, headers={"authorization": f"Bearer {key}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")

    async def test_a_model_without_a_price_is_refused(self, gateway: Gateway) -> None:
        gateway.directory.price = None
        answer = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_priced")

    async def test_a_rate_limit_is_429_with_headers_and_holds_nothing(self, gateway: Gateway) -> None:
        limit = Limit(scope=Scope.KEY, metric=Metric.REQUESTS_PER_MINUTE, cap=1)
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="k3", limits=(limit,)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.serve(["x"]))
            first = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth(key))
        second = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth(key))
        assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        assert (second.status_code, second.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(second.headers["retry-after"]) <= 60
        assert second.headers["x-should-retry"] == "true"
        assert second.headers["x-ratelimit-limit-requests"] == "1"

    async def test_a_full_queue_gives_its_hold_back(self, gateway: Gateway) -> None:
        limit = Limit(scope=Scope.KEY, metric=Metric.CONCURRENT_REQUESTS, cap=1)
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="k4", queued_max=0, limits=(limit,)))
        for _ in range(3):
            answer = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth(key))
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (429, "queue_full")
            assert error["message"].startswith("Blocked: the limit on waiting requests of the organization is 0; only")

    @pytest.mark.parametrize("state", ["engine_down", "starting", "draining"])
    async def test_a_pool_without_a_ready_worker_is_503(self, gateway: Gateway, state: str) -> None:
        await gateway.worker.beat(state=state)
        answer = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")
        assert answer.headers["retry-after"] == "5"


class TestGuard:
    async def test_a_blocked_prompt_is_400_and_frees_its_hold(self, gateway: Gateway) -> None:
        key = self._guarded(gateway, action="block")
        body = BODY | {"messages": [{"role": "user", "content": [{"type": "text", "text": "say PUMPKIN"}]}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=gateway.auth(key))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_policy_violation")
        holds = [key async for key in gateway.services.redis.scan_iter("w:{t:acme}:hold:*")]
        assert [await gateway.services.redis.hget(hold, "st") for hold in holds] == [b"voided"]
        assert (await gateway.queue.depths()).waiting == 0

    async def test_a_redaction_that_grows_the_prompt_is_held_and_counted_anew(self, gateway: Gateway) -> None:
        key = self._guarded(gateway, action="redact")
        body = BODY | {"messages": [{"role": "user", "content": "say pumpkin"}]}
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(["x"]))
            answer = await gateway.http.post("/v1/chat/completions", json=body, headers=gateway.auth(key))
        ticket = worker.result().ticket
        sent = orjson.loads(ticket.body)["messages"][0]["content"]
        assert answer.status_code == 200
        assert "pumpkin" not in sent
        assert ticket.prompt_tokens == len("system\nYou are helpful\nuser\n\nassistant\n") + 5 + len(sent.encode())
        assert len(ticket.guard_prompt) == 1
        assert answer.headers["x-request-id"] == ticket.request_id
        assert await gateway.hold_state(ticket.request_id) == "settled"

    async def test_a_repeat_that_finds_its_request_unqueued_is_guarded_too(self, gateway: Gateway) -> None:
        """A twin that overtakes the first, or a retry after a crash, is no way around the policy."""
        headers = gateway.auth(self._guarded(gateway, action="flag")) | {"idempotency-key": "twin"}
        body = BODY | {"messages": [{"role": "user", "content": "say pumpkin"}], "stream": True}
        body |= {"on_disconnect": "continue"}
        async with gateway.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as first:
            assert first.status_code == 200
        await gateway.services.redis.delete(
            *[key async for key in gateway.services.redis.scan_iter(f"w:{{p:{POOL}}}:*")]
        )
        self._guarded(gateway, action="block")
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_policy_violation")
        assert (await gateway.queue.depths()).waiting == 0

    async def test_refuses_logprobs_that_would_spell_out_what_the_output_rules_hide(self, gateway: Gateway) -> None:
        key = self._guarded(gateway, action="redact", stage="output")
        body = BODY | {"logprobs": True, "top_logprobs": 1}
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=gateway.auth(key))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")
        assert (await gateway.queue.depths()).waiting == 0

    def _guarded(self, gateway: Gateway, *, action: str, stage: str = "prompt") -> str:
        document = {
            "id": "pol", "version": 1, "rules": [
                {"name": "ban", "kind": "ban_list", "stage": [stage], "action": action, "fail": "closed",
                 "config": {"words": ["pumpkin"]}},
            ],
        }  # fmt: skip
        gateway.directory.policy = CompiledPolicy.compile(document)
        context = replace(CONTEXT, api_key_id=f"guarded-{action}-{stage}", policy=PolicyRef(policy_id="pol", version=1))
        return gateway.directory.issue(context)


class TestRevocation:
    async def test_a_revoked_key_is_refused_although_it_is_cached(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.serve(["x"]))
            await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth())
        await gateway.services.limits.set_epochs(tenant_id="acme", keys={"acme-key": -2}, tenant_epoch=1)
        answer = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


class TestCors:
    async def test_a_browser_of_an_allowed_origin_may_call(self, gateway: Gateway) -> None:
        headers = {"origin": "https://console.example", "access-control-request-method": "POST"}
        answer = await gateway.http.options("/v1/chat/completions", headers=headers)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "https://console.example"
        assert answer.headers["access-control-allow-methods"] == "POST"

    async def test_another_origin_gets_no_permission(self, gateway: Gateway) -> None:
        answer = await gateway.http.get("/health/live", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "Origin"


def _cost(prompt: int, completion: int) -> str:
    return f"{(prompt * 1_000 + completion * 2_000) / 1e9:.9f}".rstrip("0")


class TestDescription:
    """`/v1/openapi.json` against the routes that there are."""

    async def test_names_each_path_with_the_methods_it_takes(self, gateway: Gateway) -> None:
        answer = await gateway.http.get("/v1/openapi.json")
        assert (answer.status_code, answer.json()) == (200, document())
        for path, methods in document()["paths"].items():
            asked = await gateway.http.options(path.replace("{model}", MODEL).replace("{request_id}", "0189"))
            allowed = set(asked.headers["allow"].split(", ")) - {"HEAD", "OPTIONS"}
            assert allowed == {method.upper() for method in methods}, path

    async def test_leaves_out_no_route_but_those_that_are_no_call(self, gateway: Gateway) -> None:
        app = InferenceApp(gateway.services)
        others = {"/v1/realtime", "/v1/openapi.json", "/health/live", "/health/ready"}
        assert set(app._exact) - set(document()["paths"]) == others
