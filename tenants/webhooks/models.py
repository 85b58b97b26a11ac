"""Endpoints, their signing secrets, the events taken from the exchange, and each event's delivery to each endpoint.

Read through `tenants.webhooks.selectors`, written through `services`, `fanout` and `dispatch` only. Invariants: every
row names its tenant; an event is delivered to an endpoint by one row (unique), whatever the exchange repeats; a secret
is stored sealed; the bytes of a body never change, so that every try and every replay signs the same text.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from tenants.models import Dated, Tenant, new_id

URL_CHARACTERS_MAX = 2048
ATTEMPTS_KEPT = 50  # of a delivery: its twelve tries and three replays of them, with room


class DisabledReason(models.TextChoices):
    NONE = "", "-"
    PERSON = "person", "switched off"
    FAILING = "failing", "failed for too long"
    GONE = "gone", "answered 410 Gone"


class DeliveryState(models.TextChoices):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"  # given up; a replay makes it pending again


def _everything() -> list[str]:
    return ["*"]


class Endpoint(Dated):
    """Where a tenant wants its events. `failing_since` is the first failure after the last success."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    url = models.CharField(max_length=URL_CHARACTERS_MAX, verbose_name="URL")
    description = models.CharField(max_length=200, blank=True)
    events = ArrayField(
        models.CharField(max_length=60),
        default=_everything,
        help_text="Event names, families such as key.*, or * for all.",
    )
    enabled = models.BooleanField(default=True)
    disabled_at = models.DateTimeField(null=True, blank=True, editable=False)
    disabled_reason = models.CharField(
        max_length=10, choices=DisabledReason, default=DisabledReason.NONE, blank=True, editable=False
    )
    failures = models.PositiveIntegerField(default=0, editable=False)
    failing_since = models.DateTimeField(null=True, blank=True, editable=False)
    last_success_at = models.DateTimeField(null=True, blank=True, editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-id"]
        verbose_name = "webhook"
        indexes = [models.Index(fields=["tenant", "-id"], name="webhook_by_tenant")]
        constraints = [
            models.CheckConstraint(
                name="webhook_disabled_says_why",
                condition=Q(enabled=True, disabled_reason="", disabled_at=None)
                | (Q(enabled=False, disabled_at__isnull=False) & ~Q(disabled_reason="")),
            ),
        ]

    def __str__(self) -> str:
        """The origin: a path may hold a secret of its owner's."""
        return "/".join(self.url.split("/", 3)[:3])


class EndpointSecret(models.Model):
    """A signing secret, sealed. `expires_at` is set when another one takes over: both sign until then."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="secrets")
    sealed = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["tenant"], name="webhook_secret_by_tenant")]
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint"], condition=Q(expires_at=None), name="webhook_has_one_current_secret"
            ),
        ]

    def __str__(self) -> str:
        return f"secret of {self.created_at:%Y-%m-%d}"


class Event(models.Model):
    """An event taken from the exchange: the mark that it was fanned out, and the bytes that are sent."""

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=60)
    body = models.TextField()
    happened_at = models.DateTimeField()
    taken_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        verbose_name = "webhook event"
        indexes = [
            models.Index(fields=["tenant", "-id"], name="webhook_event_by_tenant"),
            models.Index(fields=["taken_at"], name="webhook_event_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.id}"


class Delivery(Dated):
    """One event to one endpoint. A pending row is due when `next_attempt_at` has come; a claim moves that on."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, related_name="deliveries")
    event = models.ForeignKey(Event, on_delete=models.PROTECT, related_name="deliveries")
    state = models.CharField(max_length=10, choices=DeliveryState, default=DeliveryState.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    replays = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    last_attempt_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    response_status = models.PositiveSmallIntegerField(null=True)
    response_body = models.TextField(blank=True)
    error = models.CharField(max_length=200, blank=True)
    latency_ms = models.PositiveIntegerField(null=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "deliveries"
        indexes = [
            models.Index(
                fields=["endpoint", "next_attempt_at"], condition=Q(state="pending"), name="webhook_delivery_due"
            ),
            models.Index(fields=["tenant", "-id"], name="webhook_delivery_by_tenant"),
            models.Index(fields=["endpoint", "state", "-id"], name="webhook_delivery_by_state"),
            models.Index(fields=["state", "finished_at"], name="webhook_delivery_by_age"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "event"], name="webhook_delivery_once"),
            models.CheckConstraint(
                name="webhook_delivery_pending_has_a_time",
                condition=Q(state="pending", next_attempt_at__isnull=False, finished_at=None)
                | (~Q(state="pending") & Q(next_attempt_at=None, finished_at__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} {self.state}"


class Attempt(models.Model):
    """One try of a delivery and what came of it: the history that its tenant and an operator read. Bounded by tries
    and replays (the newest `ATTEMPTS_KEPT` of a delivery), and gone with its delivery.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="history")
    replay = models.PositiveIntegerField(help_text="0 = the first round; each replay counts from there.")
    number = models.PositiveSmallIntegerField(help_text="Of this round, from 1.")
    finished_at = models.DateTimeField()
    response_status = models.PositiveSmallIntegerField(null=True)
    response_body = models.TextField(blank=True)
    error = models.CharField(max_length=200, blank=True)
    latency_ms = models.PositiveIntegerField()

    class Meta:
        ordering = ["-id"]
        verbose_name = "webhook attempt"
        indexes = [models.Index(fields=["tenant", "-id"], name="webhook_attempt_by_tenant")]
        constraints = [
            models.UniqueConstraint(fields=["delivery", "replay", "number"], name="webhook_attempt_once"),
        ]

    def __str__(self) -> str:
        return f"{self.delivery_id} {self.replay}.{self.number}"
