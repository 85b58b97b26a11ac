"""The plan of one model on one group of devices, each number with its formula in words. Pure; called by the command and
the route of the same name.

GB is 1e9 bytes, GiB 2**30. Invariant: `ceiling_sequences` is an upper bound of whole sequences of stated length beside
each other, without shared prefixes; it says nothing of throughput, latency or admission.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from controlplane.capacity.layers import (
    Attention,
    CapacityRefused,
    Latent,
    Layout,
    State,
    device_bytes,
    keeps_every_token,
    sequence_bytes,
    shared_bytes,
)

GB = 10**9
GIB = 2**30
CEILING = (
    "An upper bound: whole sequences of this length beside each other, without shared prefixes. It promises neither "
    "throughput nor latency, and no admission."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of each device in bytes, the part of it that may be used, and what the runtime takes of that."""

    size: int
    utilization: Fraction
    overhead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked. `budget`: room for the cache on all devices together, in bytes; or `memory` of each device."""

    layout: Layout
    params: int
    dtype_bytes: Fraction
    kv_dtype_bytes: int
    tokens: int
    tp: int = 1
    block: int = 16
    budget: int | None = None
    memory: DeviceMemory | None = None
    shared_prefix: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer; sizes in bytes. `room_per_device` may be negative: then the weights alone do not fit."""

    ask: Ask
    weights: int
    weights_per_device: int
    sequence: int
    sequence_per_device: int
    room_per_device: int
    ceiling: int
    shared_ceiling: int | None


