"""Step 3, LIMITS: the frozen words of the hold protocol, passed between admission, workers, settler and `Limits`.

Invariant: nothing here does I/O or reads a clock. Token amounts are whole tokens, money is integer nano-units,
times are milliseconds since the Unix epoch by the clock of the {tenant} slot.
"""

from dataclasses import dataclass
from enum import StrEnum

from contracts.errors import LimitExceeded, Unavailable
from contracts.jobs import UsageRecord
from contracts.tenancy import Limit


class HoldState(StrEnum):
    """Life of a hold: held, running, settled; or held, voided; or held, settled (it ended while it waited)."""

    HELD = "held"
    RUNNING = "running"
    SETTLED = "settled"
    VOIDED = "voided"


class EpochUnknown(Exception):
    """The hold script cannot vouch for the key: its epochs are not in Redis, or the caller's context is older.

    What to do, once: load the context from PostgreSQL again (`Resolver.reload`), `Limits.set_epochs` with
    `tenants.selectors.epochs(tenant_id)`, and hold again with the new context. A second EpochUnknown is `Unavailable`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """A client's Idempotency-Key. `key_digest` = SHA-256 hex of the key, `body_digest` = SHA-256 hex of the body."""

    key_digest: str
    body_digest: str
    ttl_ms: int = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequest:
    """Worst case of one request. Amounts are checked: never negative, money below `NANO_MAX`.

    `output_tokens_max` = max_tokens x choices. With `cut_to_affordable`, fewer output tokens may be granted where money
    is short, always a multiple of `choices`; `output_nano_per_token` is the price of one output token.
    """

    request_id: str
    tenant_id: str
    project_id: str
    api_key_id: str
    key_epoch: int
    tenant_epoch: int
    limits: tuple[Limit, ...]
    prompt_tokens: int
    output_tokens_max: int
    cost_max_nano: int
    currency: str
    timezone: str
    enqueue_deadline_ms: int
    pool: str = ""
    idempotency: Idempotency | None = None
    cut_to_affordable: bool = False
    output_nano_per_token: int = 0
    choices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """One pair of `x-ratelimit-*` headers: cap, what is left now, milliseconds until it is whole again."""

    limit: int
    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldHint:
    """What settlement needs to redo the effect of a hold that a failover lost. Ticket and UsageRecord carry it.

    `ended_at_ms`: when its usage was recorded; 0 = not known. What a rebuild has taken from the meter is told by it.
    """

    project_id: str
    api_key_id: str
    admitted_at_ms: int
    ended_at_ms: int = 0
    model: str = ""
    idempotency: Idempotency | None = None

    @classmethod
    def of(cls, record: UsageRecord) -> "HoldHint":
        return cls(
            project_id=record.project_id,
            api_key_id=record.api_key_id,
            admitted_at_ms=record.admitted_at_ms,
            ended_at_ms=record.billed_at_ms,
            model=record.model,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldGranted:
    """Held in every limit. `output_tokens` may be generated over all choices: less than asked only by a cut."""

    request_id: str
    admitted_at_ms: int
    hold_deadline_ms: int
    output_tokens: int
    cut: bool
    requests: Headroom | None
    tokens: Headroom | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldExisting:
    """This Idempotency-Key (or this request id) has been here: nothing new was held.

    `body_matches` False is a 422 for the client. State `held` covers running: attach, or drive the enqueue on with this
    request id. A voided request does not stand in the way of its key: the next request with it runs.
    `output_tokens`, all choices together, and `cut` are what the hold stands for; 0 = no longer known.
    """

    request_id: str
    state: HoldState
    body_matches: bool
    admitted_at_ms: int = 0
    output_tokens: int = 0
    cut: bool = False


class BeingRebuilt(Unavailable):
    """A lost hold is not settled while its tenant's counters are made anew: the settler tries again."""


class RateLimited(LimitExceeded):
    """LimitExceeded with the rate headers of the answer. `retry_after_ms` None: waiting will never help."""

    def __init__(
        self, message: str, *, retry_after_ms: int | None, requests: Headroom | None, tokens: Headroom | None
    ) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.requests = requests
        self.tokens = tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """`first` False: someone settled it before; `cost_nano` and `outcome` are then theirs."""

    first: bool
    cost_nano: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DueHold:
    """An open hold whose time to be looked at has come. Only `held` ones may be voided, after the pool's own look."""

    request_id: str
    pool: str
    state: HoldState


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHold:
    """A request that is admitted and not settled, and whose key it runs for."""

    request_id: str
    api_key_id: str
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """One limit now: `used` is settled, `held` belongs to requests under way, `free` is what a request may ask."""

    limit: Limit
    used: int
    held: int
    free: int
    reset_ms: int
