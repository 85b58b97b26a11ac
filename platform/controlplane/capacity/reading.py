"""From what a command line or a body says to an `Ask`. Pure; called by both.

Invariant: numbers are read as decimal texts, never as floats; every one has a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from controlplane.capacity.config import dtype_bytes_of, layout_of, params_of
from controlplane.capacity.given import layout_given
from controlplane.capacity.layers import CapacityRefused, Layout
from controlplane.capacity.plan import GIB, Ask, DeviceMemory

COUNT_MAX = 10**15
GIB_MAX = Fraction(10**9)
UTILIZATION = Fraction(9, 10)
_DECIMALS_MOST = {
    "dtype_bytes": Fraction(16), "budget_gib": GIB_MAX, "device_memory_gib": GIB_MAX, "utilization": Fraction(1),
    "overhead_gib": GIB_MAX,
}  # fmt: skip
_COUNTS_MOST = {"kv_dtype_bytes": 16}
NUMBERS = ("layers", "heads", "kv_heads", "head_size", "window", "latent_size", "full_layers", "state_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said, unread: whole numbers and decimal texts by name, and the configuration if there is one."""

    numbers: Mapping[str, int | None]
    decimals: Mapping[str, str | None]
    attention: str | None
    config: Mapping[str, Any] | None
    params_of_weights: int | None = None  # counted in the weights' own files


def read_ask(said: Said) -> Ask:
    """Raises CapacityRefused with the name of what is wrong, and only then of what is missing."""
    for name in _DECIMALS_MOST:
        _decimal(said, name)
    for name, value in said.numbers.items():
        if value is not None:
            _count(said, name)
    dtype, kv_dtype = _dtypes(said)
    budget = _gib(said, "budget_gib")
    memory = _gib(said, "device_memory_gib")
    for name in ("utilization", "overhead_gib"):
        if memory is None and said.decimals.get(name) is not None:
            raise CapacityRefused("This is of use with the memory of each device only.", param=name)
    return Ask(
        layout=_layout(said, kv_dtype),
        params=_params(said),
        dtype_bytes=dtype,
        kv_dtype_bytes=kv_dtype,
        tokens=_count(said, "tokens"),
        tp=_count(said, "tp", default=1),
        block=_count(said, "block_size", default=16),
        budget=budget,
        memory=None if memory is None else _memory(said, memory),
        shared_prefix=_count(said, "shared_prefix_tokens", default=0),
    )


def _layout(said: Said, dtype_bytes: int) -> Layout:
    given = {name: said.numbers.get(name) for name in NUMBERS if said.numbers.get(name) is not None}
    if said.config is not None:
        if given or said.attention:
            raise CapacityRefused("The configuration says this itself.", param=next(iter(given), "attention"))
        return layout_of(said.config)
    return layout_given(said.attention or "gqa", given, dtype_bytes=dtype_bytes)


def _dtypes(said: Said) -> tuple[Fraction, int]:
    """Bytes of a weight and of a number in the cache: the same, unless said apart."""
    dtype = _decimal(said, "dtype_bytes")
    if dtype is None:
        if said.config is None:
            raise CapacityRefused("Say how many bytes a parameter takes, or give a config.", param="dtype_bytes")
        dtype = Fraction(dtype_bytes_of(said.config))
    if dtype == 0:
        raise CapacityRefused("A parameter takes more than nothing.", param="dtype_bytes")
    kv = said.numbers.get("kv_dtype_bytes")
    if kv is None and dtype.denominator != 1:
        raise CapacityRefused("Say how many bytes a number in the cache takes.", param="kv_dtype_bytes")
    return dtype, dtype.numerator if kv is None else _count(said, "kv_dtype_bytes")


def _params(said: Said) -> int:
    if said.numbers.get("params") is not None:
        return _count(said, "params")
    if said.params_of_weights is not None:
        return said.params_of_weights
    if said.config is None:
        raise CapacityRefused("Say how many parameters the model has.", param="params")
    return params_of(said.config)


def _memory(said: Said, size: int) -> DeviceMemory:
    utilization = _decimal(said, "utilization")
    overhead = _gib(said, "overhead_gib")
    return DeviceMemory(
        size=size, utilization=UTILIZATION if utilization is None else utilization, overhead=overhead or 0
    )


def _count(said: Said, name: str, *, default: int | None = None) -> int:
    value = said.numbers.get(name)
    if value is None:
        if default is None:
            raise CapacityRefused("This number is missing.", param=name)
        return default
    most = _COUNTS_MOST.get(name, COUNT_MAX)
    if not 1 <= value <= most:
        raise CapacityRefused(f"A whole number from 1 to {most}.", param=name)
    return value


def _gib(said: Said, name: str) -> int | None:
    value = _decimal(said, name)
    return None if value is None else int(value * GIB)


def _decimal(said: Said, name: str) -> Fraction | None:
    text = said.decimals.get(name)
    if text is None:
        return None
    if len(text) > 40 or not text.isascii() or not text.replace(".", "", 1).isdigit():
        raise CapacityRefused("A decimal number, like 0.5 or 400.", param=name)
    value = Fraction(text if text[0] != "." else f"0{text}")
    if value > _DECIMALS_MOST[name]:
        raise CapacityRefused(f"At most {_DECIMALS_MOST[name]}.", param=name)
    return value
