"""From a crossed threshold in Redis to one event in the outbox; and the limits of a tenant as the audit reads them."""

from redis import Redis

from contracts.tenancy import Metric, Scope
from tenants import limit_events, services
from tenants.budgets import counted_limits, live_tenants
from tenants.limits import keys
from tenants.models import OutboxEvent
from tests.functional.tenants.conftest import Customer

NAMES = ("budget.threshold", "budget.spent")


def tell(redis: Redis, acme: Customer, told: str, *, noted: bool = True, counter: str = "") -> None:
    """As settle.lua and hold.lua do."""
    tenant_id = str(acme.tenant.id)
    fields = {
        "counter": counter or f"t:{tenant_id}:spd", "window": "2027-01-15", "told": told, "cap": "2000000000",
        "used": "1000000000", "at": "1800014400000",
    }  # fmt: skip
    redis.xadd(keys.alerts(tenant_id), fields)
    if noted:
        redis.sadd(keys.ALERTED, tenant_id)


def events() -> list[tuple[str, str, dict[str, object]]]:
    rows = OutboxEvent.objects.filter(name__in=NAMES).order_by("name", "id")
    return [(row.name, row.body["subject"], row.body["after"]) for row in rows]


class TestRelay:
    def test_writes_one_event_for_each_crossing(self, acme: Customer, wired: Redis) -> None:
        tell(wired, acme, "50")
        tell(wired, acme, "spent", counter=f"k:{acme.key.id}:spl:model:1")
        assert limit_events.relay_alerts() == 2
        assert limit_events.relay_alerts() == 0
        common = {"window": "2027-01-15", "cap": "2", "used": "1"}
        assert events() == [
            ("budget.spent", f"key:{acme.key.id}",
             common | {"metric": "spend_lifetime", "model": "model:1", "threshold_percent": 100}),
            ("budget.threshold", f"tenant:{acme.tenant.id}",
             common | {"metric": "spend_per_day", "model": None, "threshold_percent": 50}),
        ]  # fmt: skip
        assert OutboxEvent.objects.filter(name__in=NAMES).values_list("tenant_id", flat=True)[0] == acme.tenant.id
        assert wired.xlen(keys.alerts(str(acme.tenant.id))) == 0

    def test_a_crash_before_the_deletion_makes_no_second_event(self, acme: Customer, wired: Redis) -> None:
        for _ in range(2):  # the same entry is read again
            tell(wired, acme, "80")
            limit_events.relay_alerts()
        assert len(events()) == 1

    def test_the_slow_round_finds_what_a_lost_note_left(self, acme: Customer, wired: Redis) -> None:
        wired.sadd(keys.TENANTS, str(acme.tenant.id))
        tell(wired, acme, "80", noted=False)
        assert limit_events.relay_alerts() == 0
        assert limit_events.relay_all_alerts() == 1

    def test_what_cannot_be_read_is_dropped_and_keeps_nobody_waiting(self, acme: Customer, wired: Redis) -> None:
        tell(wired, acme, "50", counter="nonsense")
        tell(wired, acme, "50")
        assert limit_events.relay_alerts() == 1


class TestCountedLimits:
    def test_gives_each_counter_once_and_the_tenants_own_before_the_plans(self, acme: Customer) -> None:
        services.set_limits(tenant=acme.tenant, caps={"tokens_per_day": 7})
        services.set_limits(api_key=acme.key, caps={"spend_per_day": 9}, model="m")
        tenant_id = str(acme.tenant.id)
        found = {each.counter: each for each in counted_limits(tenant_id)}
        assert found.keys() == {f"t:{tenant_id}:rpm", f"t:{tenant_id}:tpd", f"k:{acme.key.id}:spd:m"}
        mine = found[f"k:{acme.key.id}:spd:m"]
        assert (mine.owner_id, mine.limit.scope, mine.limit.metric) == (
            str(acme.key.id),
            Scope.KEY,
            Metric.SPEND_PER_DAY,
        )
        assert (mine.limit.cap, mine.limit.alerts, mine.limit.since_ms > 0) == (9, (50, 80, 100), True)
        assert found[f"t:{tenant_id}:tpd"].limit.cap == 7

    def test_closed_tenants_are_not_audited(self, acme: Customer, mallory: Customer) -> None:
        services.close_tenant(tenant=mallory.tenant)
        assert live_tenants() == [(str(acme.tenant.id), "Asia/Kolkata")]
