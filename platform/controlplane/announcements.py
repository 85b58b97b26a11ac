"""Domain events of rooms that do not know the tenants' outbox: policies and prices. Connected by `apps.py`.

`safety` and `billing` import no other room, so the composition root listens to what they save and records it.
Invariant: an event is written in the transaction of the save that it tells of; a rule's text is in no event.
"""

from typing import Any

from django.db import transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from billing.models import PriceVersion
from safety.models import PolicyVersion
from tenants import events
from tenants.actors import Actor
from tenants.services import raise_epochs_under_policy


@receiver(post_save, sender=PolicyVersion, dispatch_uid="announce-policy")
def tell_of_policy(instance: PolicyVersion, created: bool, raw: bool, **kwargs: Any) -> None:  # noqa: FBT001 - Django's
    """A version of a policy is in force: no context that was read before outlives it. Versions never change."""
    if raw or not created:
        return
    after = {"name": instance.policy.name, "version": instance.version, "rules": len(instance.document["rules"])}
    with transaction.atomic():
        events.record(
            "policy.published",
            tenant_id=None,
            subject=f"policy:{instance.policy_id}",
            actor=_actor(instance.published_by),
            after=after,
        )
        raise_epochs_under_policy(instance.policy_id)


@receiver(post_save, sender=PriceVersion, dispatch_uid="announce-price")
def tell_of_price(instance: PriceVersion, created: bool, raw: bool, **kwargs: Any) -> None:  # noqa: FBT001 - Django's
    """A price was set, or the second person approved it. The end of one is told by its successor."""
    approved = "approved_by" in (kwargs.get("update_fields") or ())
    if raw or not (created or approved):
        return
    with transaction.atomic():
        events.record(
            "price.set" if created else "price.approved",
            tenant_id=instance.tenant_id,
            subject=f"price:{instance.pk}",
            actor=_actor(instance.created_by if created else instance.approved_by),
            after={
                "price_list": instance.price_list.name if instance.price_list else None,
                "model": instance.model,
                "meter": str(instance.meter),
                "per_million": str(instance.per_million),
                "currency": instance.currency,
                "valid_from": instance.valid_from.isoformat(),
                "valid_to": instance.valid_to.isoformat() if instance.valid_to else None,
            },
        )


def _actor(name: str) -> Actor:
    """Names are kept as these rooms write them: a bare one is a person's."""
    if not name:
        return Actor(name="system")
    return Actor(name=name if ":" in name else f"user:{name}")
