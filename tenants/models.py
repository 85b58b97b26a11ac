"""Who uses the platform: plans, tenants, projects, members, API keys, their limits, and what was done to them.

Read through `tenants.selectors`, written through `tenants.services` only. Invariants: nothing is ever deleted that an
old report may name (`deleted_at`); a key's plain text is never stored; the audit trail is append-only by a trigger.
"""

import uuid
from typing import TypedDict

import uuid_utils
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils import timezone as clock

from contracts.money import text_from_nano
from contracts.tenancy import Metric, Scope, ServiceClass
from tenants.limits.policy import is_money


def new_id() -> uuid.UUID:
    """UUIDv7: new rows sort last, in the index too."""
    return uuid.UUID(str(uuid_utils.uuid7()))


class TenantState(models.TextChoices):
    ACTIVE = "active"
    SUSPENDED = "suspended"  # refused at once, comes back as it was
    CLOSED = "closed"  # for good


class Role(models.TextChoices):
    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"


class KeyScope(models.TextChoices):
    """What a key may do. Management keys are apart from inference keys: services refuse to mix them."""

    INFERENCE = "inference"
    MANAGE = "manage"


METRICS = [(metric.value, metric.value.replace("_", " ")) for metric in Metric]
SETTABLE = [(name, label) for name, label in METRICS if name != Metric.PREPAID_CREDIT]  # by people
SCOPES = [(scope.value, scope.value) for scope in Scope]
ALERTS = (50, 80, 100)


class _Told(TypedDict):
    name: str
    violation_error_code: str
    violation_error_message: str


def _told(name: str, message: str) -> _Told:
    """A constraint whose break is told in a sentence, in the console's forms too; the API knows it by its code."""
    return {"name": name, "violation_error_code": name, "violation_error_message": message}


def metrics() -> list[tuple[str, str]]:
    """By name in migrations, so that a new metric is no change of the schema."""
    return METRICS


def alerts() -> list[int]:
    return list(ALERTS)


class Dated(models.Model):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        abstract = True


SERVICE_CLASSES = [(each.value, each.value.capitalize()) for each in ServiceClass]


