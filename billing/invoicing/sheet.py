"""What a document's files print, taken from its frozen rows: the same document makes the same files.

Called by `billing.invoicing.files`. Invariant: every amount is the document's own, as exact decimal text; nothing is
computed here that could differ from what was issued.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

from billing.models import DocumentKind, Invoice
from billing.rating.prices import per_million
from billing.rating.rounding import minor_digits
from billing.rating.tax import Tax


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetLine:
    """`price` is for a million tokens; "" where a line is not of tokens. `exact` is the amount before rounding."""

    position: int
    kind: str
    text: str
    tokens: int | None
    price: str
    exact: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    legal_name: str
    street: str
    postal_code: str
    city: str
    country: str
    tax_id: str
    email: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One document, ready to be written in any form. Days are those of the tenant's zone."""

    title: str
    is_credit_note: bool
    number: str
    corrects: str
    issued_at: datetime
    issued_on: str
    due_on: str
    month: str
    zone: str
    period_from: str
    period_to: str
    currency: str
    digits: int
    seller: Party
    buyer: Party
    bank_details: str
    lines: tuple[SheetLine, ...]
    net: Decimal
    tax_percent: str
    tax_category: str
    tax_note: str
    tax: Decimal
    total: Decimal
    credit_used: Decimal
    due: Decimal
    seal_head: str

    def money(self, amount: Decimal) -> str:
        """With the currency's digits, "1234.50"."""
        return f"{amount:.{self.digits}f}"


def sheet_of(document: Invoice) -> Sheet:
    """Of an issued document. What is due is what was due when it was issued."""
    period = document.period
    zone = ZoneInfo(period.zone)
    seller, buyer = dict(document.seller), dict(document.buyer)
    bank_details = seller.pop("bank_details", "")
    first = Invoice.objects.filter(period=period).order_by("sequence").first()
    rate = Tax(category=document.tax_category, rate_ppm=document.tax_rate_ppm, note=document.tax_note)
    return Sheet(
        title=str(DocumentKind(document.kind).label),
        is_credit_note=document.kind == DocumentKind.CREDIT_NOTE,
        number=document.number,
        corrects=first.number if first is not None and first.pk != document.pk else "",
        issued_at=document.issued_at,
        issued_on=_day(document.issued_at, zone),
        due_on=_day(document.due_at, zone),
        month=period.month,
        zone=period.zone,
        period_from=_moment(period.starts_at, zone),
        period_to=_moment(period.ends_at, zone),
        currency=document.currency,
        digits=minor_digits(document.currency),
        seller=Party(**seller),
        buyer=Party(**buyer),
        bank_details=bank_details,
        lines=tuple(
            SheetLine(
                position=line.position,
                kind=line.kind,
                text=line.text,
                tokens=line.tokens,
                price="" if line.unit_nano is None else f"{per_million(line.unit_nano):f}",
                exact=line.exact,
                amount=line.amount,
            )
            for line in document.lines.all()
        ),
        net=document.net,
        tax_percent=rate.percent,
        tax_category=document.tax_category,
        tax_note=document.tax_note,
        tax=document.tax,
        total=document.total,
        credit_used=document.credit_used,
        due=document.total - document.credit_used,
        seal_head=document.seal_head,
    )


def _day(at: datetime, zone: ZoneInfo) -> str:
    return at.astimezone(zone).date().isoformat()


def _moment(at: datetime, zone: ZoneInfo) -> str:
    return at.astimezone(zone).isoformat(timespec="minutes")
