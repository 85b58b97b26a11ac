"""`manage.py rebuild_limits`: makes the limits' counters anew from metered usage, or only compares them (`--check`)."""

import asyncio
import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from contracts.errors import Unavailable
from controlplane.limits_audit import Findings, open_auditor
from stores.clickhouse import ClickHouseError
from tenants.budgets import live_tenants


class Command(BaseCommand):
    """Exit code 1 when a tenant drifted (`--check`) or could not be told about."""

    help = "Rebuild the counters of limits from settled usage below a watermark; --check only compares."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", help="only this tenant's id; default: all that are not closed")
        parser.add_argument("--check", action="store_true", help="compare and report the drift, which must be 0")
        parser.add_argument("--json", action="store_true", help="one JSON object a tenant on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        tenants = [row for row in live_tenants() if options["tenant"] in (None, row[0])]
        if not tenants:
            raise CommandError("no such tenant")
        try:
            findings = asyncio.run(_run(tenants, check=options["check"]))
        except (Unavailable, RedisError, ClickHouseError, OSError) as error:
            raise CommandError(f"a store does not answer: {error}") from error
        for found in findings:
            self.stdout.write(json.dumps(asdict(found)) if options["json"] else _line(found))
        bad = sum(bool(found.drifts or found.skipped) for found in findings)
        if bad:
            raise CommandError(f"{bad} of {len(findings)} tenants drifted or could not be told about")


async def _run(tenants: list[tuple[str, str]], *, check: bool) -> list[Findings]:
    async with open_auditor() as auditor:
        if check:
            return [await auditor.check(tenant_id=each, renew=False) for each, _ in tenants]
        return [await auditor.rebuild(tenant_id=each, timezone=zone) for each, zone in tenants]


def _line(found: Findings) -> str:
    drifts = "".join(f"\n  {drift}" for drift in found.drifts)
    state = f"skipped: {found.skipped}" if found.skipped else f"{found.checked} counters, {len(found.drifts)} drifted"
    return f"{found.tenant_id}  {state}, {found.renewed} renewed{drifts}"