def make_plan(ask: Ask) -> Plan:
    """The whole arithmetic. Raises CapacityRefused."""
    if (ask.budget is None) == (ask.memory is None):
        raise CapacityRefused("Say either the room for the cache or the memory of each device.", param="budget_gib")
    shape = {"dtype_bytes": ask.kv_dtype_bytes, "tp": ask.tp, "block": ask.block}
    weights = _up(ask.params * ask.dtype_bytes)
    per_device = device_bytes(ask.layout, tokens=ask.tokens, **shape)
    weights_per_device = -(-weights // ask.tp)
    room = _room(ask, weights_per_device)
    shared_ceiling = None
    if ask.shared_prefix:
        # A sequence that is all prefix still has a block of its own: its last token is computed, never found.
        shared = shared_bytes(ask.layout, tokens=min(ask.shared_prefix, ask.tokens - 1), **shape)
        shared_ceiling = max(room - shared, 0) // (per_device - shared)
    return Plan(
        ask=ask,
        weights=weights,
        weights_per_device=weights_per_device,
        sequence=sequence_bytes(ask.layout, tokens=ask.tokens, dtype_bytes=ask.kv_dtype_bytes),
        sequence_per_device=per_device,
        room_per_device=room,
        ceiling=max(room, 0) // per_device,
        shared_ceiling=shared_ceiling,
    )


def cache_tokens(plan: Plan) -> int | None:
    """Tokens that the room holds in whole blocks, as an engine reports it; None where some keep fewer."""
    ask = plan.ask
    if not keeps_every_token(ask.layout):
        return None
    page = device_bytes(ask.layout, tokens=ask.block, dtype_bytes=ask.kv_dtype_bytes, tp=ask.tp, block=ask.block)
    return max(plan.room_per_device, 0) // page * ask.block


def as_document(plan: Plan) -> dict[str, Any]:
    """The answer as JSON: numbers by name, and under `formulas` how each comes about."""
    ask = plan.ask
    document: dict[str, Any] = {
        "weights_bytes": plan.weights,
        "weights_bytes_per_device": plan.weights_per_device,
        "kv_bytes_per_sequence": plan.sequence,
        "kv_bytes_per_sequence_per_device": plan.sequence_per_device,
        "kv_budget_bytes_per_device": plan.room_per_device,
        "kv_cache_tokens": cache_tokens(plan),
        "ceiling_sequences": plan.ceiling,
        "in_units": {
            "weights": _units(plan.weights),
            "kv_per_sequence": _units(plan.sequence),
            "kv_per_sequence_per_device": _units(plan.sequence_per_device),
        },
        "layers": [_words_of(count, layer) for count, layer in ask.layout],
        "devices": {"count": ask.tp, "kv_heads_on_each": _heads(ask)},
        "formulas": _formulas(plan),
        "ceiling_means": CEILING,
    }
    if plan.shared_ceiling is not None:
        document["assuming_shared_prefix"] = {
            "tokens": ask.shared_prefix,
            "ceiling_sequences": plan.shared_ceiling,
            "formula": "floor((room - the prefix's whole blocks, once) / (one sequence - those blocks)) on a device, "
            "if all sequences begin alike and their prefix stays cached",
        }
    return document


def _room(ask: Ask, weights_per_device: int) -> int:
    if ask.budget is not None:
        return ask.budget // ask.tp
    assert ask.memory is not None
    usable = ask.memory.size * ask.memory.utilization
    return int(usable) - weights_per_device - ask.memory.overhead


def _formulas(plan: Plan) -> dict[str, str]:
    ask = plan.ask
    room = "room for the cache / devices"
    if ask.memory is not None:
        room = "floor(memory * utilization) - weights / devices, rounded up - overhead of the runtime"
    return {
        "weights_bytes": f"parameters * bytes of each = {ask.params} * {_short(ask.dtype_bytes)}, rounded up",
        "weights_bytes_per_device": "weights / devices, rounded up; what every device has whole is not counted twice",
        "kv_bytes_per_sequence": " + ".join(_formula_of(count, layer, ask) for count, layer in ask.layout),
        "kv_bytes_per_sequence_per_device": (
            f"the same with a device's share of the heads (KV heads / {ask.tp}, at least one: fewer heads "
            f"than devices are copied; a latent vector is on every device; a state is divided) and tokens rounded up "
            f"to whole blocks of {ask.block} (a window: ceil((window - 1) / {ask.block}) + 1 blocks at most)"
        ),
        "kv_budget_bytes_per_device": room,
        "kv_cache_tokens": "floor(room on a device / bytes of a block of all layers there) * tokens of a block; "
        "null where layers keep different tokens",
        "ceiling_sequences": "floor(room on a device / bytes of one sequence there)",
    }


def _formula_of(count: int, layer: Attention | Latent | State, ask: Ask) -> str:
    if isinstance(layer, State):
        return f"{count} layers * {layer.size_bytes} bytes of state, whatever the length"
    kept = str(ask.tokens) if layer.window is None else f"min({ask.tokens}, window {layer.window})"
    if isinstance(layer, Latent):
        return f"{count} layers * {layer.size} (latent and rotary part) * {kept} tokens * {ask.kv_dtype_bytes} bytes"
    sizes = f"2 (keys and values) * {count} layers * {layer.kv_heads} KV heads * {layer.key_size} head size"
    if layer.key_size != layer.value_size:
        sizes = f"{count} layers * {layer.kv_heads} KV heads * ({layer.key_size} key + {layer.value_size} value size)"
    return f"{sizes} * {kept} tokens * {ask.kv_dtype_bytes} bytes"


def _words_of(count: int, layer: Attention | Latent | State) -> dict[str, int | str | None]:
    if isinstance(layer, State):
        return {"count": count, "kind": "linear", "state_bytes": layer.size_bytes}
    if isinstance(layer, Latent):
        return {"count": count, "kind": "mla", "latent_size": layer.size, "window": layer.window}
    kind = "full" if layer.window is None else "sliding"
    sizes = {"kv_heads": layer.kv_heads, "key_size": layer.key_size, "value_size": layer.value_size}
    return {"count": count, "kind": kind, **sizes, "window": layer.window}


def _heads(ask: Ask) -> list[int]:
    """By kind of attention layer, in the layout's order."""
    return [layer.heads_on_device(ask.tp) for _, layer in ask.layout if isinstance(layer, Attention)]


def _units(size: int) -> str:
    """In both units, so that neither is taken for the other."""
    return f"{_short(Fraction(size, GB))} GB = {_short(Fraction(size, GIB))} GiB"


def _short(value: Fraction) -> str:
    return f"{float(value):.12g}"


def _up(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
