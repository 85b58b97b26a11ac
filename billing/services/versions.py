"""The second person of a price, of terms and of a tax rate: what holds from when, and what it ends.

Called by the admin and by `services.prices`. Invariant: at every moment at most one approved version of a scope holds
(the database's exclusion constraint), and where one held, one goes on holding: what interrupts it does not leave a gap.
"""

from datetime import datetime
from typing import TypeVar

from django.db import transaction
from django.db.models import Q, QuerySet

from billing.models import ContractTerms, PriceVersion, TaxRate

V = TypeVar("V", PriceVersion, ContractTerms, TaxRate)
# What two versions have in common when the one supersedes the other.
SCOPES: dict[type[PriceVersion | ContractTerms | TaxRate], tuple[str, ...]] = {
    PriceVersion: ("tenant_id", "price_list_id", "model", "service_class", "meter", "currency"),
    ContractTerms: ("tenant_id", "currency"),
    TaxRate: ("country",),
}


class PriceChangeRefused(ValueError):
    """The change would rewrite history, lacks a second person, or leaves a price out of the exact range."""


def approve(version: V, *, actor: str, now: datetime) -> V:
    """Let a proposal hold, from its own time on or from `now` if that is later; it ends what holds then.

    An announced version keeps its time: the approved one ends there. One that is interrupted goes on afterwards as a
    version of its own, with the same two people. Raises PriceChangeRefused.
    """
    kind = type(version)
    with transaction.atomic():
        locked = kind.objects.select_for_update().get(pk=version.pk)
        if locked.state != "proposed" or locked.created_by == actor:
            raise PriceChangeRefused("a price is approved once, by somebody else than who wrote it")
        start = max(locked.valid_from, now)
        if locked.valid_to is not None and locked.valid_to <= start:
            raise PriceChangeRefused("its time has passed: propose it anew")
        others = _approved_beside(locked)
        current = others.filter(Q(valid_to=None) | Q(valid_to__gt=start), valid_from__lte=start).first()
        following = others.filter(valid_from__gt=start).order_by("valid_from").first()
        ends = [end for end in (locked.valid_to, following.valid_from if following else None) if end is not None]
        locked.valid_from, locked.valid_to, locked.approved_by = start, min(ends, default=None), actor
        resumes = None if current is None else _rest_of(current, after=locked.valid_to)
        if current is not None:
            current.valid_to = start
            current.save(update_fields=["valid_to"])
        locked.save(update_fields=["valid_from", "valid_to", "approved_by"])
        if resumes is not None:
            resumes.save()
        return locked


def approve_price(*, price_id: str, actor: str, now: datetime) -> PriceVersion:
    """`approve` by a price's id."""
    return approve(PriceVersion.objects.get(pk=price_id), actor=actor, now=now)


def withdraw(version: V, *, actor: str) -> V:
    """Take a proposal back; it stays on record. Raises PriceChangeRefused for what was approved."""
    with transaction.atomic():
        locked = type(version).objects.select_for_update().get(pk=version.pk)
        if locked.state != "proposed":
            raise PriceChangeRefused("only a proposal is withdrawn; what was approved is superseded")
        locked.withdrawn_by = actor
        locked.save(update_fields=["withdrawn_by"])
        return locked


def _approved_beside(version: V) -> "QuerySet[V]":
    scope = {name: getattr(version, name) for name in SCOPES[type(version)]}
    found: QuerySet[V] = type(version).objects.select_for_update().filter(**scope).exclude(approved_by="")
    return found.exclude(pk=version.pk)


def _rest_of(current: V, *, after: datetime | None) -> V | None:
    """What of `current` is left behind `after`, as a version that is not saved yet."""
    if after is None or (current.valid_to is not None and current.valid_to <= after):
        return None
    values = {
        field.attname: getattr(current, field.attname)
        for field in current._meta.concrete_fields  # noqa: SLF001 - Django's public name for it
        if field.attname not in ("id", "created_at", "valid_from")
    }
    return type(current)(**values, valid_from=after)
