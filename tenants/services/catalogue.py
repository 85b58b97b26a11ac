"""Which models there are, read by the model's label: this room does not import the control plane above it."""

from collections.abc import Collection
from typing import Any

from django.apps import apps
from django.core.exceptions import ValidationError

from contracts.text import shown


def check_models(names: Collection[str], *, param: str) -> None:
    """Refuse names that no served model has; one that is switched off is known. Raises ValidationError naming them."""
    wanted = set(names)
    if not wanted:
        return
    model: Any = apps.get_model("controlplane", "ServedModel")
    unknown = sorted(wanted - set(model.objects.filter(name__in=wanted).values_list("name", flat=True)))
    if unknown:
        raise ValidationError({param: f"There is no model {shown(unknown[0])} here; GET /v1/models lists them."})
