"""A document's files: CSV, Factur-X XML, HTML, and the PDF/A-3b that carries the CSV and the XML inside.

Called after the document was issued, and again until it worked: the same document makes the same bytes (the PDF's clock
is the moment of issue), and an object's key holds their hash. Invariant: what a document's row names was stored first.
"""

import csv
import hashlib
import io
import json
import uuid
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import typst
from django.db import transaction
from django.template.loader import render_to_string

from billing.invoicing.facturx import facturx_xml
from billing.invoicing.sheet import Sheet, sheet_of
from billing.models import Invoice
from stores.objects import Objects

TEMPLATE = Path(__file__).parent / "invoice.typ"
CONTENT_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xml": "application/xml",
    "html": "text/html; charset=utf-8",
    "pdf": "application/pdf",
}
_CSV_COLUMNS = ("position", "kind", "text", "tokens", "price_per_million", "amount_exact", "amount", "currency")
# What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class FileDiffers(Exception):
    """What the store has is not what the document says was stored."""


def build_files(sheet: Sheet) -> dict[str, bytes]:
    """All four by their ending. Raises RuntimeError when the typesetter refuses, which is a fault of ours."""
    table, xml = csv_of(sheet), facturx_xml(sheet)
    return {"csv": table, "xml": xml, "html": html_of(sheet), "pdf": pdf_of(sheet, table=table, xml=xml)}


def store_files(*, invoice_id: uuid.UUID, objects: Objects) -> Invoice:
    """Write a document's files and note where they lie. Noted already: a no-op. Raises stores.objects.ObjectStoreError.

    The store is written outside of the database's transaction: what a crash leaves is written again, to the same keys.
    """
    document = Invoice.objects.get(pk=invoice_id)
    if document.files:
        return document
    stored: dict[str, dict[str, str]] = {}
    for ending, body in build_files(sheet_of(document)).items():
        digest = hashlib.sha256(body).hexdigest()
        key = f"invoices/{document.tenant_id}/{document.number}/{digest[:16]}.{ending}"
        objects.put(key=key, body=body, content_type=CONTENT_TYPES[ending])
        stored[ending] = {"key": key, "sha256": digest}
    with transaction.atomic():
        locked = Invoice.objects.select_for_update().get(pk=invoice_id)
        if not locked.files:
            locked.files = stored
            locked.save(update_fields=["files"])
        return locked


def read_file(document: Invoice, *, ending: str, objects: Objects | None) -> bytes:
    """The stored file; made anew where none is stored yet, or there is no store.

    Raises stores.objects.ObjectStoreError, FileDiffers.
    """
    noted = document.files.get(ending)
    if noted is None or objects is None:
        return build_files(sheet_of(document))[ending]
    body = objects.get(key=noted["key"])
    if hashlib.sha256(body).hexdigest() != noted["sha256"]:
        raise FileDiffers(f"{noted['key']} is not what {document.number} names")
    return body


def csv_of(sheet: Sheet) -> bytes:
    """Lines, then net, tax and total; the sum of the lines' amounts is the net amount."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(_CSV_COLUMNS)
    for line in sheet.lines:
        writer.writerow(
            [
                line.position, line.kind, _plain(line.text), "" if line.tokens is None else line.tokens, line.price,
                f"{line.exact:.9f}", sheet.money(line.amount), sheet.currency,
            ]
        )  # fmt: skip
    for kind, amount in (("net", sheet.net), ("tax", sheet.tax), ("total", sheet.total)):
        writer.writerow(["", kind, "", "", "", f"{amount:.9f}", sheet.money(amount), sheet.currency])
    return out.getvalue().encode()


def html_of(sheet: Sheet) -> bytes:
    return render_to_string("billing/invoice.html", {"sheet": _printed(sheet)}).encode()


def pdf_of(sheet: Sheet, *, table: bytes, xml: bytes) -> bytes:
    """PDF/A-3b with tags; fonts come with the typesetter, nothing of the machine goes into it."""
    data = {**_printed(sheet), "csv": table.decode(), "xml": xml.decode()}
    made: bytes = typst.compile(
        TEMPLATE.read_bytes(),
        format="pdf",
        sys_inputs={"data": json.dumps(data)},
        pdf_standards="a-3b",
        ignore_system_fonts=True,
        timestamp=int(sheet.issued_at.timestamp()),
    )
    return made


def _printed(sheet: Sheet) -> dict[str, Any]:
    """Texts only: the templates compute nothing."""
    texts: dict[str, Any] = {
        name: sheet.money(value) if isinstance(value, Decimal) else value for name, value in asdict(sheet).items()
    }
    texts["credit_used_shown"] = sheet.credit_used > 0
    texts["issued_at"] = sheet.issued_at.isoformat()
    texts["lines"] = [
        {
            "position": str(line.position),
            "text": line.text,
            "tokens": "" if line.tokens is None else f"{line.tokens:,}",
            "price": line.price,
            "amount": sheet.money(line.amount),
        }
        for line in sheet.lines
    ]
    return texts


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
