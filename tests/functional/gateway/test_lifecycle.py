"""What outlives a connection: cancel, resume, repeat; and what the settler finds after a death between two steps."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contracts.jobs import Timings
from contracts.outcomes import JobState, Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import AbortReason
from gateway.services import GatewaySettings
from gateway.settlement import Sweeper
from stores.system import mint_request_id
from tenants.limits import keys as names
from tenants.limits.audit import Audit
from tenants.limits.holds import HoldRequest
from tests.functional.gateway.cast import CONTEXT, MODEL, POOL, WORKER, chat_frames
from tests.functional.gateway.conftest import Gateway

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
BODY: dict[str, Any] = {"model": MODEL, "messages": HELLO}
STREAM = BODY | {"stream": True}
PATH = "/v1/chat/completions"


def data_of(content: bytes) -> list[bytes]:
    return [line for line in content.split(b"\n") if line.startswith(b"data: ")]


class TestDisconnect:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_lost_client_cancels_what_it_asked_for(self, gateway: Gateway, stream: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(gateway.http.post(PATH, json=BODY | {"stream": stream}, headers=gateway.auth()))
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
            client.cancel()
        abort = await gateway.worker.aborted(claim)
        assert abort.reason is AbortReason.CANCELLED
        await gateway.worker.end(claim, last_seq=1, outcome=Outcome.CANCELLED, finish="", error="request_cancelled")
        assert await gateway.hold_state(claim.ticket.request_id) == "settled"
        assert gateway.services.mailbox.open_inboxes == 0

    async def test_a_lost_client_ends_what_still_waits(self, gateway: Gateway) -> None:
        async with gateway.http.stream("POST", PATH, json=STREAM, headers=gateway.auth()) as answer:
            request_id = answer.headers["x-request-id"]
        await no_inbox_left(gateway)
        assert (await status_of(gateway, request_id))["outcome"] == "cancelled"
        assert (await gateway.queue.depths()).waiting == 0

    async def test_on_disconnect_continue_runs_to_its_end(self, gateway: Gateway) -> None:
        body = STREAM | {"on_disconnect": "continue"}
        async with gateway.http.stream("POST", PATH, json=body, headers=gateway.auth()) as answer:
            request_id = answer.headers["x-request-id"]
        await no_inbox_left(gateway)
        claim = await gateway.worker.serve(["a", "b"])
        assert claim.ticket.request_id == request_id
        assert (await status_of(gateway, request_id))["outcome"] == "ok"


class TestResume:
    async def test_continues_after_the_last_event(self, gateway: Gateway) -> None:
        claim, frames = await running(gateway, ["a", "b", "c"])
        await gateway.worker.step(claim, frames[:2], first_seq=1)
        request_id = claim.ticket.request_id

        async def finish() -> None:
            await gateway.worker.step(claim, frames[2:], first_seq=3)
            await gateway.worker.end(claim, last_seq=len(frames))

        headers = gateway.auth() | {"last-event-id": f"{claim.fence}-1"}
        async with gateway.http.stream("GET", f"/v1/requests/{request_id}/events", headers=headers) as answer:
            pieces = answer.aiter_raw()
            first = await anext(pieces)
            while b"data:" not in first:
                first += await anext(pieces)
            await finish()
            content = first + b"".join([piece async for piece in pieces])
        assert data_of(content) == [b"data: " + frame for frame in frames[1:]] + [b"data: [DONE]"]
        assert b"id: %b-2\n" % claim.fence.encode() in content

    async def test_replays_a_finished_request_from_any_event(self, gateway: Gateway) -> None:
        claim, frames = await running(gateway, ["a", "b", "c"])
        await gateway.worker.step(claim, frames, first_seq=1)
        await gateway.worker.end(claim, last_seq=len(frames))
        for after in range(len(frames) + 1):
            object_id = f"{'chatcmpl-' * (after % 2)}{claim.ticket.request_id}"  # as given, and as the chunks name it
            answer = await events(gateway, object_id, f"?starting_after={after}")
            assert data_of(answer.content) == [b"data: " + frame for frame in frames[after:]] + [b"data: [DONE]"]

    @pytest.mark.parametrize("start", ["?starting_after=1-other-2", "?starting_after=9", "?starting_after=2-x-1"])
    async def test_an_event_that_this_log_never_had_is_410(self, gateway: Gateway, start: str) -> None:
        claim, frames = await running(gateway, ["a", "b"])
        await gateway.worker.step(claim, frames, first_seq=1)
        answer = await events(gateway, claim.ticket.request_id, start)
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "events_not_kept")

    async def test_goes_on_from_an_event_of_an_attempt_before_as_far_as_the_log_was_its_own(
        self, gateway: Gateway
    ) -> None:
        """A failover may have lost what came after; what stands there now is another attempt's."""
        first, frames = await running(gateway, ["a", "b", "c"])
        await gateway.worker.step(first, frames[:2], first_seq=1, ids=True)
        request_id = first.ticket.request_id
        assert await gateway.queue.hand_back(worker_id=WORKER, request_id=request_id, fence=first.fence)
        gateway.worker.holding.clear()
        second = await gateway.worker.claim()
        await gateway.worker.step(second, frames[2:], first_seq=3)
        await gateway.worker.end(second, last_seq=len(frames))
        for start in (f"{first.fence}-2", f"{second.fence}-2", "2"):
            answer = await events(gateway, request_id, f"?starting_after={start}")
            assert data_of(answer.content) == [b"data: " + frame for frame in frames[2:]] + [b"data: [DONE]"]
        for start in (f"{first.fence}-3", "1-other-1", f"{second.fence}-9"):
            answer = await events(gateway, request_id, f"?starting_after={start}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (410, "events_not_kept")

    async def test_a_log_whose_time_is_over_is_410(self, gateway: Gateway) -> None:
        claim, frames = await running(gateway, ["a"])
        await gateway.worker.step(claim, frames, first_seq=1)
        await gateway.worker.end(claim, last_seq=len(frames))
        await gateway.services.redis.delete(f"w:{{p:{POOL}}}:out:{claim.ticket.request_id}")
        assert (await events(gateway, claim.ticket.request_id)).status_code == 410

    async def test_nonsense_is_400(self, gateway: Gateway) -> None:
        claim, _ = await running(gateway, ["a"])
        for start in ("?starting_after=abc", "?starting_after=", "?starting_after=1&starting_after=2"):
            answer = await events(gateway, claim.ticket.request_id, start)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


class TestOtherTenants:
    @pytest.mark.parametrize(("method", "suffix"), [("GET", ""), ("GET", "/events"), ("POST", "/cancel")])
    async def test_see_nothing(self, gateway: Gateway, method: str, suffix: str) -> None:
        claim, _ = await running(gateway, ["a"])
        mine, unknown = claim.ticket.request_id, mint_request_id()
        for request_id in (mine, unknown):
            path = f"/v1/requests/{request_id}{suffix}"
            answer = await gateway.http.request(method, path, headers=gateway.auth(gateway.mallory))
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
        status = await gateway.queue.status(request_id=mine)
        assert status is not None
        assert status.state is JobState.RUNNING


class TestCancelRoute:
    async def test_stops_a_running_request_and_its_stream_says_so(self, gateway: Gateway) -> None:
        async def cancelled() -> None:
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["a"])[:1], first_seq=1)
            path = f"/v1/requests/chatcmpl-{claim.ticket.request_id}/cancel"  # as the chunks name it
            answer = await gateway.http.post(path, headers=gateway.auth())
            assert answer.json() == {
                "id": claim.ticket.request_id, "object": "request.cancel", "result": "flagged",
            }  # fmt: skip
            await gateway.worker.aborted(claim)
            await gateway.worker.end(claim, last_seq=1, outcome=Outcome.CANCELLED, finish="", error="request_cancelled")
            assert (await gateway.http.post(path, headers=gateway.auth())).json()["result"] == "ended"

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cancelled())
            answer = await gateway.http.post(PATH, json=STREAM, headers=gateway.auth())
        assert b'"code":"request_cancelled"' in data_of(answer.content)[-1]
        assert b"[DONE]" not in answer.content


