"""`manage.py usage_report`: what a tenant used and owes in a period, with the check that both books agree."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing import selectors
from billing.clickhouse.shapes import LedgerTotals, ReportLine
from billing.customers import find_tenant, no_such_tenant
from billing.management.arguments import read_day_or_moment
from contracts.money import text_from_nano
from stores.clickhouse import ClickHouseError

_FIELDS = (
    "model", "api_key_id", "outcome", "currency", "requests", "budget_stopped_requests", "input_tokens",
    "cached_tokens", "output_tokens", "reasoning_tokens", "cost",
)  # fmt: skip


class Command(BaseCommand):
    """Half-open period in UTC. Exit code 1 when ClickHouse and ledger differ."""

    help = "Usage and cost of a tenant in a period, from ClickHouse, checked against the ledger."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", required=True, help="name or id")
        parser.add_argument(
            "--from", dest="start", help="2026-12-01 or 2026-12-01T12:00:00+00:00; this month unless given"
        )
        parser.add_argument("--to", dest="end", help="first moment after the period; now unless given")
        parser.add_argument("--format", choices=["table", "csv", "json"], default="table")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant_id = find_tenant(name_or_id=options["tenant"])
        if tenant_id is None:
            raise CommandError(no_such_tenant(options["tenant"]))
        now = timezone.now()
        start_ms = _instant_ms(options["start"] or now.strftime("%Y-%m-01"), option="--from")
        end_ms = _instant_ms(options["end"] or now.isoformat(), option="--to")
        if start_ms >= end_ms:
            raise CommandError("--from is before --to")
        try:
            lines = selectors.usage_report(tenant_id=str(tenant_id), start_ms=start_ms, end_ms=end_ms)
        except ClickHouseError as error:
            raise CommandError(f"the usage tables do not answer: {error}") from error
        booked = selectors.ledger_totals(tenant_id=str(tenant_id), start_ms=start_ms, end_ms=end_ms)
        checks = compare(lines, booked)
        self._write(options["format"], lines, checks)
        if not all(check["equal"] for check in checks):
            # Both consumers run a second or so behind; a difference that stays is a fault.
            raise CommandError("ClickHouse and ledger differ: see the check line")

    def _write(self, style: str, lines: Sequence[ReportLine], checks: Sequence[dict[str, Any]]) -> None:
        rows = [row_of(line) for line in lines]
        if style == "json":
            self.stdout.write(json.dumps({"lines": rows, "check": list(checks)}, indent=2))
            return
        if style == "csv":
            writer = csv.DictWriter(self.stdout, fieldnames=_FIELDS)
            writer.writeheader()
            writer.writerows(rows)
        else:
            self.stdout.write(table(rows))
        # The check is not a row of the CSV: it goes beside it.
        out = self.stderr if style == "csv" else self.stdout
        for check in checks:
            sign = "=" if check["equal"] else "≠"
            out.write(
                f"check {check['currency']}: "
                f"ClickHouse {check['clickhouse']} ({check['clickhouse_requests']} requests) "
                f"{sign} ledger {check['ledger']} ({check['ledger_requests']} requests)"
            )


def compare(lines: Sequence[ReportLine], ledger: dict[str, LedgerTotals]) -> list[dict[str, Any]]:
    """Both books side by side, by currency; an empty period is equal."""
    checks = []
    nothing = LedgerTotals(requests=0, cost_nano=0)
    for currency in sorted({line.currency for line in lines} | set(ledger)) or ["USD"]:
        mine = [line for line in lines if line.currency == currency]
        found = LedgerTotals(
            requests=sum(line.requests for line in mine), cost_nano=sum(line.cost_nano for line in mine)
        )
        booked = ledger.get(currency, nothing)
        checks.append(
            {
                "currency": currency,
                "clickhouse": text_from_nano(found.cost_nano),
                "clickhouse_requests": found.requests,
                "ledger": text_from_nano(booked.cost_nano),
                "ledger_requests": booked.requests,
                "equal": found == booked,
            }
        )
    return checks


def row_of(line: ReportLine) -> dict[str, Any]:
    row = asdict(line)
    row["cost"] = text_from_nano(row.pop("cost_nano"))
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Columns as wide as their widest value; numbers to the right."""
    cells = [[name.replace("_", " ") for name in _FIELDS], *[[str(row[name]) for name in _FIELDS] for row in rows]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_FIELDS))]
    numeric = [name.endswith(("tokens", "requests", "cost")) for name in _FIELDS]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )


def _instant_ms(text: str, *, option: str) -> int:
    """A UTC day's first moment, or an instant with its offset."""
    at = read_day_or_moment(text, option=option)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
