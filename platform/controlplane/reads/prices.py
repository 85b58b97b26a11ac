"""Step 3, what a token costs a tenant: price cards, in this process's memory.

Called by admission for every request, and by `keys.py` when it read a context. Invariant: a card is of the epoch of
its tenant's newest context; known cards keep serving while PostgreSQL is away.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from billing import selectors as billing_reads
from contracts.clock import Clock
from contracts.errors import Unavailable
from contracts.money import PriceCard
from contracts.tenancy import ServiceClass
from controlplane.reads.database import from_database

PRICE_FRESH_SECONDS = 30.0
PRICE_ENTRIES_MAX = 10_000

log = logging.getLogger("weir.prices")


@dataclass(slots=True)
class PriceCache:
    """`gateway.services.Prices`: known pairs are read again every thirty seconds, off every request's way.

    A tenant's cards are of one epoch: a plan that changed, or another plan, is another epoch and read anew.
    """

    clock: Clock
    _cards: dict[tuple[str, str, str, int], PriceCard | None] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)

    def saw(self, *, tenant_id: str, epoch: int) -> None:
        """A context of this epoch was read; later ones stand."""
        if epoch > self._epochs.get(tenant_id, 0):
            if len(self._epochs) >= PRICE_ENTRIES_MAX:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[tenant_id] = epoch

    async def card(self, *, tenant_id: str, model: str, service_class: ServiceClass) -> PriceCard | None:
        key = (tenant_id, model, service_class.value, self._epochs.get(tenant_id, 0))
        if self._cards.get(key) is None:  # unknown, or without a price when last seen: one may be there by now
            if len(self._cards) >= PRICE_ENTRIES_MAX:
                self._cards.pop(next(iter(self._cards)))
            self._cards[key] = await self._read(tenant_id, model, service_class.value)
        return self._cards[key]

    async def keep_fresh(self) -> None:
        """Runs as long as the server. While PostgreSQL is away the last prices stand."""
        while True:
            await asyncio.sleep(PRICE_FRESH_SECONDS)
            try:
                for key in list(self._cards):
                    tenant_id, model, service_class, epoch = key
                    if epoch != self._epochs.get(tenant_id, 0):
                        self._cards.pop(key, None)
                    else:
                        self._cards[key] = await self._read(tenant_id, model, service_class)
            except Unavailable:
                log.warning("prices not refreshed, the last ones stand")

    async def _read(self, tenant_id: str, model: str, service_class: str) -> PriceCard | None:
        return await from_database(
            billing_reads.price_card,
            tenant_id=tenant_id,
            model=model,
            at_ms=self.clock.now_ms(),
            service_class=service_class,
        )
