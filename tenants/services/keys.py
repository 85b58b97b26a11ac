"""API keys: made, rotated, revoked, expired, remembered as used.

Invariants: the plain text of a key is returned once and kept nowhere; a rotation keeps the key's id, so its caps count
on; revoked and expired are final.
"""

import ipaddress
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone as clock

from contracts.errors import Conflict, PermissionDenied
from contracts.tenancy import TenantContext
from contracts.text import shown
from tenants import selectors
from tenants.actors import SYSTEM, Actor
from tenants.auth.keys import PREFIX, digest, hint_of, mint
from tenants.events import record
from tenants.models import ApiKey, KeyScope, Project, TenantState
from tenants.peppers import peppers
from tenants.services.catalogue import check_models
from tenants.services.facts import apply, key_facts, moment, must_be_open, subject
from tenants.services.pushing import push_on_commit, raise_key_epoch

KEYS_MAX = 5_000
MODELS_MAX = 100
NETWORKS_MAX = 50
OVERLAP_MAX = timedelta(days=30)
FORMER_TEXTS_MAX = 8
EXPIRED_AT_ONCE = 500
USE_NOTED_EVERY = timedelta(minutes=1)
_CHANGEABLE = frozenset({"name", "allowed_models", "allowed_networks", "expires_at"})


def pepper() -> bytes:
    """The secret under which keys are digested now, derived from the root secret."""
    return peppers()[0]


def digests_of(text: str) -> list[str]:
    """The digests under which a key may be stored, the newest pepper's first."""
    return [digest(text, each) for each in peppers()]


def pepper_id_of(secret: bytes) -> str:
    """Names a pepper without telling it: which keys were digested under which is counted before an old one goes."""
    return sha256(b"pepper id" + secret).hexdigest()[:8]


@transaction.atomic
def create_key(
    *,
    project: Project,
    name: str,
    scopes: Sequence[str] = (KeyScope.INFERENCE,),
    allowed_models: Sequence[str] | None = None,
    allowed_networks: Sequence[str] = (),
    expires_at: datetime | None = None,
    actor: Actor = SYSTEM,
) -> tuple[ApiKey, str]:
    """A key and its plain text, which nobody can read again. Raises ValidationError."""
    tenant = project.tenant
    must_be_open(tenant)
    if project.deleted_at is not None:
        raise ValidationError({"project": "This project was deleted."})
    if len(set(scopes)) != 1 or scopes[0] not in KeyScope.values:
        raise ValidationError({"scopes": "One of: inference, manage. A management key is apart from inference keys."})
    if ApiKey.objects.filter(tenant=tenant, revoked_at=None, expired_at=None).count() >= KEYS_MAX:
        raise ValidationError(f"A tenant has at most {KEYS_MAX} live keys.")
    wanted = {"allowed_models": allowed_models, "allowed_networks": allowed_networks, "expires_at": expires_at}
    plaintext = mint()
    key = ApiKey(
        tenant=tenant,
        project=project,
        name=name,
        prefix=PREFIX,
        last4=hint_of(plaintext),
        digest=digest(plaintext, pepper()),
        pepper_id=pepper_id_of(pepper()),
        scopes=list(scopes),
        **_checked(wanted),
    )
    key.full_clean()
    key.save()
    record("key.created", tenant_id=tenant.id, subject=subject(key), actor=actor, after=key_facts(key))
    push_on_commit(tenant.id, [key.id])
    return key, plaintext


@transaction.atomic
def change_key(*, key: ApiKey, changes: Mapping[str, Any], actor: Actor = SYSTEM) -> ApiKey:
    """Change name, allowed_models, allowed_networks or expires_at of a live key. Raises ValidationError."""
    locked = _lock_live(key)
    before = key_facts(locked)
    apply(locked, _checked(changes), _CHANGEABLE)
    raise_key_epoch(locked)
    record(
        "key.changed",
        tenant_id=locked.tenant_id,
        subject=subject(locked),
        actor=actor,
        before=before,
        after=key_facts(locked),
    )
    return locked


