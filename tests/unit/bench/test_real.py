"""Benches of real engines: what is asked, and what is made of the answers. No engine runs here."""

import asyncio

import pytest

from infra.bench.load import Answer
from infra.bench.output import Measure
from infra.bench.real import batching, paging, speculative, tensor
from infra.bench.real.batching import CONTINUOUS, STATIC
from infra.bench.real.engine import EngineAway
from infra.bench.real.paging import Look
from infra.bench.real.speculative import DRAFT, NGRAM, ORDINARY, Guesses

METRICS = """# HELP vllm:spec_decode_num_drafts_total drafts
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 14.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 5.0
"""


def answer(*, tokens: int, seconds: float, ttft: float = 0.5, text: str = "x") -> Answer:
    return Answer(
        request_id="r", status=200, text=text, finish_reason="length", counts={"completion_tokens": tokens},
        token_times=(ttft, seconds), total=seconds, failure="",
    )  # fmt: skip


def value_of(lines: list[Measure], metric: str, **case: str | int) -> Measure:
    [found] = [line for line in lines if line.metric == metric and line.case == case]
    return found


class TestGuesses:
    def test_reads_the_engines_own_counters_by_position(self) -> None:
        guesses = Guesses.read(METRICS)
        assert (guesses.accepted, guesses.drafted, guesses.drafts) == (14, 40, 10)
        assert guesses.by_position == {0: 9, 1: 5}
        assert guesses.rate == pytest.approx(0.35)

    def test_counts_what_one_load_added(self) -> None:
        before = Guesses(accepted=4, drafted=20, drafts=5, by_position={0: 4})
        added = Guesses.read(METRICS).since(before)
        assert (added.accepted, added.drafted, added.by_position) == (10, 20, {0: 5, 1: 5})

    def test_is_all_zero_for_an_engine_that_does_not_guess(self) -> None:
        assert Guesses.read('vllm:num_requests_running{engine="0"} 1.0\n').rate == 0


class TestSpeculative:
    def found(self) -> speculative.Found:
        none = Guesses(accepted=0, drafted=0, drafts=0, by_position={})
        some = Guesses(accepted=6, drafted=8, drafts=2, by_position={0: 2, 1: 1})
        loads = {
            ORDINARY: speculative.Load(answers=[answer(tokens=11, seconds=2.0)], guesses=none),
            NGRAM: speculative.Load(answers=[answer(tokens=11, seconds=1.0)], guesses=some),
            DRAFT: speculative.Load(answers=[answer(tokens=11, seconds=4.0, text="y")], guesses=some),
        }
        return speculative.Found(plan=speculative.Plan(), engine=[], loads={"chat": loads})

    def test_measures_each_method_against_ordinary_decoding(self) -> None:
        lines = speculative.measures(self.found())
        assert value_of(lines, "tokens_per_s", method=NGRAM, workload="chat").ratio == pytest.approx(2.0)
        assert value_of(lines, "tokens_per_s", method=DRAFT, workload="chat").ratio == pytest.approx(0.5)
        assert value_of(lines, "tokens_per_s", method=ORDINARY, workload="chat").peer is None
        assert value_of(lines, "itl_mean_ms", method=NGRAM, workload="chat").value == pytest.approx(50)
        assert value_of(lines, "acceptance_rate", method=NGRAM, workload="chat").value == pytest.approx(0.75)
        assert value_of(lines, "accepted_at", method=NGRAM, workload="chat", position=1).value == pytest.approx(0.5)

    def test_says_where_it_wins_and_where_it_loses(self) -> None:
        rows = dict(speculative.record(self.found())["verdict"])
        assert rows["ngram, chat"].startswith("wins: 2.00 of ordinary, 6 of 8 guesses accepted; 1 of 1")
        assert rows["draft, chat"].startswith("LOSES: 0.50 of ordinary")
        assert rows["draft, chat"].endswith("0 of 1 answers the same")

    def test_asks_every_method_the_same(self) -> None:
        plan = speculative.Plan()
        assert plan.workloads() == plan.workloads()
        assert {name: len(bodies) for name, bodies in plan.workloads().items()} == {
            "repetitive": plan.requests, "chat": plan.requests, "random": plan.requests,
        }  # fmt: skip


