"""The tables of the billing room: price book, tax, double-entry ledger, credit, periods, documents.

Read through `billing.selectors`, written through `billing.services` and `billing.ledger`. Invariants, kept by the
database itself (constraints here, triggers in the migrations): approved versions of one scope never overlap and have
two people; a price is superseded, never edited; ledger rows are only ever added; a transaction's entries sum to zero
and have one currency; usage of a (request, revision) is posted once.
"""

from billing.models.base import Period, Version, new_id
from billing.models.closing import (
    BillingPeriod,
    CloseGap,
    CloseWaiver,
    PeriodHour,
    PeriodSeal,
    PeriodState,
    PeriodUsage,
)
from billing.models.credits import CreditAlert, CreditGrant, CreditMovement, MovementKind
from billing.models.dunning import DunningStep
from billing.models.invoices import (
    Adjustment,
    DocumentKind,
    DocumentState,
    Invoice,
    InvoiceLine,
    InvoiceSeries,
    Payment,
)
from billing.models.jobs import BillingJob, JobKind, JobState
from billing.models.ledger import USAGE, AccountKind, LedgerAccount, LedgerEntry, LedgerTransaction, UsagePosting
from billing.models.prices import ContractTerms, PriceClass, PriceList, PriceMeter, PriceVersion
from billing.models.receipts import ReceiptKey
from billing.models.tax import BillingProfile, Issuer, TaxRate

__all__ = [
    "USAGE",
    "AccountKind",
    "Adjustment",
    "BillingJob",
    "BillingPeriod",
    "BillingProfile",
    "CloseGap",
    "CloseWaiver",
    "ContractTerms",
    "CreditAlert",
    "CreditGrant",
    "CreditMovement",
    "DocumentKind",
    "DocumentState",
    "DunningStep",
    "Invoice",
    "InvoiceLine",
    "InvoiceSeries",
    "Issuer",
    "JobKind",
    "JobState",
    "LedgerAccount",
    "LedgerEntry",
    "LedgerTransaction",
    "MovementKind",
    "Payment",
    "Period",
    "PeriodHour",
    "PeriodSeal",
    "PeriodState",
    "PeriodUsage",
    "PriceClass",
    "PriceList",
    "PriceMeter",
    "PriceVersion",
    "ReceiptKey",
    "TaxRate",
    "UsagePosting",
    "Version",
    "new_id",
]
