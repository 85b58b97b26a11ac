"""A request on its way: what is queued, what a worker claims, what it streams, what it leaves for the bill."""

from dataclasses import dataclass, field
from enum import StrEnum

from contracts.money import PriceCard
from contracts.tenancy import PolicyRef, ServiceClass
from contracts.tokens import TokenCounts


class Endpoint(StrEnum):
    """Engine routes; the value is the path under /v1."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """An admitted request as it travels through the queue (msgpack, versioned).

    `body` is the validated JSON body for the engine, without `stream`, `stream_options` and `model`, which the worker
    sets itself. `edge_us` runs from the last byte of the request to the enqueue call (microseconds, monotonic), so
    that time to first token is a sum of durations and needs no common clock.
    """

    request_id: str
    tenant_id: str
    project_id: str
    api_key_id: str
    pool: str
    model: str
    endpoint: Endpoint
    body: bytes
    stream: bool
    include_usage: bool
    prompt_tokens: int
    max_tokens: int
    choices: int
    cache_salt: str
    price: PriceCard
    policy: PolicyRef | None
    service_class: ServiceClass
    admitted_at_ms: int
    edge_us: int
    guard_us: int
    evaluation_log: bool
    budget_cut: bool = False
    end_user_hash: str = ""
    guard_prompt: tuple[str, ...] = ()  # verdict lines of the prompt stage, for the timeline
    background: bool = False  # it runs for nobody's connection, and PostgreSQL keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job handed to one worker under a fence. `log_length` > 0 after a lost attempt: frames already released."""

    ticket: Ticket
    fence: str
    attempt: int
    log_length: int
    queue_us: int
    engine_deaths: int
    counts: TokenCounts = field(default_factory=TokenCounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a request went, in microseconds. `itl` is a logarithmic histogram: bucket index -> count."""

    edge_us: int = 0
    guard_us: int = 0
    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    output_guard_us: int = 0
    ttft_us: int = 0
    total_us: int = 0
    itl: dict[int, int] = field(default_factory=dict)
    itl_sum_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """One terminal request revision: the only source of limits' settlement, ClickHouse rows and ledger entries."""

    request_id: str
    revision: int
    tenant_id: str
    project_id: str
    api_key_id: str
    pool: str
    model: str
    endpoint: str
    service_class: str
    admitted_at_ms: int
    billed_at_ms: int
    counts: TokenCounts
    delivered_tokens: int
    outcome: str
    finish_reason: str
    error_code: str
    attempt: int
    worker_id: str
    price: PriceCard
    timings: Timings
    policy_id: str
    policy_version: int
    verdicts: tuple[str, ...]
    stream: bool
    end_user_hash: str
    log_key: str = ""
    budget_cut: bool = False  # less output was held than asked for, because no more was affordable
    error_param: str = ""  # the field of the request that the engine refused, where one is known
