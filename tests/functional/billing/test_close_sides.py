"""The further sides of a close on real stores: collected attempts, the queue's own counts, evaluation logs."""

from collections.abc import Iterable
from datetime import timedelta

import pytest
from redis import Redis as BlockingRedis

from billing.closing.close import check_period
from billing.closing.compare import Gap
from billing.closing.queue_counts import QueueCounts
from billing.metering.attempts import AttemptCollector
from billing.metering.keys import KNOWN_POOLS, counted_from, ended_in_hour
from billing.models import BillingPeriod
from contracts.jobs import UsageRecord
from stores.clickhouse import ClickHouseUnavailable
from tests.functional.billing.months import NOW, START, Books, attempt_line

pytestmark = pytest.mark.django_db

AT = START + timedelta(hours=1)


def gaps_of(november: BillingPeriod, books: Books, **changes: object) -> list[Gap]:
    return list(check_period(november, books.evidence(**changes), now=NOW).gaps)


class TestCollector:
    def test_keeps_what_a_log_no_longer_has(self, books: Books, november: BillingPeriod) -> None:
        collector = AttemptCollector(folder=books.logs, clickhouse=books.clickhouse)
        books.use(AT)
        assert collector.collect() == 1
        (books.logs / "w1.jsonl").rename(books.logs / "w1.jsonl.1")
        books.use(AT)
        assert (collector.collect(), collector.collect()) == (1, 0)
        for path in books.logs.glob("*.jsonl*"):
            path.unlink()
        assert gaps_of(november, books, attempt_logs=[]) == []

    def test_waits_for_a_line_that_is_not_whole(self, books: Books) -> None:
        collector = AttemptCollector(folder=books.logs, clickhouse=books.clickhouse)
        line = attempt_line(books.record(AT))
        path = books.logs / "w2.jsonl"
        path.write_bytes(line[:40])
        assert collector.collect() == 0
        path.write_bytes(line + line[:40])
        assert collector.collect() == 1
        path.write_bytes(line + line[:40] + b"\n" + attempt_line(books.record(AT)))
        assert collector.collect() == 1

    def test_loses_and_doubles_nothing_when_it_dies_before_its_note(
        self, books: Books, november: BillingPeriod
    ) -> None:
        books.use(AT)
        AttemptCollector(folder=books.logs, clickhouse=books.clickhouse).collect()
        (books.logs / "collected.json").unlink()
        books.use(AT)
        assert AttemptCollector(folder=books.logs, clickhouse=books.clickhouse).collect() == 2
        rows = books.clickhouse.execute("SELECT count() AS n FROM attempt_raw FINAL")
        assert rows == [{"n": 2}]
        assert gaps_of(november, books, attempt_logs=[]) == []

    def test_begins_again_where_the_store_was_away(self, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
        collector = AttemptCollector(folder=books.logs, clickhouse=books.clickhouse)
        books.use(AT, of="engine")

        def away(**_: object) -> None:
            raise ClickHouseUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(books.clickhouse, "insert", away)
            with pytest.raises(ClickHouseUnavailable):
                collector.collect()
        assert collector.collect() == 1


@pytest.fixture
def blocking(valkey_url: str) -> Iterable[BlockingRedis]:
    with BlockingRedis.from_url(valkey_url) as client:
        client.flushdb()
        yield client


def count(redis: BlockingRedis, record: UsageRecord, *, from_ms: int | None = None) -> None:
    """As the scripts' `count_end`."""
    redis.sadd(KNOWN_POOLS, record.pool)
    key = ended_in_hour(record.pool, record.billed_at_ms // 3_600_000)
    redis.hincrby(key, record.tenant_id, 1)
    redis.hincrby(key, f"{record.tenant_id}:tokens", record.counts.prompt + record.counts.completion)
    redis.hsetnx(*counted_from(record.pool), record.billed_at_ms if from_ms is None else from_ms)


class Clocked(BlockingRedis):
    """Its clock stands at the check's own time: the month is long over by the server's."""

    def time(self, **_: object) -> tuple[int, int]:
        return round(NOW.timestamp()), 0


class TestQueueSide:
    def test_agrees_with_rows_of_each_hour_and_pool(
        self, books: Books, november: BillingPeriod, blocking: BlockingRedis
    ) -> None:
        for hours in (1, 1, 5):
            count(blocking, books.use(START + timedelta(hours=hours)))
        queue = QueueCounts(Clocked(connection_pool=blocking.connection_pool))
        assert gaps_of(november, books, queue=queue) == []

    def test_names_the_hour_of_what_it_ended_and_no_book_has(
        self, books: Books, november: BillingPeriod, blocking: BlockingRedis
    ) -> None:
        count(blocking, books.use(AT))
        lost = books.record(AT)
        count(blocking, lost)
        queue = QueueCounts(Clocked(connection_pool=blocking.connection_pool))
        [gap] = gaps_of(november, books, queue=queue)
        assert (gap.kind, gap.tokens) == ("queue", 1_100)
        assert gap.at_ms == lost.billed_at_ms - lost.billed_at_ms % 3_600_000
        assert "ended 2 requests of 2200 tokens, ClickHouse has 1 of 1100" in gap.detail

    def test_is_not_asked_about_what_it_no_longer_knows(
        self, books: Books, november: BillingPeriod, blocking: BlockingRedis
    ) -> None:
        books.use(AT - timedelta(milliseconds=1))  # before it began to count
        count(blocking, books.use(AT))
        queue = QueueCounts(Clocked(connection_pool=blocking.connection_pool))
        assert gaps_of(november, books, queue=queue) == []


class Kept:
    """An object store that has these keys."""

    def __init__(self, *keys: str) -> None:
        self._keys = keys

    def keys(self, *, prefix: str) -> list[str]:
        return [key for key in self._keys if key.startswith(prefix)]


class TestEvaluationLogs:
    def test_are_in_the_store_where_a_row_names_them(self, books: Books, november: BillingPeriod) -> None:
        books.use(AT, log_key="evaluation/0a/t/2026/11/01/one.json")
        lost = books.use(AT, log_key="evaluation/0a/t/2026/11/01/two.json")
        books.use(AT)  # dropped by policy: the row says so by naming none
        [gap] = gaps_of(november, books, objects=Kept("evaluation/0a/t/2026/11/01/one.json"))
        assert (gap.kind, gap.request_id) == ("evaluation_log", lost.request_id)

    def test_are_a_gap_without_a_store(self, books: Books, november: BillingPeriod) -> None:
        books.use(AT, log_key="evaluation/0a/t/2026/11/01/one.json")
        [gap] = gaps_of(november, books, objects=None)
        assert gap.kind == "evaluation_log"