@transaction.atomic
def rotate_key(*, key: ApiKey, overlap: timedelta, actor: Actor = SYSTEM) -> tuple[ApiKey, str]:
    """Give a key another text. The old one opens it for `overlap` more, those from before to the end of their own.

    Zero: every text but the new one is refused from now on, while streams that they began run to their end (revoking
    cuts them). Raises ValidationError, Conflict where too many texts open the key already.
    """
    if not timedelta(0) <= overlap <= OVERLAP_MAX:
        raise ValidationError({"overlap_seconds": f"From 0 to {int(OVERLAP_MAX.total_seconds())}."})
    locked = _lock_live(key)
    now, plaintext = clock.now(), mint()
    before = {"last4": locked.last4}
    ends = now + overlap
    if locked.expires_at is not None:
        ends = min(ends, locked.expires_at)
    kept = overlap > timedelta(0)
    earlier = selectors.former_texts(locked, now=now) if kept else {}
    if len(earlier) >= FORMER_TEXTS_MAX:
        raise Conflict(
            f"{FORMER_TEXTS_MAX} earlier texts open this key already: wait for the first to end, or give 0, which ends "
            "them all.",
            param="overlap_seconds",
        )
    raise_key_epoch(
        locked,
        digest=digest(plaintext, pepper()),
        pepper_id=pepper_id_of(pepper()),
        last4=hint_of(plaintext),
        previous_digest=locked.digest if kept else None,
        previous_last4=locked.last4 if kept else "",
        previous_expires_at=ends if kept else None,
        earlier={one: int(until.timestamp() * 1000) for one, until in earlier.items()},
        rotated_at=now,
    )
    after = {"last4": locked.last4, "previous_expires_at": moment(locked.previous_expires_at)}
    record("key.rotated", tenant_id=locked.tenant_id, subject=subject(locked), actor=actor, before=before, after=after)
    return locked, plaintext


@transaction.atomic
def revoke_key(*, key: ApiKey, reason: str = "", actor: Actor = SYSTEM) -> ApiKey:
    """Refuse a key from now on and cut its running streams. Final; repeated it does nothing."""
    locked = ApiKey.objects.select_for_update().get(id=key.id)
    if locked.revoked_at is not None:
        return locked
    raise_key_epoch(locked, ends=True, revoked_at=clock.now())
    record(
        "key.revoked",
        tenant_id=locked.tenant_id,
        subject=subject(locked),
        actor=actor,
        before=key_facts(locked),
        after={"reason": reason},
    )
    return locked


@transaction.atomic
def expire_keys() -> int:
    """End keys whose time is over: refused by their epoch too, told of by an event. Returns how many."""
    now = clock.now()
    due = ApiKey.objects.select_for_update(skip_locked=True).filter(
        expires_at__lte=now, revoked_at=None, expired_at=None
    )
    rows = list(due.order_by("expires_at")[:EXPIRED_AT_ONCE])
    for key in rows:
        raise_key_epoch(key, ends=True, expired_at=now)
        record("key.expired", tenant_id=key.tenant_id, subject=subject(key), actor=SYSTEM, before=key_facts(key))
    ApiKey.objects.filter(previous_expires_at__lte=now).update(
        previous_digest=None, previous_last4="", previous_expires_at=None
    )
    return len(rows)


def load_keys(asked: Sequence[Sequence[str]]) -> list[TenantContext | PermissionDenied | None]:
    """As `selectors.load_contexts`; a key found under an older pepper is moved to the newest, its first digest.

    So a change of the pepper writes once for each key that is used, and the old pepper can go when none is left under
    it.
    """
    contexts = selectors.load_contexts(asked)
    for digests, context in zip(asked, contexts, strict=True):
        if isinstance(context, TenantContext) and len(digests) > 1:
            _move(context.api_key_id, digests)
    return contexts


def load_key(digests: Sequence[str]) -> ApiKey | None:
    """The live key of a text, given as its digests, of an active tenant; moved like those of `load_keys`."""
    [found] = selectors.find_keys([digests])
    key = None if found is None else found[0]
    if key is None or key.tenant.state != TenantState.ACTIVE:
        return None
    if {key.digest, key.previous_digest, *key.earlier} & set(digests[1:]):  # else it was moved before
        _move(str(key.id), digests)
    return key


