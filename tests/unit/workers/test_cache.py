"""The paged prefix cache: what is hit, what is evicted, what is never shared."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.engines.simulated.cache import BlockCache


def cache(blocks: int = 8, block_tokens: int = 4) -> BlockCache:
    return BlockCache(blocks=blocks, block_tokens=block_tokens)


TEN = list(range(10))


class TestHits:
    def test_are_whole_blocks_of_the_same_salt(self):
        one = cache()
        assert one.open(sequence="a", tokens=TEN, salt="s") == 0
        assert one.open(sequence="b", tokens=TEN, salt="s") == 8
        assert one.open(sequence="c", tokens=TEN, salt="other") == 0

    def test_survive_the_sequence_that_made_them(self):
        one = cache()
        one.open(sequence="a", tokens=TEN, salt="s")
        one.close(sequence="a")
        assert one.used_blocks == 0
        assert one.open(sequence="b", tokens=TEN, salt="s") == 8

    def test_never_cover_the_last_token(self):
        one = cache()
        one.open(sequence="a", tokens=TEN[:8], salt="s")
        assert one.open(sequence="b", tokens=TEN[:8], salt="s") == 4

    def test_stop_at_the_first_different_token(self):
        one = cache()
        one.open(sequence="a", tokens=TEN, salt="s")
        assert one.open(sequence="b", tokens=[*TEN[:5], 99, *TEN[6:]], salt="s") == 4

    def test_include_generated_tokens(self):
        one = cache()
        one.open(sequence="a", tokens=TEN[:6], salt="s")
        assert one.grow(sequence="a", token=6)
        assert one.grow(sequence="a", token=7)
        assert one.open(sequence="b", tokens=TEN, salt="s") == 8


class TestRoom:
    def test_is_refused_without_changing_anything(self):
        one = cache(blocks=3)
        one.open(sequence="a", tokens=TEN, salt="s")
        assert one.open(sequence="b", tokens=[50, 51], salt="s") is None
        assert not one.grow(sequence="a", token=1) or one.used_blocks == 3

    def test_takes_the_tail_of_the_longest_unused_first(self):
        one = cache(blocks=3)
        one.open(sequence="a", tokens=TEN[:9], salt="s")  # two full blocks and a tail
        one.close(sequence="a")
        one.open(sequence="b", tokens=[70, 71, 72, 73, 74], salt="s")  # takes the tail and the second block
        one.close(sequence="b")
        assert one.open(sequence="c", tokens=TEN[:9], salt="s") == 4

    def test_needs_at_least_one_block(self):
        with pytest.raises(ValueError, match="at least one block"):
            cache(blocks=0)


class CacheMachine(RuleBasedStateMachine):
    """Sequences come, grow and go in any order; blocks are never lost, and hits are true."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(blocks=6, block_tokens=2)
        self.live: dict[str, list[int]] = {}
        self.seen: set[tuple[str, tuple[int, ...]]] = set()
        self.count = 0

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=9), salt=st.sampled_from("st"))
    def open(self, tokens, salt):
        name = f"{salt}{self.count}"
        self.count += 1
        cached = self.cache.open(sequence=name, tokens=tokens, salt=salt)
        if cached is None:
            return
        assert cached % 2 == 0
        assert cached < len(tokens)
        assert cached == 0 or (salt, tuple(tokens[:cached])) in self.seen
        self.live[name] = list(tokens)
        self._remember(salt, tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 2))
    def grow(self, data, token):
        name = data.draw(st.sampled_from(sorted(self.live)))
        if self.cache.grow(sequence=name, token=token):
            self.live[name].append(token)
            self._remember(name[0], self.live[name])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data):
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.cache.close(sequence=name)
        del self.live[name]

    def _remember(self, salt, tokens):
        self.seen |= {(salt, tuple(tokens[:end])) for end in range(2, len(tokens) + 1, 2)}

    @invariant()
    def blocks_in_use_are_those_of_live_sequences(self):
        most = sum(-(-len(tokens) // 2) for tokens in self.live.values())
        least = max((-(-len(tokens) // 2) for tokens in self.live.values()), default=0)
        assert least <= self.cache.used_blocks <= min(most, 6)


TestCacheMachine = CacheMachine.TestCase
