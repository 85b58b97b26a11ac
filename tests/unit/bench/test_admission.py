"""The arithmetic of bench `admission`, on rounds with known times."""

import pytest

from infra.bench.admission import Found, Plan, Round, admissions_per_second, measures, verdict_rows


def one_round(*, began: float = 10.0, seconds: float = 1.0, cpu: float = 0.3, requests: int = 400) -> Round:
    return Round(requests=requests, began=began, ended=began + seconds, cpu=cpu, store_cpu=cpu / 3)


@pytest.fixture
def found() -> Found:
    return Found(
        plan=Plan(requests=400, rounds=3, keys=1_000, revocations=3),
        singles=[one_round(cpu=0.2), one_round(cpu=0.3, seconds=0.5), one_round(cpu=9.0, seconds=4.0)],
        pairs=[[one_round(began=10.0), one_round(began=10.6)]] * 3,
        keys={"keys": 1_000, "cold": 2.0, "warm_keys": 20_000, "warm": 0.5},
        revocations=[0.1, 0.2, 0.3],
    )


class TestAdmissionsPerSecond:
    def test_counts_from_the_first_start_to_the_last_end(self) -> None:
        assert admissions_per_second([one_round(began=1.0), one_round(began=2.0)]) == pytest.approx(400.0)

    def test_of_one_is_its_own(self) -> None:
        assert admissions_per_second([one_round(seconds=0.5)]) == pytest.approx(800.0)


class TestMeasures:
    def test_take_the_median_round(self, found: Found) -> None:
        lines = {(line.metric, line.case.get("gateways")): line for line in measures(found)}
        assert lines["cpu_ms_per_admission", 1].value == pytest.approx(0.75)
        assert lines["store_cpu_ms_per_admission", 1].value == pytest.approx(0.25)
        assert lines["admissions_per_s", 1].value == pytest.approx(400.0)

    def test_compare_two_gateways_with_one(self, found: Found) -> None:
        pair = next(line for line in measures(found) if line.case.get("gateways") == 2)
        assert (pair.value, pair.peer_value) == (pytest.approx(500.0), pytest.approx(400.0))
        assert pair.ratio == pytest.approx(1.25)

    def test_tell_cold_keys_from_warm_ones(self, found: Found) -> None:
        rates = {line.case["cache"]: line.value for line in measures(found) if line.metric == "auth_keys_per_s"}
        assert rates == {"warm": pytest.approx(40_000.0), "cold": pytest.approx(500.0)}

    def test_give_the_tail_of_revocations_in_milliseconds(self, found: Found) -> None:
        cut = next(line for line in measures(found) if line.metric == "revocation_p99_ms")
        assert (cut.value, cut.unit) == (pytest.approx(298.0), "ms")


class TestVerdicts:
    def test_say_which_aims_were_met(self, found: Found) -> None:
        rows = dict(verdict_rows(found, measures(found)))
        assert rows["cpu_ms_per_admission"] == "0.750, aim 0.7: missed"
        assert rows["auth_keys_per_s cache=warm"].endswith("met")
        assert rows["auth_keys_per_s cache=cold"].endswith("missed")
        assert rows["revocation_p99_ms"] == "298.000, aim 1000: met"


class TestPlan:
    def test_counts_its_orders(self) -> None:
        assert Plan(rounds=5, revocations=30).steps == 43
