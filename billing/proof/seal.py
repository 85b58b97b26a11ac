"""Merkle roots of a period's hours, chained and signed, when it is sealed. Called by `billing.closing.close`.

Invariant: the head commits to every receipt of the period and to the head before it: the preceding period's, or the
same period's last revision. Whoever holds the head can tell whether one receipt was added, changed or left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from billing.models import BillingPeriod, PeriodSeal
from billing.proof.receipts import receipts_of
from billing.proof.signing import Signer
from billing.proof.verify import HOUR_MS, NO_HEAD, chain, leaf_of, merkle_root
from billing.rating.periods import Span
from stores.clickhouse import Reader


class SealDiffers(RuntimeError):
    """ClickHouse gave other rows for an hour than it had counted a moment before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourRoot:
    """One hour of the tree."""

    hour_ms: int
    requests: int
    root: str

    def as_json(self) -> dict[str, int | str]:
        return {"hour_ms": self.hour_ms, "requests": self.requests, "root": self.root}


def hour_roots(reader: Reader, *, tenant_id: str, span: Span, counted: Mapping[int, int]) -> list[HourRoot]:
    """Of every hour in `counted` (hour -> requests), in order. Raises SealDiffers, ClickHouseError."""
    leaves: dict[int, list[bytes]] = {}
    for receipt in receipts_of(reader, tenant_id=tenant_id, span=span):
        leaves.setdefault(receipt["billed_at_ms"] // HOUR_MS * HOUR_MS, []).append(leaf_of(receipt))
    found = {hour_ms: len(each) for hour_ms, each in leaves.items()}
    if found != dict(counted):
        raise SealDiffers(f"{sum(found.values())} rows now, {sum(counted.values())} a moment before")
    return [
        HourRoot(hour_ms=hour_ms, requests=len(each), root=merkle_root(each))
        for hour_ms, each in sorted(leaves.items())
    ]


def store_seal(period: BillingPeriod, roots: list[HourRoot], *, revision: int, signer: Signer) -> PeriodSeal:
    """Once, in the transaction that seals."""
    prev = _head_before(period, revision)
    head = chain(prev, [root.as_json() for root in roots])
    seal = PeriodSeal(
        period=period,
        revision=revision,
        prev_head=prev,
        head=head,
        requests=sum(root.requests for root in roots),
        key_id=signer.key_id,
    )
    seal.signature = signer.sign(seal_json(seal))
    seal.save()
    return seal


def seal_json(seal: PeriodSeal) -> dict[str, str | int]:
    """What the signature is over."""
    return {
        "tenant_id": str(seal.period.tenant_id),
        "month": seal.period.month,
        "revision": seal.revision,
        "prev": seal.prev_head,
        "head": seal.head,
        "requests": seal.requests,
    }


def _head_before(period: BillingPeriod, revision: int) -> str:
    seals = PeriodSeal.objects.order_by("-period__starts_at", "-revision")
    if revision > 1:
        found = seals.filter(period=period, revision__lt=revision).first()
    else:
        found = seals.filter(period__tenant_id=period.tenant_id, period__starts_at__lt=period.starts_at).first()
    return found.head if found is not None else NO_HEAD
