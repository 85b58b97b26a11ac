"""`manage.py receipt_key`: the key that signs receipts: which one it is, and another one in its place."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.management.composition import begin_to_sign, receipt_key_file
from billing.models import ReceiptKey
from billing.proof.publishing import rotate_key
from billing.proof.signing import KeyRefused


class Command(BaseCommand):
    """Run it where the settler runs: the key is a file of that machine."""

    help = "Show the published receipt keys, make the first one (`make`), or replace the one that signs (`rotate`)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=("show", "make", "rotate"), nargs="?", default="show")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["what"] == "make":
                begin_to_sign()
            elif options["what"] == "rotate":
                rotate_key(receipt_key_file(), now=timezone.now())
        except (KeyRefused, OSError) as error:
            raise CommandError(str(error)) from error
        for key in ReceiptKey.objects.all():
            until = "signs" if key.retired_at is None else f"until {key.retired_at:%Y-%m-%d %H:%M} UTC"
            self.stdout.write(f"{key.key_id} {key.public_key} since {key.published_at:%Y-%m-%d %H:%M} UTC, {until}")
