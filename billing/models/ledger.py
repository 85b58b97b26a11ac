"""The double-entry ledger: accounts, transactions, their entries, and the requests that were posted."""

from django.db import models
from django.db.models import Q

from billing.models.base import new_id


class AccountKind(models.TextChoices):
    RECEIVABLE = "receivable", "Accounts receivable"
    PREPAID_CREDIT = "prepaid_credit", "Prepaid credit"
    REVENUE = "revenue", "Revenue"
    TAX = "tax", "Tax"
    BREAKAGE = "breakage", "Breakage"  # credit that was bought and expired unused
    CASH = "cash", "Cash"  # money that came in: payments, top-ups
    PROMOTION = "promotion", "Promotion"  # credit that was given


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


USAGE = "usage:"  # what the keys of usage begin with, and of nothing else


class LedgerTransaction(models.Model):
    """Entries that happened together. The idempotency key makes a repeated posting a no-op."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    idempotency_key = models.CharField(max_length=200, unique=True)
    currency = models.CharField(max_length=3)
    description = models.CharField(max_length=500)
    posted_at = models.DateTimeField()

    class Meta:
        ordering = ["-posted_at", "-id"]
        indexes = [
            # The few among the many of usage: what a prepaid tenant may spend is asked of them.
            models.Index(fields=["id"], condition=~Q(idempotency_key__startswith=USAGE), name="ledger_not_of_usage"),
        ]

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
    # Null: posted before tokens were kept here.
    prompt_tokens = models.IntegerField(null=True)
    cached_tokens = models.IntegerField(null=True)
    completion_tokens = models.IntegerField(null=True)
    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="usage")

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["request_id", "revision"], name="usage_posted_once"),
        ]
        indexes = [models.Index(fields=["tenant_id", "billed_at"], name="usage_posting_by_period")]

    def __str__(self) -> str:
        return f"{self.request_id}/{self.revision}"
