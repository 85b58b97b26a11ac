"""An issued document as rows of FOCUS 1.2, the FinOps open cost and usage specification. Called by `manage.py invoice`.

Source: FOCUS specification 1.2, columns. Invariant: the billed cost of the rows of an InvoiceId is the document's
total, so that is what is payable. A month has one row for each line: the charge period is the billing period.
"""

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from billing.models import DocumentKind, Invoice, InvoiceLine
from billing.rating.invoice import LineKind
from billing.rating.prices import per_million

COLUMNS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
    "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost",
    "ContractedUnitPrice", "EffectiveCost", "InvoiceId", "InvoiceIssuerName", "ListCost", "ListUnitPrice",
    "PricingCategory", "PricingCurrency", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId", "x_SealHead",
)  # fmt: skip
TOKENS, MILLION_TOKENS = "Tokens", "1000000 Tokens"
_CATEGORIES: Mapping[LineKind, str] = {
    LineKind.USAGE: "Usage",
    LineKind.FEE: "Purchase",
    LineKind.COVERED: "Credit",
    LineKind.TIER: "Adjustment",
    LineKind.DISCOUNT: "Adjustment",
    LineKind.MINIMUM: "Adjustment",
    LineKind.ADJUSTMENT: "Adjustment",
    LineKind.ROUNDING: "Adjustment",
}

FocusRow = dict[str, str]


def focus_rows(document: Invoice) -> list[FocusRow]:
    """A row for each line, and one of tax. Empty text = null."""
    rows = [_row(document, line) for line in document.lines.all()]
    if document.tax:
        rows.append(_tax(document))
    return rows


def focus_csv(document: Invoice) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(focus_rows(document))
    return out.getvalue()


def _row(document: Invoice, line: InvoiceLine) -> FocusRow:
    kind = LineKind(line.kind)
    row = _shared(document) | {
        "BilledCost": _number(line.amount),
        "EffectiveCost": _number(line.amount),
        "ContractedCost": _number(line.exact),
        "ListCost": _number(line.exact),
        "ChargeCategory": _CATEGORIES[kind],
        "ChargeDescription": line.text,
        "ChargeFrequency": "Usage-Based" if kind is LineKind.USAGE else "Recurring",
    }
    if kind in (LineKind.ADJUSTMENT, LineKind.ROUNDING):
        row["ChargeFrequency"] = "One-Time"
    if kind is LineKind.USAGE and line.unit_nano is not None and line.tokens is not None:
        price = f"{per_million(line.unit_nano):f}"
        model, service_class, meter, price_id = line.key.removeprefix("usage:").rsplit(":", 3)
        row |= {
            "ConsumedQuantity": str(line.tokens),
            "ConsumedUnit": TOKENS,
            "PricingCategory": "Standard",
            "PricingQuantity": _number(Decimal(line.tokens).scaleb(-6)),
            "PricingUnit": MILLION_TOKENS,
            "ListUnitPrice": price,
            "ContractedUnitPrice": price,
            "SkuId": f"{model}/{service_class}/{meter}",
            "SkuMeter": f"{meter} tokens",
            "SkuPriceId": price_id,
        }
    return row


def _tax(document: Invoice) -> FocusRow:
    amount = _number(document.tax)
    return _shared(document) | {
        **dict.fromkeys(("BilledCost", "EffectiveCost", "ContractedCost", "ListCost"), amount),
        "ChargeCategory": "Tax",
        "ChargeDescription": f"Tax at {document.tax_rate_ppm / Decimal(10_000):f} %",
        "ChargeFrequency": "Recurring",
    }


def _shared(document: Invoice) -> FocusRow:
    period, seller = document.period, str(document.seller["legal_name"])
    start, end = _instant(period.starts_at), _instant(period.ends_at)
    return dict.fromkeys(COLUMNS, "") | {
        "BillingAccountId": str(document.tenant_id),
        "BillingAccountName": str(document.buyer["legal_name"]),
        "BillingAccountType": "Tenant",
        "BillingCurrency": document.currency,
        "BillingPeriodStart": start,
        "BillingPeriodEnd": end,
        "ChargePeriodStart": start,
        "ChargePeriodEnd": end,
        "ChargeClass": "" if document.kind == DocumentKind.INVOICE else "Correction",
        "InvoiceId": document.number,
        "InvoiceIssuerName": seller,
        "ProviderName": seller,
        "PublisherName": seller,
        "PricingCurrency": document.currency,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "ServiceName": "Language model inference",
        "x_SealHead": document.seal_head,
    }


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _number(amount: Decimal) -> str:
    """Plain decimal text without an exponent."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
