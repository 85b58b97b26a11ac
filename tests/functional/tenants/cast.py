"""Requests of the cast: acme pays, mallory is someone else."""

from dataclasses import replace

from contracts.tenancy import Limit, Metric, Scope
from tenants.limits.holds import HoldHint, HoldRequest

ACME = "0198a000-0000-7000-8000-0000000000ac"
MALLORY = "0198a000-0000-7000-8000-0000000000ff"
PROJECT = "0198a000-0000-7000-8000-0000000000a1"
KEY = "0198a000-0000-7000-8000-0000000000a2"
NOON = 1_800_014_400_000  # 2027-01-15 12:00 UTC


def limit(
    metric: Metric, cap: int, scope: Scope = Scope.TENANT, *, model: str | None = None, alerts: tuple[int, ...] = ()
) -> Limit:
    return Limit(scope=scope, metric=metric, cap=cap, model=model, alerts=alerts)


def request(number: int, *limits: Limit, **changes: object) -> HoldRequest:
    """Request `number` of acme: 10 prompt tokens, at most 20 output tokens, at most 1,000 nano-units."""
    base = HoldRequest(
        request_id=f"0198a000-0000-7000-8000-{number:012d}",
        tenant_id=ACME,
        project_id=PROJECT,
        api_key_id=KEY,
        key_epoch=1,
        tenant_epoch=1,
        limits=limits,
        prompt_tokens=10,
        output_tokens_max=20,
        cost_max_nano=1_000,
        currency="USD",
        timezone="UTC",
        enqueue_deadline_ms=NOON + 10_000,
        pool="demo",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


HINT = HoldHint(project_id=PROJECT, api_key_id=KEY, admitted_at_ms=NOON)
