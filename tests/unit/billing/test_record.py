"""Usage records as rows."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from billing.metering.record import COLUMNS, Batch, PoisonRecord, build_row, check
from contracts.jobs import Timings, UsageRecord
from contracts.money import PriceCard
from contracts.tokens import TokenCounts
from tests.factories.jobs import make_record

BATCH = Batch(batch_id="00000000-0000-4000-8000-000000000001", created_at_ms=1_800_000_005_000)
RECORD = make_record(
    request_id="0192f0c1-0000-7000-8000-000000000001",
    counts=TokenCounts(prompt=100, cached=60, completion=20, reasoning=5),
    delivered_tokens=19,
    attempt=2,
    worker_id="worker",
    price=PriceCard(card_id="a+b+c", currency="USD", input_nano=250, cached_nano=25, output_nano=2_000),
    timings=Timings(edge_us=1, ttft_us=2_000, total_us=9_000, itl={40: 3, 7: 1}, itl_sum_us=6_000),
    policy_id="policy",
    policy_version=3,
    verdicts=("regex: flagged",),
)


def row(record: UsageRecord = RECORD) -> dict[str, object]:
    return dict(zip(COLUMNS, build_row(record, batch=BATCH), strict=True))


class TestBuildRow:
    def test_prices_each_part_exactly(self) -> None:
        built = row()
        assert built["cost_input"] == Decimal("0.00001")
        assert built["cost_cached"] == Decimal("0.0000015")
        assert built["cost_output"] == Decimal("0.00004")
        assert built["cost"] == Decimal("0.0000515")

    def test_keeps_times_to_the_millisecond_in_utc(self) -> None:
        assert row()["admitted_at"] == datetime(2027, 1, 15, 8, 0, 0, 123_000, tzinfo=UTC)
        assert row()["ingested_at"] == datetime(2027, 1, 15, 8, 0, 5, tzinfo=UTC)

    def test_is_the_same_row_for_the_same_record_and_batch(self) -> None:
        reordered = replace(RECORD, timings=replace(RECORD.timings, itl={7: 1, 40: 3}))
        assert repr(build_row(RECORD, batch=BATCH)) == repr(build_row(reordered, batch=BATCH))

    @pytest.mark.parametrize("cut", [False, True])
    def test_says_whether_the_budget_cut_it(self, cut: bool) -> None:
        assert row(replace(RECORD, budget_cut=cut))["budget_cut"] is cut

    def test_prefers_the_lowest_attempt(self) -> None:
        first, second = (row(replace(RECORD, attempt=attempt))["version"] for attempt in (0, 1))
        assert isinstance(first, int)
        assert isinstance(second, int)
        assert first > second

    def test_takes_a_request_that_ended_in_the_queue(self) -> None:
        queued = replace(
            RECORD, counts=TokenCounts(), outcome="expired", attempt=0, worker_id="", timings=Timings(queue_us=5)
        )
        assert row(queued)["cost"] == 0


class TestCheck:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"request_id": "not-a-uuid"}, "UUID"),
            ({"outcome": "vanished"}, "Outcome"),
            ({"tenant_id": ""}, "tenant"),
            ({"model": ""}, "model"),
            ({"revision": 2}, "revision"),
            ({"attempt": 70_000}, "attempt"),
            ({"attempt": -1}, "attempt"),
            ({"delivered_tokens": 2**31}, "token count"),
            ({"admitted_at_ms": 0}, "admitted_at"),
            ({"billed_at_ms": 10**15}, "billed_at"),
            ({"timings": Timings(queue_us=-1)}, "duration"),
            ({"timings": Timings(itl={70_000: 1})}, "bucket"),
            ({"price": replace(RECORD.price, currency="")}, "currency"),
            ({"price": replace(RECORD.price, output_nano=10**15)}, "exact range"),
        ],
    )
    def test_names_what_can_never_become_a_row(self, change: dict[str, object], reason: str) -> None:
        with pytest.raises(PoisonRecord, match=reason):
            check(replace(RECORD, **change))  # type: ignore[arg-type]
