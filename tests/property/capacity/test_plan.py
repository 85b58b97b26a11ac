"""What holds for every plan."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from controlplane.capacity.layers import Attention, Latent, State, device_bytes, sequence_bytes
from controlplane.capacity.plan import Ask, make_plan

HEADS = (1, 2, 4, 8, 16)
windows = st.none() | st.integers(1, 5_000)
layers = st.one_of(
    st.builds(
        Attention, kv_heads=st.sampled_from(HEADS), key_size=st.integers(1, 256), value_size=st.integers(1, 256),
        window=windows,
    ),
    st.builds(Latent, size=st.integers(1, 1_000)),
    st.builds(State, size_bytes=st.integers(1, 10**6)),
)  # fmt: skip
asks = st.builds(
    Ask,
    layout=st.lists(st.tuples(st.integers(1, 80), layers), min_size=1, max_size=3),
    params=st.integers(1, 10**12),
    dtype_bytes=st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4)]),
    kv_dtype_bytes=st.sampled_from([1, 2, 4]),
    tokens=st.integers(1, 200_000),
    tp=st.sampled_from(HEADS),
    block=st.sampled_from([1, 16, 128]),
    budget=st.integers(0, 10**14),
)


class TestPlan:
    @given(ask=asks)
    def test_the_ceiling_fits_and_one_more_does_not(self, ask: Ask):
        plan = make_plan(ask)
        assert plan.ceiling * plan.sequence_per_device <= plan.room_per_device
        assert (plan.ceiling + 1) * plan.sequence_per_device > plan.room_per_device

    @given(ask=asks)
    def test_the_devices_together_hold_all_that_a_sequence_needs(self, ask: Ask):
        plan = make_plan(ask)
        assert plan.sequence_per_device * ask.tp >= plan.sequence
        assert plan.weights_per_device * ask.tp >= plan.weights >= ask.params * ask.dtype_bytes

    @given(ask=asks, more=st.integers(1, 10_000))
    def test_longer_sequences_never_take_less(self, ask: Ask, more: int):
        longer = make_plan(replace(ask, tokens=ask.tokens + more))
        plan = make_plan(ask)
        assert longer.sequence >= plan.sequence
        assert longer.sequence_per_device >= plan.sequence_per_device
        assert longer.ceiling <= plan.ceiling

    @given(ask=asks, shared=st.integers(1, 200_000))
    def test_sharing_never_lowers_the_ceiling_of_what_fits_at_all(self, ask: Ask, shared: int):
        plan = make_plan(replace(ask, shared_prefix=shared))
        assert plan.shared_ceiling is not None
        assert plan.shared_ceiling >= plan.ceiling or plan.ceiling == 0

    @given(ask=asks)
    def test_without_windows_rounding_costs_less_than_a_block_of_each_layer(self, ask: Ask):
        kept = [
            (count, replace(layer, window=None) if isinstance(layer, Attention) else layer)
            for count, layer in ask.layout
        ]
        shape = {"dtype_bytes": ask.kv_dtype_bytes, "tp": 1, "block": ask.block}
        rounded = device_bytes(kept, tokens=ask.tokens, **shape)
        exact = sequence_bytes(kept, tokens=ask.tokens, dtype_bytes=ask.kv_dtype_bytes)
        state = sum(count * layer.size_bytes for count, layer in kept if isinstance(layer, State))
        page = device_bytes(kept, tokens=ask.block, **shape) - state
        assert exact <= rounded < exact + max(page, 1)

    @given(ask=asks)
    def test_twice_the_layers_take_twice_the_room(self, ask: Ask):
        twice = [(2 * count, layer) for count, layer in ask.layout]
        assert make_plan(replace(ask, layout=twice)).sequence_per_device == 2 * make_plan(ask).sequence_per_device
