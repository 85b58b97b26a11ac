"""The cache between a bearer key and its context."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from contracts.clock import FakeClock
from contracts.errors import AuthFailed, PermissionDenied, Unavailable
from contracts.tenancy import TenantContext
from tenants.auth import resolve
from tenants.auth.keys import digest, mint
from tenants.auth.resolve import Resolver

PEPPER, OLD_PEPPER = b"pepper", b"old pepper"
ACME = TenantContext(
    tenant_id="t",
    tenant_name="acme",
    project_id="p",
    api_key_id="k",
    key_epoch=1,
    tenant_epoch=1,
    scopes=frozenset({"inference"}),
    allowed_models=None,
    limits=(),
    queued_max=1,
    max_tokens_default=1,
    max_tokens_cap=None,
    weight_milli=1000,
    timezone="UTC",
    currency="USD",
    policy=None,
    evaluation_log=False,
)


class Database:
    """Stands where PostgreSQL does: counts its look-ups, can be slow, away or full of changes."""

    def __init__(self) -> None:
        self.rows: dict[str, TenantContext | Exception] = {}
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()
        self.away = False

    async def load(self, digests: Sequence[str]) -> TenantContext | None:
        self.asked += 1
        await self.open.wait()
        if self.away:
            raise Unavailable("away")
        row = next((self.rows[digest] for digest in digests if digest in self.rows), None)
        if isinstance(row, Exception):
            raise row
        return row


class Stage:
    def __init__(self) -> None:
        self.database = Database()
        self.clock = FakeClock()
        self.resolver = Resolver(self.database.load, clock=self.clock, peppers=(PEPPER, OLD_PEPPER))
        self.key = mint()
        self.database.rows[digest(self.key, PEPPER)] = ACME

    def set(self, row: TenantContext | Exception | None) -> None:
        if row is None:
            self.database.rows.clear()
        else:
            self.database.rows[digest(self.key, PEPPER)] = row

    async def refused(self, key: str) -> str:
        with pytest.raises(AuthFailed) as caught:
            await self.resolver.resolve(key)
        return caught.value.message


@pytest.fixture
def stage() -> Stage:
    return Stage()


class TestResolve:
    async def test_asks_the_database_once_for_a_warm_key(self, stage: Stage) -> None:
        for _ in range(5):
            assert await stage.resolver.resolve(stage.key) == ACME
            stage.clock.advance(ms=10_000)
        assert stage.database.asked == 1
        stage.clock.advance(ms=20_000)
        await stage.resolver.resolve(stage.key)
        assert stage.database.asked == 2

    async def test_answers_unknown_malformed_and_revoked_keys_alike(self, stage: Stage) -> None:
        messages = [await stage.refused(key) for key in (mint(), "nonsense", "", "weir_é")]
        stage.set(None)
        messages.append(await stage.refused(stage.key))
        assert len(set(messages)) == 1
        assert stage.key not in messages[0]

    async def test_never_asks_the_database_for_what_is_no_key(self, stage: Stage) -> None:
        for text in ("", "sk-1", stage.key[:-1], stage.key + "x", "' OR 1=1 --"):
            await stage.refused(text)
        assert stage.database.asked == 0

    async def test_unknown_and_wrong_keys_cost_the_same_look_ups(self, stage: Stage) -> None:
        """Equal in kind and in work: one query over all digests, whether a key was never made, revoked or expired."""
        expired = replace(ACME, expires_at_ms=stage.clock.now_ms())
        messages = set()
        for row, key in ((ACME, mint()), (None, stage.key), (expired, stage.key)):
            stage.set(row)
            before = stage.database.asked
            messages.add(await stage.refused(key))
            assert stage.database.asked == before + 1
            stage.clock.advance(ms=5_000)
        assert len(messages) == 1

    async def test_a_key_under_an_older_pepper_is_found(self, stage: Stage) -> None:
        key = mint()
        stage.database.rows[digest(key, OLD_PEPPER)] = ACME
        assert await stage.resolver.resolve(key) == ACME
        assert await stage.resolver.resolve(key) == ACME
        assert stage.database.asked == 1

    @pytest.mark.parametrize("away", [False, True])
    async def test_a_cached_key_ends_at_its_time(self, stage: Stage, away: bool) -> None:
        stage.set(replace(ACME, expires_at_ms=stage.clock.now_ms() + 30_000))
        await stage.resolver.resolve(stage.key)
        stage.database.away = away
        stage.clock.advance(ms=29_999)
        await stage.resolver.resolve(stage.key)
        stage.clock.advance(ms=1)
        await stage.refused(stage.key)

    async def test_remembers_an_unknown_key_for_five_seconds(self, stage: Stage) -> None:
        stage.set(None)
        await stage.refused(stage.key)
        await stage.refused(stage.key)
        assert stage.database.asked == 1
        stage.set(ACME)
        stage.clock.advance(ms=5_000)
        assert await stage.resolver.resolve(stage.key) == ACME

    async def test_many_at_once_ask_once(self, stage: Stage) -> None:
        stage.database.open.clear()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(stage.resolver.resolve(stage.key)) for _ in range(50)]
            await asyncio.sleep(0)
            stage.database.open.set()
        assert {task.result().tenant_id for task in tasks} == {"t"}
        assert stage.database.asked == 1

    async def test_a_client_that_leaves_does_not_take_the_others_along(self, stage: Stage) -> None:
        stage.database.open.clear()
        async with asyncio.TaskGroup() as group:
            leader = group.create_task(stage.resolver.resolve(stage.key))
            await asyncio.sleep(0)
            other = group.create_task(stage.resolver.resolve(stage.key))
            await asyncio.sleep(0)
            leader.cancel()
            await asyncio.sleep(0)
            stage.database.open.set()
        assert leader.cancelled()
        assert other.result() == ACME

    async def test_others_are_served_while_one_refreshes(self, stage: Stage) -> None:
        await stage.resolver.resolve(stage.key)
        stage.clock.advance(ms=61_000)
        stage.database.open.clear()
        async with asyncio.TaskGroup() as group:
            refreshing = group.create_task(stage.resolver.resolve(stage.key))
            await asyncio.sleep(0)
            assert await stage.resolver.resolve(stage.key) == ACME
            assert not refreshing.done()
            stage.database.open.set()

    async def test_says_why_a_suspended_tenant_is_refused(self, stage: Stage) -> None:
        stage.set(PermissionDenied("suspended", code="tenant_suspended"))
        for _ in range(2):
            with pytest.raises(PermissionDenied) as caught:
                await stage.resolver.resolve(stage.key)
            assert caught.value.code == "tenant_suspended"
        assert stage.database.asked == 1


class TestOutage:
    async def test_a_warm_key_serves_for_fifteen_minutes_and_not_longer(self, stage: Stage) -> None:
        await stage.resolver.resolve(stage.key)
        stage.database.away = True
        stage.clock.advance(ms=899_000)
        assert await stage.resolver.resolve(stage.key) == ACME
        stage.clock.advance(ms=1_000)
        with pytest.raises(Unavailable):
            await stage.resolver.resolve(stage.key)

    async def test_does_not_ask_for_every_request(self, stage: Stage) -> None:
        await stage.resolver.resolve(stage.key)
        stage.database.away = True
        stage.clock.advance(ms=300_000)
        for _ in range(20):
            await stage.resolver.resolve(stage.key)
        assert stage.database.asked == 2

    async def test_a_cold_key_is_told_to_come_back_and_may(self, stage: Stage) -> None:
        stage.database.away = True
        for _ in range(3):
            with pytest.raises(Unavailable) as caught:
                await stage.resolver.resolve(stage.key)
            assert caught.value.retry_after_ms == 2_000
        assert stage.database.asked == 1
        stage.database.away = False
        stage.clock.advance(ms=2_000)
        assert await stage.resolver.resolve(stage.key) == ACME


class TestReload:
    async def test_never_answers_from_before_the_call(self, stage: Stage) -> None:
        await stage.resolver.resolve(stage.key)
        newer = replace(ACME, tenant_epoch=2)
        stage.set(newer)
        assert await stage.resolver.resolve(stage.key) == ACME
        assert await stage.resolver.reload(stage.key) == newer
        assert await stage.resolver.resolve(stage.key) == newer
        stage.set(None)
        with pytest.raises(AuthFailed):
            await stage.resolver.reload(stage.key)
        with pytest.raises(AuthFailed):
            await stage.resolver.resolve(stage.key)


class TestNews:
    async def test_that_were_missed_are_found_out_before_a_key_serves_again(self, stage: Stage) -> None:
        await stage.resolver.resolve(stage.key)
        stage.set(None)
        stage.resolver.hear_news()
        with pytest.raises(AuthFailed):
            await stage.resolver.resolve(stage.key)

    async def test_that_do_not_arrive_cost_a_look_up_for_each_request(self, stage: Stage) -> None:
        await stage.resolver.resolve(stage.key)
        stage.resolver.lose_news()
        for asked in (2, 3):
            await stage.resolver.resolve(stage.key)
            assert stage.database.asked == asked
        stage.set(None)
        with pytest.raises(AuthFailed):
            await stage.resolver.resolve(stage.key)

    async def test_leave_warm_keys_serving_while_the_database_is_away_too(self, stage: Stage) -> None:
        await stage.resolver.resolve(stage.key)
        stage.database.away = True
        stage.resolver.lose_news()
        assert await stage.resolver.resolve(stage.key) == ACME
        stage.resolver.hear_news()
        assert await stage.resolver.resolve(stage.key) == ACME


class TestForget:
    async def test_drops_a_key_or_a_whole_tenant(self, stage: Stage) -> None:
        await stage.resolver.resolve(stage.key)
        stage.resolver.forget(api_key_id="other")
        stage.resolver.forget_tenant(tenant_id="other")
        await stage.resolver.resolve(stage.key)
        assert stage.database.asked == 1
        stage.resolver.forget(api_key_id="k")
        await stage.resolver.resolve(stage.key)
        stage.resolver.forget_tenant(tenant_id="t")
        await stage.resolver.resolve(stage.key)
        assert stage.database.asked == 3

    async def test_a_load_that_a_revocation_overtook_is_not_kept(self, stage: Stage) -> None:
        stage.database.open.clear()
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(stage.resolver.resolve(stage.key))
            await asyncio.sleep(0)
            stage.resolver.forget_tenant(tenant_id="t")
            stage.database.open.set()
        assert loading.result() == ACME
        await stage.resolver.resolve(stage.key)
        assert stage.database.asked == 2


class TestBounds:
    async def test_unknown_keys_never_push_good_ones_out(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resolve, "NEGATIVE_ENTRIES_MAX", 10)
        monkeypatch.setattr(resolve, "ENTRIES_MAX", 3)
        await stage.resolver.resolve(stage.key)
        for _ in range(50):
            await stage.refused(mint())
        await stage.resolver.resolve(stage.key)
        assert stage.database.asked == 51
        assert len(stage.resolver._refusals) == 10
        for _ in range(5):
            key = mint()
            stage.database.rows[digest(key, PEPPER)] = ACME
            await stage.resolver.resolve(key)
        assert len(stage.resolver._entries) == 3
