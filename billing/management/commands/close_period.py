"""`manage.py close_period`: compare the books of tenants' months, show every gap, waive with a reason, seal."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from redis.exceptions import RedisError

from billing.closing.check import Evidence
from billing.closing.close import (
    CloseBlocked,
    CloseRefused,
    correct_period,
    open_periods,
    seal_period,
    waive_gaps,
)
from billing.customers import find_tenant, no_such_tenant, tenant_names
from billing.management.arguments import read_month
from billing.management.composition import gather_evidence
from billing.models import BillingPeriod, PeriodState
from stores.clickhouse import ClickHouseError
from stores.objects import ObjectStoreError

SHOWN_MAX = 50


class Command(BaseCommand):
    """Seals what is over, oldest first; exit code 1 where a period is blocked. What is sealed is looked at again."""

    help = "Close billing periods: every book compared by tenant-hour, a gap blocks, --waive signs for what was found."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", help="name or id; every tenant without it")
        parser.add_argument("--month", help="2026-11: this period alone")
        parser.add_argument("--waive", metavar="REASON", help="sign for the gaps of the one period that is named")
        parser.add_argument("--by", default="system:command", help="who signs")
        parser.add_argument(
            "--attempt-logs",
            action="append",
            type=Path,
            default=[],
            help="folder of a machine whose logs no meter collects; repeat it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["month"] is not None:
            options["month"] = read_month(options["month"], option="--month")
        now = timezone.now()
        try:
            evidence = gather_evidence(attempt_logs=options["attempt_logs"])
        except (RedisError, ValueError) as error:
            raise CommandError(f"the usage streams do not answer: {error}") from error
        periods = list(self._periods(options, now))
        if not periods:
            self.stdout.write(f"nothing to close: no period {options['month'] or 'is over'}")
        blocked = 0
        for period in periods:
            try:
                self._close(period, evidence, options, now)
            except CloseBlocked as error:
                blocked += 1
                self._show(period, error)
            except (CloseRefused, ObjectStoreError, OSError) as error:
                blocked += 1
                self.stdout.write(f"{period}: {error}")
            except ClickHouseError as error:
                raise CommandError(f"the usage tables do not answer: {error}") from error
        if blocked:
            raise CommandError(f"{blocked} periods are not closed")

    def _close(self, period: BillingPeriod, evidence: Evidence, options: dict[str, Any], now: datetime) -> None:
        if options["waive"]:
            self._waive(period, options, now)
        if period.state == PeriodState.DRAFT:
            seal_period(period, evidence, actor=options["by"], now=now)
            self.stdout.write(f"{period}: sealed, unexplained tokens: 0 beyond what was waived")
            return
        revision = correct_period(period, evidence, now=now)
        self.stdout.write(f"{period}: {'as sealed' if revision is None else f'revision {revision}'}")

    def _periods(self, options: dict[str, Any], now: Any) -> Iterable[BillingPeriod]:
        for tenant_id in self._tenants(options["tenant"]):
            for period in open_periods(tenant_id=tenant_id, now=now):
                over = period.ends_at <= now
                named = options["month"] in (None, period.month)
                if named and (over or options["month"]) and period.state != PeriodState.VOID:
                    yield period

    def _tenants(self, name: str | None) -> list[UUID]:
        if name is None:
            return sorted(tenant_names())
        found = find_tenant(name_or_id=name)
        if found is None:
            raise CommandError(no_such_tenant(name))
        return [found]

    def _waive(self, period: BillingPeriod, options: dict[str, Any], now: Any) -> None:
        if not (options["tenant"] and options["month"]):
            raise CommandError("--waive is for one --tenant and one --month")
        waiver = waive_gaps(period, reason=options["waive"], actor=options["by"], now=now)
        self.stdout.write(f"{period}: {waiver.gaps} gaps waived by {waiver.signed_by}")

    def _show(self, period: BillingPeriod, error: CloseBlocked) -> None:
        self.stdout.write(f"{period}: blocked, {error}")
        for gap in error.gaps[:SHOWN_MAX]:
            self.stdout.write(f"  {gap.kind} {gap.request_id or '-'}: {gap.detail} ({gap.tokens} tokens)")
        if len(error.gaps) > SHOWN_MAX:
            self.stdout.write(f"  … and {len(error.gaps) - SHOWN_MAX} more on the period's page")
