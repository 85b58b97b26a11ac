"""Money in the admin: proposed, approved, superseded, never edited; the ledger is for looking."""

from billing.admin.closing import BillingPeriodAdmin
from billing.admin.credits import CreditAlertAdmin, CreditGrantAdmin
from billing.admin.invoices import AdjustmentAdmin, InvoiceAdmin
from billing.admin.jobs import BillingJobAdmin, DunningStepAdmin, ReceiptKeyAdmin
from billing.admin.ledger import LedgerAccountAdmin, LedgerTransactionAdmin, UsagePostingAdmin
from billing.admin.prices import ContractTermsAdmin, PriceListAdmin, PriceVersionAdmin
from billing.admin.tax import BillingProfileAdmin, IssuerAdmin, TaxRateAdmin

__all__ = [
    "AdjustmentAdmin",
    "BillingJobAdmin",
    "BillingPeriodAdmin",
    "BillingProfileAdmin",
    "ContractTermsAdmin",
    "CreditAlertAdmin",
    "CreditGrantAdmin",
    "DunningStepAdmin",
    "InvoiceAdmin",
    "IssuerAdmin",
    "LedgerAccountAdmin",
    "LedgerTransactionAdmin",
    "PriceListAdmin",
    "PriceVersionAdmin",
    "ReceiptKeyAdmin",
    "TaxRateAdmin",
    "UsagePostingAdmin",
]
