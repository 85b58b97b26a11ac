"""`manage.py finance_report`: revenue, engine time, margin, latency, savings and waste, by any groups in any zone."""

import json
import sys
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.clickhouse.finance import DIMENSIONS, PAGE_MAX, FinanceQuestion
from billing.customers import find_tenant, no_such_tenant
from billing.management.arguments import read_day_or_moment
from billing.reporting.finance import FinanceLine, movers, read_finance, read_wasted
from billing.reporting.table import as_csv, as_parquet, plain, rows_of
from billing.selectors import usage_reader
from contracts.errors import InvalidRequest
from contracts.money import nano_from_decimal, text_from_nano
from stores.clickhouse import ClickHouseError


class Command(BaseCommand):
    """Dates are midnights of the zone; the span is half-open."""

    help = "What usage brought in and what it took, by tenant, model, day and more; with --movers, against before."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--from", dest="start", required=True, help="2026-11-01, or a time with its offset")
        parser.add_argument("--to", dest="end", required=True, help="first day, or moment, after the span")
        parser.add_argument("--by", default="tenant", help=f"some of {','.join(DIMENSIONS)}")
        parser.add_argument("--zone", default="UTC", help="whose days and hours: an IANA name")
        parser.add_argument("--tenant", help="name or id; every tenant without it")
        parser.add_argument("--slo-ttft-ms", type=int, default=1_000, help="the time to the first token promised")
        parser.add_argument("--sequence-hour", help="cost of an hour of one sequence in an engine, for the margin")
        parser.add_argument("--movers", action="store_true", help="revenue against as long a span before")
        parser.add_argument("--wasted", action="store_true", help="attempts that no billed request came of")
        parser.add_argument("--format", choices=["csv", "json", "parquet"], default="csv")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            question = self._question(options)
            rows = self._rows(question, options)
        except InvalidRequest as error:
            raise CommandError(f"{error.param}: {error.message}") from error
        except ClickHouseError as error:
            raise CommandError(f"the usage tables do not answer: {error}") from error
        if options["format"] == "json":
            self.stdout.write(json.dumps([plain(row) for row in rows], indent=2))
        elif options["format"] == "csv":
            self.stdout.write(as_csv(rows).decode(), ending="")
        else:
            sys.stdout.buffer.write(as_parquet(rows))

    def _question(self, options: dict[str, Any]) -> FinanceQuestion:
        tenant_id = "" if options["tenant"] is None else find_tenant(name_or_id=options["tenant"])
        if tenant_id is None:
            raise CommandError(no_such_tenant(options["tenant"]))
        question = FinanceQuestion(
            start_ms=0, end_ms=1, by=(), zone=options["zone"], slo_ttft_us=options["slo_ttft_ms"] * 1_000
        )
        return replace(
            question,
            start_ms=_instant_ms(options["start"], question.zone, option="--from"),
            end_ms=_instant_ms(options["end"], question.zone, option="--to"),
            by=tuple(filter(None, options["by"].split(","))),
            tenant_id=str(tenant_id),
        )

    def _rows(self, question: FinanceQuestion, options: dict[str, Any]) -> list[dict[str, Any]]:
        if options["movers"]:
            span = question.end_ms - question.start_ms
            before = replace(question, start_ms=question.start_ms - span, end_ms=question.start_ms)
            moved = movers(before=_all_lines(before), now=_all_lines(question))
            return [
                {
                    **dict(zip(question.by, each.groups, strict=True)), "currency": each.currency,
                    "before": text_from_nano(each.before_nano), "now": text_from_nano(each.now_nano),
                    "difference": text_from_nano(each.difference_nano),
                }
                for each in moved
            ]  # fmt: skip
        if options["wasted"]:
            names = question.attempt_groups
            return [
                {**dict(zip(names, each.groups, strict=True)), "attempts": each.attempts, "engine_us": each.engine_us}
                for each in read_wasted(usage_reader(), question)
            ]
        price = options["sequence_hour"]
        lines = _all_lines(question)
        return rows_of(lines, by=question.by, sequence_hour_nano=None if price is None else _nano(price))


def _all_lines(question: FinanceQuestion) -> list[FinanceLine]:
    lines: list[FinanceLine] = []
    while True:
        page = read_finance(usage_reader(), replace(question, limit=PAGE_MAX))
        lines += page.lines
        if page.next_after is None:
            return lines
        question = replace(question, after=page.next_after)


def _instant_ms(text: str, zone: str, *, option: str) -> int:
    return round(read_day_or_moment(text, option=option, zone=zone).timestamp() * 1_000)


def _nano(text: str) -> int:
    try:
        return nano_from_decimal(Decimal(text))
    except (InvalidOperation, ValueError) as error:
        raise CommandError("--sequence-hour is an amount, like 0.35") from error
