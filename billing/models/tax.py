"""Who sells, who buys, and at which rate of tax: what an invoice must name beside its amounts."""

from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.db.models import Q

from billing.models.base import COUNTRY, Version, new_id, no_overlap, version_checks
from billing.rating.tax import RATE_MAX_PPM


class TaxRate(Version):
    """The standard rate of a country in which the issuer is registered. The table of `rating.tax`."""

    country = models.CharField(max_length=2, validators=[COUNTRY])
    rate_ppm = models.PositiveIntegerField(
        validators=[MaxValueValidator(RATE_MAX_PPM)], help_text="In millionths: 190000 = 19 %."
    )

    class Meta:
        ordering = ["country", "-valid_from"]
        constraints = [
            models.CheckConstraint(name="tax_in_range", condition=Q(rate_ppm__lte=RATE_MAX_PPM)),
            models.CheckConstraint(name="tax_country", condition=Q(country__regex=r"^[A-Z]{2}$")),
            *version_checks("tax"),
            no_overlap(name="tax_once", whose=~Q(approved_by=""), columns=("country",)),
        ]

    def __str__(self) -> str:
        return f"{self.country} {self.rate_ppm} ppm"


class Party(models.Model):
    """A name and address as a document prints them."""

    legal_name = models.CharField(max_length=200)
    street = models.CharField(max_length=200)
    postal_code = models.CharField(max_length=20)
    city = models.CharField(max_length=100)
    country = models.CharField(max_length=2, validators=[COUNTRY])
    tax_id = models.CharField(max_length=40, blank=True, help_text="VAT number with its country's letters.")
    email = models.EmailField(blank=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.legal_name


class BillingProfile(Party):
    """Whom a tenant's invoices go to. Issued documents keep what it said then."""

    tenant = models.OneToOneField(
        "tenants.Tenant", on_delete=models.PROTECT, related_name="billing_profile", primary_key=True
    )

    class Meta:
        ordering = ["legal_name"]


class Issuer(Party):
    """Who sells: one row. `series` begins every number that it gives."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    only = models.BooleanField(default=True, editable=False)
    series = models.CharField(
        max_length=10,
        default="WEIR",
        validators=[RegexValidator(r"^[A-Z0-9]{1,10}$", "Capital letters and digits.")],
        help_text="Numbers read SERIES-YEAR-NUMBER, without gaps.",
    )
    bank_details = models.CharField(max_length=200, blank=True, help_text="Printed under the amount due.")

    class Meta:
        verbose_name_plural = "issuer"
        constraints = [
            models.UniqueConstraint(fields=["only"], name="issuer_once"),
            models.CheckConstraint(name="issuer_only", condition=Q(only=True)),
        ]
