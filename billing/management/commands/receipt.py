"""`manage.py receipt`: the signed receipt of a request, and the public keys that receipts are checked with."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.management.composition import open_signer
from billing.proof.publishing import published_keys
from billing.proof.receipts import find_receipt
from billing.proof.signing import KeyRefused
from billing.selectors import usage_reader
from stores.clickhouse import ClickHouseError


class Command(BaseCommand):
    """A receipt is the same text whenever it is asked for."""

    help = "Print the signed receipt of a request (RFC 8785, Ed25519), or --keys: the public keys to publish."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("request_id", nargs="?")
        parser.add_argument("--keys", action="store_true", help="print public keys, the signing one first")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["keys"]:
            for key_id, public_key in published_keys().items():
                self.stdout.write(f"{key_id} {public_key.hex()}")
            return
        if not options["request_id"]:
            raise CommandError("name a request, or --keys")
        try:
            signer = open_signer()
            found = find_receipt(usage_reader(), request_id=options["request_id"])
        except KeyRefused as error:
            raise CommandError(str(error)) from error
        except ClickHouseError as error:
            raise CommandError(f"the usage tables do not answer: {error}") from error
        if found is None:
            raise CommandError("no such request was metered")
        self.stdout.write(json.dumps(signer.signed_receipt(found)))
