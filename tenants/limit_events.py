"""Crossed budget thresholds and spent budgets become events: `budget.threshold`, `budget.spent`. Called by the beat.

The limits' scripts tell of each once per window, under a cap, in a stream of the tenant; no request writes to the
database for it. Invariant: exactly one event for each entry, because its id is made from what it tells, and an entry is
deleted after the transaction that wrote it.
"""

import hashlib
import logging
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, cast

from django.conf import settings
from django.db import transaction
from redis import Redis

from contracts.money import text_from_nano
from stores.redis_blocking import blocking_redis
from tenants.limits import keys
from tenants.models import OutboxEvent

BATCH = 500
ROUNDS_MAX = 20
_log = logging.getLogger(__name__)


def relay_alerts() -> int:
    """Of tenants that are known to have news; returns how many events were written. Raises redis.RedisError."""
    client = blocking_redis(settings.ENV.redis)
    noted = cast("set[bytes]", client.smembers(keys.ALERTED))
    return sum(_relay(client, tenant.decode()) for tenant in noted)


def relay_all_alerts() -> int:
    """Of every tenant: finds what a lost note left. Raises redis.RedisError."""
    client = blocking_redis(settings.ENV.redis)
    tenants = cast("Iterable[bytes]", client.sscan_iter(keys.TENANTS, count=BATCH))
    return sum(_relay(client, tenant.decode()) for tenant in tenants)


def _relay(client: Redis, tenant_id: str) -> int:
    """The note goes first: an alert that comes meanwhile sets it again."""
    client.srem(keys.ALERTED, tenant_id)
    written, stream = 0, keys.alerts(tenant_id)
    for _ in range(ROUNDS_MAX):
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(stream, count=BATCH))
        if not entries:
            return written
        with transaction.atomic():
            events = list(_events(tenant_id, (fields for _, fields in entries)))
            OutboxEvent.objects.bulk_create(events, ignore_conflicts=True)
        client.xdel(stream, *(entry_id for entry_id, _ in entries))
        written += len(events)
    client.sadd(keys.ALERTED, tenant_id)  # more than one round takes
    return written


def _events(tenant_id: str, entries: Iterable[dict[bytes, bytes]]) -> Iterable[OutboxEvent]:
    for fields in entries:
        values = {name.decode(): value.decode() for name, value in fields.items()}
        try:
            yield _event(tenant_id, values)
        except (KeyError, ValueError):
            _log.exception("an alert of tenant %s could not be read and is dropped", tenant_id)


def _event(tenant_id: str, values: dict[str, str]) -> OutboxEvent:
    name = keys.parse_counter(values["counter"])
    told, at_ms = values["told"], int(values["at"])
    after: dict[str, Any] = {
        "metric": name.metric.value,
        "model": name.model,
        "window": values["window"],
        "threshold_percent": 100 if told == "spent" else int(told),
        "cap": text_from_nano(int(values["cap"])),
        "used": text_from_nano(int(values["used"])),
    }
    body = {
        "subject": f"{name.scope.value}:{name.owner_id}",
        "actor": "system",
        "address": None,
        "before": {},
        "after": after,
        "happened_at": datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(),
    }
    return OutboxEvent(
        id=_id_of(at_ms, tenant_id, values),
        name="budget.spent" if told == "spent" else "budget.threshold",
        tenant_id=uuid.UUID(tenant_id),
        body=body,
    )


def _id_of(at_ms: int, tenant_id: str, values: dict[str, str]) -> uuid.UUID:
    """A UUIDv7 of the instant whose other bits are made from what is told: the same entry has the same id."""
    told = "\0".join([tenant_id, *(values[name] for name in ("counter", "window", "told", "cap", "at"))])
    bits = int.from_bytes(hashlib.sha256(told.encode()).digest()[:10], "big")
    low, middle = bits & ((1 << 62) - 1), (bits >> 62) & 0xFFF
    return uuid.UUID(int=at_ms << 80 | 0x7 << 76 | middle << 64 | 0b10 << 62 | low)
