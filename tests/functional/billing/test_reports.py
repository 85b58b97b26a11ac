"""Reports from metered rows on real chDB, checked against the ledger on real PostgreSQL."""

import asyncio
import csv
import io
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from pydantic import SecretStr
from pytest_django import Settings

from billing import selectors
from billing.clickhouse.reports import query_text
from billing.ledger.entries import post_usage
from billing.ledger.posting import line_of
from billing.metering.record import COLUMNS, TABLE, Batch, build_row
from contracts.errors import InvalidRequest
from contracts.jobs import UsageRecord
from controlplane.env import environment
from fairqueue.messages import usage_from_stream
from stores.clickhouse_chdb import ChdbOwner
from stores.clickhouse_socket import ChdbServer
from tenants.models import Tenant

ADMITTED_MS = 1_800_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture
def reader(clickhouse: ChdbOwner, settings: Settings, tmp_path: Path) -> Iterator[ChdbOwner]:
    """The owner serves its socket from a loop of its own, as the meter does; selectors read by it."""
    path = tmp_path / "meter.sock"
    settings.ENV = environment().model_copy(update={"clickhouse_url": SecretStr(f"chdb+unix://{path}")})
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with ChdbServer(owner=clickhouse, path=path):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    selectors.usage_reader.cache_clear()
    yield clickhouse
    selectors.usage_reader.cache_clear()
    loop.call_soon_threadsafe(done.set)
    thread.join(10)
    loop.close()


def record(number: int, *, tenant: str, fields_of: Any, ticket_of: Any, **changes: Any) -> UsageRecord:
    ticket = ticket_of(number, pool="pool", tenant_id=tenant)
    fields = {key.encode(): _bytes(value) for key, value in fields_of(ticket, **changes).items()}
    return usage_from_stream(fields)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def write(clickhouse: ChdbOwner, records: list[UsageRecord]) -> None:
    batch = Batch(batch_id=str(uuid.uuid4()), created_at_ms=ADMITTED_MS)
    rows = [build_row(one, batch=batch) for one in records]
    clickhouse.insert(table=TABLE, columns=COLUMNS, rows=rows, token=batch.batch_id)


@pytest.fixture
def make(fields_of: Any, ticket_of: Any) -> Any:
    def build(number: int, *, tenant: str = "acme", **changes: Any) -> UsageRecord:
        return record(number, tenant=tenant, fields_of=fields_of, ticket_of=ticket_of, **changes)

    return build


class TestUsageBuckets:
    def test_sums_each_hour_once_although_a_row_came_twice(self, reader: ChdbOwner, make: Any, cost_nano: int) -> None:
        records = [make(n, billed_at_ms=ADMITTED_MS + n * HOUR) for n in range(4)]
        write(reader, records)
        write(reader, records[:2])
        page = selectors.usage_buckets(
            tenant_id="acme", start_ms=ADMITTED_MS, end_ms=ADMITTED_MS + 4 * HOUR, bucket_width="1h"
        )
        assert [sum(result.requests for result in bucket.results) for bucket in page.buckets] == [1, 1, 1, 1]
        (result,) = page.buckets[0].results
        assert (result.input_tokens, result.cached_tokens, result.output_tokens) == (100, 60, 10)
        assert result.cost_nano == cost_nano

    def test_shows_a_tenant_only_its_own(self, reader: ChdbOwner, make: Any) -> None:
        write(reader, [make(1), make(2, tenant="mallory")])
        window = {"start_ms": ADMITTED_MS - DAY, "end_ms": ADMITTED_MS + DAY}
        for tenant in ("acme", "mallory"):
            found = selectors.usage_buckets(tenant_id=tenant, **window)
            assert sum(result.requests for bucket in found.buckets for result in bucket.results) == 1
        nobody = selectors.usage_buckets(tenant_id="' OR 1=1 --", **window)
        assert all(bucket.results == () for bucket in nobody.buckets)

    def test_groups_and_filters(self, reader: ChdbOwner, make: Any) -> None:
        write(reader, [make(number) for number in range(5)])
        window = {"start_ms": ADMITTED_MS - DAY, "end_ms": ADMITTED_MS + DAY}
        page = selectors.usage_buckets(tenant_id="acme", group_by=("api_key_id", "model"), **window)
        groups = {(r.api_key_id, r.model): r.requests for bucket in page.buckets for r in bucket.results}
        assert groups == {("key-0", "model"): 3, ("key-1", "model"): 2}
        page = selectors.usage_buckets(tenant_id="acme", api_key_ids=("key-1", "key-9"), **window)
        assert sum(r.requests for bucket in page.buckets for r in bucket.results) == 2

    def test_has_in_all_pages_what_the_range_has(self, reader: ChdbOwner, make: Any) -> None:
        write(reader, [make(n, billed_at_ms=ADMITTED_MS + n * 7 * HOUR) for n in range(10)])
        total, token = 0, None
        while True:
            page = selectors.usage_buckets(
                tenant_id="acme",
                start_ms=ADMITTED_MS,
                end_ms=ADMITTED_MS + 63 * HOUR + 1,
                bucket_width="1h",
                limit=5,
                page=token,
            )
            total += sum(result.requests for bucket in page.buckets for result in bucket.results)
            token = page.next_page
            if token is None:
                break
        assert total == 10

    def test_finds_what_was_billed_long_after_it_was_admitted(self, reader: ChdbOwner, make: Any) -> None:
        write(reader, [make(1, billed_at_ms=ADMITTED_MS + 2 * DAY)])
        page = selectors.usage_buckets(
            tenant_id="acme", start_ms=ADMITTED_MS + 2 * DAY - HOUR, end_ms=ADMITTED_MS + 2 * DAY + HOUR
        )
        assert sum(result.requests for bucket in page.buckets for result in bucket.results) == 1


