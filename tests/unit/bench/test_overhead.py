"""The arithmetic of bench `overhead`, on answers with known times."""

from typing import Any

import pytest

from infra.bench import overhead, registry
from infra.bench.engine_metrics import Occupancy, read_metrics
from infra.bench.load import Answer, Target, failed
from infra.bench.overhead import Comparison, Plan, Side, measures, verdict_rows
from infra.bench.prompts import make_prompt
from infra.bench.record import Load
from infra.bench.registry import BenchFailed, Options, run_overhead


def answer(*, ttft: float, gap: float = 0.05, text: str = "abc", tokens: int = 3) -> Answer:
    times = tuple(ttft + gap * number for number in range(tokens))
    return Answer(
        request_id="r",
        status=200,
        text=text,
        finish_reason="length",
        counts={"completion_tokens": tokens, "prompt_tokens": 10},
        token_times=times,
        total=times[-1],
        failure="",
    )


def side(name: str, *, ttft: float, seconds: float) -> Side:
    loads = [
        Load(name="round", answers=[answer(ttft=ttft)] * 4, seconds=seconds * factor, concurrency=2)
        for factor in (1, 1, 9)
    ]
    return Side(Target(name=name, model="m"), [answer(ttft=ttft)] * 5, 1.0, loads)


@pytest.fixture
def found() -> Comparison:
    plan = Plan(requests=5, concurrency=2, rounds=3, waves=2)
    engine, weir = side("engine", ttft=0.1, seconds=1.0), side("weir", ttft=0.106, seconds=1.25)
    return Comparison(plan, engine, weir, side("bare", ttft=0.104, seconds=1.02))


class TestMeasures:
    def test_subtracts_percentiles_and_keeps_the_peers(self, found: Comparison) -> None:
        lines = {(line.metric, line.case.get("guard")): line for line in measures(found, engine="simulated")}
        added = lines["added_ttft_p50_ms", "policy"]
        assert added.value == pytest.approx(6.0)
        assert added.peer_value == pytest.approx(100.0)
        assert added.ratio == pytest.approx(1.06)
        assert lines["added_ttft_p50_ms", "none"].value == pytest.approx(4.0)
        assert lines["added_itl_p99_ms", "policy"].value == pytest.approx(0.0, abs=1e-9)

    def test_takes_throughput_from_the_median_round(self, found: Comparison) -> None:
        lines = {(line.metric, line.case.get("guard")): line for line in measures(found, engine="simulated")}
        assert lines["output_tokens_per_second", "policy"].value == pytest.approx(12 / 1.25)
        assert lines["throughput", "policy"].value == pytest.approx(0.8)
        assert lines["throughput", "none"].value == pytest.approx(1 / 1.02)
        case = {"engine": "simulated", "guard": "policy", "concurrency": 2, "requests": 12}
        assert lines["throughput", "policy"].case == case

    def test_counts_pairs_that_did_not_get_the_same_answer(self, found: Comparison) -> None:
        found.weir.alone[2] = answer(ttft=0.106, text="abd")
        assert found.unequal() == 1

    def test_names_every_failure_with_its_side(self, found: Comparison) -> None:
        assert found.failures() == []
        found.weir.alone[0] = failed("status 503: busy", status=503)
        assert found.failures() == ["weir: status 503: busy"]

    def test_says_of_each_aim_whether_it_was_met(self, found: Comparison) -> None:
        rows = dict(verdict_rows(found, measures(found, engine="simulated")))
        assert rows["added_ttft_p50_ms guard=policy"].endswith("met")
        assert rows["added_ttft_p50_ms guard=none"].endswith("met")
        assert rows["throughput guard=policy"].endswith("missed")
        assert rows["throughput guard=none"].endswith("met")


class Platform:
    """Where its sides listen, and what its models are called; nothing runs."""

    def platform_target(self, *, model: str) -> Target:
        return Target(name="weir", model=model)

    def unguarded_target(self, *, model: str) -> Target:
        return Target(name="bare", model=model)

    def engine_target(self, *, model: str) -> Target:
        return Target(name="engine", model=model)


