"""Prepaid tenants: what the ledger says of their credit is their limit `prepaid_credit`. Connected by `apps.py`.

`billing` and `tenants` do not know each other, so the composition root listens to what each saves. The limit comes and
goes with `Tenant.prepaid`, in the same transaction. Its cap (`billing.selectors.lifetime_credit_nano` says why it is
one) follows every transaction of the ledger that is not of usage: right after its commit, and by the beat in case that
failed. Invariant: the cap is read from the ledger under the lock of the tenant's row, so of two at once the later state
of the ledger stands.
"""

import logging
import uuid
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError, transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from billing.models import LedgerTransaction
from billing.selectors import lifetime_credit_nano, posted_nano
from contracts.errors import Unavailable
from contracts.tenancy import Metric
from controlplane.pages.standing import organizations, read
from tenants.models import LimitSetting, Tenant, TenantState
from tenants.services import keep_prepaid

log = logging.getLogger("weir.limits")


@transaction.atomic
def follow_credit(tenant_id: uuid.UUID) -> bool:
    """Bring a tenant's limit to what its switch and the ledger say; whether that was a change.

    Raises Tenant.DoesNotExist, Unavailable where the limit begins and Redis does not answer.
    """
    tenant = Tenant.objects.select_for_update().get(pk=tenant_id)
    if not tenant.prepaid:
        return keep_prepaid(tenant=tenant, cap=None, spent=0)
    begins = not _limits_of(tenant).exists()
    return keep_prepaid(
        tenant=tenant,
        cap=lifetime_credit_nano(tenant_id=tenant.pk, currency=tenant.currency),
        spent=posted_nano(tenant_id=str(tenant.pk), currency=tenant.currency) if begins else 0,
    )


def follow_all() -> int:
    """`follow_credit` of every prepaid tenant; how many limits were not as the ledger has them."""
    tenants = Tenant.objects.filter(prepaid=True).exclude(state=TenantState.CLOSED).order_by("id")
    return sum(_follow(tenant_id) for tenant_id in list(tenants.values_list("pk", flat=True)))


def spendable_nano(tenant_id: uuid.UUID) -> int | None:
    """What a prepaid tenant may still spend at this instant; None for another. Blocking: for commands.

    Raises Tenant.DoesNotExist, Unavailable.
    """
    tenant = Tenant.objects.select_related("plan").get(pk=tenant_id)
    if not tenant.prepaid:
        return None
    [use] = async_to_sync(read)(tenant, organizations([tenant]))
    return next((each.free for each in use.uses if each.limit.metric is Metric.PREPAID_CREDIT), None)


@receiver(post_save, sender=Tenant, dispatch_uid="switch-prepaid")
def switch(instance: Tenant, raw: bool, **kwargs: Any) -> None:  # noqa: FBT001 - Django's
    """The switch was turned: by an operator, whose transaction sees the ledger."""
    if not raw and instance.prepaid != _limits_of(instance).exists():
        follow_credit(instance.pk)


@receiver(post_save, sender=LedgerTransaction, dispatch_uid="follow-credit")
def follow_posting(instance: LedgerTransaction, created: bool, raw: bool, **kwargs: Any) -> None:  # noqa: FBT001
    """Of everything that is posted by its key. Usage, posted in bulk, is not told of here: it moves no cap."""
    if created and not raw:
        transaction.on_commit(partial(_follow_posted, instance.pk), robust=True)


def _follow_posted(posted_id: uuid.UUID) -> None:
    touched = Tenant.objects.filter(prepaid=True, ledger_accounts__entries__transaction=posted_id).distinct()
    for tenant_id in list(touched.values_list("pk", flat=True)):
        _follow(tenant_id)


def _follow(tenant_id: uuid.UUID) -> bool:
    try:
        return follow_credit(tenant_id)
    except (DatabaseError, Unavailable) as error:
        log.warning("the credit of tenant %s is not its limit yet (%s); the beat repeats it", tenant_id, error)
        return False


def _limits_of(tenant: Tenant) -> Any:
    return LimitSetting.objects.filter(tenant=tenant, metric=Metric.PREPAID_CREDIT)
