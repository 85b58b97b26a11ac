"""A tenant's November in Kathmandu: usage written into all three books, or into those that a test names."""

import uuid
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from billing.closing.check import Evidence
from billing.closing.compare import PoolCount
from billing.closing.watermark import Watermark
from billing.ledger.entries import post_usage
from billing.ledger.posting import line_of
from billing.metering.record import COLUMNS, TABLE, Batch, build_row
from billing.proof.signing import Signer
from billing.rating.periods import Span
from contracts.jobs import UsageRecord
from contracts.money import PriceCard
from contracts.tokens import TokenCounts
from stores.clickhouse_chdb import ChdbOwner
from tenants.models import Tenant
from tests.factories import jobs

START = datetime(2026, 10, 31, 18, 15, tzinfo=UTC)  # November in Kathmandu
END = datetime(2026, 11, 30, 18, 15, tzinfo=UTC)
NOW = END + timedelta(hours=6)
SIGNER = Signer(b"a private key for the tests only")
LARGE = TokenCounts(prompt=1_000_000, cached=600_000, completion=100_000)  # 0.86
DONE = Watermark(low_ms=round(NOW.timestamp() * 1_000), letters=(), cut=())


def attempt_line(record: UsageRecord) -> bytes:
    """As a worker's attempt log has it."""
    fields = {each.name: getattr(record, each.name) for each in dataclass_fields(record)}
    return orjson.dumps({"v": 1, "fence": "1-a", **fields}, option=orjson.OPT_NON_STR_KEYS) + b"\n"


@dataclass
class Books:
    """Writes usage into all three books, or into those that a test names."""

    clickhouse: ChdbOwner
    tenant: Tenant
    card: PriceCard
    logs: Path
    number: int = 0
    records: list[UsageRecord] = field(default_factory=list)

    def record(self, at: datetime, **changes: Any) -> UsageRecord:
        self.number += 1
        at_ms = round(at.timestamp() * 1_000)
        request_id = uuid.UUID(int=((at_ms - 900) << 80) | (0x7 << 76) | (0b10 << 62) | self.number)
        made = jobs.make_record(
            jobs.make_ticket(
                str(request_id), tenant_id=str(self.tenant.pk), price=self.card, model="m", admitted_at_ms=at_ms - 900
            )
        )
        counts = TokenCounts(prompt=1_000, cached=600, completion=100)
        made = replace(made, counts=counts, billed_at_ms=at_ms, outcome="ok", worker_id="w1", attempt=1)
        made = replace(made, **changes)
        self.records.append(made)
        return made

    def use(self, at: datetime, *, of: str = "clickhouse ledger engine", **changes: Any) -> UsageRecord:
        record = self.record(at, **changes)
        self.write(record, of=of)
        return record

    def write(self, *records: UsageRecord, of: str = "clickhouse ledger engine") -> None:
        if "clickhouse" in of:
            batch = Batch(batch_id=str(uuid.uuid4()), created_at_ms=records[0].billed_at_ms)
            rows = [build_row(record, batch=batch) for record in records]
            self.clickhouse.insert(table=TABLE, columns=COLUMNS, rows=rows, token=batch.batch_id)
        if "ledger" in of:
            post_usage([line_of(record) for record in records], at=NOW)
        if "engine" in of:
            with (self.logs / "w1.jsonl").open("ab") as file:
                for record in records:
                    file.write(attempt_line(record))

    def evidence(self, watermark: Watermark = DONE, **changes: Any) -> Evidence:
        """Of a queue that has counted nothing, without an object store."""
        made = Evidence(
            reader=self.clickhouse, watermark=watermark, queue=Uncounted(), objects=None, attempt_logs=[self.logs],
            signer=SIGNER,
        )  # fmt: skip
        return replace(made, **changes)


class Uncounted:
    def of(self, *, tenant_id: str, span: Span) -> list[PoolCount]:
        return []
