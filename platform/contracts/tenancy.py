"""What the hot path knows of a tenant, made from the database once and cached: frozen, no models."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Where a limit is counted."""

    KEY = "key"
    PROJECT = "project"
    TENANT = "tenant"


class Metric(StrEnum):
    """What a limit counts. Per-minute metrics are token buckets; day and month are calendar windows.

    `max_tokens_per_request` is checked by the gateway on each request; all others are counted in Redis.
    """

    REQUESTS_PER_MINUTE = "requests_per_minute"
    INPUT_TOKENS_PER_MINUTE = "input_tokens_per_minute"
    OUTPUT_TOKENS_PER_MINUTE = "output_tokens_per_minute"
    CONCURRENT_REQUESTS = "concurrent_requests"
    QUEUED_REQUESTS = "queued_requests"
    MAX_TOKENS_PER_REQUEST = "max_tokens_per_request"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    SPEND_PER_DAY = "spend_per_day"  # nano-units
    SPEND_PER_MONTH = "spend_per_month"  # nano-units
    SPEND_LIFETIME = "spend_lifetime"  # nano-units
    PREPAID_CREDIT = "prepaid_credit"  # nano-units; its cap follows the ledger and is set by nobody


class ServiceClass(StrEnum):
    """What a request is queued, priced and billed as: chosen by plan, route and operator, never by the client."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One cap. `cap` 0 blocks; an unlimited metric has no `Limit` at all.

    `model` None counts all models together; else only requests of that served model count, apart from the others.
    `alerts` are percents of a money cap whose crossing is told of, without refusing anything. `since_ms` is when the
    cap was set: usage before it is in the counter only after a rebuild.
    """

    scope: Scope
    metric: Metric
    cap: int
    model: str | None = None
    alerts: tuple[int, ...] = ()
    since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """Names one immutable guardrail policy version. 0: the policy was never published, and guards by refusing."""

    policy_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantContext:
    """Everything steps 2-5 need of the caller. Resolved from an API key; cached by key digest.

    `key_epoch` and `tenant_epoch` are checked inside the hold script, so a revoked key or a suspended tenant is
    refused at once although this object may be cached. `allowed_models` None means every model. `allowed_networks`
    holds CIDR blocks in their canonical form (`10.0.0.0/8`, `2001:db8::/32`), from which alone the key may be used;
    empty means from anywhere. `expires_at_ms`: the key is refused from then on, also where this object is cached.
    """

    tenant_id: str
    tenant_name: str
    project_id: str
    api_key_id: str
    key_epoch: int
    tenant_epoch: int
    scopes: frozenset[str]
    allowed_models: frozenset[str] | None
    limits: tuple[Limit, ...]
    queued_max: int
    max_tokens_default: int
    max_tokens_cap: int | None
    weight_milli: int
    timezone: str
    currency: str
    policy: PolicyRef | None
    evaluation_log: bool
    cut_to_affordable: bool = False
    allowed_networks: tuple[str, ...] = ()
    expires_at_ms: int | None = None
    service_class: ServiceClass = ServiceClass.INTERACTIVE
