"""Limits as they stand: which caps are over a tenant or a key, and what of each is used, held and free right now.

Called by `limits.py`. Reads PostgreSQL for the caps and Redis for the counters; writes nothing.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q

from contracts.errors import Unavailable
from contracts.tenancy import Limit, Scope
from controlplane.env import environment
from stores.redis import open_redis
from tenants.limits.buckets import Limits
from tenants.limits.holds import LimitUse
from tenants.limits.policy import RULES, Kind
from tenants.models import ApiKey, LimitSetting, Tenant
from tenants.selectors import as_limit, limits_of

READ_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Limits that are counted for one owner: an organization, one of its projects, one of its keys."""

    title: str
    limits: tuple[Limit, ...]
    project_id: str = ""
    api_key_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUse:
    """A part with its counters. `compared`: caps that each request is compared with, which count nothing."""

    part: Part
    uses: tuple[LimitUse, ...]
    compared: tuple[Limit, ...]


def parts_of_tenant(tenant: Tenant) -> list[Part]:
    """The organization's limits first (its own before its plan's), then those of projects and keys. One query."""
    rows = LimitSetting.objects.filter(Q(tenant=tenant) | Q(plan_id=tenant.plan_id))
    rows = rows.filter(Q(project=None) | Q(project__deleted_at=None), Q(api_key=None) | Q(api_key__revoked_at=None))
    organization: dict[tuple[str, str], Limit] = {}
    owned: dict[tuple[str, str, str], list[Limit]] = {}
    for row in sorted(rows.select_related("project", "api_key"), key=lambda row: row.plan_id is None):
        limit = as_limit(row)
        if limit.scope is Scope.TENANT:
            organization[limit.metric, limit.model or ""] = limit
        elif row.project is not None:
            owned.setdefault((f"Project {row.project.name}", str(row.project_id), ""), []).append(limit)
        elif row.api_key is not None:
            title = f"API key {row.api_key.name} (…{row.api_key.last4})"
            owned.setdefault((title, "", str(row.api_key_id)), []).append(limit)
    parts = [Part(title="Organization", limits=_in_order(organization.values()))]
    for (title, project_id, key_id), limits in sorted(owned.items()):
        parts.append(Part(title=title, limits=_in_order(limits), project_id=project_id, api_key_id=key_id))
    return parts


def organizations(tenants: Sequence[Tenant]) -> list[Part]:
    """The limits of each organization as a whole, its own before its plan's, in the order of `tenants`. One query."""
    rows = LimitSetting.objects.filter(
        Q(tenant__in=tenants) | Q(plan_id__in={tenant.plan_id for tenant in tenants}), project=None, api_key=None
    )
    by_owner: dict[UUID, dict[tuple[str, str], Limit]] = {}
    for row in rows:
        owner = row.tenant_id or row.plan_id
        assert owner is not None
        by_owner.setdefault(owner, {})[row.metric, row.model] = as_limit(row)
    return [
        Part(
            title=tenant.name,
            limits=_in_order({**by_owner.get(tenant.plan_id, {}), **by_owner.get(tenant.id, {})}.values()),
        )
        for tenant in tenants
    ]


def parts_of_key(key: ApiKey) -> list[Part]:
    """Everything that stands over one key: its own limits, its project's, its organization's."""
    titles = {
        Scope.KEY: f"This key (…{key.last4})",
        Scope.PROJECT: f"Project {key.project}",
        Scope.TENANT: "Organization",
    }
    limits = limits_of(key)
    return [
        Part(
            title=title,
            limits=_in_order(limit for limit in limits if limit.scope is scope),
            project_id=str(key.project_id),
            api_key_id=str(key.id),
        )
        for scope, title in titles.items()
    ]


async def read(tenant: Tenant, parts: Sequence[Part]) -> list[PartUse]:
    """The counters of each part of one tenant. Raises Unavailable when Redis does not answer."""
    return await read_each([(tenant, part) for part in parts])


async def read_each(asked: Sequence[tuple[Tenant, Part]]) -> list[PartUse]:
    """The counters of each part. Raises Unavailable when Redis does not answer."""
    redis = open_redis(environment().redis, reply_timeout=READ_SECONDS)
    try:
        async with asyncio.timeout(READ_SECONDS):
            return [await _read_one(Limits(redis), tenant, part) for tenant, part in asked]
    except TimeoutError as error:
        raise Unavailable("the counters cannot be read right now") from error
    finally:
        await redis.aclose(close_connection_pool=True)


async def _read_one(counters: Limits, tenant: Tenant, part: Part) -> PartUse:
    counted = tuple(limit for limit in part.limits if RULES[limit.metric].kind is not Kind.REQUEST)
    uses = await counters.usage(
        tenant_id=str(tenant.id),
        project_id=part.project_id,
        api_key_id=part.api_key_id,
        limits=counted,
        timezone=tenant.timezone,
    )
    compared = tuple(limit for limit in part.limits if limit not in counted)
    return PartUse(part=part, uses=tuple(uses), compared=compared)


def _in_order(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    order = list(RULES)
    return tuple(sorted(limits, key=lambda limit: (order.index(limit.metric), limit.model or "")))
