"""Guardrail policies: a draft that may change, and versions that never do.

Read through `safety.selectors`, written through `safety.services`. Invariant: a published version is never changed nor
deleted (a trigger of the database says so, whoever asks), so that an old request can be judged by the rules it met.
"""

import uuid
from typing import Any

import uuid_utils
from django.db import models
from django.db.models import Q


def new_id() -> uuid.UUID:
    """UUIDv7: new rows sort last, in the index too."""
    return uuid.UUID(str(uuid_utils.uuid7()))


def no_rules() -> list[dict[str, Any]]:
    return []


class Policy(models.Model):
    """What an operator edits. `published_version` 0: never published, so no tenant is guarded by it yet."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    description = models.TextField(blank=True, max_length=2_000)
    draft_rules = models.JSONField(
        default=no_rules,
        blank=True,
        verbose_name="draft rules",
        help_text="A JSON list of rules; in force only once published.",
    )
    published_version = models.PositiveIntegerField(default=0, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        verbose_name_plural = "policies"

    def __str__(self) -> str:
        return self.name


class PolicyVersion(models.Model):
    """One immutable document, as gateways and workers compile it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="versions")
    version = models.PositiveIntegerField()
    document = models.JSONField()
    published_at = models.DateTimeField(auto_now_add=True)
    published_by = models.CharField(max_length=150, blank=True)

    class Meta:
        ordering = ["policy", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["policy", "version"], name="policy_version_unique"),
            models.CheckConstraint(name="policy_version_positive", condition=Q(version__gte=1)),
        ]

    def __str__(self) -> str:
        return f"{self.policy.name} version {self.version}"
