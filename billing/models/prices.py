"""The price book: unit prices, and the terms of a contract that only the invoice knows."""

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from billing.models.base import CURRENCY, Version, new_id, no_overlap, version_checks
from billing.rating.prices import PRICE_MAX, Meter
from billing.rating.terms import TermsError, read_tiers
from contracts.tenancy import ServiceClass

_APPROVED = ~Q(approved_by="")


class PriceMeter(models.TextChoices):
    """`billing.rating.prices.Meter` as a form shows it."""

    INPUT = Meter.INPUT.value, "Input"
    CACHED = Meter.CACHED.value, "Cached input"
    OUTPUT = Meter.OUTPUT.value, "Output"


class PriceClass(models.TextChoices):
    """`contracts.jobs.ServiceClass`, or any of them."""

    ANY = "", "Every class"
    INTERACTIVE = ServiceClass.INTERACTIVE.value, "Interactive"
    BATCH = ServiceClass.BATCH.value, "Batch"


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


class PriceVersion(Version):
    """What one meter of one model costs in [valid_from, valid_to): for one tenant, for a price list, or for all."""

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
    service_class = models.CharField(
        max_length=20,
        choices=PriceClass,
        default=PriceClass.ANY,
        blank=True,
        help_text="Of one owner's prices, one for the request's own class stands before one for every class.",
    )
    meter = models.CharField(max_length=10, choices=PriceMeter)
    per_million = models.DecimalField(
        max_digits=10,
        decimal_places=3,
        validators=[MinValueValidator(0)],
        help_text="Currency units per million tokens, in steps of 0.001.",
    )
    currency = models.CharField(max_length=3, default="USD", validators=[CURRENCY])

    class Meta:
        ordering = ["model", "meter", "-valid_from"]
        verbose_name = "price"
        constraints = [
            models.CheckConstraint(name="price_in_range", condition=Q(per_million__gte=0, per_million__lte=PRICE_MAX)),
            models.CheckConstraint(name="price_currency", condition=Q(currency__regex=r"^[A-Z]{3}$")),
            models.CheckConstraint(name="price_class", condition=Q(service_class__in=PriceClass.values)),
            *version_checks("price"),
            models.CheckConstraint(
                name="price_has_one_owner",
                condition=Q(tenant=None) | Q(price_list=None),
                violation_error_message="A price is a tenant's or a list's, not both.",
            ),
            no_overlap(
                name="price_once_for_all",
                whose=_APPROVED & Q(tenant=None, price_list=None),
                columns=("model", "service_class", "meter", "currency"),
            ),
            no_overlap(
                name="price_once_per_tenant",
                whose=_APPROVED & Q(tenant__isnull=False),
                columns=("tenant", "model", "service_class", "meter", "currency"),
            ),
            no_overlap(
                name="price_once_per_list",
                whose=_APPROVED & Q(price_list__isnull=False),
                columns=("price_list", "model", "service_class", "meter", "currency"),
            ),
        ]

    def __str__(self) -> str:
        service_class = f" {self.service_class}" if self.service_class else ""
        return f"{self.model}{service_class} {self.meter} {self.per_million} {self.currency} per million"


def check_tiers(value: object) -> None:
    """A form's validator."""
    try:
        read_tiers(value)
    except TermsError as error:
        raise ValidationError(str(error)) from error


_PPM = (MinValueValidator(0), MaxValueValidator(1_000_000))


class ContractTerms(Version):
    """What a tenant's invoice adds to the unit prices: tiers, a discount, a commitment, a minimum, days to pay.

    Amounts are for one whole period; a part of one is charged by the second.
    """

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="terms")
    currency = models.CharField(max_length=3, validators=[CURRENCY])
    tiers = models.JSONField(
        default=list,
        blank=True,
        validators=[check_tiers],
        help_text='[{"model": "" (every model), "meter": "output", "above_tokens": 1000000, "discount_ppm": 100000}]: '
        "of the tokens of a period above that many, so many millionths of the price are taken off.",
    )
    discount_ppm = models.PositiveIntegerField(
        default=0, validators=_PPM, help_text="Taken off all usage after tiers, in millionths: 100000 = 10 %."
    )
    commitment = models.DecimalField(
        max_digits=20, decimal_places=9, default=0, help_text="Usage of a period that the fee below covers."
    )
    commitment_fee = models.DecimalField(
        max_digits=20, decimal_places=9, default=0, help_text="Charged each period, used or not."
    )
    minimum = models.DecimalField(
        max_digits=20, decimal_places=9, default=0, help_text="The least that a period costs before tax."
    )
    payment_days = models.PositiveSmallIntegerField(default=30)

    class Meta:
        ordering = ["tenant", "-valid_from"]
        verbose_name = verbose_name_plural = "contract terms"
        constraints = [
            models.CheckConstraint(name="terms_currency", condition=Q(currency__regex=r"^[A-Z]{3}$")),
            models.CheckConstraint(
                name="terms_in_range",
                condition=Q(discount_ppm__lte=1_000_000, commitment__gte=0, commitment_fee__gte=0, minimum__gte=0),
            ),
            *version_checks("terms"),
            no_overlap(name="terms_once", whose=_APPROVED, columns=("tenant", "currency")),
        ]

    def __str__(self) -> str:
        return f"Terms of {self.tenant} in {self.currency}"