class TestTheRunner:
    """`registry.run_overhead` around a run whose answers are known."""

    @pytest.fixture
    def ran(self, monkeypatch: pytest.MonkeyPatch, found: Comparison) -> list[dict[str, Any]]:
        """With what `overhead.run` was called."""
        ran: list[dict[str, Any]] = []

        async def get_json(target: Target, path: str) -> dict[str, Any]:
            model = "inner" if target.name == "engine" else "outer"
            return {"data": [{"id": model}]} if path == "/v1/models" else {"id": model, "weights": {"dtype": "bf16"}}

        async def run(**given: Any) -> Comparison:
            ran.append(given)
            return found

        monkeypatch.setattr(registry, "get_json", get_json)
        monkeypatch.setattr(overhead, "run", run)
        return ran

    async def run(self) -> registry.Finished:
        """`--requests 5`; the other sizes are the bench's own."""
        options = Options(engine="simulated", requests=5, concurrency=None, max_tokens=None, prompt_words=None)
        return await run_overhead(Platform(), options, lambda _: lambda _: None)  # type: ignore[arg-type]

    async def test_gives_no_number_where_one_request_failed(self, ran: list[Any], found: Comparison) -> None:
        found.bare.alone[-1] = failed("status 503: busy", status=503)
        with pytest.raises(BenchFailed, match=r"^1 requests failed, the first: bare: status 503: busy$"):
            await self.run()
        assert len(ran) == 1

    async def test_records_what_was_measured_on_what(self, ran: list[Any], found: Comparison) -> None:
        finished = await self.run()
        assert list(finished.record) == [
            "machine", "model", "engine", "engine, one at a time", "engine, all rounds", "weir, one at a time",
            "weir, all rounds", "bare, one at a time", "bare, all rounds", "aims",
        ]  # fmt: skip
        assert all(finished.record.values())
        assert ("weights.dtype", "bf16") in finished.record["model"]
        assert finished.measures == measures(found, engine="simulated")
        assert finished.wrong == ""

    async def test_asks_each_side_for_its_own_model_with_the_plan_asked_for(self, ran: list[dict[str, Any]]) -> None:
        await self.run()
        sides = {name: ran[0][name] for name in ("direct", "weir", "bare")}
        assert {name: (side.name, side.model) for name, side in sides.items()} == {
            "direct": ("engine", "inner"), "weir": ("weir", "outer"), "bare": ("bare", "outer"),
        }  # fmt: skip
        assert ran[0]["plan"] == Plan(requests=5)


class TestLoad:
    def test_counts_refusals_and_tokens(self) -> None:
        load = Load(name="x", answers=[answer(ttft=0.1), failed("status 429", status=429)], seconds=2.0, concurrency=2)
        rows = dict(load.rows())
        assert load.rejected == 1
        assert rows["requests"] == "2, 1 answered, 1 rejected"
        assert rows["output tokens/s"] == "1.5"


class TestPrompts:
    def test_are_the_same_for_one_seed(self) -> None:
        assert make_prompt(seed=1, index=2, words=40) == make_prompt(seed=1, index=2, words=40)

    def test_differ_from_the_first_characters_on(self) -> None:
        openings = [make_prompt(seed=1, index=index, words=40)[:16] for index in range(-3, 200)]
        assert len(set(openings)) == len(openings)

    def test_have_about_the_length_asked_for(self) -> None:
        assert [len(make_prompt(seed=1, index=0, words=words).split()) for words in (10, 60)] == [10, 60]


class TestEngineMetrics:
    def test_sums_a_metric_over_its_labels(self) -> None:
        lines = (
            "# HELP x y",
            'vllm:kv_cache_usage_perc{engine="0"} 0.25',
            'vllm:num{a="1"} 2',
            'vllm:num{a="2"} 3.5 17',
        )
        assert read_metrics("\n".join([*lines, "plain 4", "bad x", ""])) == {
            "vllm:kv_cache_usage_perc": 0.25,
            "vllm:num": 5.5,
            "plain": 4.0,
        }

    def test_records_the_peak_and_the_prefix_hits(self) -> None:
        names = ("vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        values = ((0.1, 100.0, 10.0), (0.4, 300.0, 60.0), (0.2, 500.0, 110.0))
        rows = dict(Occupancy(looks=[dict(zip(names, look, strict=True)) for look in values]).rows())
        assert rows["cache occupancy"] == "at most 40.0%, 20.0% at the end"
        assert rows["prefix cache"] == "100 of 400 prompt tokens found"

    def test_says_when_the_engine_reported_nothing(self) -> None:
        assert Occupancy().rows() == [("cache occupancy", "the engine reported none")]


class TestPlan:
    def test_counts_what_it_sends(self) -> None:
        plan = Plan(requests=10, concurrency=2, rounds=3, waves=4, warmup=1)
        alone, crowd = 1 + 10, 2 + 3 * 2 * 4  # each with its warm-up
        assert plan.steps == 3 * (alone + crowd)
