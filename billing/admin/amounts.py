"""Amounts and rates as a person reads them: money never without its currency, percents instead of millionths."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from django.contrib import admin
from django.db import models
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from contracts.money import text_from_nano

Shown = Callable[[Any, Any], str]
_ABSENT = "-"


def plain(amount: Decimal) -> str:
    """Exact, without an exponent: 12.500000000 is 12.5."""
    return f"{amount:.9f}".rstrip("0").rstrip(".")


def money(amount: Decimal | None, currency: str) -> str:
    """`12.5 EUR`; nothing known is a dash."""
    return _ABSENT if amount is None else f"{plain(amount)} {currency}"


def percent(millionths: int) -> str:
    """190000 is `19 %`."""
    return f"{plain(Decimal(millionths).scaleb(-4))} %"


def money_column(field: str, *, currency: str = "currency", title: str = "") -> Shown:
    """A column of a list or form: the row's amount `field`, in the currency that `currency` (a path) leads to."""

    @admin.display(description=title or field.replace("_", " "), ordering=field)
    def shown(self: Any, row: models.Model) -> str:
        return money(_follow(row, field), str(_follow(row, currency)))

    return shown


def percent_column(field: str, *, title: str) -> Shown:
    """A column of a list or form: the row's `field`, which counts millionths."""

    @admin.display(description=title, ordering=field)
    def shown(self: Any, row: models.Model) -> str:
        return percent(_follow(row, field))

    return shown


def per_million_column(field: str, *, currency: str) -> Shown:
    """A column: the row's `field`, nano-units per token, as a price per million tokens."""

    @admin.display(description="price per million", ordering=field)
    def shown(self: Any, row: models.Model) -> str:
        nano = _follow(row, field)
        return _ABSENT if nano is None else f"{text_from_nano(nano * 1_000_000)} {_follow(row, currency)}"

    return shown


def count_column(field: str, *, title: str = "") -> Shown:
    """A column: a whole number with its thousands apart."""

    @admin.display(description=title or field.replace("_", " "), ordering=field)
    def shown(self: Any, row: models.Model) -> str:
        number = _follow(row, field)
        return _ABSENT if number is None else f"{number:,}"

    return shown


def facts(document: Mapping[str, Any]) -> SafeString:
    """A JSON object, field by field; what is empty is left out."""
    rows = [(name.replace("_", " ").capitalize(), value) for name, value in document.items() if value not in ("", None)]
    if not rows:
        return format_html("{}", "nothing")
    return format_html(
        '<table class="weir-table">{}</table>', format_html_join("", "<tr><th>{}</th><td>{}</td></tr>", rows)
    )


def _follow(row: Any, path: str) -> Any:
    for name in path.split("__"):
        row = getattr(row, name)
    return row
