"""Caps of plans, tenants, projects and keys."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model
from django.utils import timezone as clock

from contracts.tenancy import Metric, Scope
from tenants.actors import SYSTEM, Actor
from tenants.events import record
from tenants.limits.policy import CAP_MAX, RATE_CAP_MAX, RULES, Kind
from tenants.models import ApiKey, LimitSetting, Plan, Project, Tenant
from tenants.services.catalogue import check_models
from tenants.services.facts import subject
from tenants.services.pushing import raise_tenant_epoch

ALERTS_MAX = 10
KEPT = "prepaid_credit follows the tenant's credit and is set by nobody: an operator makes the tenant `prepaid`."


@transaction.atomic
def set_limits(
    *,
    tenant: Tenant | None = None,
    plan: Plan | None = None,
    project: Project | None = None,
    api_key: ApiKey | None = None,
    caps: Mapping[str, int | None],
    model: str = "",
    alerts: Sequence[int] | None = None,
    actor: Actor = SYSTEM,
) -> list[LimitSetting]:
    """Set caps of one owner by metric; None removes a limit, 0 blocks. Metrics not named stay as they are.

    The owner is the most special one given: key, project, tenant, or a plan alone. `model` "" counts all models
    together. `alerts`: percents of a money cap whose crossing is told of; None leaves those of a limit that stands.
    """
    owner, scope = _owner(tenant, plan, project, api_key)
    check_models([model] if model else [], param="model")
    check_alerts(alerts or ())
    for metric, cap in caps.items():
        check_cap(metric, cap)
    _wait_for_others(owner)
    mine = LimitSetting.objects.filter(**owner, model=model)
    current = {row.metric: row for row in mine.select_for_update()}
    before = {_label(metric, model): row.cap for metric, row in current.items() if metric in caps}
    for metric, cap in caps.items():
        if cap is None:
            mine.filter(metric=metric).delete()
        else:
            _put(current.get(metric), cap, alerts, {**owner, "model": model, "metric": metric, "scope": scope})
    changed: Iterable[Tenant] = [owner["tenant"]] if owner["tenant"] else Tenant.objects.filter(plan=owner["plan"])
    for each in changed:
        raise_tenant_epoch(each)
    target: Model | None = api_key or project or tenant or plan
    assert target is not None
    record(
        "limit.changed",
        tenant_id=owner["tenant"].id if owner["tenant"] else None,
        subject=subject(target),
        actor=actor,
        before=before,
        after={_label(metric, model): cap for metric, cap in caps.items()},
    )
    return list(LimitSetting.objects.filter(**owner))


def _wait_for_others(owner: Mapping[str, Any]) -> None:
    """Locks whose limits they are: two who set a new limit at once come one after the other, and the later stands."""
    if owner["tenant"] is not None:
        Tenant.objects.select_for_update().get(id=owner["tenant"].id)
    else:
        Plan.objects.select_for_update().get(id=owner["plan"].id)


def check_cap(metric: str, cap: int | None) -> None:
    """Refuse an unknown metric, and a cap that the scripts could not count exactly. Raises ValidationError."""
    if metric not in set(Metric):
        raise ValidationError({"metric": f"{metric} is not a metric."})
    if metric == Metric.PREPAID_CREDIT:
        raise ValidationError({"metric": KEPT})
    rate = RULES[Metric(metric)].kind in (Kind.RATE, Kind.OUTPUT)
    most = RATE_CAP_MAX if rate else CAP_MAX
    if cap is not None and not 0 <= cap <= most:
        raise ValidationError({"cap": f"The cap of {metric} must lie between 0 and {most}."})


def check_alerts(percents: Sequence[int]) -> None:
    """Refuse thresholds that could not be told of. Raises ValidationError."""
    if len(set(percents)) != len(percents) or len(percents) > ALERTS_MAX or not all(1 <= p <= 100 for p in percents):
        raise ValidationError({"alerts": f"At most {ALERTS_MAX} different percents from 1 to 100."})


def _put(row: LimitSetting | None, cap: int, alerts: Sequence[int] | None, fields: dict[str, Any]) -> None:
    """One cap. Its `since` moves only when the limit begins: the counter of one that stood is not broken off."""
    given = {"alerts": sorted(alerts)} if alerts is not None else {}
    if row is None:
        LimitSetting.objects.create(**fields, cap=cap, since=clock.now(), **given)
    else:
        LimitSetting.objects.filter(id=row.id).update(cap=cap, updated_at=clock.now(), **given)


def _label(metric: str, model: str) -> str:
    return f"{metric} of {model}" if model else metric


def _owner(
    tenant: Tenant | None, plan: Plan | None, project: Project | None, api_key: ApiKey | None
) -> tuple[dict[str, Any], str]:
    if api_key is not None:
        return {"plan": None, "tenant": api_key.tenant, "project": None, "api_key": api_key}, Scope.KEY.value
    if project is not None:
        return {"plan": None, "tenant": project.tenant, "project": project, "api_key": None}, Scope.PROJECT.value
    if (tenant is None) == (plan is None):
        raise ValidationError("Limits belong to a tenant, a project, a key or a plan.")
    return {"plan": plan, "tenant": tenant, "project": None, "api_key": None}, Scope.TENANT.value
