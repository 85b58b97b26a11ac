"""The little that billing must know of a tenant's record, read by the model's label: rooms do not import each other."""

import uuid
from collections.abc import Iterable
from typing import Any

from django.apps import apps


def tenant_currency(*, tenant_id: str) -> str | None:
    """The currency that a tenant pays in; None for an unknown tenant."""
    found = _tenants().filter(pk=tenant_id).values_list("currency", flat=True).first()
    return None if found is None else str(found)


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


def _tenants() -> Any:
    model: Any = apps.get_model("tenants", "Tenant")
    return model.objects
