"""Step 2, whose key it is: contexts of keys that no cache of this gateway knows, and the epochs of those it does.

Called by `tenants.auth.resolve.Resolver` and the gateway's watch over revocations. Invariants: however many keys are
asked for at once, two queries read them; who gives up waiting spoils no other's read.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.errors import Rejected, Unavailable
from contracts.tenancy import TenantContext
from controlplane.reads.database import from_database
from controlplane.reads.prices import PriceCache
from gateway.services import Epochs
from tenants import selectors as tenant_reads
from tenants.services import load_keys


class KeyLoads:
    """`tenants.auth.resolve.Load`. Keys that are asked for while others are read are read together, by two queries.

    A gateway that starts under load knows no key; one by one, they would cost it five milliseconds each.
    """

    def __init__(self, prices: PriceCache) -> None:
        self._prices = prices
        self._waiting: list[_AskedKey] = []
        self._reading = asyncio.Lock()

    async def __call__(self, digests: Sequence[str]) -> TenantContext | None:
        asked = _AskedKey(digests, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        async with self._reading:  # whoever is next reads for all who wait
            if not asked.answer.done():
                await self._read(asked)
        context = asked.answer.result()
        if isinstance(context, Rejected):
            raise context
        if context is not None:
            self._prices.saw(tenant_id=context.tenant_id, epoch=context.tenant_epoch)
        return context

    async def _read(self, mine: "_AskedKey") -> None:
        batch, self._waiting = self._waiting, []
        try:
            contexts: Sequence[TenantContext | Rejected | None] = await from_database(
                load_keys, [each.digests for each in batch]
            )
        except Unavailable as error:
            contexts = [Unavailable(error.message, retry_after_ms=error.retry_after_ms) for _ in batch]
        except BaseException:  # cancelled: the others read for themselves
            self._waiting = [each for each in batch if each is not mine] + self._waiting
            raise
        for each, context in zip(batch, contexts, strict=True):
            each.answer.set_result(context)


@dataclass(slots=True, eq=False)
class _AskedKey:
    digests: Sequence[str]
    answer: "asyncio.Future[TenantContext | Rejected | None]"


class DatabaseEpochs:
    """`gateway.services.EpochSource`: the truth about revocation, read after Redis lost it."""

    async def load(self, *, tenant_id: str) -> Epochs:
        keys, tenant = await from_database(tenant_reads.epochs, tenant_id)
        return Epochs(keys=keys, tenant=tenant)
