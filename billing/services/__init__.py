"""Writes of the billing room. Called by the admin, the seed and commands; the caller opens the transaction.

Invariant: what two people must agree on holds only after the second has, and never for a time that has passed.
"""

from billing.services.prices import propose_price, publish_prices, supersede_price
from billing.services.terms import propose_terms
from billing.services.versions import PriceChangeRefused, approve, approve_price, withdraw

__all__ = [
    "PriceChangeRefused",
    "approve",
    "approve_price",
    "propose_price",
    "propose_terms",
    "publish_prices",
    "supersede_price",
    "withdraw",
]
