"""What is known once a round is over: what clients saw, what every book says, what is left in the stores. Pure data.

Filled by `clients` and `books`, judged by `invariants`. Invariant: nothing here is computed by the platform's own code;
each side is read from where it is kept, so that two of them can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Tokens:
    """Counts of one request; `cached` is a part of `prompt`."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True)
class EventSeen:
    """One event of a stream with an id: `<epoch>-<seq>`."""

    epoch: str
    seq: int
    text: str


@dataclass(slots=True)
class Connection:
    """One try of one call, as its client saw it. `after_seq`: the event that it asked to go on after.

    `end`: done ([DONE] or a plain answer), error (an error frame, or a status of 400 or more), cut (the connection
    broke), left (the client closed it), late (nothing for longer than the client's patience).
    """

    request_id: str = ""
    status: int = 0
    after_seq: int = 0
    events: list[EventSeen] = field(default_factory=list)
    text: str = ""
    end: str = "cut"
    code: str = ""
    usage: Tokens | None = None
    cost: Decimal | None = None

    @property
    def is_accepted(self) -> bool:
        """The platform said yes: whatever happens later, the request ends once."""
        return self.status == 200 and bool(self.request_id)


@dataclass(slots=True)
class Call:
    """What one client did, try by try. `said` is what the simulated engine repeats; empty: unknown."""

    name: str
    kind: str
    tenant: str
    said: str = ""
    connections: list[Connection] = field(default_factory=list)
    unanswered: bool = False  # a client that tries again until it is answered gave up


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of ClickHouse, as it is stored. `copies` counts what lies under the same key without FINAL."""

    request_id: str
    revision: int
    tenant_id: str
    tokens: Tokens
    delivered: int
    cost: Decimal
    outcome: str
    attempt: int
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """One usage line of the ledger."""

    request_id: str
    revision: int
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    """One line of a worker's attempt log."""

    request_id: str
    attempt: int
    tokens: Tokens
    delivered: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """GET /v1/requests/{id}."""

    request_id: str
    status: str  # ended, queued, running; or the HTTP status where it was not 200
    outcome: str
    tokens: Tokens | None
    cost: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is in Redis once all is quiet: everything should be zero."""

    holds: tuple[str, ...] = ()
    held: tuple[str, ...] = ()  # counters `<name>=<amount>` that still hold something
    waiting: int = 0
    running: int = 0
    unsettled: int = 0
    usage_pending: int = 0  # usage records that the meter or the ledger has not finished
    poisoned: int = 0  # usage records that could not be taken

    @property
    def is_nothing(self) -> bool:
        return not (self.holds or self.held or self.waiting or self.running or self.unsettled or self.usage_pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Everything that was kept of a round's requests. `ledger_balance` is the sum of all entries: zero."""

    rows: tuple[Row, ...]
    postings: tuple[Posting, ...]
    attempts: tuple[AttemptLine, ...]
    states: tuple[State, ...]
    left: Left
    ledger_balance: Decimal = Decimal(0)
    ledger_owed: Decimal = Decimal(0)  # what the receivable accounts grew by


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, with the request and what was found."""

    rule: str
    request_id: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.request_id or '-'}: {self.detail}"