class Plan(Dated):
    """What a tenant gets unless it says otherwise: its share of a pool, its defaults, its limits and its prices."""

    name = models.CharField(max_length=100, unique=True)
    weight_milli = models.PositiveIntegerField(
        default=1000, help_text="Share of a busy pool in thousandths; twice the weight gets twice the tokens."
    )
    queued_max = models.PositiveIntegerField(default=1000, help_text="Requests that may wait at once, per tenant.")
    max_tokens_default = models.PositiveIntegerField(
        default=512, help_text="Output tokens of a request that names no max_tokens."
    )
    max_tokens_cap = models.PositiveIntegerField(
        null=True, blank=True, help_text="Most output tokens that one request may ask for; empty = the model's own end."
    )
    service_class = models.CharField(
        max_length=20,
        choices=SERVICE_CLASSES,
        default=ServiceClass.INTERACTIVE.value,
        help_text="Batch: its requests use what interactive ones leave of a busy pool, beside a share of their own.",
    )
    price_list = models.ForeignKey(
        "billing.PriceList",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="plans",
        help_text="What its tenants pay where they have no price of their own; empty = what everybody pays.",
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(weight_milli__gte=1), **_told("plan_weight_positive", "The weight is at least 1.")
            ),
            models.CheckConstraint(
                condition=Q(service_class__in=[name for name, _ in SERVICE_CLASSES]),
                **_told("plan_service_class", "The class is interactive or batch."),
            ),
            models.CheckConstraint(
                condition=Q(max_tokens_default__gte=1),
                **_told("plan_max_tokens_positive", "The default of max_tokens is at least 1."),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Tenant(Dated):
    """One customer. `epoch` rises with every change that a cached context must not outlive."""

    name = models.CharField(max_length=200)
    state = models.CharField(max_length=20, choices=TenantState, default=TenantState.ACTIVE)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="tenants")
    plan_since = models.DateTimeField(default=clock.now, editable=False)
    timezone = models.CharField(
        max_length=64, default="UTC", help_text="IANA zone of its calendar days and months, e.g. Europe/Berlin."
    )
    currency = models.CharField(max_length=3, default="USD")
    policy = models.ForeignKey(
        "safety.Policy",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        help_text="Guardrail policy; its published version is in force.",
    )
    evaluation_log = models.BooleanField(default=False, help_text="Opt-in: keep prompts and answers in object storage.")
    cut_to_affordable = models.BooleanField(
        default=False, help_text="Shorten an answer to what the budget leaves instead of refusing it."
    )
    queued_max = models.PositiveIntegerField(null=True, blank=True, help_text="Empty = the plan's.")
    prepaid = models.BooleanField(default=False, help_text="It spends no more than its credit.")
    epoch = models.PositiveBigIntegerField(default=1, editable=False)
    epoch_pushed = models.PositiveBigIntegerField(default=0, editable=False)
    epoch_changed_at = models.DateTimeField(auto_now_add=True)
    closed_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["name"],
                condition=~Q(state="closed"),
                **_told("tenant_name_unique", "A tenant of this name exists already."),
            ),
            models.CheckConstraint(
                condition=Q(currency__regex=r"^[A-Z]{3}$"),
                **_told("tenant_currency", "The currency is three capital letters, like USD."),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """A draft guards nobody, so it is no tenant's policy."""
        if self.policy is not None and self.policy.published_version == 0:
            raise ValidationError({"policy": "Publish this policy first: a draft guards nobody."})


class Project(Dated):
    """A part of a tenant with keys and limits of its own."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=200)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(deleted_at=None),
                **_told("project_name_unique", "A project of this name exists already."),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Member(Dated):
    """A person's role in a tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=20, choices=Role, default=Role.DEVELOPER)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "user"],
                condition=Q(deleted_at=None),
                **_told("member_unique", "This person is a member already."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} ({self.role})"


def _inference() -> list[str]:
    return [KeyScope.INFERENCE.value]


class ApiKey(Dated):
    """A bearer key, known by the HMAC of its text. `revoked_at` is final, and so is `expired_at`.

    A rotation gives the key another text, not another identity: caps, usage and reports go on under one id.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="api_keys")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=200)
    prefix = models.CharField(max_length=16, editable=False)
    last4 = models.CharField(max_length=4, editable=False)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    pepper_id = models.CharField(
        max_length=8, default="", editable=False, help_text="Which pepper the digest is under."
    )
    # Until then the text before the last rotation opens the same key: its limits count both together.
    previous_digest = models.CharField(max_length=64, unique=True, null=True, editable=False)
    previous_last4 = models.CharField(max_length=4, default="", editable=False)
    previous_expires_at = models.DateTimeField(null=True, editable=False)
    # Texts from before that one whose overlap is not over either: digest -> until when, in Unix milliseconds.
    earlier = models.JSONField(default=dict, editable=False)
    rotated_at = models.DateTimeField(null=True, editable=False)
    scopes = ArrayField(models.CharField(max_length=20, choices=KeyScope), default=_inference)
    allowed_models = ArrayField(
        models.CharField(max_length=100), null=True, blank=True, help_text="Empty = every model."
    )
    allowed_networks = ArrayField(
        models.CharField(max_length=49),
        default=list,
        blank=True,
        help_text="CIDR blocks it may be used from; empty = from anywhere.",
    )
    epoch = models.PositiveBigIntegerField(default=1, editable=False)
    epoch_pushed = models.PositiveBigIntegerField(default=0, editable=False)
    epoch_changed_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-created_at", "id"]
        verbose_name = "API key"
        indexes = [
            models.Index(fields=["tenant", "-created_at"], name="api_key_by_tenant"),
            GinIndex(fields=["earlier"], name="api_key_by_earlier_text"),
        ]

    def __str__(self) -> str:
        return f"{self.name} (…{self.last4})"


class LimitSetting(Dated):
    """One cap of a key, a project or a tenant. No row = unlimited, 0 = blocked.

    A row with `plan` is the tenant-wide default of that plan's tenants; a tenant's own row stands before it.
    """

    plan = models.ForeignKey(Plan, on_delete=models.CASCADE, null=True, blank=True, related_name="limits")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, null=True, blank=True, related_name="limits")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, null=True, blank=True, related_name="limits")
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, null=True, blank=True, related_name="limits")
    scope = models.CharField(max_length=10, choices=SCOPES)
    metric = models.CharField(max_length=40, choices=metrics)
    model = models.CharField(max_length=200, blank=True, default="", help_text="Empty = all models together.")
    cap = models.BigIntegerField(help_text="Requests, tokens, or nano-units of the currency; 0 blocks.")
    alerts = ArrayField(
        models.PositiveSmallIntegerField(),
        default=alerts,
        blank=True,
        help_text="Percents of a money cap whose crossing is told of; they refuse nothing.",
    )
    since = models.DateTimeField(default=clock.now, editable=False, help_text="When this cap was set.")

    class Meta:
        ordering = ["scope", "metric", "id"]
        verbose_name = "limit"
        constraints = [
            models.CheckConstraint(name="limit_cap_range", condition=Q(cap__gte=0, cap__lte=9_000_000_000_000_000)),
            models.CheckConstraint(
                name="limit_has_one_owner",
                condition=Q(scope="tenant", plan__isnull=False, tenant=None, project=None, api_key=None)
                | Q(scope="tenant", plan=None, tenant__isnull=False, project=None, api_key=None)
                | Q(scope="project", plan=None, tenant__isnull=False, project__isnull=False, api_key=None)
                | Q(scope="key", plan=None, tenant__isnull=False, project=None, api_key__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["plan", "tenant", "project", "api_key", "metric", "model"],
                nulls_distinct=False,
                name="limit_once_per_owner_metric_model",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_metric_display()} of the {self.scope}: {self.cap_text}"

    @property
    def cap_text(self) -> str:
        """The cap with its unit. Money is in the tenant's currency; the tenants of a plan each have their own."""
        if is_money(Metric(self.metric)):
            whose = self.tenant.currency if self.tenant is not None else "in each tenant's currency"
            return f"{text_from_nano(self.cap)} {whose}"
        return f"{self.cap:,} {'requests' if 'requests' in self.metric else 'tokens'}"


class IdempotentWrite(models.Model):
    """The answer of a POST that named an Idempotency-Key, written in the transaction of its change.

    The answer is encrypted under a secret that the client's own key text is a part of: an answer may hold a new API
    key, and nobody reads that here.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField(null=True)
    caller = models.CharField(max_length=200)
    key_digest = models.CharField(max_length=64)
    request_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    answer = models.BinaryField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["caller", "key_digest"], name="idempotent_write_once"),
        ]
        indexes = [models.Index(fields=["created_at"], name="idempotent_write_age")]

    def __str__(self) -> str:
        return f"{self.caller} {self.id}"


class BackgroundState(models.TextChoices):
    """Of a row, not of the run: whether it waits or runs is the pool's to say."""

    ACCEPTED = "accepted"  # written before it is queued: nobody was told yet that it is accepted
    QUEUED = "queued"  # its client was told; it ends, whatever is lost
    ENDED = "ended"


class BackgroundRequest(models.Model):
    """An inference request that runs for nobody's connection, under its request id.

    `head` is its ticket without the prompt; `body` (the prompt, gone at the end) and `answer` are sealed. What the
    sealed parts look like is `controlplane.background`'s.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="background_requests")
    api_key_id = models.UUIDField()
    pool = models.CharField(max_length=100)
    state = models.CharField(max_length=10, choices=BackgroundState, default=BackgroundState.ACCEPTED)
    head = models.BinaryField()
    body = models.BinaryField(null=True)
    answer = models.BinaryField(null=True)
    key_digest = models.CharField(max_length=64, blank=True, default="")
    body_digest = models.CharField(max_length=64, blank=True, default="")
    accepted_at = models.DateTimeField(auto_now_add=True)
    wait_until = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["id"], condition=~Q(state="ended"), name="background_open"),
            models.Index(fields=["ended_at"], condition=Q(state="ended"), name="background_ended"),
            models.Index(fields=["tenant", "key_digest"], condition=~Q(key_digest=""), name="background_by_key"),
        ]

    def __str__(self) -> str:
        return f"{self.id} ({self.state})"


class OutboxEvent(models.Model):
    """A domain event, written in the transaction that it tells of; `relay_outbox` sends it on."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=60)
    tenant_id = models.UUIDField(null=True)
    body = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["id"], condition=Q(sent_at=None), name="outbox_unsent")]

    def __str__(self) -> str:
        return f"{self.name} {self.id}"


class AuditEntry(models.Model):
    """Who did what to whom, when, from where. Its id is the event's, so an event delivered twice is written once."""

    id = models.UUIDField(primary_key=True, editable=False)
    name = models.CharField(max_length=60)
    tenant_id = models.UUIDField(null=True)
    actor = models.CharField(max_length=200)
    address = models.GenericIPAddressField(null=True)
    subject = models.CharField(max_length=200)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    happened_at = models.DateTimeField()
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        verbose_name = "audit entry"
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["tenant_id", "-id"], name="audit_by_tenant"),
            models.Index(fields=["name", "-id"], name="audit_by_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.subject}"
