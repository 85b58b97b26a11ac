"""Answers of `billing.clickhouse.finance` as exact lines, their total, and what moved between two spans.

Called by `manage.py finance_report` and the management API. Blocking; the reader is handed in. Invariants: the lines of
every grouping of one span add up to the same total; amounts are nano-units, engine time is whole microseconds.

Engine time is what sequences spent in an engine, prefill and decode. An engine runs many at once, so its own hours are
fewer: who wants a margin gives what an hour of one sequence costs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from billing.clickhouse.finance import FinanceQuestion
from billing.metering.histogram import percentile_us
from contracts.money import nano_from_decimal
from stores.clickhouse import Reader

_HOUR_US = 3_600_000_000
_FRACTIONS = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What adds up. `measured` and `within_slo` are requests with a first token, and those that had it in time."""

    requests: int = 0
    ok_requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    revenue_nano: int = 0
    cache_savings_nano: int = 0
    engine_us: int = 0
    measured: int = 0
    within_slo: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in SUMMED})

    def engine_cost_nano(self, sequence_hour_nano: int) -> int:
        """What the engine time costs, to the nano-unit, half to even."""
        return round(Decimal(self.engine_us * sequence_hour_nano) / _HOUR_US)


SUMMED = tuple(Sums.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinanceLine:
    """One group. Times in milliseconds at 50, 90 and 99 %; None where nothing was measured."""

    groups: tuple[str, ...]
    currency: str
    sums: Sums
    ttft_ms: tuple[float | None, ...]
    itl_ms: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedLine:
    """Attempts that no billed row came of, by those groups of the question that an attempt knows of."""

    groups: tuple[str, ...]
    attempts: int
    engine_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinanceReport:
    """A page. `next_after` None = the last one."""

    lines: tuple[FinanceLine, ...]
    next_after: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """A group's revenue in two spans, in nano-units."""

    groups: tuple[str, ...]
    currency: str
    before_nano: int
    now_nano: int

    @property
    def difference_nano(self) -> int:
        return self.now_nano - self.before_nano


def read_finance(reader: Reader, question: FinanceQuestion) -> FinanceReport:
    """Raises stores.clickhouse.ClickHouseError."""
    rows = reader.execute(question.rows_sql, question.params)
    shown = [_line(row, len(question.by)) for row in rows[: question.limit]]
    last = shown[-1] if len(rows) > question.limit else None
    return FinanceReport(lines=tuple(shown), next_after=(*last.groups, last.currency) if last else None)


def read_wasted(reader: Reader, question: FinanceQuestion) -> tuple[WastedLine, ...]:
    """Raises stores.clickhouse.ClickHouseError."""
    known = len(question.attempt_groups)
    return tuple(
        WastedLine(
            groups=tuple(row[f"g{number}"] for number in range(known)),
            attempts=row["attempts"],
            engine_us=row["engine_us"],
        )
        for row in reader.execute(question.wasted_sql, question.params)
    )


def total_of(lines: Iterable[FinanceLine]) -> dict[str, Sums]:
    """By currency."""
    totals: dict[str, Sums] = {}
    for line in lines:
        totals[line.currency] = totals.get(line.currency, Sums()) + line.sums
    return totals


def movers(*, before: Sequence[FinanceLine], now: Sequence[FinanceLine]) -> list[Mover]:
    """Every group of either span, the largest difference first."""
    then, here = ({(line.groups, line.currency): line.sums.revenue_nano for line in lines} for lines in (before, now))
    found = [
        Mover(groups=groups, currency=currency, before_nano=then.get(key, 0), now_nano=here.get(key, 0))
        for key in then.keys() | here.keys()
        for groups, currency in [key]
    ]
    return sorted(found, key=lambda each: (-abs(each.difference_nano), each.groups, each.currency))


def _line(row: Mapping[str, Any], groups: int) -> FinanceLine:
    *named, currency = (row[f"g{number}"] for number in range(groups + 1))
    counted = {name: row[name] for name in SUMMED if name not in ("revenue_nano", "cache_savings_nano")}
    return FinanceLine(
        groups=tuple(named),
        currency=currency,
        sums=Sums(
            **counted,
            revenue_nano=nano_from_decimal(row["revenue"]),
            cache_savings_nano=int(row["cache_savings_nano"]),
        ),
        ttft_ms=tuple(float(value) / 1_000 if row["measured"] else None for value in row["ttft_us"]),
        itl_ms=tuple(
            None if value is None else value / 1_000
            for value in (percentile_us(row["itl"], fraction) for fraction in _FRACTIONS)
        ),
    )
