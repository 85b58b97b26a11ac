"""Model cards of what runs, from Valkey, for commands and pages. Every read has a deadline (`blocking_redis`)."""

from __future__ import annotations

from typing import cast

from contracts.models import ModelCard
from contracts.names import MODELS
from contracts.wire import decode
from controlplane.env import environment
from stores.redis_blocking import blocking_redis


def cards_of(pool: str) -> list[ModelCard]:
    """The cards that workers of the pool have left, by model. Raises RedisError, WireError."""
    found = cast("dict[bytes, bytes]", blocking_redis(environment().redis).hgetall(MODELS))
    cards = [decode(ModelCard, raw) for raw in found.values()]
    return sorted((card for card in cards if card.pool == pool), key=lambda card: card.model)
