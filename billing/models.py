"""The price book and the double-entry ledger.

Read through `billing.selectors`, written through `billing.services` and `billing.ledger`. Invariants, kept by the
database itself (constraints here, triggers in migration 0002): prices of one scope, model, meter and currency never
overlap; a price is superseded, never edited; ledger rows are only ever added; a transaction's entries sum to zero and
have one currency; usage of a (request, revision) is posted once.
"""

import uuid

import uuid_utils
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeBoundary, RangeOperators
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Func, Q

from billing.rating.prices import PRICE_MAX, Meter

CURRENCY = RegexValidator(r"^[A-Z]{3}$", "Three capital letters, as in ISO 4217.")


def new_id() -> uuid.UUID:
    """UUIDv7: new rows sort last, in the index too."""
    return uuid.UUID(str(uuid_utils.uuid7()))


class PriceMeter(models.TextChoices):
    """`billing.rating.prices.Meter` as a form shows it."""

    INPUT = Meter.INPUT.value, "Input"
    CACHED = Meter.CACHED.value, "Cached input"
    OUTPUT = Meter.OUTPUT.value, "Output"


class Period(Func):
    function = "TSTZRANGE"
    output_field = DateTimeRangeField()


def _no_overlap(*, name: str, whose: Q, columns: tuple[str, ...]) -> ExclusionConstraint:
    """Periods [valid_from, valid_to) of equal columns do not touch (btree_gist)."""
    equal = [(column, RangeOperators.EQUAL) for column in columns]
    period = (Period("valid_from", "valid_to", RangeBoundary()), RangeOperators.OVERLAPS)
    return ExclusionConstraint(
        name=name,
        expressions=[*equal, period],
        condition=whose,
        violation_error_message="Another price holds for a part of this time; supersede it instead.",
    )


class PriceList(models.Model):
    """Prices under one name, for the tenants of the plans that have this list. A meter that it does not price costs
    what everybody pays.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    description = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class PriceVersion(models.Model):
    """What one meter of one model costs in [valid_from, valid_to): for one tenant, for a price list, or for all."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(
        "tenants.Tenant",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="prices",
        help_text="For this tenant alone; it stands before its plan's list and before what everybody pays.",
    )
    price_list = models.ForeignKey(
        PriceList,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="prices",
        help_text="For the tenants of the plans with this list. Neither tenant nor list = what everybody else pays.",
    )
    model = models.CharField(max_length=200, help_text="Public model id, as in GET /v1/models.")
    meter = models.CharField(max_length=10, choices=PriceMeter)
    per_million = models.DecimalField(
        max_digits=10,
        decimal_places=3,
        validators=[MinValueValidator(0)],
        help_text="Currency units per million tokens, in steps of 0.001.",
    )
    currency = models.CharField(max_length=3, default="USD", validators=[CURRENCY])
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField(null=True, blank=True, help_text="First moment without it; empty = open.")
    created_by = models.CharField(max_length=200, editable=False)
    approved_by = models.CharField(max_length=200, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["model", "meter", "-valid_from"]
        verbose_name = "price"
        constraints = [
            models.CheckConstraint(name="price_in_range", condition=Q(per_million__gte=0, per_million__lte=PRICE_MAX)),
            models.CheckConstraint(name="price_currency", condition=Q(currency__regex=r"^[A-Z]{3}$")),
            models.CheckConstraint(name="price_period", condition=Q(valid_to=None) | Q(valid_to__gte=F("valid_from"))),
            models.CheckConstraint(
                name="price_two_people", condition=Q(approved_by="") | ~Q(approved_by=F("created_by"))
            ),
            models.CheckConstraint(
                name="price_has_one_owner",
                condition=Q(tenant=None) | Q(price_list=None),
                violation_error_message="A price is a tenant's or a list's, not both.",
            ),
            _no_overlap(
                name="price_once_for_all",
                whose=Q(tenant=None, price_list=None),
                columns=("model", "meter", "currency"),
            ),
            _no_overlap(
                name="price_once_per_tenant",
                whose=Q(tenant__isnull=False),
                columns=("tenant", "model", "meter", "currency"),
            ),
            _no_overlap(
                name="price_once_per_list",
                whose=Q(price_list__isnull=False),
                columns=("price_list", "model", "meter", "currency"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.meter} {self.per_million} {self.currency} per million"


class AccountKind(models.TextChoices):
    RECEIVABLE = "receivable", "Accounts receivable"
    PREPAID_CREDIT = "prepaid_credit", "Prepaid credit"
    REVENUE = "revenue", "Revenue"
    TAX = "tax", "Tax"
    BREAKAGE = "breakage", "Breakage"


class LedgerAccount(models.Model):
    """An account in one currency: a tenant's, or the platform's own (no tenant)."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.PROTECT, null=True, blank=True, related_name="ledger_accounts"
    )
    kind = models.CharField(max_length=20, choices=AccountKind)
    currency = models.CharField(max_length=3)

    class Meta:
        ordering = ["kind", "currency", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "kind", "currency"], nulls_distinct=False, name="ledger_account_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.currency}"


class LedgerTransaction(models.Model):
    """Entries that happened together. The idempotency key makes a repeated posting a no-op."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    idempotency_key = models.CharField(max_length=200, unique=True)
    currency = models.CharField(max_length=3)
    description = models.CharField(max_length=500)
    posted_at = models.DateTimeField()

    class Meta:
        ordering = ["-posted_at", "-id"]

    def __str__(self) -> str:
        return self.description


class LedgerEntry(models.Model):
    """One side. Debit is positive, credit negative; amounts are exact to a nano-unit."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="entries")
    amount = models.DecimalField(max_digits=38, decimal_places=9)

    class Meta:
        ordering = ["id"]
        verbose_name_plural = "ledger entries"
        indexes = [models.Index(fields=["account", "id"], name="ledger_entry_by_account")]

    def __str__(self) -> str:
        return f"{self.amount}"


class UsagePosting(models.Model):
    """One (request, revision) that the ledger has taken, with its exact amount: what makes posting exactly-once.

    The tenant is kept by value: the row must stand whatever becomes of the tenant's record.
    """

    id = models.BigAutoField(primary_key=True)
    request_id = models.UUIDField()
    revision = models.PositiveSmallIntegerField()
    tenant_id = models.UUIDField()
    currency = models.CharField(max_length=3)
    amount = models.DecimalField(max_digits=38, decimal_places=9)
    billed_at = models.DateTimeField()
    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="usage")

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["request_id", "revision"], name="usage_posted_once"),
        ]
        indexes = [models.Index(fields=["tenant_id", "billed_at"], name="usage_posting_by_period")]

    def __str__(self) -> str:
        return f"{self.request_id}/{self.revision}"
