"""Continuous batching, chunked prefill and preemption."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.engines.simulated.cache import BlockCache
from workers.engines.simulated.scheduler import Scheduler, Sequence


def scheduler(*, blocks: int = 64, sequences_max: int = 8, batched: int = 16) -> Scheduler:
    return Scheduler(
        cache=BlockCache(blocks=blocks, block_tokens=4), sequences_max=sequences_max, batched_tokens_max=batched
    )


def sequence(name: str, prompt: int, output: int, salt: str = "") -> Sequence:
    return Sequence(name=name, prompt=tuple(range(prompt)), script=tuple(range(100, 100 + output)), salt=salt or name)


def run(one: Scheduler) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for _ in range(10_000):
        result = one.step()
        if not result.tokens and not result.prefill_tokens:
            return out
        for name, token in result.tokens:
            out.setdefault(name, []).append(token)
    raise AssertionError("the scheduler does not come to an end")


class TestStep:
    def test_emits_the_first_token_with_the_end_of_the_prefill(self):
        one = scheduler(batched=16)
        one.add(sequence("a", prompt=20, output=2))
        first, second, third = one.step(), one.step(), one.step()
        assert (first.prefill_tokens, first.tokens) == (16, ())
        assert (second.prefill_tokens, second.tokens) == (4, (("a", 100),))
        assert (third.decoded, third.tokens, third.finished) == (1, (("a", 101),), ("a",))

    def test_decodes_before_it_prefills(self):
        one = scheduler(batched=8)
        one.add(sequence("a", prompt=4, output=10))
        one.step()
        one.add(sequence("b", prompt=20, output=1))
        result = one.step()
        assert result.tokens == (("a", 101),)
        assert result.prefill_tokens == 7

    def test_computes_only_what_is_not_cached(self):
        one = scheduler(batched=64)
        one.add(sequence("a", prompt=9, output=1, salt="s"))
        one.step()
        again = sequence("b", prompt=9, output=1, salt="s")
        one.add(again)
        assert one.step().prefill_tokens == 1
        assert again.cached == 8

    def test_runs_no_more_than_its_share_of_sequences(self):
        one = scheduler(sequences_max=2)
        for name in "abc":
            one.add(sequence(name, prompt=2, output=3))
        one.step()
        assert (one.running, one.waiting) == (2, 1)

    def test_forgets_an_aborted_sequence_and_frees_its_blocks(self):
        one = scheduler()
        one.add(sequence("a", prompt=8, output=50))
        one.step()
        one.abort("a")
        assert (one.running, one.cache.used_blocks) == (0, 0)
        assert one.step().tokens == ()


class TestPreemption:
    def test_emits_every_token_once_although_blocks_run_out(self):
        one = scheduler(blocks=6)
        for name in "abc":
            one.add(sequence(name, prompt=6, output=14))
        out = run(one)
        assert {name: out[name] for name in "abc"} == {name: list(range(100, 114)) for name in "abc"}
        assert one.totals.preemptions > 0
        assert one.cache.used_blocks == 0

    @given(
        sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=6),
        blocks=st.integers(10, 20),
        batched=st.integers(1, 12),
    )
    def test_comes_to_an_end_for_all_sizes(self, sizes, blocks, batched):
        one = scheduler(blocks=blocks, batched=batched)
        for index, (prompt, output) in enumerate(sizes):
            one.add(sequence(str(index), prompt=prompt, output=output))
        out = run(one)
        assert {name: len(tokens) for name, tokens in out.items()} == {
            str(index): output for index, (_, output) in enumerate(sizes)
        }
        assert one.totals.generation_tokens == sum(output for _, output in sizes)
        assert one.cache.used_blocks == 0
