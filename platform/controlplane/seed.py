"""The demo that `make up` serves: two tenants with keys, generous limits, prices, a guardrail policy and an admin.

Called by `controlplane.local.seeding`. Invariant: a repeat changes nothing that is there; a key or password is returned
only when this call made it.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction
from django.db.models import Model
from django.utils import timezone

from billing.models import PriceVersion
from billing.rating.prices import Meter
from billing.services import publish_prices
from contracts.tenancy import Metric
from controlplane.env import environment
from controlplane.models import ServedModel
from safety.defaults import demo_document
from safety.models import Policy
from safety.services import create_policy, publish_policy
from tenants.models import ApiKey, KeyScope, Plan, Project, Tenant
from tenants.selectors import load_contexts
from tenants.services import change_tenant, create_key, create_plan, create_project, create_tenant, set_limits
from tenants.services.keys import digests_of

TENANTS = ("Acme", "Basic Bakery")
ADMIN = "admin"
ACTOR = "system:seed"
APPROVER = "system:demo"  # a price has two names; nobody is there yet to be the second
PRICES = {Meter.INPUT: Decimal("0.100"), Meter.CACHED: Decimal("0.025"), Meter.OUTPUT: Decimal("0.400")}
# Generous: three hundred requests at once wait or run, and a demo never meets a cap by itself.
QUEUED_MAX = 2_000
CAPS: dict[str, int | None] = {
    Metric.REQUESTS_PER_MINUTE: 60_000,
    Metric.INPUT_TOKENS_PER_MINUTE: 20_000_000,
    Metric.OUTPUT_TOKENS_PER_MINUTE: 20_000_000,
    Metric.CONCURRENT_REQUESTS: 2_000,
    Metric.SPEND_PER_DAY: 100 * 10**9,
}

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Secrets are None when they were made by an earlier seed."""

    api_key: str | None
    other_api_key: str | None
    admin_user: str
    admin_password: str | None


def seed_demo(*, known: Sequence[str | None] = (None, None)) -> Demo:
    """Make what is missing of the demo. `known`: its keys as an earlier call showed them.

    A key that still works is the demo, whatever its tenant, project, plan or policy are called by now.
    """
    call_command("migrate", interactive=False, verbosity=0)
    with transaction.atomic():
        _model()
        keys = [None if text and _works(text) else _tenant(name) for name, text in zip(TENANTS, known, strict=True)]
        admin, password = _admin()
    return Demo(api_key=keys[0], other_api_key=keys[1], admin_user=admin, admin_password=password)


def _works(text: str) -> bool:
    """Whether the text is that of a key which is neither revoked nor expired; its tenant may be suspended."""
    [found] = load_contexts([digests_of(text)])
    return found is not None


def _model() -> None:
    env = environment()
    ServedModel.objects.update_or_create(
        name=env.model, defaults={"pool": env.pool_name, "tokenizer_dir": str(env.model_dir)}
    )
    if not PriceVersion.objects.filter(model=env.model, tenant=None).exists():
        publish_prices(
            model=env.model, prices=PRICES, currency="USD", at=timezone.now(), actor=ACTOR, approver=APPROVER
        )


def _policy() -> Policy:
    rules = demo_document(policy_id="draft", version=1)["rules"]
    policy = _found(Policy, {"name": "Demo policy"}, lambda: create_policy(name="Demo policy", rules=rules))
    if policy.published_version == 0:
        publish_policy(policy_id=str(policy.pk), published_by=ACTOR)
        policy.refresh_from_db()
    return policy


def _plan() -> Plan:
    plan = create_plan(name="Demo", weight_milli=1000, queued_max=QUEUED_MAX, max_tokens_default=256)
    set_limits(plan=plan, caps=CAPS)
    return plan


def _tenant(name: str) -> str | None:
    """The tenant (the first opts in to evaluation logs) with a project; its key's text when this call made the key."""
    policy = _policy()
    plan = _found(Plan, {"name": "Demo"}, _plan)
    logged = name == TENANTS[0]
    find_tenant = {"name": name, "closed_at": None}
    tenant = _found(Tenant, find_tenant, lambda: create_tenant(name=name, plan=plan, evaluation_log=logged))
    if tenant.policy_id is None:
        tenant = change_tenant(tenant=tenant, changes={"policy": policy})
    find = {"tenant": tenant, "name": "Default", "deleted_at": None}
    project = _found(Project, find, lambda: create_project(tenant=tenant, name="Default"))
    if ApiKey.objects.filter(project=project, name="Demo key", revoked_at=None).exists():
        return None
    scopes = (KeyScope.INFERENCE,)
    _, text = create_key(project=project, name="Demo key", scopes=scopes)
    return text


def _admin() -> tuple[str, str | None]:
    """The first superuser, by the name that it has now, and its password when this call made it."""
    first = User.objects.filter(is_superuser=True).order_by("pk").first()
    if first is not None:
        return first.username, None
    password = secrets.token_urlsafe(15)
    User.objects.create_superuser(ADMIN, email="", password=password)
    return ADMIN, password


def _found(model: type[M], which: dict[str, Any], make: Callable[[], M]) -> M:
    found: M | None = model.objects.filter(**which).first()  # type: ignore[attr-defined]  # every model of ours has it
    return found if found is not None else make()
