"""Issued documents: invoices and notes with their lines, numbered without gaps, frozen when they are issued."""

from django.core.validators import MinLengthValidator
from django.db import models
from django.db.models import Q

from billing.models.base import new_id
from billing.models.closing import BillingPeriod


class Adjustment(models.Model):
    """What people agreed on beside usage, for the period that it concerns: a refund, a goodwill credit, a fee.

    A proposal of one person; it counts once a second one has approved it.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="adjustments")
    amount = models.DecimalField(
        max_digits=20, decimal_places=9, help_text="Before tax; negative = in the customer's favour."
    )
    text = models.CharField(max_length=200, validators=[MinLengthValidator(3)], help_text="As the document prints it.")
    created_by = models.CharField(max_length=200, editable=False)
    approved_by = models.CharField(max_length=200, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [
            models.CheckConstraint(
                name="adjustment_two_people",
                condition=Q(approved_by="") | ~Q(approved_by=models.F("created_by")),
            ),
            models.CheckConstraint(name="adjustment_is_something", condition=~Q(amount=0)),
        ]

    def __str__(self) -> str:
        return f"{self.text}: {self.amount.normalize():f}"


class InvoiceSeries(models.Model):
    """The last number that was given: locked by who gives the next, in the transaction that uses it."""

    series = models.CharField(max_length=10)
    year = models.PositiveSmallIntegerField()
    last = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["series", "year"], name="invoice_series_once")]

    def __str__(self) -> str:
        return f"{self.series}-{self.year}"


class DocumentKind(models.TextChoices):
    INVOICE = "invoice", "Invoice"
    CREDIT_NOTE = "credit_note", "Credit note"
    DEBIT_NOTE = "debit_note", "Debit note"


class DocumentState(models.TextChoices):
    ISSUED = "issued", "Issued"
    PAID = "paid", "Paid"
    VOID = "void", "Void"


class Invoice(models.Model):
    """One document of a period: the first is its invoice, later ones are notes that say the difference.

    Everything but `state`, what was paid, and where its files lie is frozen (trigger). Amounts are exact to a nano-unit
    and whole in the currency's smallest one.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="invoices")
    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="invoices")
    sequence = models.PositiveSmallIntegerField(help_text="1 = the invoice of the period; then its notes.")
    kind = models.CharField(max_length=20, choices=DocumentKind)
    series = models.CharField(max_length=10)
    year = models.PositiveSmallIntegerField()
    serial = models.PositiveIntegerField()
    number = models.CharField(max_length=40, unique=True)
    usage_revision = models.PositiveSmallIntegerField()
    usage_posted = models.DecimalField(
        max_digits=38, decimal_places=9, help_text="What the ledger had for the period's usage when this was issued."
    )
    seal_head = models.CharField(max_length=64, blank=True, default="", help_text="Of the usage it was rated from.")
    currency = models.CharField(max_length=3)
    net = models.DecimalField(max_digits=20, decimal_places=9)
    tax = models.DecimalField(max_digits=20, decimal_places=9)
    total = models.DecimalField(max_digits=20, decimal_places=9)
    credit_used = models.DecimalField(max_digits=20, decimal_places=9)
    tax_category = models.CharField(max_length=2)
    tax_rate_ppm = models.PositiveIntegerField()
    tax_note = models.CharField(max_length=200, blank=True)
    seller = models.JSONField()
    buyer = models.JSONField()
    issued_at = models.DateTimeField()
    issued_by = models.CharField(max_length=200)
    due_at = models.DateTimeField()
    state = models.CharField(max_length=10, choices=DocumentState, default=DocumentState.ISSUED)
    paid = models.DecimalField(max_digits=20, decimal_places=9, default=0)
    paid_at = models.DateTimeField(null=True)
    files = models.JSONField(default=dict, help_text="Name -> {key, sha256} in the object store.")

    class Meta:
        ordering = ["-year", "-serial"]
        constraints = [
            models.UniqueConstraint(fields=["period", "sequence"], name="invoice_once"),
            models.UniqueConstraint(fields=["series", "year", "serial"], name="invoice_number_once"),
            models.CheckConstraint(
                name="invoice_adds_up", condition=Q(total=models.F("net") + models.F("tax"), credit_used__gte=0)
            ),
        ]

    def __str__(self) -> str:
        return self.number


class InvoiceLine(models.Model):
    """Lines sum to the net amount (deferred trigger). `key` names the line in every rating of its period."""

    id = models.BigAutoField(primary_key=True)
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="lines")
    position = models.PositiveSmallIntegerField()
    key = models.CharField(max_length=500)
    kind = models.CharField(max_length=20)
    text = models.CharField(max_length=500)
    tokens = models.BigIntegerField(null=True)
    unit_nano = models.BigIntegerField(null=True)
    exact = models.DecimalField(max_digits=38, decimal_places=9, help_text="Before rounding.")
    amount = models.DecimalField(max_digits=20, decimal_places=9)

    class Meta:
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(fields=["invoice", "position"], name="invoice_line_once"),
            models.UniqueConstraint(fields=["invoice", "key"], name="invoice_line_key_once"),
        ]

    def __str__(self) -> str:
        return self.text


class Payment(models.Model):
    """Money that came in for a document. Its key (a bank's or a payment provider's id) makes a repeat a no-op."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="payments")
    key = models.CharField(max_length=150, unique=True)
    amount = models.DecimalField(max_digits=20, decimal_places=9)
    paid_at = models.DateTimeField()
    recorded_by = models.CharField(max_length=200)
    transaction = models.OneToOneField("billing.LedgerTransaction", on_delete=models.PROTECT, related_name="payment")

    class Meta:
        ordering = ["paid_at", "id"]
        constraints = [models.CheckConstraint(name="payment_positive", condition=Q(amount__gt=0))]

    def __str__(self) -> str:
        return f"{self.amount.normalize():f} {self.key}"