class TestBatching:
    def test_has_as_many_requests_in_each_distribution_and_both_lengths_in_few_long(self) -> None:
        plan = batching.Plan(requests=16, short=8, long=64)
        lengths = plan.lengths()
        assert {len(every) for every in lengths.values()} == {16}
        assert sorted(lengths["few_long"]) == [8] * 14 + [64] * 2

    def test_compares_the_means_of_both_ways(self) -> None:
        def load(seconds: float) -> batching.Load:
            answers = [answer(tokens=10, seconds=1.0), answer(tokens=30, seconds=3.0)]
            return batching.Load(seconds=seconds, places=1, answers=answers, waits=[0.5, seconds - 1])

        found = batching.Found(
            plan=batching.Plan(), engine=[], loads={"even": {STATIC: [load(8.0)], CONTINUOUS: [load(4.0)]}}
        )
        lines = batching.measures(found)
        assert value_of(lines, "tokens_per_s", lengths="even").ratio == pytest.approx(2.0)
        assert value_of(lines, "idle_slots", lengths="even").value == pytest.approx(0)
        assert value_of(lines, "idle_slots", lengths="even").peer_value == pytest.approx(0.5)

    async def test_static_batching_waits_for_the_longest_of_a_group_and_continuous_does_not(self) -> None:
        running: set[int] = set()
        seen: list[frozenset[int]] = []

        async def serve(way: object) -> list[frozenset[int]]:
            seen.clear()
            gates = [asyncio.Event() for _ in range(4)]

            async def one(index: int) -> None:
                running.add(index)
                seen.append(frozenset(running))
                await gates[index].wait()
                running.discard(index)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(way(one, 4, 2))  # type: ignore[operator]
                for gate in (gates[0], gates[2], gates[1], gates[3]):
                    for _ in range(5):
                        await asyncio.sleep(0)
                    gate.set()
            return list(seen)

        assert frozenset({1, 2}) in await serve(batching._in_places)
        assert frozenset({1, 2}) not in await serve(batching._in_groups)


class TestPaging:
    LINE = (
        '[{"prompt": 150, "tokens": 160, "pages": [[1, 2], [2, 1]]},'
        ' {"prompt": 130, "tokens": 140, "pages": [[1, 2], [3, 1]]}]'
    )

    def test_counts_a_shared_block_once(self) -> None:
        look = Look.read(self.LINE, max_tokens=50)
        assert (look.tokens, look.blocks, look.references, look.requests, look.asked) == (300, 3, 4, 2, 380)
        assert look.used(128) == pytest.approx((300 - 128) / (3 * 128))

    def test_is_never_over_one_where_all_blocks_are_full(self) -> None:
        look = Look.read('[{"prompt": 256, "tokens": 256, "pages": [[1, 1], [2, 1]]}]', max_tokens=0)
        assert look.used(128) == 1

    def test_keeps_the_moments_at_which_most_requests_ran(self) -> None:
        two = Look.read(self.LINE, max_tokens=50)
        one = Look.read('[{"prompt": 9, "tokens": 9, "pages": [[1, 1]]}]', max_tokens=50)
        none = Look.read('[{"prompt": 9, "tokens": 9, "pages": []}]', max_tokens=50)
        assert paging.fullest([one, two, none]) == [two]
        with pytest.raises(EngineAway, match="no pages"):
            paging.fullest([none])

    def test_compares_with_room_made_beforehand(self) -> None:
        found = paging.Found(
            plan=paging.Plan(max_model_len=1_000), engine=[], block=128, blocks=30,
            looks={"shared": [Look.read(self.LINE, max_tokens=50)]},
        )  # fmt: skip
        lines = paging.measures(found)
        context = value_of(lines, "room_used", workload="shared", against=paging.CONTEXT)
        assert context.peer_value == pytest.approx(300 / 2_000)
        asked = value_of(lines, "room_used", workload="shared", against=paging.ASKED)
        assert asked.peer_value == pytest.approx(300 / 380)
        assert value_of(lines, "blocks_shared", workload="shared").value == pytest.approx(1 / 4)
        assert value_of(lines, "occupancy", workload="shared").value == pytest.approx(0.1)


class TestTensorParallelism:
    def test_takes_the_steps_in_which_each_answer_got_one_token(self) -> None:
        prefill = '{"seconds": 9.0, "collectives": 1.0, "calls": 61, "tokens": 40}'
        decode = '{"seconds": 0.5, "collectives": 0.2, "calls": 61, "tokens": 4}'
        assert [step.seconds for step in tensor.decode_steps([prefill, decode], batch=4)] == [0.5]

    @pytest.mark.parametrize("lines", [[], ['{"seconds": 0.5, "collectives": 0.0, "calls": 0, "tokens": 1}']])
    def test_fails_where_no_collective_was_timed(self, lines: list[str]) -> None:
        with pytest.raises(EngineAway, match="no collective"):
            tensor.decode_steps(lines, batch=1)

    def test_parts_a_step_and_tells_answers_apart(self) -> None:
        found = tensor.Found(
            plan=tensor.Plan(),
            answers={
                1: {2: [answer(tokens=3, seconds=0.7, text="one"), answer(tokens=3, seconds=0.7, text="two")]},
                3: {2: [answer(tokens=3, seconds=1.5, text="one"), answer(tokens=3, seconds=1.5, text="twain")]},
            },
            steps={2: [tensor.Step(seconds=0.4, collectives=0.3, calls=61, tokens=2)]},
        )
        lines = tensor.measures(found)
        assert value_of(lines, "communication_part", tp=3, batch=2).value == pytest.approx(0.75)
        assert value_of(lines, "compute_ms", tp=3, batch=2).value == pytest.approx(100)
        assert value_of(lines, "answers_equal", tp=3, batch=2).value == 0.5
        assert value_of(lines, "itl_mean_ms", tp=3, batch=2).ratio == pytest.approx(5.0)
        assert ("batch 2, apart", "from character 2: sums in another order round otherwise") in tensor.record(found)[
            "tensor parallelism"
        ]