class TestIdempotency:
    async def test_a_repeat_replays_the_answer_and_runs_nothing(self, gateway: Gateway) -> None:
        headers = gateway.auth() | {"idempotency-key": "order-1"}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.serve(["a", "b"]))
            first = await gateway.http.post(PATH, json=BODY, headers=headers)
        second = await gateway.http.post(PATH, json=dict(reversed(BODY.items())), headers=headers)
        assert first.json() == second.json()
        assert first.headers["x-request-id"] == second.headers["x-request-id"]
        assert (await gateway.queue.depths()).waiting == 0

    async def test_a_repeat_of_a_running_request_attaches_and_outlives_the_first_connection(
        self, gateway: Gateway
    ) -> None:
        headers = gateway.auth() | {"idempotency-key": "order-2"}
        async with gateway.http.stream("POST", PATH, json=STREAM, headers=headers) as first:
            kept = first.aiter_raw()  # dropped, it would close the connection
            await anext(kept)
            claim = await gateway.worker.claim()
            frames = chat_frames(claim.ticket, ["a", "b"])
            await gateway.worker.step(claim, frames[:1], first_seq=1)
            second = gateway.http.stream("POST", PATH, json=STREAM, headers=headers)
            answer = await second.__aenter__()
        pieces = answer.aiter_raw()
        content = await anext(pieces)
        await only_one_inbox(gateway)
        aborts = await gateway.worker.step(claim, frames[1:], first_seq=2)
        await gateway.worker.end(claim, last_seq=len(frames))
        content += b"".join([piece async for piece in pieces])
        await answer.aclose()
        assert aborts == []
        assert data_of(content) == [b"data: " + frame for frame in frames] + [b"data: [DONE]"]

    async def test_another_body_is_422(self, gateway: Gateway) -> None:
        headers = gateway.auth() | {"idempotency-key": "order-3"}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.serve(["a"]))
            await gateway.http.post(PATH, json=BODY, headers=headers)
        answer = await gateway.http.post(PATH, json=BODY | {"seed": 1}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "idempotency_mismatch")

    async def test_an_answer_that_is_no_longer_kept_is_409_and_never_runs_again(self, gateway: Gateway) -> None:
        headers = gateway.auth() | {"idempotency-key": "order-4"}
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(["a"]))
            await gateway.http.post(PATH, json=BODY, headers=headers)
        request_id = worker.result().ticket.request_id
        for gone in ("out", "job"):
            await gateway.services.redis.delete(f"w:{{p:{POOL}}}:{gone}:{request_id}")
            answer = await gateway.http.post(PATH, json=BODY, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_expired")
            assert answer.headers["x-should-retry"] == "false"
            assert request_id in answer.json()["error"]["message"]
        assert (await gateway.queue.depths()).waiting == 0

    async def test_a_key_that_a_crash_left_without_its_job_is_driven_on(self, gateway: Gateway) -> None:
        headers = gateway.auth() | {"idempotency-key": "order-5"}
        async with gateway.http.stream(
            "POST", PATH, json=STREAM | {"on_disconnect": "continue"}, headers=headers
        ) as answer:
            request_id = answer.headers["x-request-id"]
        await no_inbox_left(gateway)
        await gateway.services.redis.eval(FORGET, 0, f"w:{{p:{POOL}}}:*")
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(["a"]))
            again = await gateway.http.post(PATH, json=STREAM | {"on_disconnect": "continue"}, headers=headers)
        assert worker.result().ticket.request_id == request_id
        assert again.content.endswith(b"data: [DONE]\n\n")

    @pytest.mark.parametrize("key", ["x" * 256, "a b", "é"])
    async def test_a_key_of_another_form_is_400(self, gateway: Gateway, key: str) -> None:
        headers = gateway.auth() | {"idempotency-key": key.encode("latin-1")}
        answer = await gateway.http.post(PATH, json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


FORGET = "for _, k in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', k) end"


class TestStatus:
    async def test_tells_place_then_usage(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(gateway.http.post(PATH, json=BODY, headers=gateway.auth()))
            claim = await gateway.worker.claim()
            live = await status_of(gateway, claim.ticket.request_id)
            frames = chat_frames(claim.ticket, ["a"])
            await gateway.worker.step(claim, frames, first_seq=1)
            await gateway.worker.end(claim, last_seq=len(frames))
        ended = await status_of(gateway, claim.ticket.request_id)
        assert (live["status"], live["attempt"], live["usage"]) == ("running", 1, None)
        assert (ended["status"], ended["outcome"], ended["finish_reason"]) == ("ended", "ok", "stop")
        assert ended["usage"] == client.result().json()["usage"]


class TestDeadline:
    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, request_seconds=0.5, heartbeat_seconds=0.1)

    async def test_a_stream_past_it_gets_an_error_frame_and_is_cancelled(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(gateway.http.post(PATH, json=STREAM, headers=gateway.auth()))
            claim = await gateway.worker.claim()
        content = client.result().content
        assert content.startswith(b": queued")
        assert b"\n: ping\n" in content  # claimed, and still silent
        assert b'"code":"deadline_exceeded"' in data_of(content)[-1]
        assert b'"weir":{"request_id":"%b"}' % claim.ticket.request_id.encode() in data_of(content)[-1]
        assert (await gateway.worker.aborted(claim)).reason is AbortReason.CANCELLED

    async def test_a_plain_answer_past_it_is_504(self, gateway: Gateway) -> None:
        answer = await gateway.http.post(PATH, json=BODY, headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert answer.headers["x-should-retry"] == "false"


class TestSlowReader:
    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, send_stall_seconds=0.5)

    async def test_is_cut_and_its_request_cancelled(self, gateway: Gateway) -> None:
        gateway.services.mailbox.inbox_bytes = 200_000
        async with gateway.http.stream("POST", PATH, json=STREAM, headers=gateway.auth()) as answer:
            kept = answer.aiter_raw()  # dropped, it would close the connection
            await anext(kept)
            claim = await gateway.worker.claim()
            wide = b'{"choices":[],"wide":"' + b"x" * 100_000 + b'"}'
            for seq in range(1, 101):
                await gateway.worker.step(claim, [wide], first_seq=seq)
            assert (await gateway.worker.aborted(claim)).reason is AbortReason.CANCELLED


class TestSlowReaderOfAFastEngine:
    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, send_stall_seconds=10)

    async def test_gets_all_that_it_is_billed_for_after_the_engine_has_ended(self, gateway: Gateway) -> None:
        gateway.services.mailbox.inbox_bytes = 200_000
        async with gateway.http.stream("POST", PATH, json=STREAM, headers=gateway.auth()) as answer:
            pieces = answer.aiter_raw()
            content = await anext(pieces)
            claim = await gateway.worker.claim()
            for seq in range(1, 121):
                wide = b'{"choices":[],"seq":%d,"wide":"%b"}' % (seq, b"x" * 100_000)
                await gateway.worker.step(claim, [wide], first_seq=seq)
            await gateway.worker.end(claim, last_seq=120)
            content += b"".join([piece async for piece in pieces])
        sent = data_of(content)
        assert [json.loads(frame[6:])["seq"] for frame in sent[:-1]] == list(range(1, 121))
        assert sent[-1] == b"data: [DONE]"
        assert await gateway.hold_state(claim.ticket.request_id) == "settled"


class TestSweeper:
    async def test_settles_and_acks_what_a_dead_worker_left(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(gateway.http.post(PATH, json=BODY, headers=gateway.auth()))
            claim = await gateway.worker.claim()
            frames = chat_frames(claim.ticket, ["a"])
            await gateway.worker.step(claim, frames, first_seq=1)
            await end_and_die(gateway, claim, frames)
            sweeper = sweeper_of(gateway)
            await sweeper.sweep()
        assert client.result().json()["choices"][0]["message"]["content"] == "a"
        assert (sweeper.report.settled, sweeper.report.failures) == (1, 0)
        assert await gateway.hold_state(claim.ticket.request_id) == "settled"
        await sweeper.sweep()
        assert sweeper.report.settled == 1

    async def test_tells_a_refusal_of_a_dead_worker_s_engine_as_one(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(gateway.http.post(PATH, json=BODY, headers=gateway.auth()))
            claim = await gateway.worker.claim()
            refused = {"outcome": Outcome.FAILED, "error_code": "invalid_value", "error_param": "seed"}
            await end_and_die(gateway, claim, [], **refused)
            await sweeper_of(gateway).sweep()
        answer = client.result()
        assert answer.status_code == 400
        assert answer.json()["error"] == {
            "message": "The engine does not take this value of `seed`.", "type": "invalid_request_error",
            "param": "seed", "code": "invalid_value",
        }  # fmt: skip

    async def test_settles_the_others_while_one_s_limits_are_made_anew(self, gateway: Gateway) -> None:
        """The hold of the first was lost: it waits for the rebuild, and the second does not wait for it."""
        limits, body = gateway.services.limits, STREAM | {"on_disconnect": "continue"}
        ids = []
        for _ in range(2):
            async with gateway.http.stream("POST", PATH, json=body, headers=gateway.auth()):
                claim = await gateway.worker.claim()
                frames = chat_frames(claim.ticket, ["a"])
                await gateway.worker.step(claim, frames, first_seq=1)
                await end_and_die(gateway, claim, frames)
            ids.append(claim.ticket.request_id)
        redis, tenant = gateway.services.redis, "acme"
        await redis.delete(names.hold(tenant, ids[0]))
        await redis.zrem(names.holds(tenant), ids[0])
        await Audit(redis, gate=limits.gate).snapshot(tenant_id=tenant, counters=[], reading=True)
        sweeper = sweeper_of(gateway)
        await sweeper.sweep()
        assert (sweeper.report.settled, sweeper.report.failures) == (1, 0)
        assert [await gateway.hold_state(each) for each in ids] == [None, "settled"]
        await redis.hdel(names.use(tenant), "reading")
        await sweeper.sweep()
        assert [await gateway.hold_state(each) for each in ids] == ["settled", "settled"]

    async def test_voids_a_hold_that_was_never_enqueued_and_keeps_the_late_enqueue_out(self, gateway: Gateway) -> None:
        request_id = mint_request_id()
        await gateway.services.limits.set_epochs(tenant_id="acme", keys={"acme-key": 1}, tenant_epoch=1)
        await gateway.services.limits.hold(hold_request(request_id))
        sweeper = replace(sweeper_of(gateway), margin_ms=-3_600_000)
        await sweeper.sweep()
        assert sweeper.report.voided == 1
        assert await gateway.hold_state(request_id) == "voided"
        assert await gateway.services.redis.exists(f"w:{{p:{POOL}}}:tomb:{request_id}") == 1

    async def test_never_voids_a_hold_whose_request_waits(self, gateway: Gateway) -> None:
        body = STREAM | {"on_disconnect": "continue"}
        async with gateway.http.stream("POST", PATH, json=body, headers=gateway.auth()) as answer:
            request_id = answer.headers["x-request-id"]
        sweeper = replace(sweeper_of(gateway), margin_ms=-3_600_000)
        await sweeper.sweep()
        assert sweeper.report.voided == 0
        assert await gateway.hold_state(request_id) == "held"

    async def test_runs_until_told_to_stop(self, gateway: Gateway) -> None:
        stopping = asyncio.Event()
        sweeper = sweeper_of(gateway)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sweeper.run(stopping=stopping, every_seconds=0.01))
            stopping.set()
        assert sweeper.report.failures == 0


async def running(gateway: Gateway, texts: list[str]) -> tuple[Any, list[bytes]]:
    """A claimed request whose client has left it to run on."""
    body = STREAM | {"on_disconnect": "continue"}
    async with gateway.http.stream("POST", PATH, json=body, headers=gateway.auth()) as answer:
        assert answer.status_code == 200
    await no_inbox_left(gateway)
    claim = await gateway.worker.claim()
    return claim, chat_frames(claim.ticket, texts)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for what another task of this process does."""
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - the condition is another room's state
            await asyncio.sleep(0.01)


async def no_inbox_left(gateway: Gateway, inboxes: int = 0) -> None:
    await until(lambda: gateway.services.mailbox.open_inboxes == inboxes)


async def only_one_inbox(gateway: Gateway) -> None:
    await no_inbox_left(gateway, 1)


async def status_of(gateway: Gateway, request_id: str) -> dict[str, Any]:
    answer = await gateway.http.get(f"/v1/requests/{request_id}", headers=gateway.auth())
    document: dict[str, Any] = answer.json()
    return document


async def events(gateway: Gateway, request_id: str, query: str = "") -> Any:
    return await gateway.http.get(f"/v1/requests/{request_id}/events{query}", headers=gateway.auth())


def sweeper_of(gateway: Gateway) -> Sweeper:
    async def pools() -> list[str]:
        return [POOL]

    return Sweeper(limits=gateway.services.limits, queue_of=gateway.services.queue_of, pools=pools, older_than_ms=0)


async def end_and_die(
    gateway: Gateway,
    claim: Any,
    frames: list[bytes],
    *,
    outcome: Outcome = Outcome.OK,
    error_code: str = "",
    error_param: str = "",
) -> None:
    """A worker that ended a request and was killed before it settled."""
    counts = TokenCounts(prompt=claim.ticket.prompt_tokens, completion=len(frames))
    assert await gateway.queue.end(
        worker_id=WORKER, request_id=claim.ticket.request_id, fence=claim.fence, last_seq=len(frames),
        outcome=outcome, finish_reason="" if error_code else "stop", error_code=error_code, counts=counts,
        delivered_tokens=len(frames), timings=Timings(), error_param=error_param,
    )  # fmt: skip


def hold_request(request_id: str) -> HoldRequest:
    return HoldRequest(
        request_id=request_id, tenant_id="acme", project_id="acme-project", api_key_id="acme-key", key_epoch=1,
        tenant_epoch=1, limits=CONTEXT.limits, prompt_tokens=1, output_tokens_max=1, cost_max_nano=1, currency="USD",
        timezone="UTC", enqueue_deadline_ms=0, pool=POOL,
    )  # fmt: skip
