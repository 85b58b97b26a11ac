"""The limit of a prepaid tenant. Written by the platform alone (`controlplane.prepaid`), from what the ledger says.

Invariant: the limit stands only while its counter holds what was spent before it; what requests under way spend, which
were admitted without it, the audit of the limits brings in.
"""

from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone as clock
from redis.exceptions import RedisError

from contracts.errors import Unavailable
from contracts.tenancy import Limit, Metric, Scope
from stores.lua import LuaScript
from stores.redis_blocking import blocking_redis
from tenants.actors import SYSTEM
from tenants.events import record
from tenants.limits import keys as names
from tenants.limits.gate import RETRY_AFTER_MS
from tenants.limits.policy import CAP_MAX
from tenants.models import LimitSetting, Tenant
from tenants.services.facts import subject
from tenants.services.pushing import raise_tenant_epoch

_BEGIN = LuaScript.load(Path(__file__).parents[1] / "limits" / "scripts" / "begin.lua")
_METRIC = Metric.PREPAID_CREDIT.value


@transaction.atomic
def keep_prepaid(*, tenant: Tenant, cap: int | None, spent: int) -> bool:
    """Set what a tenant may spend over all time; None takes the limit away. Whether that was a change.

    The caller holds the tenant's row. `spent`: in all so far, for a limit that begins. Raises Unavailable where Redis
    does not take it.
    """
    row = LimitSetting.objects.filter(tenant=tenant, scope=Scope.TENANT, metric=_METRIC).first()
    before = None if row is None else row.cap
    after = None if cap is None else min(cap, CAP_MAX)
    if before == after:
        return False
    if after is None:
        LimitSetting.objects.filter(tenant=tenant, metric=_METRIC).delete()
    elif row is None:
        _begin(tenant.id, spent)
        LimitSetting.objects.create(tenant=tenant, scope=Scope.TENANT, metric=_METRIC, cap=after, alerts=[])
    else:
        LimitSetting.objects.filter(id=row.id).update(cap=after, updated_at=clock.now())
    raise_tenant_epoch(tenant)
    record(
        "limit.changed",
        tenant_id=tenant.id,
        subject=subject(tenant),
        actor=SYSTEM,
        before={} if before is None else {_METRIC: before},
        after={_METRIC: after},
    )
    return True


def _begin(tenant_id: UUID, spent: int) -> None:
    limit = Limit(scope=Scope.TENANT, metric=Metric.PREPAID_CREDIT, cap=0)
    counter = names.counter(limit, tenant_id=str(tenant_id), project_id="", api_key_id="")
    try:
        script = blocking_redis(settings.ENV.redis).register_script(_BEGIN.text)
        script(keys=[names.use(str(tenant_id))], args=[0, counter, min(spent, CAP_MAX)])
    except (RedisError, OSError) as error:
        raise Unavailable(
            "The limits' store does not answer: nobody is made prepaid now.", retry_after_ms=RETRY_AFTER_MS
        ) from error
