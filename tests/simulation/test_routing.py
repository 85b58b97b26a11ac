"""The routing simulation: all is served once, the same by seed, no token lost; what each rule is known for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.bench import routing
from infra.sim.routing.run import OURS, POLICIES, TWO_BOUNDS, run
from infra.sim.routing.workers import BlockCache, EngineModel, Request, make_workers
from infra.sim.routing.workloads import NoPrefixes, multi_turn, no_reuse, of_trace, shared_prefixes

SMALL = EngineModel(cache_tokens=64_000, slots=8)


def requests(rows: int = 120, per_second: float = 20.0) -> list[Request]:
    return list(shared_prefixes(name="even", seed=3, rows=rows, per_second=per_second, weight=lambda _: 1.0).requests)


class TestRun:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_serves_everything_once_and_gives_the_same_for_the_same_seed(self, policy: str) -> None:
        asked = requests()
        first = run(asked, policy=policy, model=SMALL, workers=3, seed=1)
        assert (len(first.ttft), sum(first.by_worker)) == (120, 120)
        assert first.prompt == sum(request.prompt for request in asked)
        assert first.output == sum(request.output for request in asked)
        assert 0 <= first.cached < first.prompt
        assert run(asked, policy=policy, model=SMALL, workers=3, seed=1) == first
        assert all(request.done < 0 for request in asked), "the arrivals themselves stay as they are"

    @settings(max_examples=25, deadline=None)
    @given(
        policy=st.sampled_from(POLICIES), rows=st.integers(1, 40), per_second=st.floats(0.5, 200),
        workers=st.integers(1, 4), slots=st.integers(1, 5), seed=st.integers(0, 99),
    )  # fmt: skip
    def test_ends_whatever_comes(
        self, policy: str, rows: int, per_second: float, workers: int, slots: int, seed: int
    ) -> None:
        asked = multi_turn(seed=seed, rows=rows, per_second=per_second).requests
        model = EngineModel(cache_tokens=4_000, slots=slots)
        found = run(asked, policy=policy, model=model, workers=workers, seed=seed)
        assert len(found.ttft) == rows
        assert min(found.ttft) > 0

    def test_counts_nothing_of_the_warm_up(self) -> None:
        found = run(requests(), policy=OURS, model=SMALL, workers=3, seed=1, warm_up=100)
        assert (len(found.ttft), sum(found.by_worker)) == (20, 120)

    def test_hits_no_prefix_of_another_tenant(self) -> None:
        fresh = no_reuse(seed=1, rows=60, per_second=5.0).requests
        assert run(fresh, policy="best prefix", model=SMALL, workers=2, seed=1).hit_rate == 0
        twins = [
            Request(number=n, at=float(n), tenant=n, prompt=600, output=1, blocks=(n,), after=(n,), block_tokens=256)
            for n in range(4)
        ]
        assert run(twins, policy=OURS, model=SMALL, workers=1, seed=1).cached == 0


class TestPolicies:
    def test_the_best_prefix_alone_lets_a_hot_tenant_burn_one_worker(self) -> None:
        hot = shared_prefixes(name="hot", seed=1, rows=200, per_second=50.0, weight=lambda t: 300.0 if t == 0 else 1.0)
        alone, spread = (
            run(hot.requests, policy=policy, model=EngineModel(), workers=4, seed=1)
            for policy in ("best prefix", "cost rule")
        )
        assert max(alone.by_worker) > 1.5 * max(spread.by_worker)
        assert sorted(alone.ttft)[180] > 2 * sorted(spread.ttft)[180]

    def test_the_queue_finds_the_worker_that_holds_the_prefix(self) -> None:
        calm = requests(rows=400, per_second=4.0)
        hits = {name: run(calm, policy=name, model=EngineModel(), workers=4, seed=1).hit_rate for name in POLICIES}
        assert hits[OURS] > 1.2 * hits["round robin"]
        assert hits[OURS] > 0.95 * hits["best prefix"]

    def test_two_bounds_keep_a_burst_from_one_worker(self) -> None:
        burst = [
            Request(number=n, at=n / 1_000, tenant=n, prompt=8_000, output=1, blocks=(), after=(), block_tokens=256)
            for n in range(16)
        ]
        found = run(burst, policy=TWO_BOUNDS, model=EngineModel(), workers=4, seed=1)
        assert found.by_worker == [4, 4, 4, 4]

    def test_two_bounds_leave_a_prefix_where_it_is_when_its_worker_is_busy(self) -> None:
        busy = requests(rows=400, per_second=12.0)
        hits = {p: run(busy, policy=p, model=EngineModel(), workers=4, seed=1).hit_rate for p in (OURS, TWO_BOUNDS)}
        assert hits[TWO_BOUNDS] > 0.95 * hits[OURS]


class TestBlockCache:
    def test_keeps_what_was_used_last_and_of_a_chain_its_beginning(self) -> None:
        cache = BlockCache(3)
        cache.add((1, 2, 3))
        cache.add((4,))
        assert cache.match((1, 2, 3)) == 2
        assert len(cache) == 3

    @given(chains=st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True), max_size=30), size=st.integers(1, 6))
    def test_never_holds_more_than_it_has(self, chains: list[list[int]], size: int) -> None:
        cache = BlockCache(size)
        for chain in chains:
            cache.add(chain)
            assert len(cache) <= size

    def test_a_worker_s_backlog_ends_at_nothing(self) -> None:
        [worker] = make_workers(1, EngineModel(), 256)
        request = requests(rows=1)[0]
        worker.bind(request)
        assert worker.backlog == request.prompt
        worker.start_next(0.0)
        worker.prefilled(1.0)
        worker.finished(request, 2.0)
        assert (worker.backlog, worker.bound, worker.running) == (0, 0, 0)


class TestTrace:
    def test_is_read_with_its_prefixes_at_the_wanted_load(self, tmp_path: Path) -> None:
        rows = [
            {"timestamp": 1_000 * n, "input_length": 1_100, "output_length": 5, "hash_ids": [7, 8, n]} for n in range(5)
        ]
        path = tmp_path / "m.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
        made = of_trace(path, seed=1, rows=10, tokens_per_s=500.0)
        assert len({request.tenant for request in made.requests}) == 1
        assert [len(request.blocks) for request in made.requests] == [2] * 5
        assert len({request.blocks for request in made.requests}) == 1
        fresh = 1_100 + 4 * (1_100 - 1_024)
        assert made.requests[-1].at == pytest.approx(fresh / 500)

    @pytest.mark.parametrize("text", ["", "a,b\n", '{"timestamp": 1, "input_length": 5, "output_length": 5}\n'])
    def test_refuses_what_has_no_prefixes(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "x.jsonl"
        path.write_text(text)
        with pytest.raises(NoPrefixes, match=r"x\.jsonl"):
            of_trace(path, seed=1, rows=10, tokens_per_s=1.0)


class TestBench:
    def test_tells_four_numbers_of_every_workload_and_policy_and_what_was_missed(self) -> None:
        plan = routing.Plan(rows=60)
        workloads = routing.make_workloads(plan)
        found = routing.run_all(plan=plan, workloads=workloads, advance=lambda _: None)
        lines = routing.measures(found)
        assert len(lines) == 5 * len(POLICIES) * 4
        assert {line.metric for line in lines} == {"ttft_p90_ms", "ttft_p99_ms", "hit_rate", "fairness_gap"}
        assert all(line.peer not in (TWO_BOUNDS, "cost rule") for line in lines)
        assert len(routing.verdict_rows(found)) == 2 * 5
        assert json.loads(lines[0].as_line())["case"] == "workload=even,policy=weir"
