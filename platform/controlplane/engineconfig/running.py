"""What runs against what is configured, field by field. Pure; called by the command, the route and the page.

The running side is the model card, which a worker read from its model's files and its engine. Invariant: a field that
the card does not carry is listed as not read back, never as equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.models import ModelCard
from controlplane.engineconfig.document import EngineDocument, as_json

_FROM_CARD = ("repository", "revision", "weights_sha256", "tokenizer_sha256", "dtype", "kv_cache_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that runs otherwise than it was configured."""

    field: str
    configured: str
    running: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`same`: fields that were read back and agree; `unread`: fields that no card tells of."""

    same: tuple[str, ...]
    different: tuple[Difference, ...]
    unread: tuple[str, ...]


def compare(document: EngineDocument, card: ModelCard) -> Comparison:
    """Field by field; where the document leaves a field to the engine, there is nothing to differ from."""
    wanted = _wanted(document, card)
    running = {name: str(getattr(card, name)) for name in _FROM_CARD}
    running |= {"max_model_len": str(card.context_tokens), "block_size": str(card.block_tokens)}
    different = tuple(
        Difference(field=name, configured=value, running=running[name])
        for name, value in wanted.items()
        if running[name] != value
    )
    apart = {one.field for one in different}
    unread = tuple(name for name, value in as_json(document).items() if name not in running and value not in (None, ""))
    return Comparison(same=tuple(name for name in wanted if name not in apart), different=different, unread=unread)


def _wanted(document: EngineDocument, card: ModelCard) -> Mapping[str, str]:
    given = as_json(document)
    wanted = {name: str(given[name]) for name in _FROM_CARD if given[name] not in ("", "auto")}
    if document.kv_cache_dtype == "auto":  # then it is the model's
        wanted["kv_cache_dtype"] = card.dtype if document.dtype == "auto" else document.dtype
    for name in ("max_model_len", "block_size"):
        if given[name] is not None:
            wanted[name] = str(given[name])
    return wanted
