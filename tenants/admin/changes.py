"""What an event changed, field by field, as a person reads it. Called by `audit`.

The fields are those of docs/events.md; one that is not known here is shown by its name with its value as it is. Ids of
plans, projects, price lists and policies are shown by name where they are still there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Model

from contracts.money import text_from_nano
from contracts.tenancy import Metric
from tenants.limits.policy import is_money
from tenants.models import Plan, Project, Tenant

NOTHING = "nothing"
UNTOLD = "-"  # this side of the event does not speak of the field
_LABELS = {
    "last4": "Key ends in",
    "per_million": "Price per million tokens",
    "weight_milli": "Weight in a busy pool",
    "queued_max": "Requests waiting at once",
    "max_tokens_default": "Output tokens by default",
    "max_tokens_cap": "Output tokens at most",
    "service_class": "Class in a busy pool",
    "threshold_percent": "Threshold, percent",
    "cut_to_affordable": "Shorten answers to the budget",
    "prepaid": "Spends no more than its credit",
}
# What the absence of a value means.
_ABSENT = {
    "allowed_models": "every model",
    "allowed_networks": "anywhere",
    "expires_at": "never",
    "valid_to": "open",
    "max_tokens_cap": "the model's own end",
    "queued_max": "the plan's",
    "price_list": "what everybody pays",
}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_METRICS = {metric.value for metric in Metric}


@dataclass(frozen=True, slots=True)
class Change:
    """One field, both sides ready to be shown."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Changes:
    """Fields that differ, and the names of those that both sides have alike."""

    changed: tuple[Change, ...]
    same: tuple[str, ...]


def read_changes(before: Mapping[str, Any], after: Mapping[str, Any], *, currency: str | None) -> Changes:
    """`before` against `after`. Money is in `currency`, the tenant's; without one it is each tenant's own."""
    names = list(dict.fromkeys((*before, *after)))
    same = tuple(_label(name) for name in names if name in before and name in after and before[name] == after[name])
    changed = tuple(
        Change(_label(name), _side(before, name, currency), _side(after, name, currency))
        for name in names
        if not (name in before and name in after and before[name] == after[name])
    )
    return Changes(changed=changed, same=same)


def _label(name: str) -> str:
    text = _LABELS.get(name, name.replace("_", " "))
    return text[:1].upper() + text[1:]


def _side(side: Mapping[str, Any], name: str, currency: str | None) -> str:
    if not side:
        return NOTHING
    return _value(name, side[name], currency) if name in side else UNTOLD


def _value(name: str, value: Any, currency: str | None) -> str:
    metric = name.partition(" of ")[0]
    if metric in _METRICS:
        return _cap(Metric(metric), value, currency)
    if value is None or value in ("", [], {}):
        return _ABSENT.get(name, NOTHING)
    if name == "weight_milli" and isinstance(value, int):
        return f"{Decimal(value).scaleb(-3).normalize():f}"
    return _plain(name, value)


def _plain(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain("", item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{_label(key)}: {_plain(key, item)}" for key, item in value.items())
    text = str(value)
    return _moment(text) if _MOMENT.match(text) else _named(name, text)


def _cap(metric: Metric, cap: Any, currency: str | None) -> str:
    if not isinstance(cap, int):
        return "no limit" if cap is None else str(cap)
    if cap == 0:
        return "0: blocked"
    return f"{text_from_nano(cap)} {currency or 'of each currency'}" if is_money(metric) else f"{cap:,}"


def _moment(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return text


def _named(name: str, text: str) -> str:
    """The row that an id names, where the field is known to hold one."""
    kinds: dict[str, type[Model]] = {
        "plan": Plan,
        "project": Project,
        "policy": Tenant.policy.field.related_model,
        "price_list": Plan.price_list.field.related_model,
    }
    try:
        row = kinds[name]._default_manager.filter(pk=UUID(text)).first() if name in kinds else None  # noqa: SLF001
    except ValueError:  # a price list is told by its name in some events
        row = None
    return str(row) if row is not None else text
