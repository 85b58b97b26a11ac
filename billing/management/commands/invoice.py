"""`manage.py invoice`: documents of sealed periods: issue, files, payments, void, the requests behind a line."""

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.customers import find_tenant, no_such_tenant
from billing.invoicing.drill import requests_of_line
from billing.invoicing.files import store_files
from billing.invoicing.focus import focus_csv
from billing.invoicing.issue import InvoiceRefused, issue_document
from billing.invoicing.pay import PaymentRefused, amount_due, record_payment, void_period
from billing.ledger.journal import LedgerConflict
from billing.management.composition import open_signer
from billing.models import BillingPeriod, Invoice, PeriodState
from billing.proof.pack import NoProof, proof_of
from billing.proof.signing import KeyRefused
from billing.selectors import usage_reader
from contracts.money import text_from_nano
from stores.clickhouse import ClickHouseError
from stores.objects import Objects, ObjectStoreError


class Command(BaseCommand):
    """Every verb repeated does nothing more: a document, a payment and a file each have a key."""

    help = "Invoices: issue | files | get | pay | void | prove | focus | drill."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        issue = verbs.add_parser("issue", help="documents of every sealed period, and the notes that issued ones need")
        issue.add_argument("--tenant", help="name or id; every tenant without it")
        issue.add_argument("--by", default="system:command", help="who issues")
        verbs.add_parser("files", help="store the files of every document that has none yet")
        get = verbs.add_parser("get", help="write a document's file to a path")
        get.add_argument("number")
        get.add_argument("--as", dest="ending", choices=["pdf", "html", "xml", "csv"], default="pdf")
        get.add_argument("--to", type=Path, required=True)
        pay = verbs.add_parser("pay", help="book money that came in")
        pay.add_argument("number")
        pay.add_argument("--amount", required=True)
        pay.add_argument("--key", required=True, help="the payment's own id; a repeat does nothing")
        pay.add_argument("--by", default="system:command", help="who books")
        void = verbs.add_parser("void", help="take back the documents of a period that nobody has paid for")
        void.add_argument("number")
        void.add_argument("--reason", required=True)
        void.add_argument("--by", default="system:command", help="who voids")
        prove = verbs.add_parser("prove", help="write the proof that `verify_invoice` checks")
        prove.add_argument("number")
        prove.add_argument("--to", type=Path, required=True)
        focus = verbs.add_parser("focus", help="a document as FOCUS 1.2 CSV")
        focus.add_argument("number")
        drill = verbs.add_parser("drill", help="the requests behind a line, as CSV")
        drill.add_argument("number")
        drill.add_argument("--line", type=int, required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        verb = {
            "issue": self._issue,
            "files": self._files,
            "get": self._get,
            "pay": self._pay,
            "void": self._void,
            "prove": self._prove,
            "focus": self._focus,
            "drill": self._drill,
        }[options["verb"]]
        try:
            verb(options)
        except (InvoiceRefused, PaymentRefused, LedgerConflict, NoProof, KeyRefused) as error:
            raise CommandError(str(error)) from error
        except ObjectStoreError as error:
            raise CommandError(f"{error}; run it again: what was issued stands") from error
        except ClickHouseError as error:
            raise CommandError(f"the usage tables do not answer: {error}") from error

    def _issue(self, options: dict[str, Any]) -> None:
        issued = refused = 0
        for period in _periods(options["tenant"]):
            try:
                made = issue_document(period_id=period.pk, actor=options["by"], now=timezone.now())
            except InvoiceRefused as error:
                refused += 1
                self.stdout.write(f"{period}: {error}")
                continue
            if made is not None:
                issued += 1
                self.stdout.write(
                    f"{period}: {made.get_kind_display()} {made.number}, {made.total.normalize():f} {made.currency}, "
                    f"due {amount_due(made).normalize():f}"
                )
        if refused:
            raise CommandError(f"{refused} periods have no document")
        if not issued:
            self.stdout.write("nothing to issue: every sealed period has its documents")

    def _files(self, options: dict[str, Any]) -> None:
        objects = _objects()
        documents = list(Invoice.objects.filter(files={}).order_by("year", "serial"))
        if not documents:
            self.stdout.write("nothing to store: every document has its files")
        for document in documents:
            store_files(invoice_id=document.pk, objects=objects)
            self.stdout.write(f"{document}: stored")

    def _get(self, options: dict[str, Any]) -> None:
        document = _document(options["number"])
        stored = store_files(invoice_id=document.pk, objects=_objects()).files[options["ending"]]
        options["to"].write_bytes(_objects().get(key=stored["key"]))
        self.stdout.write(f"{options['to']}: sha256 {stored['sha256']}")

    def _pay(self, options: dict[str, Any]) -> None:
        document = _document(options["number"])
        try:
            amount = Decimal(options["amount"])
        except InvalidOperation as error:
            raise CommandError("--amount is a number") from error
        _, booked = record_payment(
            invoice_id=document.pk, key=options["key"], amount=amount, actor=options["by"], at=timezone.now()
        )
        document.refresh_from_db()
        done = "booked" if booked else "was booked before"
        self.stdout.write(f"{document}: {done}, {document.state}, due {amount_due(document).normalize():f}")

    def _void(self, options: dict[str, Any]) -> None:
        document = _document(options["number"])
        period = void_period(
            period_id=document.period_id, actor=options["by"], at=timezone.now(), reason=options["reason"]
        )
        self.stdout.write(f"{period}: void")

    def _prove(self, options: dict[str, Any]) -> None:
        lines = proof_of(_document(options["number"]), reader=usage_reader(), signer=open_signer())
        with options["to"].open("w", encoding="utf-8") as file:
            number = sum(1 for line in lines if file.write(f"{line}\n"))
        self.stdout.write(f"{options['to']}: {number - 1} receipts")

    def _focus(self, options: dict[str, Any]) -> None:
        self.stdout.write(focus_csv(_document(options["number"])), ending="")

    def _drill(self, options: dict[str, Any]) -> None:
        line = _document(options["number"]).lines.filter(position=options["line"]).first()
        if line is None:
            raise CommandError("there is no such line")
        self.stdout.write("request_id,tokens,cost")
        tokens = 0
        for row in requests_of_line(line, reader=usage_reader()):
            tokens += row.tokens
            self.stdout.write(f"{row.request_id},{row.tokens},{text_from_nano(row.cost_nano)}")
        self.stderr.write(f"{tokens} tokens now, {line.tokens} on the line")


def _periods(name: str | None) -> Iterable[BillingPeriod]:
    states = (PeriodState.SEALED, PeriodState.ISSUED, PeriodState.PAID)
    found = BillingPeriod.objects.filter(state__in=states).order_by("starts_at", "tenant_id")
    if name is None:
        return found
    tenant_id = find_tenant(name_or_id=name)
    if tenant_id is None:
        raise CommandError(no_such_tenant(name))
    return found.filter(tenant_id=tenant_id)


def _document(number: str) -> Invoice:
    found = Invoice.objects.filter(number=number).first()
    if found is None:
        raise CommandError(f"there is no document {number}")
    return found


def _objects() -> Objects:
    if settings.ENV.s3_url is None:
        raise CommandError("S3_URL is not set: files have no place")
    return Objects.open(settings.ENV.s3_url.get_secret_value())
