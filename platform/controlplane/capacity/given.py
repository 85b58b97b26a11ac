"""Layers from single numbers instead of a configuration. Pure; called by the command and the route.

Invariant: a number that the kind of attention lacks is refused, and so is one that would go unheard (heads and their
size apart, which every model has).
"""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.capacity.layers import Attention, CapacityRefused, Latent, Layer, Layout, State

KINDS = ("mha", "gqa", "mqa", "mla", "sliding", "hybrid", "linear")
_OF_USE = {"mla": {"latent_size"}, "sliding": {"window"}, "linear": {"state_bytes"}}
_OF_USE["hybrid"] = {"full_layers", "latent_size", "window", "state_bytes"}
_SPECIAL = frozenset({"latent_size", "window", "state_bytes", "full_layers"})
Numbers = Mapping[str, int | None]  # layers, heads, kv_heads, head_size, window, latent_size, full_layers, state_bytes


def layout_given(kind: str, numbers: Numbers, *, dtype_bytes: int) -> Layout:
    """The layout of `kind` (one of KINDS). Raises CapacityRefused."""
    layers = _need(numbers, "layers", kind)
    for name in sorted(_SPECIAL - _OF_USE.get(kind, set())):
        if numbers.get(name) is not None:
            raise CapacityRefused(f"`{kind}` has no use for this number.", param=name)
    if numbers.get("window") and numbers.get("state_bytes"):
        raise CapacityRefused("The other layers are sliding (window) or linear (state), not both.", param="state_bytes")
    if kind == "hybrid":
        full = _need(numbers, "full_layers", kind)
        if full >= layers:
            raise CapacityRefused("A hybrid model has other layers beside its full ones.", param="full_layers")
        rest = "sliding" if numbers.get("window") else "linear"
        return [
            (full, _layer("mla" if numbers.get("latent_size") else "gqa", numbers, dtype_bytes=dtype_bytes)),
            (layers - full, _layer(rest, numbers, dtype_bytes=dtype_bytes)),
        ]
    return [(layers, _layer(kind, numbers, dtype_bytes=dtype_bytes))]


def _layer(kind: str, numbers: Numbers, *, dtype_bytes: int) -> Layer:
    if kind == "mla":  # as vLLM counts it: one head whose size is that of the latent vector with its rotary part
        return Latent(size=numbers.get("latent_size") or _need(numbers, "head_size", kind))
    if kind == "linear":
        if given := numbers.get("state_bytes"):
            return State(size_bytes=given)
        heads, head = _heads(kind, numbers), _need(numbers, "head_size", kind)
        return State(size_bytes=heads * head * head * dtype_bytes)  # one matrix for each head
    head = _need(numbers, "head_size", kind)
    window = _need(numbers, "window", kind) if kind == "sliding" else None
    return Attention(kv_heads=_heads(kind, numbers), key_size=head, value_size=head, window=window)


def _heads(kind: str, numbers: Numbers) -> int:
    heads, kv_heads = numbers.get("heads"), numbers.get("kv_heads")
    if kind == "mqa":
        if kv_heads not in (None, 1):
            raise CapacityRefused("Multi-query attention has one KV head.", param="kv_heads")
        return 1
    if kind == "mha" and heads is not None and kv_heads not in (None, heads):
        raise CapacityRefused("Multi-head attention has as many KV heads as heads.", param="kv_heads")
    if kind == "mha" and kv_heads is None:
        return _need(numbers, "heads", kind)
    return _need(numbers, "kv_heads", kind)


def _need(numbers: Numbers, name: str, kind: str) -> int:
    value = numbers.get(name)
    if value is None:
        raise CapacityRefused(f"`{kind}` needs this number.", param=name)
    return value
