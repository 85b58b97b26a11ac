"""Background requests on real PostgreSQL and Valkey: accepted, read, repeated, cancelled; and after a lost Redis."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from jsonschema import Draft202012Validator

from billing.clickhouse.shapes import RequestRow
from contracts.errors import Unavailable
from contracts.tenancy import ServiceClass, TenantContext
from controlplane.background.bringing import AnswerKeeper
from controlplane.background.keeping import KeptInDatabase
from controlplane.background.rebuild import OPEN_BOUNDS, Fate, Rebuild
from controlplane.reads.keys import DatabaseEpochs
from fairqueue.messages import usage_from_stream
from fairqueue.queue import FairQueue
from gateway.services import GatewaySettings
from gateway.settlement import Sweeper
from gateway.surface.openapi import document as openapi
from stores.system import SystemClock
from tenants import selectors, services
from tenants.models import ApiKey, BackgroundRequest
from tenants.services import set_limits
from tests.factories.jobs import make_row
from tests.functional.gateway.cast import MODEL, POOL, PRICE, chat_frames
from tests.functional.gateway.conftest import Gateway
from tests.functional.gateway.test_lifecycle import data_of
from tests.functional.gateway.test_matrix import AcmesReceipts, actions, is_not_found

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "background": True}
USAGE = f"w:{{p:{POOL}}}:usage"
T = TypeVar("T")


async def ask(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """`call` in a thread that leaves no connection behind: the test's database is emptied afterwards."""

    def once() -> T:
        try:
            return call(*args, **kwargs)
        finally:
            connections.close_all()

    return await sync_to_async(once, thread_sensitive=False)()


@pytest.fixture(autouse=True)
def _no_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("controlplane.background.keeping", "controlplane.reads.keys"):
        monkeypatch.setattr(f"{module}.from_database", ask)


@pytest.fixture
def kept() -> KeptInDatabase:
    return KeptInDatabase(clock=SystemClock(), keys=[b"k" * 32])


@dataclass
class Owner:
    """A tenant of the database with a key, and this test's hands on what runs for it."""

    gateway: Gateway
    kept: KeptInDatabase
    context: TenantContext
    key: str

    async def post(self, *, key: str = "", **changes: Any) -> Any:
        headers = self.gateway.auth(self.key) | ({"idempotency-key": key} if key else {})
        return await self.gateway.http.post(PATH, json=BODY | changes, headers=headers)

    async def accepted(self, **changes: Any) -> str:
        answer = await self.post(**changes)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def get(self, request_id: str, suffix: str = "") -> Any:
        return await self.gateway.http.get(f"/v1/requests/{request_id}{suffix}", headers=self.gateway.auth(self.key))

    async def cancel(self, request_id: str) -> dict[str, Any]:
        path = f"/v1/requests/{request_id}/cancel"
        answer = await self.gateway.http.post(path, headers=self.gateway.auth(self.key))
        return dict(answer.json())

    async def settle(self) -> None:
        """What no worker settles."""
        services = self.gateway.services
        for record in await self.gateway.queue.unsettled(older_than_ms=0, limit=10):
            sweeper = Sweeper(limits=services.limits, queue_of=services.queue_of, pools=_no_pools)
            await sweeper.settle(self.gateway.queue, record)

    async def keep(self) -> AnswerKeeper:
        """One sweep of the settler's."""
        keeper = AnswerKeeper(kept=self.kept, queue_of=lambda _: self.gateway.queue)
        await keeper.sweep()
        assert keeper.report.failures == 0
        return keeper

    async def lose_redis(self) -> None:
        """All of it; its worker comes back by itself."""
        await self.gateway.services.redis.flushall()
        self.gateway.worker.holding.clear()
        await self.gateway.worker.beat()

    async def rebuild(self, *, metered: RequestRow | None = None) -> dict[Fate, int]:
        redis = self.gateway.services.redis

        async def billed(request_id: str) -> RequestRow | None:
            return metered if metered is not None and metered.request_id == request_id else None

        async def context_of(key_id: str) -> Any:
            return await ask(selectors.load_context_of, key_id)

        rebuild = Rebuild(
            kept=self.kept, queue_of=lambda pool: FairQueue(redis, pool, OPEN_BOUNDS),
            limits=self.gateway.services.limits, epochs=DatabaseEpochs(),
            policies=self.gateway.services.policies, context_of=context_of, billed=billed, clock=SystemClock(),
        )  # fmt: skip
        async for _ in rebuild.run():
            pass
        return {fate: count for fate, count in rebuild.report.fates.items() if count}