def _move(key_id: str, digests: Sequence[str]) -> None:
    moved = ApiKey.objects.filter(id=key_id)
    newest = {"digest": digests[0], "pepper_id": pepper_id_of(pepper())}
    moved.filter(digest__in=digests[1:]).update(**newest)
    moved.filter(previous_digest__in=digests[1:]).update(previous_digest=digests[0])
    _move_earlier(moved, digests)


def _move_earlier(moved: QuerySet[ApiKey], digests: Sequence[str]) -> None:
    """The same for a text from before the previous one. Under its lock: a rotation writes all of them."""
    with transaction.atomic():
        for key in moved.filter(earlier__has_any_keys=list(digests[1:])).select_for_update():
            earlier = {digests[0] if one in digests[1:] else one: until for one, until in key.earlier.items()}
            moved.update(earlier=earlier)


def record_last_used(uses: Mapping[uuid.UUID, datetime]) -> int:
    """Remember when keys were last used, in one statement; never moves backwards. Returns how many moved.

    No event and no `updated_at`: it is an observation, not a change.
    """
    if not uses:
        return 0
    statement = (
        "UPDATE tenants_apikey AS key SET last_used_at = seen.at "
        "FROM unnest(%s::uuid[], %s::timestamptz[]) AS seen (id, at) "
        "WHERE key.id = seen.id AND (key.last_used_at IS NULL OR key.last_used_at < seen.at)"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [list(uses), list(uses.values())])
        return int(cursor.rowcount)


def note_use(key: ApiKey) -> None:
    """Remember that a management key is used now: its requests are in no usage feed. One write a minute at most."""
    now = clock.now()
    if key.last_used_at is None or now - key.last_used_at > USE_NOTED_EVERY:
        record_last_used({key.id: now})


def canonical_network(text: str) -> str:
    """A CIDR block or single address in its one spelling. Raises ValidationError."""
    try:
        network = ipaddress.ip_network(text.strip())
    except ValueError as error:
        message = f"{shown(text, most=60)} is not a network: write 10.0.0.0/8, 2001:db8::/32 or an address."
        raise ValidationError({"allowed_networks": message}) from error
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValidationError({"allowed_networks": f"{shown(text, most=60)} is an IPv4 network: write it as one."})
    return str(network)


def may_use_from(key: ApiKey, address: str | None) -> bool:
    """Whether a key may be used from this client address."""
    if not key.allowed_networks:
        return True
    try:
        client = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = client.ipv4_mapped if isinstance(client, ipaddress.IPv6Address) else None
    found = mapped or client
    return any(found in ipaddress.ip_network(network) for network in key.allowed_networks)


def _lock_live(key: ApiKey) -> ApiKey:
    locked = ApiKey.objects.select_for_update().get(id=key.id)
    now = clock.now()
    over = locked.expires_at is not None and locked.expires_at <= now
    if locked.revoked_at is not None or locked.expired_at is not None or over:
        raise ValidationError("This key was revoked or has expired; make a new one.")
    return locked


def _checked(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a key that both making and changing it take, in the form in which they are stored."""
    found = dict(wanted)
    models = found.get("allowed_models")
    if models is not None:
        if len(models) > MODELS_MAX:
            raise ValidationError({"allowed_models": f"At most {MODELS_MAX}."})
        check_models(models, param="allowed_models")
        found["allowed_models"] = sorted(set(models))
    if "allowed_networks" in found:
        networks = {canonical_network(text) for text in found["allowed_networks"]}
        if len(networks) > NETWORKS_MAX:
            raise ValidationError({"allowed_networks": f"At most {NETWORKS_MAX}."})
        found["allowed_networks"] = sorted(networks)
    ends = found.get("expires_at")
    if ends is not None and ends <= clock.now():
        raise ValidationError({"expires_at": "This is in the past."})
    return found
