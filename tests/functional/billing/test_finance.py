"""Finance's questions on a real chDB: totals equal drill-downs in any zone, waste, movers, and every form of a file."""

import csv
import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from itertools import count

import pyarrow.parquet as pq
import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.clickhouse.finance import DIMENSIONS, FinanceQuestion
from billing.metering.attempts import AttemptCollector
from billing.metering.record import COLUMNS, TABLE, Batch, build_row
from billing.reporting.finance import FinanceLine, Sums, movers, read_finance, read_wasted, total_of
from billing.reporting.table import as_csv, as_parquet, plain, rows_of
from contracts.errors import InvalidRequest
from contracts.jobs import Timings, UsageRecord
from contracts.money import PriceCard
from contracts.tokens import TokenCounts
from stores.clickhouse_chdb import ChdbOwner
from tenants import services
from tenants.models import Tenant
from tests.factories import jobs
from tests.functional.billing.months import attempt_line
from tests.functional.tenants.api import Api

START = datetime(2026, 4, 1, tzinfo=UTC)  # New Zealand's clocks go back on the 5th
END = START + timedelta(days=10)
QUESTION = FinanceQuestion(
    start_ms=round(START.timestamp() * 1_000), end_ms=round(END.timestamp() * 1_000), by=("tenant",)
)
PRICE = PriceCard(card_id="a+b+c", currency="USD", input_nano=250, cached_nano=25, output_nano=2_000)
ZONES = ("Asia/Kathmandu", "America/New_York", "Pacific/Auckland", "UTC")
NUMBERS = count(1)


def record(at: datetime, **changes: object) -> UsageRecord:
    at_ms = round(at.timestamp() * 1_000)
    made = jobs.make_record(
        jobs.make_ticket(str(uuid.UUID(int=next(NUMBERS))), tenant_id="t1", price=PRICE, admitted_at_ms=at_ms - 900)
    )
    timings = Timings(prefill_us=4_000, decode_us=50_000, ttft_us=5_000, total_us=60_000, itl={80: 9})
    counts = TokenCounts(prompt=100, cached=60, completion=10)
    fields = {"counts": counts, "billed_at_ms": at_ms, "outcome": "ok", "timings": timings, "attempt": 1}
    return replace(made, **{**fields, **changes})


def write(clickhouse: ChdbOwner, *records: UsageRecord) -> None:
    batch = Batch(batch_id=str(uuid.uuid4()), created_at_ms=records[0].billed_at_ms)
    rows = [build_row(each, batch=batch) for each in records]
    clickhouse.insert(table=TABLE, columns=COLUMNS, rows=rows, token=batch.batch_id)


def pages(clickhouse: ChdbOwner, question: FinanceQuestion) -> Iterator[FinanceLine]:
    while True:
        page = read_finance(clickhouse, question)
        yield from page.lines
        if page.next_after is None:
            return
        question = replace(question, after=page.next_after)


@pytest.fixture(scope="module")
def used(owner: ChdbOwner) -> ChdbOwner:
    """Three tenants over ten days, every other hour; some failed, one model dearer."""
    owner.command("TRUNCATE TABLE inference_requests_audit")
    dearer = replace(PRICE, card_id="d+e+f", output_nano=3_000)
    write(
        owner,
        *(
            record(
                START + timedelta(minutes=61 * number),
                tenant_id=f"t{number % 3}",
                model=f"m{number % 2}",
                price=dearer if number % 2 else PRICE,
                outcome="failed" if number % 7 == 0 else "ok",
                counts=TokenCounts(prompt=100 + number, cached=number % 90, completion=number % 11),
            )
            for number in range(200)
        ),
    )
    return owner


class TestTotals:
    @given(
        by=st.lists(st.sampled_from(DIMENSIONS), unique=True, max_size=4),
        zone=st.sampled_from(ZONES),
        limit=st.sampled_from([3, 50, 10_000]),
    )
    @settings(max_examples=12, deadline=None)
    def test_equal_the_sum_of_every_drill_down(self, used: ChdbOwner, by: list[str], zone: str, limit: int) -> None:
        whole = total_of(read_finance(used, replace(QUESTION, by=())).lines)
        lines = list(pages(used, replace(QUESTION, by=tuple(by), zone=zone, limit=limit)))
        assert total_of(lines) == whole
        assert whole["USD"].requests == 200
        assert len({line.groups for line in lines}) == len(lines)

    def test_tell_both_hours_of_a_clock_that_goes_back(self, clickhouse: ChdbOwner) -> None:
        twice = datetime(2026, 4, 4, 13, 30, tzinfo=UTC)  # 02:30 in Auckland, and an hour later again
        write(clickhouse, record(twice), record(twice + timedelta(hours=1)))
        lines = read_finance(clickhouse, replace(QUESTION, by=("hour",), zone="Pacific/Auckland")).lines
        assert [line.groups for line in lines] == [("2026-04-05T02:00+1200",), ("2026-04-05T02:00+1300",)]


