"""A model's own `config.json`, read as layers. Pure; called by the command and the route.

The names are those of the `transformers` library's configurations. Invariant: a configuration whose layers are not
understood is refused with the field that is missing; nothing is guessed from a model's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from controlplane.capacity.layers import Attention, CapacityRefused, Latent, Layer, Layout, State

Config = Mapping[str, Any]
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
STATE_BYTES = 4  # recurrent states of gated delta rules are kept in float32
LAYERS_MAX = 10_000
SIZE_MAX = 10**9
_LINEAR = frozenset({"linear_attention", "mamba", "mamba2", "recurrent"})
_WINDOWED = frozenset({"sliding_attention", "chunked_attention"})
_FULL = frozenset({"full_attention", "attention", "global_attention"})
_NO_CACHE = frozenset({"mlp", "moe"})
_PATTERN = {"M": "mamba2", "*": "full_attention", "-": "mlp", "E": "moe"}  # of Nemotron-H
_DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_WINDOW_FOR_SOME = frozenset({"gemma2", "gemma3_text", "gemma3", "cohere2"})


def layout_of(config: Config) -> Layout:
    """So many layers of each kind, in the order in which each kind first comes. Raises CapacityRefused."""
    text = text_config(config)
    kinds = _layer_kinds(text)
    shared = _whole(text, "num_kv_shared_layers", default=0)
    if shared:  # the last ones read the cache of earlier layers
        kinds = kinds[: len(kinds) - shared]
    found = Counter(kind for kind in kinds if kind not in _NO_CACHE)
    if not found:
        raise CapacityRefused("No layer of this configuration keeps anything.", param="config")
    return [(count, _layer(text, kind)) for kind, count in found.items()]


def text_config(config: Config) -> Config:
    """The language model's part of a model that also sees or hears."""
    inner = config.get("text_config") or config.get("llm_config")
    return inner if isinstance(inner, Mapping) else config


def dtype_bytes_of(config: Config) -> int:
    """Bytes of a number, as the configuration says it. Raises CapacityRefused, also for quantized weights."""
    if config.get("quantization_config"):
        text = "The weights are quantized: say how many bytes each takes, and those of the cache."
        raise CapacityRefused(text, param="dtype_bytes")
    named = config.get("dtype") or config.get("torch_dtype") or text_config(config).get("dtype")
    named = named or text_config(config).get("torch_dtype")
    if not isinstance(named, str) or named not in BYTES:
        raise CapacityRefused("The configuration names no dtype that is known.", param="dtype_bytes")
    return BYTES[named]


def params_of(config: Config) -> int:
    """Parameters of a dense model of a known family, counted. Raises CapacityRefused for another."""
    text = text_config(config)
    family = text.get("model_type")
    if family not in _DENSE:
        raise CapacityRefused(
            "Parameters are counted for dense models of known families only: say them.", param="params"
        )
    hidden, layers = _whole(text, "hidden_size"), _whole(text, "num_hidden_layers")
    heads, middle = _whole(text, "num_attention_heads"), _whole(text, "intermediate_size")
    kv_heads, head = _kv_heads(text), _head_size(text)
    own = 2 * hidden * heads * head + 2 * hidden * kv_heads * head + 3 * hidden * middle + 2 * hidden
    if family == "qwen2" or text.get("attention_bias"):
        own += (heads + 2 * kv_heads) * head
    if text.get("attention_bias") and family != "qwen2":
        own += hidden
    if text.get("mlp_bias"):
        own += 2 * middle + hidden
    if family == "qwen3":
        own += 2 * head
    tables = 1 if text.get("tie_word_embeddings") else 2
    return tables * _whole(text, "vocab_size") * hidden + layers * own + hidden


def _layer_kinds(text: Config) -> list[str]:
    """The kind of each layer, by the fields that families use for it."""
    number = _whole(text, "num_hidden_layers", most=LAYERS_MAX)
    named = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(named, list) and all(isinstance(kind, str) for kind in named):
        if len(named) != number:
            raise CapacityRefused("`layer_types` names another number of layers.", param="config")
        return named
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) == number:
        return [_PATTERN.get(letter, letter) for letter in pattern]
    flags = text.get("attn_type_list")
    if isinstance(flags, list) and len(flags) == number:
        return ["full_attention" if flag == 1 else "linear_attention" for flag in flags]
    kimi = text.get("linear_attn_config")
    if isinstance(kimi, Mapping):
        full = kimi.get("full_attn_layers")
        if not isinstance(full, list) or len(full) > number:
            raise CapacityRefused("`full_attn_layers` is no list of layers.", param="config")
        return ["full_attention" if index + 1 in full else "linear_attention" for index in range(number)]
    return _kinds_by_period(text, number)


