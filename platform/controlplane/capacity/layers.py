"""What one layer of a model keeps of a sequence, whole and on each device. Pure; called by `config` and `plan`.

Sizes in bytes, whole numbers. Formulas: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", 2023 (pages); Shazeer 2019 and Ainslie et al. 2023 (MQA, GQA); DeepSeek-V2, 2024 (MLA). How heads are
spread over the devices of a tensor-parallel group, and how many blocks a window spans, is what vLLM 0.32 does.
Invariant: what the devices hold together is never less than what the sequence needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class CapacityRefused(ValueError):
    """The numbers describe nothing that could run; the text says why, `param` which number."""

    def __init__(self, text: str, *, param: str = "") -> None:
        super().__init__(text)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Keys and values of each KV head. `window`: only so many of the newest tokens are kept; None: all."""

    kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None

    def bytes_of_token(self, dtype_bytes: int) -> int:
        return self.kv_heads * (self.key_size + self.value_size) * dtype_bytes

    def heads_on_device(self, tp: int) -> int:
        """Sharded while there are as many heads as devices, else each is copied. Raises CapacityRefused."""
        if self.kv_heads % tp and tp % self.kv_heads:
            text = f"{self.kv_heads} KV heads can neither be divided over {tp} devices nor copied evenly to them."
            raise CapacityRefused(text, param="tp")
        return max(self.kv_heads // tp, 1)

    def bytes_of_token_on_device(self, dtype_bytes: int, tp: int) -> int:
        return self.heads_on_device(tp) * (self.key_size + self.value_size) * dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """MLA: one compressed vector for keys and values of all heads, with its rotary part; every device has it whole."""

    size: int
    window: int | None = None

    def bytes_of_token(self, dtype_bytes: int) -> int:
        return self.size * dtype_bytes

    def bytes_of_token_on_device(self, dtype_bytes: int, tp: int) -> int:
        return self.size * dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Linear attention, state space: a state of fixed size, however long the sequence is; divided over the devices."""

    size_bytes: int


Layer = Attention | Latent | State
Layout = Sequence[tuple[int, Layer]]  # so many layers of each kind


def kept_tokens(layer: Attention | Latent, tokens: int) -> int:
    return tokens if layer.window is None else min(tokens, layer.window)


def blocks(layer: Attention | Latent, *, tokens: int, block: int) -> int:
    """Blocks that `tokens` cached ones take; a window that begins in the middle of a block needs one more."""
    whole = -(-tokens // block)
    return whole if layer.window is None else min(whole, -(-(layer.window - 1) // block) + 1)


def sequence_bytes(layout: Layout, *, tokens: int, dtype_bytes: int) -> int:
    """What one sequence needs, once, to the token."""
    total = 0
    for count, layer in layout:
        if isinstance(layer, State):
            total += count * layer.size_bytes
        else:
            total += count * layer.bytes_of_token(dtype_bytes) * kept_tokens(layer, tokens)
    return total


def device_bytes(layout: Layout, *, tokens: int, dtype_bytes: int, tp: int, block: int) -> int:
    """What one sequence takes on each device: its share of heads, in whole blocks. Raises CapacityRefused."""
    total = 0
    for count, layer in layout:
        if isinstance(layer, State):
            total += count * -(-layer.size_bytes // tp)
        else:
            held = blocks(layer, tokens=tokens, block=block) * block
            total += count * layer.bytes_of_token_on_device(dtype_bytes, tp) * held
    return total


def shared_bytes(layout: Layout, *, tokens: int, dtype_bytes: int, tp: int, block: int) -> int:
    """What sequences with the same first `tokens` have in common on a device: whole blocks of layers that keep all."""
    kept: Layout = [(n, layer) for n, layer in layout if not isinstance(layer, State) and layer.window is None]
    whole = tokens // block * block
    return device_bytes(kept, tokens=whole, dtype_bytes=dtype_bytes, tp=tp, block=block)


def keeps_every_token(layout: Layout) -> bool:
    """Whether the cache is a number of tokens at all."""
    return all(not isinstance(layer, State) and layer.window is None for _, layer in layout)