class TestRequestRow:
    def test_tells_the_nine_steps_in_order(self, reader: ChdbOwner, make: Any) -> None:
        one = make(1)
        write(reader, [one])
        row = selectors.request_row(request_id=one.request_id, tenant_id="acme")
        assert row is not None
        assert [step.step for step in row.timeline] == [
            "EDGE", "AUTH", "LIMITS", "GUARDRAIL", "QUEUE", "WORKER", "STREAM", "METER", "BILL"
        ]  # fmt: skip
        assert [step.duration_us for step in row.timeline] == [100, None, None, 200, 300, 4_000, 50_000, None, None]
        assert (row.ttft_ms, row.itl_ms, row.total_ms) == (5.0, 10.0, 60.0)
        assert row.cost_text == "0.0000315"

    @pytest.mark.parametrize(
        ("cut", "finish", "stopped_by"),
        [(True, "length", "budget"), (True, "stop", ""), (False, "length", ""), (False, "stop", "")],
    )
    def test_says_what_the_budget_did(
        self, reader: ChdbOwner, make: Any, cut: bool, finish: str, stopped_by: str
    ) -> None:
        one = replace(make(1, finish=finish), budget_cut=cut)
        write(reader, [one])
        found = selectors.request_row(request_id=one.request_id, tenant_id="acme")
        assert found is not None
        assert (found.budget_cut, found.stopped_by) == (cut, stopped_by)
        (recent,) = selectors.recent_requests(tenant_id="acme", limit=1)
        assert (recent.budget_cut, recent.stopped_by) == (cut, stopped_by)
        assert reader.execute("SELECT stopped_by FROM inference_requests_audit FINAL") == [{"stopped_by": stopped_by}]

    def test_is_none_for_another_tenant_and_for_nonsense(self, reader: ChdbOwner, make: Any) -> None:
        one = make(1)
        write(reader, [one])
        assert selectors.request_row(request_id=one.request_id, tenant_id="mallory") is None
        assert selectors.request_row(request_id="nonsense") is None
        assert selectors.request_row(request_id=str(uuid.uuid4())) is None
        with pytest.raises(ValueError, match="nobody"):
            selectors.request_row(request_id=one.request_id, tenant_id="")

    def test_finds_an_id_that_carries_no_time(self, reader: ChdbOwner, make: Any) -> None:
        one = replace(make(1), request_id=str(uuid.uuid4()))
        write(reader, [one])
        assert selectors.request_row(request_id=one.request_id) is not None


class TestRecentRequests:
    def test_pages_newest_first_without_a_gap(self, reader: ChdbOwner, make: Any) -> None:
        records = [make(number) for number in range(7)]
        write(reader, records)
        seen: list[str] = []
        before = None
        while True:
            page = selectors.recent_requests(tenant_id="acme", limit=3, before=before)
            seen += [row.request_id for row in page]
            if len(page) < 3:
                break
            before = page[-1].cursor
        assert seen == [one.request_id for one in reversed(records)]

    @pytest.mark.parametrize("change", [{"limit": 0}, {"limit": 501}, {"before": "x"}, {"before": "12:"}])
    def test_refuses_what_it_cannot_mean(self, reader: ChdbOwner, change: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest):
            selectors.recent_requests(tenant_id="acme", **change)


