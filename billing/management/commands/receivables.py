"""`manage.py receivables`: ageing of what is owed and the unbilled accrual, as CSV, reconciled with the ledger."""

import csv
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.customers import tenant_names
from billing.invoicing.receivables import BUCKETS, receivables
from billing.management.arguments import read_moment


class Command(BaseCommand):
    """Exit code 1 where a tenant's documents and unbilled usage are not its receivable in the ledger."""

    help = "Who owes what since when, and what is not billed yet; checked against the ledger."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--at", help="moment that ages are counted to, e.g. 2026-12-31T00:00:00+00:00; now without")

    def handle(self, *args: Any, **options: Any) -> None:
        at = timezone.now() if options["at"] is None else read_moment(options["at"], option="--at")
        names = tenant_names()
        buckets = [name for name, _ in BUCKETS]
        writer = csv.writer(self.stdout, lineterminator="\n")
        writer.writerow(["tenant", "currency", *buckets, "unbilled", "receivable_in_ledger", "reconciles"])
        wrong = 0
        for row in receivables(at=at):
            wrong += not row.reconciles
            amounts = [row.aged[name] for name in buckets]
            writer.writerow(
                [
                    names.get(row.tenant_id, row.tenant_id), row.currency,
                    *(f"{amount:.9f}" for amount in (*amounts, row.unbilled, row.ledger)), row.reconciles,
                ]
            )  # fmt: skip
        if wrong:
            raise CommandError(f"{wrong} tenants do not reconcile with the ledger")