class TestLine:
    def test_says_revenue_savings_engine_time_and_latency(self, clickhouse: ChdbOwner) -> None:
        slow = Timings(prefill_us=1_000, decode_us=1_000, ttft_us=2_000_000, total_us=60_000)
        write(clickhouse, record(START), record(START, timings=slow, outcome="failed"))
        [line] = read_finance(clickhouse, QUESTION).lines
        cost = 40 * 250 + 60 * 25 + 10 * 2_000
        assert line.sums == Sums(
            requests=2, ok_requests=1, input_tokens=200, cached_tokens=120, output_tokens=20, revenue_nano=2 * cost,
            cache_savings_nano=120 * 225, engine_us=56_000, measured=2, within_slo=1,
        )  # fmt: skip
        [row] = rows_of([line], by=("tenant",), sequence_hour_nano=3_600 * 10**9)
        assert row["engine_cost"] == Decimal("0.056")
        assert row["margin"] == Decimal(2 * cost).scaleb(-9) - Decimal("0.056")
        assert row["itl_p50_ms"] is not None

    def test_counts_attempts_that_nothing_was_billed_for(self, clickhouse: ChdbOwner, tmp_path: object) -> None:
        ended = record(START, attempt=2)
        lost = replace(ended, attempt=1, outcome="failed")
        (tmp_path / "w.jsonl").write_bytes(attempt_line(lost) + attempt_line(ended))  # type: ignore[operator]
        write(clickhouse, ended)
        AttemptCollector(folder=tmp_path, clickhouse=clickhouse).collect()  # type: ignore[arg-type]
        [wasted] = read_wasted(clickhouse, replace(QUESTION, by=("tenant", "key")))
        assert (wasted.groups, wasted.attempts, wasted.engine_us) == (("t1",), 1, 54_000)


class TestMovers:
    def test_are_told_by_how_much_they_moved(self) -> None:
        def line(name: str, nano: int) -> FinanceLine:
            return FinanceLine(groups=(name,), currency="USD", sums=Sums(revenue_nano=nano), ttft_ms=(), itl_ms=())

        moved = movers(before=[line("a", 5), line("b", 90)], now=[line("a", 25), line("c", 30)])
        assert [(each.groups[0], each.difference_nano) for each in moved] == [("b", -90), ("c", 30), ("a", 20)]


