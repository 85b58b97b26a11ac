"""The catalogue behind `GET /v1/models` and admission: names from PostgreSQL, configurations from running workers.

Called by the gateway through its port. Invariant: a configuration is what a worker read from engine and model files;
it outlives PostgreSQL being away (the last answer stands) and is refused, not invented, when no worker has registered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.clock import Clock
from contracts.errors import NotFound, Unavailable
from contracts.models import ModelCard
from contracts.names import MODELS
from contracts.text import shown
from contracts.wire import WireError, decode
from gateway.services import ServedModel
from gateway.tokenizer import PromptTokenizer, TokenizerFilesError

log = logging.getLogger("weir.catalogue")

FRESH_SECONDS = 5.0
LOOK_SECONDS = 1.0
LOAD_TIMEOUT_SECONDS = 3.0


@dataclass(slots=True)
class CatalogueCache:
    """Served models of this process, read again every five seconds."""

    redis: Redis
    clock: Clock
    read_offered: Callable[[], Awaitable[dict[str, str]]]  # model name -> tokenizer directory; raises Unavailable
    _offered: dict[str, str] = field(default_factory=dict)
    _cards: dict[str, ModelCard] = field(default_factory=dict)
    _tokenizers: dict[str, PromptTokenizer] = field(default_factory=dict)
    _was_read: bool = False
    _looked_at: float | None = None

    async def keep_fresh(self) -> None:
        """Reads again every five seconds, off every request's way, and loads new tokenizers. Never returns."""
        while True:
            await self._refresh()
            for name in self._offered.keys() & self._cards.keys():
                with suppress(Unavailable):  # logged; a request for it gets the reason
                    await self._tokenizer(name)
            await asyncio.sleep(FRESH_SECONDS)

    async def get(self, model: str) -> ServedModel:
        """Raises NotFound for a model that is not offered, Unavailable while no engine of it has registered."""
        if model not in self._offered or model not in self._cards:
            await self._look_again()
        if not self._was_read:
            raise Unavailable("The catalogue of models cannot be read.", retry_after_ms=2_000)
        if model not in self._offered:
            raise NotFound(f"The model {shown(model)} does not exist.", param="model", code="model_not_found")
        if model not in self._cards:
            raise Unavailable(f"No engine of `{model}` has started yet.", retry_after_ms=5_000)
        card, tokenizer = self._cards[model], await self._tokenizer(model)
        # The engine says whether it makes out a call; whether the model ever sees a tool is its template's to say.
        return ServedModel(card=replace(card, tools=card.tools and tokenizer.shows_tools), tokenizer=tokenizer)

    async def list(self) -> list[ServedModel]:
        """Every offered model whose engine has registered, by name. Raises Unavailable before the first read."""
        if not self._was_read:
            await self._look_again()
        if not self._was_read:
            raise Unavailable("The catalogue of models cannot be read.", retry_after_ms=2_000)
        return [await self.get(name) for name in sorted(self._offered) if name in self._cards]

    async def _look_again(self) -> None:
        """For what is not known here: it may be new. At most one look a second, so that wrong names cost nothing."""
        if self._looked_at is None or self.clock.monotonic() - self._looked_at >= LOOK_SECONDS:
            await self._refresh()

    async def _refresh(self) -> None:
        self._looked_at = self.clock.monotonic()
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_SECONDS):
                self._cards = _decode_cards(await self.redis.hgetall(MODELS))
            self._offered = await self.read_offered()
            self._was_read = True
        except (Unavailable, RedisError, TimeoutError) as error:
            log.warning("catalogue not refreshed, the last one stands: %s", type(error).__name__)

    async def _tokenizer(self, model: str) -> PromptTokenizer:
        """Loaded once, off the event loop. Raises Unavailable for files that are not the engine's."""
        directory, card = self._offered[model], self._cards[model]
        if directory not in self._tokenizers:
            try:
                self._tokenizers[directory] = await asyncio.to_thread(PromptTokenizer.load, Path(directory))
            except TokenizerFilesError as error:
                log.exception("tokenizer of %s cannot be loaded", model)
                raise Unavailable("The model's tokenizer cannot be loaded.", retry_after_ms=30_000) from error
        tokenizer = self._tokenizers[directory]
        if card.tokenizer_sha256 and tokenizer.sha256 != card.tokenizer_sha256:
            log.error("tokenizer.json of %s is %s, its engine's is %s", model, tokenizer.sha256, card.tokenizer_sha256)
            raise Unavailable("The model's tokenizer is not its engine's.", retry_after_ms=30_000)
        return tokenizer


def _decode_cards(raw: dict[Any, Any]) -> dict[str, ModelCard]:
    cards = {}
    for name, data in raw.items():
        try:
            cards[name.decode()] = decode(ModelCard, data)
        except WireError as error:
            log.warning("card of %s is unreadable: %s", name.decode(errors="replace"), error)
    return cards
