"""Background jobs that bring two rooms together, run by the beat. Each is idempotent and bounded."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from datetime import timedelta

from celery import shared_task
from django.utils import timezone
from redis.exceptions import RedisError

from contracts.errors import Unavailable
from controlplane import prepaid, retention
from controlplane.limits_audit import METER_BEHIND, Findings, open_auditor
from stores.clickhouse import ClickHouseError
from tenants import limit_events
from tenants.budgets import live_tenants, tenants_with_new_limits

log = logging.getLogger("weir.limits")

TENANTS_MAX = 500  # of one round; the next begins behind them
NEW_FOR = timedelta(minutes=10)  # within which a limit that begins is tried; the check, every five, takes the rest


@shared_task(name="controlplane.tasks.check_limits")  # type: ignore[untyped-decorator] # celery has no types
def check_limits(*, after: str = "") -> int:
    """Compare the limits with metered usage; returns the number of counters that drifted. It must be 0.

    A drift is logged as an error with its counter. A tenant that cannot be told about is skipped until the next round;
    a meter that is behind ends this one, for it would be waited for at each tenant.
    """
    tenants = [tenant_id for tenant_id, _ in live_tenants() if tenant_id > after][: TENANTS_MAX + 1]
    found = asyncio.run(_check(tenants[:TENANTS_MAX]))
    for each in found:
        for drift in each.drifts:
            log.error("limits of tenant %s drifted: %s", each.tenant_id, drift)
    is_behind = bool(found) and found[-1].skipped == METER_BEHIND
    if len(tenants) > TENANTS_MAX and not is_behind:
        check_limits.delay(after=tenants[TENANTS_MAX - 1])
    return sum(len(each.drifts) for each in found)


@shared_task(name="controlplane.tasks.begin_limits")  # type: ignore[untyped-decorator] # celery has no types
def begin_limits() -> int:
    """Let limits that began within their window count what was used before; returns how many counters changed."""
    tenants = tenants_with_new_limits(since=timezone.now() - NEW_FOR)[:TENANTS_MAX]
    return sum(each.renewed for each in asyncio.run(_begin(tenants))) if tenants else 0


async def _check(tenants: Iterable[str]) -> list[Findings]:
    async with open_auditor() as auditor:
        return await _each((tenant_id, auditor.check(tenant_id=tenant_id)) for tenant_id in tenants)


async def _begin(tenants: Iterable[tuple[str, str]]) -> list[Findings]:
    async with open_auditor() as auditor:
        return await _each(
            (tenant_id, auditor.begin(tenant_id=tenant_id, timezone=zone)) for tenant_id, zone in tenants
        )


async def _each(audits: Iterable[tuple[str, Awaitable[Findings]]]) -> list[Findings]:
    found: list[Findings] = []
    for tenant_id, audit in audits:
        try:
            each = await audit
        except (Unavailable, RedisError, ClickHouseError, OSError) as error:
            log.warning("limits of tenant %s were not checked (%s)", tenant_id, type(error).__name__)
            continue
        if each.skipped:
            log.warning("limits of tenant %s were not checked (%s)", tenant_id, each.skipped)
        found.append(each)
        if each.skipped == METER_BEHIND:
            break
    return found


@shared_task(name="controlplane.tasks.forget_old")  # type: ignore[untyped-decorator] # celery has no types
def forget_old() -> int:
    """Delete what sign-ins and background requests left behind and is past its stated time; returns how many rows."""
    return retention.forget_sign_ins(now=timezone.now()) + retention.forget_answers(now=timezone.now())


@shared_task(name="controlplane.tasks.relay_budget_alerts")  # type: ignore[untyped-decorator] # celery has no types
def relay_budget_alerts(*, everyone: bool = False) -> int:
    """Turn crossed thresholds into events; returns how many."""
    return limit_events.relay_all_alerts() if everyone else limit_events.relay_alerts()


@shared_task(name="controlplane.tasks.follow_credit")  # type: ignore[untyped-decorator] # celery has no types
def follow_credit() -> int:
    """Hold prepaid tenants to their credit where that was missed; returns how many."""
    return prepaid.follow_all()
