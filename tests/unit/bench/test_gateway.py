"""The arithmetic of bench `gateway`."""

from __future__ import annotations

import pytest

from infra.bench.gateway import Found, Plan, Side, measures, record_rows, verdict_rows
from infra.bench.litellm_proxy import LOCK, locked_version
from infra.bench.load import Target


def side(name: str, rate: float, tokens: float, ttft: float) -> Side:
    return Side(
        Target(name=name, model="m"),
        {},
        requests_per_s=[rate, rate, 10 * rate],
        tokens_per_s=[tokens] * 3,
        ttft_ms=[ttft] * 3,
        cpu={"whole": {"gateway": 2.0, "client": 0.5}},
    )


@pytest.fixture
def found() -> Found:
    return Found(
        plan=Plan(),
        weir=side("weir", 160, 9_000, 6.0),
        peer=side("litellm", 10, 1_000, 21.0),
        upstream=side("upstream", 5_000, 50_000, 1.0),
    )


class TestMeasures:
    def test_are_the_median_round_against_the_proxys(self, found: Found) -> None:
        requests, tokens, _ = measures(found)
        assert (requests.value, requests.peer_value, requests.ratio) == (160, 10, 16)
        assert (tokens.value, tokens.ratio) == (9_000, 9)

    def test_take_the_upstreams_own_time_off_both(self, found: Found) -> None:
        *_, added = measures(found)
        assert (added.value, added.peer_value, added.ratio) == (5, 20, 0.25)

    def test_judge_by_the_aims(self, found: Found) -> None:
        rows = dict(verdict_rows(measures(found)))
        assert rows["requests_per_s"].endswith("met")
        assert rows["stream_tokens_per_s"].endswith("missed")
        assert rows["added_ttft_p50_ms"].endswith("met")

    def test_tell_what_a_request_cost_each_process(self, found: Found) -> None:
        assert dict(record_rows(found.weir))["processor, whole"] == "gateway 2.00, client 0.50 ms a request"


class TestLock:
    def test_pins_the_proxy_by_hash_and_leaves_the_commercial_part_out(self) -> None:
        text = LOCK.read_text()
        assert locked_version() in text
        assert "--hash=sha256:" in text
        assert "litellm-enterprise" not in text
        assert "://" not in text
