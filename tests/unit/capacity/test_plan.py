"""The capacity arithmetic: the reference cases to the byte, and real models' configurations."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from controlplane.capacity.config import dtype_bytes_of, layout_of, params_of
from controlplane.capacity.given import layout_given
from controlplane.capacity.layers import Attention, CapacityRefused, Latent, State
from controlplane.capacity.plan import GIB, Ask, DeviceMemory, as_document, cache_tokens, make_plan
from controlplane.capacity.reading import Said, read_ask

SMOLLM = {
    "model_type": "llama", "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
    "dtype": "bfloat16",
}  # fmt: skip


def ask(**numbers: Any) -> Ask:
    """Of the reference model: 80 layers of 64 KV heads of 128, 70e9 parameters, two bytes, 400 GiB for the cache."""
    budget = numbers.pop("budget_gib", "400")
    decimals = {"dtype_bytes": "2", "budget_gib": budget}
    whole = {"layers": 80, "kv_heads": 64, "head_size": 128, "params": 70_000_000_000, "tokens": 4_096, **numbers}
    return read_ask(Said(numbers=whole, decimals=decimals, attention="gqa", config=None))


class TestReferenceCases:
    def test_weights_of_seventy_billion_parameters_are_140_decimal_gigabytes(self):
        plan = make_plan(ask())
        assert plan.weights == 140_000_000_000
        assert as_document(plan)["in_units"]["weights"].startswith("140 GB = 130.")

    def test_a_sequence_with_64_kv_heads_takes_ten_gibibytes(self):
        plan = make_plan(ask())
        assert plan.sequence == plan.sequence_per_device == 10_737_418_240 == 10 * GIB
        assert as_document(plan)["in_units"]["kv_per_sequence"] == "10.73741824 GB = 10 GiB"

    def test_with_8_kv_heads_it_takes_one_and_a_quarter(self):
        plan = make_plan(ask(kv_heads=8))
        assert plan.sequence == 1_342_177_280
        assert as_document(plan)["in_units"]["kv_per_sequence"] == "1.34217728 GB = 1.25 GiB"

    @pytest.mark.parametrize(("tokens", "ceiling"), [(4_096, 40), (8_192, 20)])
    def test_four_hundred_gibibytes_hold_whole_sequences(self, tokens: int, ceiling: int):
        assert make_plan(ask(tokens=tokens)).ceiling == ceiling

    def test_a_ceiling_is_called_one(self):
        assert "promises neither" in as_document(make_plan(ask()))["ceiling_means"]


class TestDevices:
    def test_heads_are_divided_and_the_ceiling_stays(self):
        plan = make_plan(ask(tp=8))
        assert plan.sequence_per_device == 10 * GIB // 8
        assert plan.ceiling == 40

    def test_fewer_heads_than_devices_are_copied(self):
        plan = make_plan(ask(kv_heads=8, tp=16))
        assert plan.sequence_per_device == plan.sequence // 8
        assert plan.ceiling == 400 * 16 // 2 // 20  # 320 without copies
        assert as_document(plan)["devices"]["kv_heads_on_each"] == [1]

    def test_heads_that_do_not_divide_are_refused(self):
        with pytest.raises(CapacityRefused, match="8 KV heads") as refused:
            make_plan(ask(kv_heads=8, tp=3))
        assert refused.value.param == "tp"

    def test_tokens_are_rounded_up_to_blocks_on_the_device_only(self):
        plan = make_plan(ask(tokens=4_097, block_size=128))
        token = 10 * GIB // 4_096
        assert plan.sequence == 4_097 * token
        assert plan.sequence_per_device == 4_224 * token
        assert plan.ceiling == 38

    def test_the_room_is_what_weights_and_runtime_leave_of_the_memory(self):
        memory = DeviceMemory(size=80 * GIB, utilization=Fraction(9, 10), overhead=2 * GIB)
        whole = ask(tp=4)
        asked = Ask(
            layout=whole.layout, params=whole.params, dtype_bytes=Fraction(2), kv_dtype_bytes=2, tokens=4_096, tp=4,
            memory=memory,
        )  # fmt: skip
        plan = make_plan(asked)
        assert plan.room_per_device == 72 * GIB - 35_000_000_000 - 2 * GIB
        assert plan.ceiling == plan.room_per_device // (10 * GIB // 4)

    def test_weights_that_do_not_fit_leave_a_ceiling_of_none(self):
        memory = DeviceMemory(size=80 * GIB, utilization=Fraction(1), overhead=0)
        asked = Ask(
            layout=ask().layout, params=70 * 10**9, dtype_bytes=Fraction(2), kv_dtype_bytes=2, tokens=1, memory=memory
        )
        plan = make_plan(asked)
        assert plan.room_per_device < 0 == plan.ceiling
        assert cache_tokens(plan) == 0


class TestSharedPrefix:
    def test_is_an_assumption_told_apart(self):
        plan = make_plan(ask(shared_prefix_tokens=2_050))
        assert plan.ceiling == 40
        assert plan.shared_ceiling == (400 - 5) // 5  # 2,048 of the tokens are whole blocks
        assert as_document(plan)["assuming_shared_prefix"]["tokens"] == 2_050

    def test_leaves_each_sequence_a_block_of_its_own(self):
        assert make_plan(ask(shared_prefix_tokens=9_999)).shared_ceiling == 10_240 - 255

    def test_is_not_told_when_nothing_is_assumed(self):
        assert "assuming_shared_prefix" not in as_document(make_plan(ask()))


class TestLayerKinds:
    def test_mla_is_one_vector_on_every_device(self):
        layout = layout_given("mla", {"layers": 61, "head_size": 576}, dtype_bytes=2)
        asked = Ask(
            layout=layout, params=1, dtype_bytes=Fraction(1), kv_dtype_bytes=2, tokens=1_000, tp=8, block=1, budget=0
        )
        plan = make_plan(asked)
        assert plan.sequence == plan.sequence_per_device == 61 * 576 * 1_000 * 2

    def test_sliding_layers_keep_their_window_and_a_block_for_its_edge(self):
        layout = layout_given("sliding", {"layers": 1, "kv_heads": 1, "head_size": 1, "window": 100}, dtype_bytes=1)
        asked = Ask(
            layout=layout, params=1, dtype_bytes=Fraction(1), kv_dtype_bytes=1, tokens=5_000, block=16, budget=10**6
        )
        plan = make_plan(asked)
        assert plan.sequence == 2 * 100
        assert plan.sequence_per_device == 2 * 16 * 8  # ceil(99 / 16) + 1 blocks
        assert cache_tokens(plan) is None

    def test_linear_layers_do_not_grow(self):
        layout = layout_given("linear", {"layers": 2, "kv_heads": 4, "head_size": 8}, dtype_bytes=2)
        assert layout == [(2, State(size_bytes=4 * 8 * 8 * 2))]

    def test_hybrid_is_full_layers_and_others(self):
        numbers = {"layers": 10, "full_layers": 3, "kv_heads": 2, "head_size": 4, "window": 7}
        full, sliding = layout_given("hybrid", numbers, dtype_bytes=2)
        assert full == (3, Attention(kv_heads=2, key_size=4, value_size=4))
        assert sliding == (7, Attention(kv_heads=2, key_size=4, value_size=4, window=7))

    @pytest.mark.parametrize(
        ("kind", "numbers", "param"),
        [
            ("mqa", {"layers": 1, "head_size": 1, "kv_heads": 8}, "kv_heads"),
            ("mha", {"layers": 1, "head_size": 1, "kv_heads": 8, "heads": 64}, "kv_heads"),
            ("sliding", {"layers": 1, "head_size": 1, "kv_heads": 8}, "window"),
            ("gqa", {"layers": 1, "head_size": 1, "kv_heads": 8, "window": 5}, "window"),
            ("hybrid", {"layers": 1, "full_layers": 1, "head_size": 1, "kv_heads": 8}, "full_layers"),
            ("gqa", {"head_size": 1, "kv_heads": 8}, "layers"),
        ],
    )
    def test_numbers_that_lack_or_would_go_unheard_are_refused(self, kind: str, numbers: Any, param: str):
        with pytest.raises(CapacityRefused) as refused:
            layout_given(kind, numbers, dtype_bytes=2)
        assert refused.value.param == param


class TestConfigurations:
    def test_of_a_dense_model_gives_layers_dtype_and_parameters(self):
        assert layout_of(SMOLLM) == [(30, Attention(kv_heads=3, key_size=64, value_size=64))]
        assert dtype_bytes_of(SMOLLM) == 2
        assert params_of(SMOLLM) == 134_515_008

    def test_of_deepseek_is_latent(self):
        config = {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
        assert layout_of(config) == [(61, Latent(size=576))]

    def test_of_a_model_that_sees_is_its_text_model_s(self):
        text = {
            "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "sliding_window": 1024, "sliding_window_pattern": 6,
        }  # fmt: skip
        sliding, full = layout_of({"model_type": "gemma3", "text_config": text})
        assert sliding == (5, Attention(kv_heads=4, key_size=256, value_size=256, window=1024))
        assert full == (1, Attention(kv_heads=4, key_size=256, value_size=256))

    def test_of_gpt_oss_alternates(self):
        config = {
            "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2,
        }  # fmt: skip
        assert [count for count, _ in layout_of(config)] == [2, 2]

    def test_of_qwen3_next_keeps_states(self):
        config = {
            "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
            "linear_num_value_heads": 32, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
            "dtype": "bfloat16",
        }  # fmt: skip
        linear, full = layout_of(config)
        assert linear == (36, State(size_bytes=32 * 128 * 128 * 4 + (2 * 2_048 + 4_096) * 3 * 2))
        assert full == (12, Attention(kv_heads=2, key_size=256, value_size=256))

    def test_of_jamba_has_attention_now_and_then(self):
        config = {
            "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
            "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
        }  # fmt: skip
        mamba, full = layout_of(config)
        assert mamba == (7, State(size_bytes=8_192 * (16 + 3) * 2))
        assert full == (1, Attention(kv_heads=8, key_size=128, value_size=128))

    def test_a_window_that_is_switched_off_is_none(self):
        config = {**SMOLLM, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
        assert layout_of(config) == layout_of(SMOLLM)

    def test_layers_without_a_cache_of_their_own_do_not_count(self):
        assert layout_of({**SMOLLM, "num_kv_shared_layers": 10})[0][0] == 20

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_hidden_layers": "30"}, {"num_hidden_layers": 10**7}, {"layer_types": ["full_attention"]},
            {"layer_types": ["unheard_of"] * 30}, {"head_dim": None, "hidden_size": None}, {"num_kv_shared_layers": 30},
            {"linear_attn_config": {"full_attn_layers": 5}}, {"hybrid_override_pattern": "?" * 30},
        ],
    )  # fmt: skip
    def test_what_is_not_understood_is_refused(self, changes: dict[str, Any]):
        with pytest.raises(CapacityRefused):
            layout_of({**SMOLLM, **changes})

    def test_quantized_weights_want_their_bytes_said(self):
        with pytest.raises(CapacityRefused, match="quantized"):
            dtype_bytes_of({**SMOLLM, "quantization_config": {"bits": 4}})
