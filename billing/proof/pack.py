"""The proof that goes with a document: its period's documents, seal and signed receipts, one JSON object a line.

Called by `manage.py invoice prove`. Read by `billing.proof.verify`, which needs nothing else.
"""

import json
from collections.abc import Iterator
from datetime import UTC
from typing import Any

from billing.models import Invoice, PeriodSeal
from billing.proof.receipts import receipts_of
from billing.proof.seal import seal_json
from billing.proof.signing import Signer
from billing.rating.periods import Span
from stores.clickhouse import Reader


class NoProof(ValueError):
    """The document's usage was not sealed under a signed head, or its period has later usage by now."""


def proof_of(document: Invoice, *, reader: Reader, signer: Signer) -> Iterator[str]:
    """Lines, the head first. Raises NoProof, stores.clickhouse.ClickHouseError.

    Receipts come from ClickHouse as it is now: usage that came after the document's revision is in the next proof.
    """
    period = document.period
    seal = PeriodSeal.objects.filter(period=period, revision=document.usage_revision).first()
    latest = PeriodSeal.objects.filter(period=period).order_by("-revision").first()
    if seal is None or latest is None or seal.pk != latest.pk:
        raise NoProof(f"{document} has no seal of its own, or a later document of its period has: prove the last one")
    documents = Invoice.objects.filter(period=period, sequence__lte=document.sequence).order_by("sequence")
    hours = period.hours.filter(revision=seal.revision).order_by("hour")
    span = Span(start=period.starts_at.astimezone(UTC), end=period.ends_at.astimezone(UTC))
    head = {
        "number": document.number,
        "currency": document.currency,
        "start_ms": span.start_ms,
        "end_ms": span.end_ms,
        "zone": period.zone,
        "seal": seal_json(seal),
        "key_id": seal.key_id,
        "signature": seal.signature,
        "hours": [
            {"hour_ms": round(row.hour.timestamp() * 1_000), "requests": row.requests, "root": row.merkle_root}
            for row in hours
        ],
        "documents": [_document(each) for each in documents],
    }
    yield json.dumps(head)
    for receipt in receipts_of(reader, tenant_id=str(period.tenant_id), span=span):
        yield json.dumps(signer.signed_receipt(receipt))


def _document(document: Invoice) -> dict[str, Any]:
    return {
        "number": document.number,
        "seal_head": document.seal_head,
        "net": str(document.net),
        "tax": str(document.tax),
        "total": str(document.total),
        "lines": [
            {
                "key": line.key,
                "kind": line.kind,
                "text": line.text,
                "tokens": line.tokens,
                "exact": str(line.exact),
                "amount": str(line.amount),
            }
            for line in document.lines.all()
        ],
    }
