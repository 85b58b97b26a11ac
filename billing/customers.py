"""The little that billing must know of a tenant's record, read by the model's label: rooms do not import each other."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.apps import apps

NAMES_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Payer:
    """What decides a tenant's prices beside its own: its currency, and the price list of its plan, if any."""

    currency: str
    price_list_id: uuid.UUID | None


def find_payer(*, tenant_id: str) -> Payer | None:
    """None for an unknown tenant."""
    found = _tenants().filter(pk=tenant_id).values_list("currency", "plan__price_list_id").first()
    return None if found is None else Payer(currency=str(found[0]), price_list_id=found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """What decides a tenant's periods: its zone, its currency, since when it is there and when it was closed."""

    zone: str
    currency: str
    since: datetime
    closed_at: datetime | None


def find_calendar(*, tenant_id: uuid.UUID) -> Calendar | None:
    """None for an unknown tenant."""
    found = _tenants().filter(pk=tenant_id).values_list("timezone", "currency", "created_at", "closed_at").first()
    if found is None:
        return None
    zone, currency, since, closed_at = found
    return Calendar(zone=str(zone), currency=str(currency), since=since, closed_at=closed_at)


def known_tenants(ids: Iterable[uuid.UUID]) -> set[uuid.UUID]:
    """Those of `ids` that are tenants."""
    return set(_tenants().filter(pk__in=set(ids)).values_list("pk", flat=True))


def tenant_names() -> dict[uuid.UUID, str]:
    """Every tenant's name by id, for reports."""
    return dict(_tenants().values_list("pk", "name"))


def find_tenant(*, name_or_id: str) -> uuid.UUID | None:
    """The tenant of that id or, among those not closed, of that name."""
    try:
        wanted: dict[str, Any] = {"pk": uuid.UUID(name_or_id)}
    except ValueError:
        wanted = {"name": name_or_id}
    found: uuid.UUID | None = _tenants().filter(**wanted).order_by("-created_at").values_list("pk", flat=True).first()
    return found


def no_such_tenant(name: str) -> str:
    """What a command says of a name that nobody has, with those that there are."""
    known = list(_tenants().order_by("name").values_list("name", flat=True)[: NAMES_SHOWN + 1])
    shown = ", ".join(known[:NAMES_SHOWN]) + (", …" if len(known) > NAMES_SHOWN else "")
    return f"no tenant is called {name}; there is: {shown or 'none'}"


def _tenants() -> Any:
    model: Any = apps.get_model("tenants", "Tenant")
    return model.objects