def _kinds_by_period(text: Config, number: int) -> list[str]:
    if every := _whole(text, "full_attention_interval", default=0):
        return ["linear_attention" if (index + 1) % every else "full_attention" for index in range(number)]
    if every := _whole(text, "attn_layer_period", default=0):
        offset = _whole(text, "attn_layer_offset", default=0)
        return ["full_attention" if index % every == offset else "mamba" for index in range(number)]
    if every := _whole(text, "sliding_window_pattern", default=0):
        return ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(number)]
    if "state_size" in text and "num_attention_heads" not in text:
        return ["mamba"] * number
    if text.get("sliding_window") and text.get("use_sliding_window", True):
        if text.get("model_type") in _WINDOW_FOR_SOME:
            raise CapacityRefused("Say with `layer_types` which layers slide.", param="config")
        return ["sliding_attention"] * number
    return ["full_attention"] * number


def _layer(text: Config, kind: str) -> Layer:
    if kind in _LINEAR:
        return State(size_bytes=_state_bytes(text))
    window = None
    if kind in _WINDOWED:
        window = _whole(text, "sliding_window" if kind == "sliding_attention" else "attention_chunk_size")
    elif kind not in _FULL:
        raise CapacityRefused(f"The kind of layer {kind[:60]!r} is not known.", param="config")
    if text.get("kv_lora_rank"):
        return Latent(size=_whole(text, "kv_lora_rank") + _whole(text, "qk_rope_head_dim"), window=window)
    head = _head_size(text)
    value = _whole(text, "v_head_dim", default=0) or head
    return Attention(kv_heads=_kv_heads(text), key_size=head, value_size=value, window=window)


def _state_bytes(text: Config) -> int:
    """Recurrent state and the window of the short convolution before it."""
    dtype = BYTES.get(str(text.get("dtype") or text.get("torch_dtype")), 2)
    kimi = text.get("linear_attn_config")
    if isinstance(kimi, Mapping):  # Kimi Delta Attention
        heads, head = _whole(kimi, "num_heads"), _whole(kimi, "head_dim")
        return (
            heads * head * head * STATE_BYTES + 3 * heads * head * (_whole(kimi, "short_conv_kernel_size") - 1) * dtype
        )
    if "linear_num_value_heads" in text:  # gated delta net
        keys = _whole(text, "linear_num_key_heads") * _whole(text, "linear_key_head_dim")
        values = _whole(text, "linear_num_value_heads") * _whole(text, "linear_value_head_dim")
        window = _whole(text, "linear_conv_kernel_dim") - 1
        return values * _whole(text, "linear_key_head_dim") * STATE_BYTES + (2 * keys + values) * window * dtype
    if found := _mamba2(text):
        inner, groups, state, window = found
        return (inner * state + (inner + 2 * groups * state) * window) * dtype
    if "mamba_d_state" in text or "state_size" in text:  # the first Mamba
        inner = _whole(text, "intermediate_size", default=0) if "state_size" in text else 0
        inner = inner or _whole(text, "mamba_expand", default=2) * _whole(text, "hidden_size")
        state = _whole(text, "mamba_d_state" if "mamba_d_state" in text else "state_size")
        kernel = _whole(text, "mamba_d_conv" if "mamba_d_conv" in text else "conv_kernel")
        return (inner * state + inner * (kernel - 1)) * dtype
    if "attn_type_list" in text:  # lightning attention
        head = _head_size(text)
        return _whole(text, "num_attention_heads") * head * head * STATE_BYTES
    raise CapacityRefused("The size of the linear layers' state is not to be found.", param="config")


def _mamba2(text: Config) -> tuple[int, int, int, int] | None:
    """Inner size, groups, state and convolution window of Mamba-2, by either set of names."""
    for heads, head, groups, state, kernel in (
        ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
        ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    ):
        if heads in text:
            inner = _whole(text, heads) * _whole(text, head)
            return inner, _whole(text, groups), _whole(text, state), _whole(text, kernel) - 1
    return None


def _kv_heads(text: Config) -> int:
    heads = _whole(text, "num_attention_heads")
    if text.get("multi_query"):
        return 1
    found = _whole(text, "num_key_value_heads", default=0) or _whole(text, "num_kv_heads", default=0)
    return found or heads


def _head_size(text: Config) -> int:
    given = _whole(text, "head_dim", default=0)
    return given or max(_whole(text, "hidden_size") // _whole(text, "num_attention_heads"), 1)


def _whole(config: Config, name: str, *, default: int | None = None, most: int = SIZE_MAX) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not (0 if default is not None else 1) <= value <= most:
        raise CapacityRefused(f"`{name}` of the configuration is not a whole number in its bounds.", param="config")
    return value