async def _no_pools() -> list[str]:
    return []


def customer(name: str = "acme") -> tuple[ApiKey, str]:
    plan = services.create_plan(name=f"plan of {name}")
    tenant = services.create_tenant(name=name, plan=plan)
    project = services.create_project(tenant=tenant, name="default")
    return services.create_key(project=project, name="key")


@pytest.fixture
async def owner(gateway: Gateway, kept: KeptInDatabase, transactional_db: None) -> Owner:
    row, _ = await ask(customer)
    context = await ask(selectors.load_context_of, str(row.id))
    assert isinstance(context, TenantContext)
    return Owner(gateway, kept, context, gateway.directory.issue(context))


def rows() -> dict[str, str]:
    return {str(row.id): row.state for row in BackgroundRequest.objects.all()}


def valid(document: dict[str, Any]) -> None:
    """As the API document describes a request."""
    schema = {"$ref": "#/components/schemas/Request", "components": openapi()["components"]}
    Draft202012Validator(schema).validate(document)


class TestAccepted:
    async def test_is_answered_at_once_and_read_by_its_id(self, owner: Owner) -> None:
        answer = await owner.post()
        document = answer.json()
        request_id = document["id"]
        assert (answer.status_code, document["status"], document["position"]) == (202, "queued", 1)
        assert answer.headers["location"] == f"/v1/requests/{request_id}"
        assert answer.headers["x-request-id"] == request_id
        valid(document)
        claim = await owner.gateway.worker.claim()
        assert (claim.ticket.request_id, claim.ticket.background) == (request_id, True)
        frames = chat_frames(claim.ticket, ["Hel", "lo"])
        await owner.gateway.worker.step(claim, frames[:1], first_seq=1)
        running = (await owner.get(request_id)).json()
        assert (running["status"], running["response"], running["background"]) == ("running", None, True)
        await owner.gateway.worker.step(claim, frames[1:], first_seq=2)
        await owner.gateway.worker.end(claim, last_seq=len(frames))
        ended = (await owner.get(request_id)).json()
        valid(ended)
        assert ended["response"]["choices"][0]["message"]["content"] == "Hello"
        assert ended["response"]["usage"] == ended["usage"]
        assert ended["error"] is None

    async def test_its_answer_and_events_outlive_the_log_and_redis(self, owner: Owner) -> None:
        request_id = await owner.accepted()
        claim = await owner.gateway.worker.serve(["a", "b"])
        before, frames = (await owner.get(request_id)).json(), chat_frames(claim.ticket, ["a", "b"])
        assert (await owner.keep()).report.kept == 1
        assert (await owner.keep()).report.kept == 0
        await owner.gateway.services.redis.delete(f"w:{{p:{POOL}}}:out:{request_id}")
        for _ in range(2):  # the log alone is gone, then all of Redis
            after = (await owner.get(request_id)).json()
            valid(after)
            assert after["response"] == before["response"]
            assert after["usage"] == before["usage"]
            assert after["kept_until"] >= after["created"] + 86_400
            events = await owner.get(f"chatcmpl-{request_id}", "/events")
            assert data_of(events.content) == [b"data: " + frame for frame in frames] + [b"data: [DONE]"]
            late = await owner.get(request_id, f"/events?starting_after={claim.fence}-2")
            assert data_of(late.content) == [b"data: " + frames[2], b"data: [DONE]"]
            wrong = await owner.get(request_id, "/events?starting_after=9")
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (410, "events_not_kept")
            await owner.lose_redis()
        row = await ask(BackgroundRequest.objects.get)
        assert (row.state, row.body) == ("ended", None)
        assert b'"content"' not in bytes(row.answer) + bytes(row.head)

    async def test_a_failure_is_told_as_the_plain_route_tells_it(self, owner: Owner) -> None:
        request_id = await owner.accepted()
        await owner.gateway.worker.refuse()
        live = (await owner.get(request_id)).json()
        await owner.keep()
        await owner.lose_redis()
        document = (await owner.get(request_id)).json()
        valid(document)
        assert document["error"] == live["error"]
        assert (document["response"], document["error"]["param"]) == (None, "seed")
        events = await owner.get(request_id, "/events")
        assert b"[DONE]" not in events.content
        assert orjson.loads(data_of(events.content)[0][6:])["error"] == live["error"]

    async def test_nothing_is_written_for_an_ordinary_request(self, owner: Owner) -> None:
        async with asyncio.TaskGroup() as tasks:
            plain = tasks.create_task(owner.post(background=False))
            await owner.gateway.worker.serve(["a"])
        assert plain.result().status_code == 200
        assert await ask(rows) == {}

    @pytest.mark.parametrize(
        ("changes", "param"), [({"stream": True}, "stream"), ({"on_disconnect": "cancel"}, "on_disconnect")]
    )
    async def test_what_contradicts_it_is_400(self, owner: Owner, changes: dict[str, Any], param: str) -> None:
        answer = await owner.post(**changes)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    async def test_another_tenant_sees_nothing(self, owner: Owner) -> None:
        request_id = await owner.accepted()
        await owner.gateway.worker.serve(["a"])
        await owner.keep()
        await owner.lose_redis()
        other = owner.gateway.directory.issue(replace(owner.context, tenant_id="0198a000-0000-7000-8000-0000000000ff"))
        for method, suffix in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
            path = f"/v1/requests/{request_id}{suffix}"
            answer = await owner.gateway.http.request(method, path, headers=owner.gateway.auth(other))
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")