class TestLatencyPercentiles:
    def test_come_from_the_merged_histograms(self, reader: ChdbOwner, make: Any) -> None:
        write(reader, [make(number) for number in range(10)])
        found = selectors.latency_percentiles(start_ms=ADMITTED_MS, end_ms=ADMITTED_MS + HOUR, tenant_id="acme")
        assert found.requests == 10
        assert found.output_tokens == 100
        assert found.ttft.p50_ms == found.ttft.p99_ms == 5.0
        assert found.itl.p50_ms == found.itl.p99_ms == pytest.approx(4.35, rel=0.07)

    def test_are_none_when_nothing_was_measured(self, reader: ChdbOwner) -> None:
        found = selectors.latency_percentiles(start_ms=ADMITTED_MS, end_ms=ADMITTED_MS + HOUR)
        assert (found.requests, found.ttft.p50_ms, found.itl.p99_ms) == (0, None, None)


class TestQueries:
    @pytest.mark.parametrize("name", ["request_row", "recent_requests", "latency", "usage_report"])
    def test_read_money_and_counts_with_final_and_parameters(self, name: str) -> None:
        text = query_text(name)
        assert "FROM inference_requests_audit FINAL" in text
        assert "{tenant_id:String}" in text
        assert "%" not in text


@pytest.mark.django_db
class TestUsageReport:
    FROM_TO = ("--from", "2027-01-15", "--to", "2027-01-16T00:00:00+00:00")

    @pytest.fixture
    def acme(self, reader: ChdbOwner, tenants: dict[str, Tenant], make: Any) -> Tenant:
        from datetime import UTC, datetime

        records = [make(number, tenant=str(tenants["acme"].pk)) for number in range(4)]
        records[0] = replace(records[0], finish_reason="length", budget_cut=True)
        records[2] = replace(records[2], budget_cut=True)
        records.append(make(9, tenant=str(tenants["acme"].pk), billed_at_ms=ADMITTED_MS + 2 * DAY))
        write(reader, records)
        post_usage([line_of(one) for one in records], at=datetime(2027, 1, 17, tzinfo=UTC))
        return tenants["acme"]

    def test_ends_with_both_books_side_by_side(self, acme: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
        call_command("usage_report", "--tenant", "acme", *self.FROM_TO)
        printed = capsys.readouterr().out.splitlines()
        assert printed[0].split()[:3] == ["model", "api", "key"]
        assert len(printed) == 4
        assert printed[-1] == ("check USD: ClickHouse 0.000126 (4 requests) = ledger 0.000126 (4 requests)")

    def test_is_of_this_month_until_now_unless_told(
        self, acme: Tenant, capsys: pytest.CaptureFixture[str], time_machine: Any
    ) -> None:
        time_machine.move_to("2027-01-31T23:00:00+00:00", tick=False)
        call_command("usage_report", "--tenant", "acme")
        assert "(5 requests) = ledger" in capsys.readouterr().out
        time_machine.move_to("2027-02-01T01:00:00+00:00", tick=False)
        call_command("usage_report", "--tenant", "acme")
        assert "(0 requests) = ledger" in capsys.readouterr().out

    def test_writes_json_and_csv_with_the_same_sums(self, acme: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
        call_command("usage_report", "--tenant", str(acme.pk), *self.FROM_TO, "--format", "json")
        found = json.loads(capsys.readouterr().out)
        assert [line["requests"] for line in found["lines"]] == [2, 2]
        assert [line["budget_stopped_requests"] for line in found["lines"]] == [1, 0]
        assert found["check"][0]["equal"] is True
        call_command("usage_report", "--tenant", "acme", *self.FROM_TO, "--format", "csv")
        captured = capsys.readouterr()
        rows = list(csv.DictReader(io.StringIO(captured.out)))
        assert [row["cost"] for row in rows] == ["0.000063", "0.000063"]
        assert [row["budget_stopped_requests"] for row in rows] == ["1", "0"]
        assert captured.err.startswith("check USD")

    def test_fails_when_the_books_differ(self, acme: Tenant, reader: ChdbOwner, make: Any) -> None:
        write(reader, [make(50, tenant=str(acme.pk))])
        with pytest.raises(CommandError, match="differ"):
            call_command("usage_report", "--tenant", "acme", *self.FROM_TO)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--tenant", "nobody", "--from", "2027-01-15", "--to", "2027-01-16"), "no tenant .* there is: acme"),
            (("--tenant", "acme", "--from", "2027-01-16", "--to", "2027-01-15"), "before"),
            (("--tenant", "acme", "--from", "yesterday", "--to", "2027-01-15"), "--from is a day like 2026-11-01"),
            (
                ("--tenant", "acme", "--from", "2027-01-15T00:00:00", "--to", "2027-01-16"),
                "--from is a day like 2026-11-01",
            ),
            (("--tenant", "acme", "--from", "2027-01-15", "--to", "2027-13-16"), "--to is a day like 2026-11-01"),
        ],
    )
    def test_says_what_is_wrong_with_the_question(self, acme: Tenant, arguments: tuple[str, ...], message: str) -> None:
        with pytest.raises(CommandError, match=message):
            call_command("usage_report", *arguments)
