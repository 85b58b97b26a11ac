"""Every change that a person or program makes to webhooks. Called by the API, the admin and `dispatch`.

Invariants: a change and its event commit together; an event names the origin of a URL only, for its path may hold a
secret; the text of a signing secret is returned once and stored sealed.
Every function raises django.core.exceptions.ValidationError for input that it refuses.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone as clock

from contracts.errors import LimitExceeded
from contracts.text import shown
from stores.sealing import Unreadable
from tenants.actors import SYSTEM, Actor
from tenants.events import record
from tenants.models import Tenant, TenantState, new_id
from tenants.webhooks import config, selectors, signing
from tenants.webhooks.catalogue import TEST
from tenants.webhooks.destination import Refused, parse
from tenants.webhooks.models import (
    Delivery,
    DeliveryState,
    DisabledReason,
    Endpoint,
    EndpointSecret,
    Event,
)

ENDPOINTS_MAX = 20
FILTERS_MAX = 50
OVERLAP = timedelta(hours=24)
OVERLAP_MAX = timedelta(days=7)
LIVE_SECRETS_MAX = 3
TESTS_PER_MINUTE = 10
REPLAYS_MAX = 10_000
_CHANGEABLE = frozenset({"url", "description", "events"})


@transaction.atomic
def create_endpoint(
    *, tenant: Tenant, url: str, events: Sequence[str] = ("*",), description: str = "", actor: Actor = SYSTEM
) -> tuple[Endpoint, str]:
    """An endpoint and the text of its signing secret, which nobody can read again."""
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    if locked.state == TenantState.CLOSED:
        raise ValidationError("This tenant is closed.")
    if selectors.endpoints().filter(tenant=locked).count() >= ENDPOINTS_MAX:
        raise ValidationError(f"A tenant has at most {ENDPOINTS_MAX} webhooks.")
    endpoint = Endpoint(tenant=locked, url=clean_url(url), events=clean_filter(events), description=description)
    endpoint.full_clean()
    endpoint.save()
    secret = _add_secret(endpoint)
    _tell("webhook.created", endpoint, actor, after=_facts(endpoint))
    return endpoint, secret


@transaction.atomic
def change_endpoint(*, endpoint: Endpoint, changes: Mapping[str, Any], actor: Actor = SYSTEM) -> Endpoint:
    """Change url, description or events. A new URL starts with a clean record of failures."""
    locked = _lock(endpoint)
    unknown = set(changes) - _CHANGEABLE
    if unknown:
        raise ValidationError(dict.fromkeys(unknown, "This cannot be changed."))
    before = _facts(locked)
    if "url" in changes:
        locked.url = clean_url(changes["url"])
        locked.failures, locked.failing_since = 0, None
    if "events" in changes:
        locked.events = clean_filter(changes["events"])
    if "description" in changes:
        locked.description = changes["description"]
    locked.full_clean()
    locked.save()
    _tell("webhook.changed", locked, actor, before=before, after=_facts(locked))
    return locked


@transaction.atomic
def delete_endpoint(*, endpoint: Endpoint, actor: Actor = SYSTEM) -> None:
    """Take an endpoint away with its secrets; what waits for it is given up, its history stays until it is old."""
    locked = _lock(endpoint)
    locked.deleted_at = clock.now()
    locked.save(update_fields=["deleted_at", "updated_at"])
    EndpointSecret.objects.filter(endpoint=locked).delete()
    _give_up_waiting(locked, "The webhook was deleted.")
    _tell("webhook.deleted", locked, actor, before=_facts(locked))


@transaction.atomic
def rotate_secret(*, endpoint: Endpoint, overlap: timedelta = OVERLAP, actor: Actor = SYSTEM) -> str:
    """A new secret. The one before signs beside it for `overlap` (0 to 7 days); 0 ends it at once."""
    if not timedelta() <= overlap <= OVERLAP_MAX:
        raise ValidationError({"overlap_hours": f"Between 0 and {OVERLAP_MAX // timedelta(hours=1)} hours."})
    locked, now = _lock(endpoint), clock.now()
    mine = EndpointSecret.objects.filter(endpoint=locked)
    mine.filter(expires_at=None).update(expires_at=now + overlap)
    # No overlap: the secret leaked, and those before it are not trusted either.
    ended = mine.filter(expires_at__lte=now) if overlap else mine
    ended.delete()
    kept = list(mine.order_by("-id").values_list("id", flat=True)[: LIVE_SECRETS_MAX - 1])
    mine.exclude(id__in=kept).delete()
    secret = _add_secret(locked)
    hours = overlap / timedelta(hours=1)
    _tell("webhook.secret_rotated", locked, actor, after={**_facts(locked), "overlap_hours": f"{hours:g}"})
    return secret


@transaction.atomic
def disable(*, endpoint: Endpoint, reason: DisabledReason = DisabledReason.PERSON, actor: Actor = SYSTEM) -> Endpoint:
    """Send nothing more. What waits becomes a dead letter; later events are not kept for it. `enable` undoes it."""
    locked = _lock(endpoint)
    if not locked.enabled:
        return locked
    locked.enabled, locked.disabled_at, locked.disabled_reason = False, clock.now(), reason
    locked.save(update_fields=["enabled", "disabled_at", "disabled_reason", "updated_at"])
    _give_up_waiting(locked, "The webhook is switched off.")
    failing = {"failures": locked.failures, "failing_since": _text(locked.failing_since)}
    _tell("webhook.disabled", locked, actor, after={**_facts(locked), "reason": str(reason), **failing})
    return locked


@transaction.atomic
def enable(*, endpoint: Endpoint, actor: Actor = SYSTEM) -> Endpoint:
    """Send again from now on, with a clean record. Dead letters stay until they are replayed."""
    locked = _lock(endpoint)
    if locked.enabled:
        return locked
    locked.enabled, locked.disabled_at, locked.disabled_reason = True, None, DisabledReason.NONE
    locked.failures, locked.failing_since = 0, None
    locked.save()
    _tell("webhook.enabled", locked, actor, after=_facts(locked))
    return locked


@transaction.atomic
def send_test(*, endpoint: Endpoint) -> Delivery:
    """A `webhook.test` event to this endpoint alone, whatever its filter. Raises LimitExceeded over ten a minute."""
    locked, now = _lock(endpoint), clock.now()
    _must_be_enabled(locked)
    recent = Delivery.objects.filter(endpoint=locked, event__name=TEST, created_at__gt=now - timedelta(minutes=1))
    if recent.count() >= TESTS_PER_MINUTE:
        raise LimitExceeded(f"At most {TESTS_PER_MINUTE} test events a minute.", retry_after_ms=60_000)
    event = Event(id=new_id(), tenant_id=locked.tenant_id, name=TEST, happened_at=now)
    event.body = body_of(
        event_id=event.id,
        name=TEST,
        tenant_id=locked.tenant_id,
        happened_at=now.isoformat(),
        subject=f"webhook:{locked.id}",
        actor="system",
        after={"message": "It works."},
    )
    event.save(force_insert=True)
    return Delivery.objects.create(tenant_id=locked.tenant_id, endpoint=locked, event=event, next_attempt_at=now)


@transaction.atomic
def replay(*, delivery: Delivery, actor: Actor = SYSTEM) -> Delivery:
    """Send a finished delivery once more, with the same id and body and a full set of tries."""
    endpoint = _lock(delivery.endpoint)
    _must_be_enabled(endpoint)
    if _restart(Delivery.objects.filter(id=delivery.id).exclude(state=DeliveryState.PENDING)):
        _tell("webhook.replayed", endpoint, actor, after={"deliveries": 1, "delivery": str(delivery.id)})
    delivery.refresh_from_db()
    return delivery


@transaction.atomic
def replay_dead(*, endpoint: Endpoint, actor: Actor = SYSTEM) -> int:
    """Send every dead letter of an endpoint again, at most 10,000 at once; returns how many."""
    locked = _lock(endpoint)
    _must_be_enabled(locked)
    dead = Delivery.objects.filter(endpoint=locked, state=DeliveryState.DEAD).order_by("id")[:REPLAYS_MAX]
    count = _restart(Delivery.objects.filter(id__in=dead.values("id")))
    if count:
        _tell("webhook.replayed", locked, actor, after={"deliveries": count})
    return count


def reseal_secrets() -> int:
    """Seal under the root secret of now what a former one sealed, so that it can be forgotten; returns how many.

    Nothing to do without former root secrets. What none of them opens is left as it is.
    """
    keys = config.sealing_keys()
    if len(keys) == 1:
        return 0
    done = 0
    for row in EndpointSecret.objects.order_by("id").iterator(chunk_size=500):
        try:
            signing.unseal(bytes(row.sealed), keys=keys[:1], endpoint_id=row.endpoint_id)
        except Unreadable:
            done += _reseal(row, keys)
    return done


def body_of(
    *,
    event_id: uuid.UUID,
    name: str,
    tenant_id: uuid.UUID,
    happened_at: str,
    subject: str,
    actor: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> str:
    """The bytes that are sent and signed: `type`, `timestamp` and `data` of the specification. No client address."""
    data = {
        "id": str(event_id),
        "tenant_id": str(tenant_id),
        "subject": subject,
        "actor": actor,
        "before": dict(before or {}),
        "after": dict(after or {}),
    }
    whole = {"type": name, "timestamp": happened_at, "data": data}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def clean_url(url: str) -> str:
    """The URL in its one spelling."""
    try:
        return parse(url, rules=config.rules()).url
    except Refused as refused:
        raise ValidationError({"url": str(refused)}) from refused


def clean_filter(patterns: Sequence[str]) -> list[str]:
    """A filter without repeats; a name that no event has is refused, for it would stay silent for ever."""
    if not 1 <= len(patterns) <= FILTERS_MAX:
        raise ValidationError({"events": f"Name 1 to {FILTERS_MAX} events, families such as key.*, or *."})
    for pattern in patterns:
        if not selectors.is_filter(pattern):
            raise ValidationError({"events": f"No event is called {shown(pattern, most=60)}."})
    return list(dict.fromkeys(patterns))


def _restart(rows: QuerySet[Delivery]) -> int:
    return rows.update(
        state=DeliveryState.PENDING,
        attempts=0,
        replays=F("replays") + 1,
        next_attempt_at=clock.now(),
        finished_at=None,
        updated_at=clock.now(),
    )


def _give_up_waiting(endpoint: Endpoint, why: str) -> None:
    now = clock.now()
    Delivery.objects.filter(endpoint=endpoint, state=DeliveryState.PENDING).update(
        state=DeliveryState.DEAD, next_attempt_at=None, finished_at=now, error=why, updated_at=now
    )


def _must_be_enabled(endpoint: Endpoint) -> None:
    if not endpoint.enabled:
        raise ValidationError("This webhook is switched off; switch it on first.")


def _lock(endpoint: Endpoint) -> Endpoint:
    locked = Endpoint.objects.select_for_update().filter(id=endpoint.id, deleted_at=None).first()
    if locked is None:
        raise ValidationError("This webhook was deleted.")
    return locked


def _add_secret(endpoint: Endpoint) -> str:
    text = signing.mint()
    sealed = signing.seal(text, key=config.sealing_keys()[0], endpoint_id=endpoint.id)
    EndpointSecret.objects.create(tenant_id=endpoint.tenant_id, endpoint=endpoint, sealed=sealed)
    return text


def _reseal(row: EndpointSecret, keys: Sequence[bytes]) -> int:
    try:
        text = signing.unseal(bytes(row.sealed), keys=keys[1:], endpoint_id=row.endpoint_id)
    except Unreadable:
        return 0
    sealed = signing.seal(text, key=keys[0], endpoint_id=row.endpoint_id)
    return EndpointSecret.objects.filter(id=row.id).update(sealed=sealed)


def _facts(endpoint: Endpoint) -> dict[str, Any]:
    try:
        origin = parse(endpoint.url, rules=config.rules()).origin
    except Refused:
        origin = "a URL that is no longer accepted"
    return {"origin": origin, "events": list(endpoint.events), "enabled": endpoint.enabled}


def _tell(
    name: str,
    endpoint: Endpoint,
    actor: Actor,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    subject = f"webhook:{endpoint.id}"
    record(name, tenant_id=endpoint.tenant_id, subject=subject, actor=actor, before=before, after=after)


def _text(instant: datetime | None) -> str | None:
    return instant.isoformat() if instant else None