class TestClass:
    @pytest.fixture
    def settings(self, settings: GatewaySettings) -> GatewaySettings:
        return replace(settings, background_class=ServiceClass.BATCH)

    async def test_of_the_background_is_the_operators_with_its_own_price(self, owner: Owner) -> None:
        owner.gateway.directory.batch_price = replace(PRICE, card_id="half", input_nano=500, output_nano=1_000)
        request_id = await owner.accepted()
        claim = await owner.gateway.worker.serve(["a"])
        assert (claim.ticket.service_class, claim.ticket.price.card_id) == (ServiceClass.BATCH, "half")
        usage = await owner.gateway.services.redis.xrange(USAGE)
        (record,) = [usage_from_stream(entry) for _, entry in usage]
        assert (record.request_id, record.service_class, record.price.output_nano) == (request_id, "batch", 1_000)

    async def test_is_interactive_for_whoever_waits(self, owner: Owner) -> None:
        async with asyncio.TaskGroup() as tasks:
            plain = tasks.create_task(owner.post(background=False))
            claim = await owner.gateway.worker.serve(["a"])
        assert plain.result().status_code == 200
        assert (claim.ticket.service_class, claim.ticket.price) == (ServiceClass.INTERACTIVE, PRICE)

    async def test_of_a_plan_is_that_of_all_its_requests(self, owner: Owner) -> None:
        owner.gateway.directory.batch_price = replace(PRICE, card_id="half")
        owner.gateway.directory.contexts.clear()
        owner.key = owner.gateway.directory.issue(replace(owner.context, service_class=ServiceClass.BATCH))
        async with asyncio.TaskGroup() as tasks:
            plain = tasks.create_task(owner.post(background=False))
            claim = await owner.gateway.worker.serve(["a"])
        assert plain.result().status_code == 200
        assert (claim.ticket.service_class, claim.ticket.price.card_id) == (ServiceClass.BATCH, "half")

    async def test_without_a_price_is_refused_and_holds_nothing(self, owner: Owner) -> None:
        answer = await owner.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_priced")
        assert (await owner.gateway.queue.depths()).waiting == 0

    async def test_is_kept_through_a_lost_redis(self, owner: Owner) -> None:
        owner.gateway.directory.batch_price = PRICE
        await owner.accepted()
        await owner.lose_redis()
        assert await owner.rebuild() == {Fate.BACK: 1}
        assert (await owner.gateway.worker.claim()).ticket.service_class is ServiceClass.BATCH


