"""Prepaid credit: what was granted, what became of it, and when to tell that it runs out."""

from django.db import models
from django.db.models import Q

from billing.models.base import CURRENCY, new_id
from billing.models.ledger import LedgerTransaction


class CreditGrant(models.Model):
    """Credit of a tenant, bought or given. Rows are only added; what is left is the amount less its movements."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="credit_grants")
    currency = models.CharField(max_length=3, validators=[CURRENCY])
    amount = models.DecimalField(max_digits=20, decimal_places=9)
    paid = models.BooleanField(default=False, help_text="Bought with money (a top-up); otherwise a gift.")
    granted_at = models.DateTimeField(editable=False)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="First moment without it; empty = never.")
    reason = models.CharField(max_length=500)
    created_by = models.CharField(max_length=200, editable=False)
    transaction = models.OneToOneField(
        LedgerTransaction, on_delete=models.PROTECT, related_name="credit_grant", editable=False
    )

    class Meta:
        ordering = ["-granted_at", "-id"]
        constraints = [
            models.CheckConstraint(name="credit_positive", condition=Q(amount__gt=0)),
            models.CheckConstraint(name="credit_currency", condition=Q(currency__regex=r"^[A-Z]{3}$")),
            models.CheckConstraint(
                name="credit_expires_later", condition=Q(expires_at=None) | Q(expires_at__gt=models.F("granted_at"))
            ),
        ]
        indexes = [models.Index(fields=["tenant", "currency"], name="credit_by_tenant")]

    def __str__(self) -> str:
        return f"{self.amount.normalize():f} {self.currency}: {self.reason}"


class MovementKind(models.TextChoices):
    BURN = "burn", "Paid for an invoice"
    EXPIRE = "expire", "Expired"


class CreditMovement(models.Model):
    """A part of a grant that was used up. The database refuses more than the grant has (trigger)."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    grant = models.ForeignKey(CreditGrant, on_delete=models.PROTECT, related_name="movements")
    kind = models.CharField(max_length=10, choices=MovementKind)
    amount = models.DecimalField(max_digits=20, decimal_places=9)
    moved_at = models.DateTimeField()
    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="credit_movements")

    class Meta:
        ordering = ["moved_at", "id"]
        constraints = [
            models.CheckConstraint(name="movement_positive", condition=Q(amount__gt=0)),
            models.UniqueConstraint(fields=["grant", "transaction"], name="movement_once"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount}"


class CreditAlert(models.Model):
    """Tell once when the credit left falls below an amount; armed again when it is no longer below."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="credit_alerts")
    currency = models.CharField(max_length=3, validators=[CURRENCY])
    below = models.DecimalField(max_digits=20, decimal_places=9)
    fired_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["tenant", "currency", "-below"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "currency", "below"], name="credit_alert_once"),
            models.CheckConstraint(name="credit_alert_positive", condition=Q(below__gt=0)),
        ]

    def __str__(self) -> str:
        return f"below {self.below.normalize():f} {self.currency}"