class TestQuestion:
    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"by": ("tenant", "tenant")}, "by"),
            ({"by": ("nobody",)}, "by"),
            ({"zone": "../etc/passwd"}, "zone"),
            ({"zone": "Nowhere"}, "zone"),
            ({"end_ms": 0}, "from"),
            ({"limit": 0}, "limit"),
            ({"slo_ttft_us": 0}, "slo_ttft_ms"),
            ({"after": ("a",)}, "after"),
        ],
    )
    def test_is_refused_by_name(self, changes: dict[str, object], param: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            replace(QUESTION, **changes)
        assert refused.value.param == param


class TestForms:
    def test_keep_amounts_exact(self, used: ChdbOwner) -> None:
        lines = read_finance(used, replace(QUESTION, by=("tenant", "model"))).lines
        rows = rows_of(lines, by=("tenant", "model"), sequence_hour_nano=35 * 10**7)
        read = pq.read_table(io.BytesIO(as_parquet(rows))).to_pylist()
        assert [row["revenue"] for row in read] == [row["revenue"] for row in rows]
        texts = list(csv.DictReader(io.StringIO(as_csv(rows).decode())))
        assert [Decimal(row["margin"]) for row in texts] == [row["margin"] for row in rows]
        assert [Decimal(plain(row)["revenue"]) for row in rows] == [row["revenue"] for row in rows]
        assert as_csv([]) == b"\r\n"

    def test_quote_what_a_spreadsheet_would_run(self) -> None:
        assert as_csv([{"model": "=1+1", "n": 1}]) == b"model,n\r\n'=1+1,1\r\n"


class TestApi:
    @pytest.fixture
    def operator(self, db: None, used: ChdbOwner, monkeypatch: pytest.MonkeyPatch) -> Api:
        monkeypatch.setattr("billing.selectors.usage_reader", lambda: used)
        return Api(user=User.objects.create_superuser("root"))

    def test_pages_to_the_same_total_and_gives_each_form(self, operator: Api) -> None:
        asked = "finance/usage?from=2026-04-01T00:00:00Z&to=2026-04-11T00:00:00Z&by=tenant,day&zone=Asia/Kathmandu"
        rows, after = [], ""
        while True:
            status, page = operator("get", f"{asked}&rows=7&sequence_hour=0.35{after}")
            assert status == 200
            rows += page["data"]
            if not page["has_more"]:
                break
            after = f"&after={page['next_after']}"
        assert sum(row["requests"] for row in rows) == 200
        assert all(Decimal(row["revenue"]) - Decimal(row["engine_cost"]) == Decimal(row["margin"]) for row in rows)
        assert operator("get", f"{asked}&as=csv")[0] == 200
        texts = list(csv.DictReader(io.StringIO(operator.last.content.decode())))
        assert [Decimal(row["revenue"]) for row in texts] == [Decimal(row["revenue"]) for row in rows]
        assert operator("get", f"{asked}&as=parquet")[0] == 200
        assert pq.read_table(io.BytesIO(operator.last.content)).num_rows == len(rows)

    def test_tells_movers_waste_and_receivables(self, operator: Api) -> None:
        span = "from=2026-04-03T00:00:00Z&to=2026-04-05T00:00:00Z"
        _, moved = operator("get", f"finance/movers?{span}&by=model")
        assert {row["model"] for row in moved["data"]} == {"m0", "m1"}
        assert operator("get", f"finance/wasted?{span}")[1]["data"] == []
        assert operator("get", "finance/receivables")[1]["data"] == []

    @pytest.mark.parametrize(
        ("query", "param"),
        [("", "from"), ("from=x&to=y", "from"), ("after=%5B", "after"), ("as=exe", "as"), ("nobody=1", "nobody")],
    )
    def test_refuses_by_name(self, operator: Api, query: str, param: str) -> None:
        span = "" if param == "from" else "from=2026-04-01T00:00:00Z&to=2026-04-11T00:00:00Z&"
        status, answer = operator("get", f"finance/usage?{span}{query}")
        assert (status, answer["error"]["param"]) == (400, param)
        assert (answer["error"]["code"] == "unknown_parameter") is (param == "nobody")

    def test_is_no_tenant_s(self, operator: Api, tenants: dict[str, Tenant]) -> None:
        user = User.objects.create_user("bill")
        services.add_member(tenant=tenants["acme"], user=user, role="owner")
        for name in ("usage", "wasted", "movers", "receivables"):
            assert Api(user=user)("get", f"finance/{name}")[0] == 403


class TestCommand:
    @pytest.mark.django_db
    def test_writes_what_was_asked(self, used: ChdbOwner, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("billing.management.commands.finance_report.usage_reader", lambda: used)

        def asked(*more: str) -> str:
            out = StringIO()
            call_command("finance_report", "--from", "2026-04-01", "--to", "2026-04-11", *more, stdout=out)
            return out.getvalue()

        rows = list(csv.DictReader(io.StringIO(asked("--by", "tenant,model", "--sequence-hour", "0.35"))))
        assert sum(int(row["requests"]) for row in rows) == 200
        assert {"engine_cost", "margin"} <= rows[0].keys()
        moved = json.loads(asked("--movers", "--format", "json"))
        assert {row["before"] for row in moved} == {"0"}
        assert asked("--wasted") in ("\r\n", "")
        with pytest.raises(CommandError, match="by: by names"):
            asked("--by", "nobody")
        with pytest.raises(CommandError, match="amount"):
            asked("--sequence-hour", "much")
        for option, wrong in (("--from", "2026-99-01"), ("--to", "2026-06-31"), ("--to", "2026-04-11T25:00:00Z")):
            with pytest.raises(CommandError, match=f"{option} is a day like 2026-11-01"):
                asked(option, wrong)