class TestRefused:
    async def test_by_its_limits_it_is_not_kept(self, owner: Owner) -> None:
        owner.gateway.directory.contexts.clear()
        blocked = replace(owner.context, queued_max=0)
        owner.key = owner.gateway.directory.issue(blocked)
        answer = await owner.post()
        request_id = answer.headers["x-request-id"]
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert await owner.gateway.hold_state(request_id, owner.context.tenant_id) == "voided"
        assert (await owner.get(request_id)).json()["status"] == "refused"
        assert await ask(rows) == {request_id: "accepted"}
        await ask(lambda: BackgroundRequest.objects.update(accepted_at="2026-01-01T00:00:00Z"))
        assert (await owner.keep()).report.dropped == 1
        assert await ask(rows) == {}

    async def test_without_postgresql_it_is_503_and_holds_nothing(
        self, owner: Owner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*args: Any, **kwargs: Any) -> None:
            raise Unavailable("away", retry_after_ms=2_000)

        monkeypatch.setattr(KeptInDatabase, "accept", away)
        answer = await owner.post()
        assert answer.status_code == 503
        request_id = answer.headers["x-request-id"]
        assert await owner.gateway.hold_state(request_id, owner.context.tenant_id) == "voided"
        assert (await owner.gateway.queue.depths()).waiting == 0

    async def test_what_cannot_be_promised_does_not_run(self, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
        async def away(*args: Any, **kwargs: Any) -> None:
            raise Unavailable("away", retry_after_ms=2_000)

        with monkeypatch.context() as patch:
            patch.setattr(KeptInDatabase, "mark_queued", away)
            assert (await owner.post()).status_code == 503
            assert (await owner.gateway.queue.depths()).waiting == 0
            assert (await owner.post(key="k")).status_code == 503  # it waits: its client comes again by the key
        again = await owner.post(key="k")
        assert (again.status_code, again.json()["status"]) == (202, "queued")
        assert (await owner.gateway.queue.depths()).waiting == 1


class TestRepeat:
    async def test_gets_the_same_request_wherever_it_stands(self, owner: Owner) -> None:
        request_id = await owner.accepted(key="k-1")
        assert await owner.accepted(key="k-1") == request_id
        await owner.gateway.worker.serve(["a"])
        assert (await owner.gateway.queue.depths()).waiting == 0
        await owner.keep()
        for _ in range(2):
            again = await owner.post(key="k-1")
            assert (again.status_code, again.json()["id"], again.json()["status"]) == (202, request_id, "ended")
            assert again.json()["response"]["choices"][0]["message"]["content"] == "a"
            other = await owner.post(key="k-1", max_tokens=3)
            assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")
            await owner.lose_redis()  # the key is known here still

    async def test_two_at_once_run_once(self, owner: Owner) -> None:
        answers = await asyncio.wait_for(_both(owner), 20)
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert (await owner.gateway.queue.depths()).waiting == 1


async def _both(owner: Owner) -> list[Any]:
    async with asyncio.TaskGroup() as tasks:
        posts = [tasks.create_task(owner.post(key="k-2")) for _ in range(2)]
    return [post.result() for post in posts]


class TestCancel:
    async def test_ends_it_where_it_waits(self, owner: Owner) -> None:
        request_id = await owner.accepted()
        assert (await owner.cancel(request_id))["result"] == "ended"
        await owner.settle()
        assert (await owner.get(request_id)).json()["error"]["code"] == "request_cancelled"

    async def test_after_a_lost_redis_it_is_never_brought_back(self, owner: Owner) -> None:
        request_id = await owner.accepted()
        await owner.lose_redis()
        waiting = (await owner.get(request_id)).json()
        assert (waiting["status"], waiting["response"]) == ("queued", None)
        assert (await owner.get(request_id, "/events")).status_code == 503
        assert (await owner.cancel(request_id))["result"] == "tombstoned"
        assert await owner.cancel(request_id) == {
            "id": request_id, "object": "request.cancel", "result": "already_ended", "outcome": "cancelled",
            "error_code": "request_cancelled",
        }  # fmt: skip
        assert await owner.rebuild() == {}
        assert (await owner.get(request_id)).json()["outcome"] == "cancelled"


class TestAnotherTenant:
    @pytest.fixture
    def receipts(self) -> AcmesReceipts:
        return AcmesReceipts()

    @pytest.mark.parametrize("stand", ["waits", "runs", "is kept", "is kept in the database alone"])
    async def test_t01_finds_it_by_no_route(self, owner: Owner, stand: str) -> None:
        request_id = await owner.accepted()
        if stand == "runs":
            await owner.gateway.worker.claim()
        elif stand != "waits":
            await owner.gateway.worker.serve(["of acme"])
            await owner.keep()
        if stand == "is kept in the database alone":
            await owner.lose_redis()
        row, _ = await ask(customer, "mallory")
        context = await ask(selectors.load_context_of, str(row.id))
        assert isinstance(context, TenantContext)
        mallory = owner.gateway.directory.issue(context)
        for action in actions():
            await is_not_found(owner.gateway, request_id, action, key=mallory)
        document = (await owner.get(request_id)).json()
        assert document["status"] == {"waits": "queued", "runs": "running"}.get(stand, "ended")
        assert document["outcome"] in (None, "ok")

    async def test_has_an_idempotency_key_of_its_own(self, owner: Owner) -> None:
        mine = await owner.accepted(key="shared")
        row, _ = await ask(customer, "mallory")
        context = await ask(selectors.load_context_of, str(row.id))
        assert isinstance(context, TenantContext)
        mallory = replace(owner, context=context, key=owner.gateway.directory.issue(context))
        assert await mallory.accepted(key="shared") != mine


class TestRebuild:
    async def test_ends_each_request_once_and_bills_it_once(self, owner: Owner) -> None:
        worker = owner.gateway.worker
        kept, lost = await owner.accepted(), await owner.accepted()
        await worker.serve(["kept"])
        await owner.keep()
        claim = await worker.serve(["lost"])  # ended and metered; Redis goes before its answer is kept
        running, waiting = await owner.accepted(key="k"), await owner.accepted()
        cut = await worker.claim()
        await worker.step(cut, chat_frames(cut.ticket, ["half", "way"])[:1], first_seq=1)
        before = await owner.gateway.services.redis.xlen(USAGE)
        await owner.lose_redis()
        assert before == 2

        row = make_row(claim.ticket, finish_reason="length", budget_cut=True)
        assert await owner.rebuild(metered=row) == {Fate.ENDED: 1, Fate.BACK: 2}
        assert await owner.rebuild(metered=row) == {Fate.THERE: 2}
        assert await worker.step(cut, chat_frames(cut.ticket, ["half"])[:1], first_seq=2)  # its fence holds no more
        worker.holding.clear()
        for text in ("run again", "run"):
            await worker.serve([text])
        keeper = await owner.keep()
        assert (keeper.report.kept, keeper.report.lost) == (2, 0)
        assert await ask(rows) == dict.fromkeys((kept, lost, running, waiting), "ended")
        usage = await owner.gateway.services.redis.xrange(USAGE)
        assert sorted(usage_from_stream(entry).request_id for _, entry in usage) == sorted((running, waiting))
        for request_id in (running, waiting):
            assert await owner.gateway.hold_state(request_id, owner.context.tenant_id) == "settled"
        contents = {}
        for request_id in (kept, running, waiting):
            document = (await owner.get(request_id)).json()
            contents[request_id] = document["response"]["choices"][0]["message"]["content"]
        assert contents == {kept: "kept", running: "run again", waiting: "run"}
        document = (await owner.get(lost)).json()
        valid(document)
        assert (document["outcome"], document["error"]["code"]) == ("ok", "answer_lost")
        assert (document["finish_reason"], document["stopped_by"]) == ("length", "budget")
        assert document["usage"]["cost"] == "0.000011"
        assert (await owner.post(key="k")).json()["id"] == running

    async def test_holds_anew_and_leaves_what_the_limits_refuse(self, owner: Owner) -> None:
        ids = [await owner.accepted() for _ in range(3)]
        await ask(lambda: set_limits(tenant=ApiKey.objects.get().tenant, caps={"concurrent_requests": 2}))
        await owner.lose_redis()
        assert await owner.rebuild() == {Fate.BACK: 2, Fate.WAITS: 1}
        assert await owner.rebuild() == {Fate.THERE: 2, Fate.WAITS: 1}
        states = [await owner.gateway.hold_state(request_id, owner.context.tenant_id) for request_id in ids]
        assert states == ["held", "held", None]
        await owner.gateway.worker.serve(["a"])
        assert await owner.rebuild() == {Fate.THERE: 2, Fate.BACK: 1}
        assert (await owner.gateway.queue.depths()).waiting == 2

    async def test_ends_what_lost_its_key_or_its_time(self, owner: Owner) -> None:
        late, revoked = await owner.accepted(), await owner.accepted()
        await owner.lose_redis()
        await ask(lambda: BackgroundRequest.objects.filter(id=late).update(wait_until="2026-01-01T00:00:00Z"))
        await ask(lambda: services.revoke_key(key=ApiKey.objects.get()))
        assert await owner.rebuild() == {Fate.ENDED: 2}
        ends = {request_id: (await owner.get(request_id)).json() for request_id in (late, revoked)}
        assert ends[late]["error"]["code"] == "deadline_exceeded"
        assert ends[revoked]["error"]["code"] == "key_revoked"
        assert (await owner.gateway.queue.depths()).waiting == 0

    async def test_goes_on_after_a_run_that_died_between_hold_and_queue(
        self, owner: Owner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request_id = await owner.accepted()
        await owner.lose_redis()
        with monkeypatch.context() as patch:
            patch.setattr(FairQueue, "enqueue", _killed)
            with pytest.raises(OSError, match="killed"):
                await owner.rebuild()
        assert await owner.gateway.hold_state(request_id, owner.context.tenant_id) == "held"
        assert await owner.rebuild() == {Fate.BACK: 1}
        await owner.gateway.worker.serve(["a"])
        assert await owner.gateway.hold_state(request_id, owner.context.tenant_id) == "settled"


async def _killed(*args: Any, **kwargs: Any) -> None:
    raise OSError("killed")
