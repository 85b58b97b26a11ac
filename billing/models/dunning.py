"""What a tenant was told of a document that is overdue, step by step."""

from django.db import models

from billing.models.base import new_id
from billing.models.invoices import Invoice


class DunningStep(models.Model):
    """One reminder of one document; each level once. Rows are only added."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="dunning_steps")
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="dunning_steps")
    level = models.PositiveSmallIntegerField(help_text="1 = reminder, 2 = second reminder, 3 = last notice.")
    due = models.DecimalField(max_digits=20, decimal_places=9, help_text="What was still to be paid.")
    told_at = models.DateTimeField()

    class Meta:
        ordering = ["told_at", "id"]
        constraints = [models.UniqueConstraint(fields=["invoice", "level"], name="dunning_level_once")]

    def __str__(self) -> str:
        return f"{self.invoice}, {self.level}."
