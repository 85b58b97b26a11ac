"""A tenant's month in its zone, from draft to paid, with what was counted, what differed and who signed for it."""

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import RangeBoundary, RangeOperators
from django.db import models
from django.db.models import F, Q

from billing.models.base import Period, new_id
from billing.models.prices import PriceMeter


class PeriodState(models.TextChoices):
    """draft → sealed → issued → paid | void. The database refuses every other step."""

    DRAFT = "draft", "Draft"
    SEALED = "sealed", "Sealed"
    ISSUED = "issued", "Issued"
    PAID = "paid", "Paid"
    VOID = "void", "Void"


class BillingPeriod(models.Model):
    """[starts_at, ends_at): a calendar month in `zone`, fixed when the period is opened."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="billing_periods")
    month = models.CharField(max_length=7, help_text="2026-11")
    zone = models.CharField(max_length=64)
    currency = models.CharField(max_length=3)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    state = models.CharField(max_length=10, choices=PeriodState, default=PeriodState.DRAFT)
    checked_at = models.DateTimeField(null=True, help_text="When its books were last compared.")
    sealed_at = models.DateTimeField(null=True)
    sealed_by = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-starts_at", "tenant"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "month"], name="period_once"),
            models.CheckConstraint(name="period_has_time", condition=Q(ends_at__gt=F("starts_at"))),
            ExclusionConstraint(
                name="period_never_overlaps",
                expressions=[
                    ("tenant", RangeOperators.EQUAL),
                    (Period("starts_at", "ends_at", RangeBoundary()), RangeOperators.OVERLAPS),
                ],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.month}"


class PeriodHour(models.Model):
    """What one hour of a sealed period had, by ClickHouse. Rows are only added: the seal's own count."""

    id = models.BigAutoField(primary_key=True)
    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="hours")
    revision = models.PositiveSmallIntegerField(help_text="1 = the seal; later ones are corrections.")
    hour = models.DateTimeField()
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    cost = models.DecimalField(max_digits=38, decimal_places=9)
    fingerprint = models.BigIntegerField(help_text="XOR of the ids' hashes: the same set, not only the same number.")
    merkle_root = models.CharField(max_length=64, blank=True, default="", help_text="Of the hour's receipts.")

    class Meta:
        ordering = ["hour"]
        constraints = [models.UniqueConstraint(fields=["period", "revision", "hour"], name="period_hour_once")]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}"


class PeriodSeal(models.Model):
    """The signed head of a revision's chain of hours: what its documents print."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="seals")
    revision = models.PositiveSmallIntegerField()
    prev_head = models.CharField(max_length=64)
    head = models.CharField(max_length=64)
    requests = models.BigIntegerField()
    key_id = models.CharField(max_length=16)
    signature = models.CharField(max_length=128)

    class Meta:
        ordering = ["period", "revision"]
        constraints = [models.UniqueConstraint(fields=["period", "revision"], name="period_seal_once")]

    def __str__(self) -> str:
        return self.head


class PeriodUsage(models.Model):
    """Tokens of a period by price: what its documents are rated from. Rows are only added; a revision is whole."""

    id = models.BigAutoField(primary_key=True)
    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="usage")
    revision = models.PositiveSmallIntegerField()
    segment_at = models.DateTimeField(help_text="Where the contract that it is rated by began in the period.")
    model = models.CharField(max_length=200)
    service_class = models.CharField(max_length=20)
    meter = models.CharField(max_length=10, choices=PriceMeter)
    price_id = models.CharField(max_length=100, help_text="The version of the price book that was chosen at admission.")
    unit_nano = models.BigIntegerField(help_text="Nano-units per token.")
    tokens = models.BigIntegerField()

    class Meta:
        ordering = ["segment_at", "model", "service_class", "meter", "price_id"]
        verbose_name_plural = "period usage"
        constraints = [
            models.UniqueConstraint(
                fields=["period", "revision", "segment_at", "model", "service_class", "meter", "price_id"],
                name="period_usage_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tokens} {self.meter} of {self.model}"


class CloseGap(models.Model):
    """What the last comparison of a draft found: a request, or an hour, that the books do not agree on."""

    id = models.BigAutoField(primary_key=True)
    period = models.ForeignKey(BillingPeriod, on_delete=models.CASCADE, related_name="gaps")
    kind = models.CharField(max_length=20)
    at = models.DateTimeField(null=True)
    request_id = models.CharField(max_length=64, blank=True)
    detail = models.CharField(max_length=500)
    tokens = models.BigIntegerField(default=0, help_text="Tokens that are not explained.")

    class Meta:
        ordering = ["kind", "at", "request_id", "id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.request_id}: {self.detail}"


class CloseWaiver(models.Model):
    """A person's word, with a reason, for exactly these gaps: another gap is not covered."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="waivers")
    gaps = models.PositiveIntegerField()
    gaps_sha256 = models.CharField(max_length=64)
    reason = models.TextField()
    signed_by = models.CharField(max_length=200)
    signed_at = models.DateTimeField()

    class Meta:
        ordering = ["-signed_at"]
        constraints = [models.CheckConstraint(name="waiver_has_a_reason", condition=~Q(reason=""))]

    def __str__(self) -> str:
        return f"{self.gaps} gaps, {self.signed_by}: {self.reason}"
