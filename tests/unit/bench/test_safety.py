"""Bench `safety`: its arithmetic on known samples, its policies, and one small run."""

from collections.abc import Sequence

import pytest

from infra.bench import safety
from infra.bench.safety import (
    NONE,
    STREAMS,
    Found,
    NotWhole,
    Plan,
    Side,
    kinds,
    made_text,
    made_tokens,
    made_words,
    measures,
    policies,
    verdict_rows,
)  # fmt: skip
from safety.verdicts import Stage


def side(*, ttft_ms: float, feed_us: float, held: Sequence[int]) -> Side:
    return Side(
        ttft=[ttft_ms / 1_000] * 10, ttft_cpu=[ttft_ms / 2_000] * 10, feeds=[feed_us / 1e6] * 10,
        feeds_cpu=feed_us / 1e6 * 5, held=list(held), first_tokens=[0] * 9 + [4],
    )  # fmt: skip


@pytest.fixture
def found() -> Found:
    bare = side(ttft_ms=0.5, feed_us=0, held=[0] * 10)
    typical = side(ttft_ms=3.0, feed_us=62.5, held=[1, 2, 3, 4, 5])
    return Found(plan=Plan(), sides={NONE: bare, "typical": typical}, speeds={"regex": (300.0, 0.4)})


class TestMeasures:
    def test_are_differences_from_no_policy(self, found: Found) -> None:
        lines = {(line.case.get("policy"), line.metric): line for line in measures(found)}
        assert lines["typical", "added_ttft_p99_ms"].value == pytest.approx(2.5)
        assert lines["typical", "added_ttft_p99_ms"].ratio == pytest.approx(6.0)
        assert lines["typical", "added_ttft_cpu_p99_ms"].value == pytest.approx(1.25)
        assert lines["typical", "added_itl_ms"].value == pytest.approx(0.0625)
        assert lines["typical", "added_itl_cpu_ms"].value == pytest.approx(0.03125)
        assert lines["typical", "held_chars_p50"].value == 3
        assert lines["typical", "first_text_tokens_p99"].value == pytest.approx(3.64)

    def test_give_the_throughput_of_an_engine_that_waits(self, found: Found) -> None:
        lines = [line for line in measures(found) if line.metric == "throughput"]
        assert lines[0].value == pytest.approx(STREAMS / 0.02)
        assert lines[1].ratio == pytest.approx(20 / 22)  # 32 streams of 62.5 µs are 2 ms more

    def test_give_the_speed_of_each_kind(self, found: Found) -> None:
        speeds = {line.metric: line.value for line in measures(found) if "kind" in line.case}
        assert speeds == {"prompt_mb_per_s": 300.0, "output_mb_per_s": 0.4}


class TestVerdicts:
    def test_say_what_was_met_and_what_was_missed(self, found: Found) -> None:
        rows = dict(verdict_rows(measures(found)))
        assert rows["added_ttft_p99_ms policy=typical"] == "2.500, aim 3: met"
        assert rows["added_itl_ms policy=typical"].endswith("met")
        assert rows["throughput policy=typical"] == "0.909, aim 0.9: met"
        found.sides["typical"].feeds = [0.001]
        assert dict(verdict_rows(measures(found)))["added_itl_ms policy=typical"].endswith("missed")


class TestMade:
    def test_policies_are_what_their_names_say(self) -> None:
        made = policies(validators=True)
        assert made[NONE] is None
        typical, heavy, judged = made["typical"], made["heavy"], made["guardrails-ai"]
        assert typical is not None
        assert [rule.kind for rule in typical.rules] == ["regex"] * 5 + ["ban_list", "secrets", "pii"]
        assert heavy is not None
        assert {rule.kind for rule in heavy.rules} == set(kinds())
        assert judged is not None
        assert [rule.kind for rule in judged.buffered(Stage.OUTPUT)] == ["guardrails_ai"]
        assert len(made_words(1_000)) == 1_000

    def test_tokens_are_the_text(self) -> None:
        text = made_text(seed=3, words=50)
        assert text == made_text(seed=3, words=50) != made_text(seed=4, words=50)
        tokens = list(made_tokens(text))
        assert "".join(tokens) == text
        assert max(map(len, tokens)) == 5


class TestRun:
    async def test_answers_every_request_under_every_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(safety, "find_spec", lambda name: None)
        plan, steps = Plan(requests=2, tokens=12, prompt_words=20, kind_chars=400), []
        found = await safety.run(plan=plan, advance=steps.append)
        assert list(found.sides) == [NONE, "typical", "heavy"]
        assert {len(one.ttft) for one in found.sides.values()} == {2}
        assert {len(one.held) for one in found.sides.values()} == {24}
        assert max(found.sides[NONE].held) == 0
        assert set(found.speeds) == set(kinds())
        assert sum(steps) == plan.steps

    def test_fails_where_a_rule_did_not_run(self) -> None:
        with pytest.raises(NotWhole, match="refused"):
            safety._must_have_run(["stage=output rule=a action=redact state=refused hits=0 acted=yes"])
