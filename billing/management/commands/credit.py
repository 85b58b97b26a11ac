"""`manage.py credit`: give a tenant credit, book a top-up, show what is left, take what has expired."""

import uuid
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.customers import find_payer, find_tenant, no_such_tenant
from billing.ledger.credits import CreditRefused, balance_nano, expire_credits, grant_credit
from billing.ledger.journal import LedgerConflict
from billing.management.arguments import read_moment
from billing.management.composition import spendable_nano
from contracts.errors import Unavailable
from contracts.money import text_from_nano


class Command(BaseCommand):
    """The key names the grant: the same command again gives nothing."""

    help = "Prepaid credit: grant | top-up | balance | expire."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        for verb in ("grant", "top-up"):
            giving = verbs.add_parser(verb)
            giving.add_argument("--tenant", required=True, help="name or id")
            giving.add_argument("--amount", required=True, help="in the tenant's currency, e.g. 25.00")
            giving.add_argument("--key", required=True, help="its name, e.g. the payment's id; a repeat does nothing")
            giving.add_argument("--reason", required=True)
            giving.add_argument("--expires", help="first moment without it, e.g. 2027-12-31T00:00:00+00:00")
        verbs.add_parser("balance").add_argument("--tenant", required=True, help="name or id")
        verbs.add_parser("expire")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "expire":
            self.stdout.write(f"expired: {expire_credits(now=timezone.now())}")
            return
        tenant_id = find_tenant(name_or_id=options["tenant"])
        payer = find_payer(tenant_id=str(tenant_id)) if tenant_id else None
        if tenant_id is None or payer is None:
            raise CommandError(no_such_tenant(options["tenant"]))
        if options["verb"] != "balance":
            self._grant(tenant_id, payer.currency, options)
        left = balance_nano(tenant_id=tenant_id, currency=payer.currency)
        self.stdout.write(f"credit left: {text_from_nano(left)} {payer.currency}")
        if options["verb"] == "balance":
            self._tell_of_limit(tenant_id, payer.currency)

    def _tell_of_limit(self, tenant_id: uuid.UUID, currency: str) -> None:
        """What is left of it once usage without an invoice is off, and what requests under way hold."""
        try:
            free = spendable_nano(tenant_id)
        except Unavailable as error:
            raise CommandError(error.message) from error
        if free is None:
            self.stdout.write("not prepaid: credit pays invoices and limits nothing")
        else:
            self.stdout.write(f"prepaid: may still spend {text_from_nano(free)} {currency}")

    def _grant(self, tenant_id: Any, currency: str, options: dict[str, Any]) -> None:
        expires = None if options["expires"] is None else read_moment(options["expires"], option="--expires")
        try:
            _, created = grant_credit(
                key=options["key"],
                tenant_id=tenant_id,
                currency=currency,
                amount=Decimal(options["amount"]),
                paid=options["verb"] == "top-up",
                reason=options["reason"],
                actor="system:command",
                at=timezone.now(),
                expires_at=expires,
            )
        except InvalidOperation as error:
            raise CommandError("--amount is a number") from error
        except (CreditRefused, LedgerConflict, ValueError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write("granted" if created else f"{options['key']} was granted before: nothing done")
