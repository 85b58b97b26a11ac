"""`manage.py verify_invoice FILE`: check an invoice's proof offline, by this installation's keys or by named ones."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.proof import verify
from billing.proof.publishing import published_keys


class Command(BaseCommand):
    """The same file, `billing/proof/verify.py`, runs by itself at the customer's."""

    requires_system_checks: tuple[str, ...] = ()  # with --key no store is asked
    help = "Check the proof of an invoice against its receipts, and against receipts that a customer kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("proof", type=Path)
        parser.add_argument("--key", action="append", default=[], help="trust these public keys (hex) instead of ours")
        parser.add_argument("--receipts", type=Path, help="receipts that the customer kept, one JSON object a line")

    def handle(self, *args: Any, **options: Any) -> None:
        keys = options["key"] or [key.hex() for key in published_keys().values()]
        arguments = [str(options["proof"]), *(part for key in keys for part in ("--key", key))]
        if options["receipts"]:
            arguments += ["--receipts", str(options["receipts"])]
        code = verify.main(arguments, write=self.stdout.write)
        if code:
            raise CommandError("the invoice is not proved", returncode=code)
