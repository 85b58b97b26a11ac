"""Terms of a contract, proposed by one person. `services.approve` lets them hold."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError

from billing.models import ContractTerms
from billing.services.versions import PriceChangeRefused


def propose_terms(
    *,
    tenant_id: str,
    currency: str,
    valid_from: datetime,
    actor: str,
    tiers: list[dict[str, Any]] | None = None,
    discount_ppm: int = 0,
    commitment: Decimal = Decimal(0),
    commitment_fee: Decimal = Decimal(0),
    minimum: Decimal = Decimal(0),
    payment_days: int = 30,
    valid_to: datetime | None = None,
) -> ContractTerms:
    """Amounts in currency units for one whole period. Raises PriceChangeRefused, saying which part is wrong."""
    terms = ContractTerms(
        tenant_id=tenant_id,
        currency=currency,
        tiers=tiers or [],
        discount_ppm=discount_ppm,
        commitment=commitment,
        commitment_fee=commitment_fee,
        minimum=minimum,
        payment_days=payment_days,
        valid_from=valid_from,
        valid_to=valid_to,
        created_by=actor,
    )
    try:
        terms.full_clean(validate_constraints=False)
    except ValidationError as error:
        raise PriceChangeRefused("; ".join(error.messages)) from error
    terms.save()
    return terms
