"""Writes of engine configurations: a new version, a verdict on it, its activation. Called by command and admin.

Invariants: versions of a pool count from 1 without a gap and are never changed; only a version whose last verdict is
that vLLM's parser accepts it becomes active; going back is activating an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection, transaction

from controlplane.engineconfig.document import ConfigurationRefused, as_json, digest_of, read_document
from controlplane.engineconfig.parser import Verdict
from controlplane.models import EngineConfig, EngineConfigEvent

Kind = EngineConfigEvent.Kind


def add_version(*, pool: str, raw: Mapping[str, Any], note: str = "", by: str) -> EngineConfig:
    """The next version of the pool. Raises ConfigurationRefused, also when it says what the newest one says."""
    document = read_document(raw)
    digest = digest_of(document)
    with transaction.atomic():
        _alone(pool)
        newest = EngineConfig.objects.filter(pool=pool).order_by("-version").first()
        if newest is not None and newest.digest == digest:
            raise ConfigurationRefused(f"version {newest.version} says the same")
        return EngineConfig.objects.create(
            pool=pool,
            version=newest.version + 1 if newest else 1,
            document=as_json(document),
            digest=digest,
            note=note,
            created_by=by,
        )


def record_verdict(*, config: EngineConfig, verdict: Verdict, by: str) -> EngineConfigEvent:
    """What the parser said, for good."""
    kind = Kind.ACCEPTED if verdict.accepted else Kind.REFUSED
    version = verdict.engine_version
    return EngineConfigEvent.objects.create(config=config, kind=kind, text=verdict.text, engine_version=version, by=by)


def activate(*, config: EngineConfig, by: str) -> EngineConfigEvent:
    """What workers of the pool start with from now on. Raises ConfigurationRefused without an accepting verdict."""
    with transaction.atomic():
        _alone(config.pool)
        verdicts = config.events.filter(kind__in=(Kind.ACCEPTED, Kind.REFUSED))
        last = verdicts.order_by("-id").first()
        if last is None or last.kind != Kind.ACCEPTED:
            why = "nobody asked vLLM's parser yet" if last is None else f"vLLM's parser refused it: {last.text}"
            raise ConfigurationRefused(f"version {config.version} cannot become active: {why}")
        return EngineConfigEvent.objects.create(
            config=config, kind=Kind.ACTIVATED, engine_version=last.engine_version, by=by
        )


def active_of(pool: str) -> EngineConfig | None:
    """The version that was activated last."""
    event = (
        EngineConfigEvent.objects.filter(config__pool=pool, kind=Kind.ACTIVATED)
        .select_related("config")
        .order_by("-id")
        .first()
    )
    return event.config if event else None


def _alone(pool: str) -> None:
    """One writer of a pool at a time, until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"engineconfig:{pool}"])
