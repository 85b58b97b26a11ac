"""Lines of issued documents, written once and read back as the rating that they were made of."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from billing.models import Invoice, InvoiceLine
from billing.rating.invoice import Line, LineKind, Rated
from contracts.money import decimal_from_nano, nano_from_decimal


def store_lines(made: Invoice, rated: Rated) -> None:
    """Once, in the transaction that issues the document."""
    InvoiceLine.objects.bulk_create(
        InvoiceLine(
            invoice=made,
            position=position,
            key=line.key,
            kind=line.kind.value,
            text=line.text,
            tokens=line.tokens,
            unit_nano=line.unit_nano,
            exact=decimal_from_nano(line.exact_nano),
            amount=decimal_from_nano(line.nano),
        )
        for position, line in enumerate(rated.lines, start=1)
    )


def rated_before(documents: Sequence[Invoice], *, currency: str) -> Rated:
    """What the documents of a period say together."""
    lines: dict[str, Line] = {}
    for row in InvoiceLine.objects.filter(invoice__in=documents).order_by("invoice__sequence", "position"):
        known = lines.get(row.key)
        lines[row.key] = _line(row) if known is None else _added(known, row)
    return Rated(
        currency=currency,
        lines=tuple(lines.values()),
        net_nano=_sum(document.net for document in documents),
        tax_nano=_sum(document.tax for document in documents),
    )


def _line(row: InvoiceLine) -> Line:
    return Line(
        key=row.key,
        kind=LineKind(row.kind),
        text=row.text,
        tokens=row.tokens,
        unit_nano=row.unit_nano,
        exact_nano=nano_from_decimal(row.exact),
        nano=nano_from_decimal(row.amount),
    )


def _added(known: Line, row: InvoiceLine) -> Line:
    return Line(
        key=known.key,
        kind=known.kind,
        text=known.text,
        tokens=None if known.tokens is None else known.tokens + (row.tokens or 0),
        unit_nano=known.unit_nano,
        exact_nano=known.exact_nano + nano_from_decimal(row.exact),
        nano=known.nano + nano_from_decimal(row.amount),
    )


def _sum(amounts: Iterable[Decimal]) -> int:
    return sum(nano_from_decimal(amount) for amount in amounts)
