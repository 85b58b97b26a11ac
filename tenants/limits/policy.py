"""Step 3, LIMITS: the arithmetic of limits. Pure: no store, no clock. Used by `buckets.Limits` and by the tests' model.

How each metric counts:
- requests and input tokens per minute: a token bucket that starts full, charged at admission (both amounts are known
  then), refilled by cap per minute. A refund (void, or fewer tokens than held) is reduced by what may have drained
  since, so that it can never buy more than the cap.
- output tokens per minute: what requests under way may still write is *held* and does not drain; what they wrote is
  charged to the bucket when they settle. So held + debt never passes the cap.
- concurrent requests: held only. Queued requests: held only, until the request first runs; one that goes back to the
  queue after its engine died is not counted again.
- max_tokens per request: no counter; each request is compared with it.
- per day, per month: calendar windows in the tenant's zone; a request counts in the window of its admission.
- lifetime spend: one window without end. Prepaid credit: the same, under a cap that follows the tenant's credit.

Invariant: all amounts are integers. Buckets count in grains of 1/60,000 token, so that a refill of `cap` grains per
millisecond is whole (GCRA-like debt counter; ITU-T I.371 has the leaky bucket as its origin).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from contracts.tenancy import Limit, Metric, Scope
from tenants.limits.holds import Headroom

GRAINS = 60_000
MINUTE_MS = 60_000
# Bucket counters stay whole in Lua up to here (2**53 / 60,000), with room for the debt of a lowered cap.
RATE_CAP_MAX = 70_000_000_000
CAP_MAX = 9_000_000 * 1_000_000_000
TOKENS_MAX = 1_000_000_000
# Nobody knows when a request under way ends; a client that is told this long asks again soon.
IN_FLIGHT_RETRY_MS = 1_000


class Kind(StrEnum):
    """How a metric is counted; the one-letter form travels to the scripts."""

    RATE = "r"
    OUTPUT = "o"
    CONCURRENT = "c"
    QUEUED = "q"
    WINDOW = "w"
    LIFETIME = "l"
    REQUEST = "x"  # compared with each request by the gateway; never sent to a script


class Amount(StrEnum):
    """What of a request a metric counts; the one-letter form travels to the scripts."""

    REQUESTS = "1"
    INPUT = "i"
    OUTPUT = "o"
    TOKENS = "t"
    MONEY = "m"


@dataclass(frozen=True, slots=True)
class Rule:
    """How one metric is counted. `code` is its short name in Redis."""

    code: str
    kind: Kind
    amount: Amount
    unit: str
    window: str  # for docs/limits.md


_BUCKET = "token bucket: starts full, refills by the cap per minute; charged at admission"
_HELD_BUCKET = (
    "the same bucket; what requests under way may still write is held, what they wrote is charged when they end"
)
_DAY = "calendar day in the tenant's time zone"
_MONTH = "calendar month in the tenant's time zone"
RULES: dict[Metric, Rule] = {
    Metric.REQUESTS_PER_MINUTE: Rule("rpm", Kind.RATE, Amount.REQUESTS, "requests per minute", _BUCKET),
    Metric.INPUT_TOKENS_PER_MINUTE: Rule("ipm", Kind.RATE, Amount.INPUT, "input tokens per minute", _BUCKET),
    Metric.OUTPUT_TOKENS_PER_MINUTE: Rule("opm", Kind.OUTPUT, Amount.OUTPUT, "output tokens per minute", _HELD_BUCKET),
    Metric.CONCURRENT_REQUESTS: Rule(
        "con",
        Kind.CONCURRENT,
        Amount.REQUESTS,
        "concurrent requests",
        "none: requests under way, from admission to their end",
    ),
    Metric.QUEUED_REQUESTS: Rule(
        "que", Kind.QUEUED, Amount.REQUESTS, "queued requests", "none: requests that have not begun to run"
    ),
    Metric.MAX_TOKENS_PER_REQUEST: Rule(
        "mtr", Kind.REQUEST, Amount.OUTPUT, "max_tokens per request", "none: each request is compared with it"
    ),
    Metric.TOKENS_PER_DAY: Rule("tpd", Kind.WINDOW, Amount.TOKENS, "tokens per day", _DAY),
    Metric.TOKENS_PER_MONTH: Rule("tpm", Kind.WINDOW, Amount.TOKENS, "tokens per month", _MONTH),
    Metric.SPEND_PER_DAY: Rule("spd", Kind.WINDOW, Amount.MONEY, "spend per day", _DAY),
    Metric.SPEND_PER_MONTH: Rule("spm", Kind.WINDOW, Amount.MONEY, "spend per month", _MONTH),
    Metric.SPEND_LIFETIME: Rule("spl", Kind.LIFETIME, Amount.MONEY, "lifetime spend", "one window without end"),
    Metric.PREPAID_CREDIT: Rule(
        "pre",
        Kind.LIFETIME,
        Amount.MONEY,
        "prepaid credit",
        "one window without end; of a prepaid organization only, whose credit is the cap: nobody sets it",
    ),
}
_MONTHLY = frozenset({Metric.TOKENS_PER_MONTH, Metric.SPEND_PER_MONTH})


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open calendar period `[start_ms, end_ms)`. Labels sort as time does."""

    label: str
    start_ms: int
    end_ms: int


EVER = Window(label="ever", start_ms=0, end_ms=2**53)


def counted(limits: Sequence[Limit], *, model: str) -> tuple[Limit, ...]:
    """The limits that a request for this served model is counted in: those of all models, and the model's own."""
    return tuple(x for x in limits if x.model in (None, model) and RULES[x.metric].kind is not Kind.REQUEST)


def max_tokens_limit(limits: Sequence[Limit], *, model: str) -> Limit | None:
    """The least max_tokens that a request for this served model may ask for; None where no limit says so."""
    mine = [x for x in limits if x.model in (None, model) and RULES[x.metric].kind is Kind.REQUEST]
    return min(mine, key=lambda limit: limit.cap, default=None)


def is_rate(limit: Limit) -> bool:
    """Whether the rate headers tell of it: requests per minute, and tokens of any kind and window."""
    amount = RULES[limit.metric].amount
    return limit.metric is Metric.REQUESTS_PER_MINUTE or amount in (Amount.INPUT, Amount.OUTPUT, Amount.TOKENS)


def is_calendar(metric: Metric) -> bool:
    """Whether the metric counts in a day or a month of the tenant's zone."""
    return RULES[metric].kind is Kind.WINDOW


def is_monthly(metric: Metric) -> bool:
    """Whether the metric counts in a calendar month."""
    return metric in _MONTHLY


def is_money(metric: Metric) -> bool:
    """Whether its cap is an amount of nano-units."""
    return RULES[metric].amount is Amount.MONEY


def window_of(*, metric: Metric, timezone: str, now_ms: int) -> Window:
    """The day or month of a calendar metric that holds the instant `now_ms`. Raises ZoneInfoNotFoundError.

    Days start at the first instant of their date. Where a clock change makes a date come twice, the second part
    belongs to the day that follows, so that windows never overlap and leave no gap.
    """
    zone = ZoneInfo(timezone)
    date = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone(zone).date()
    if metric in _MONTHLY:
        first = date.replace(day=1)
        # A month's first instant may fall after `now` only through a repeated midnight; the day rule handles both.
        after = (first + timedelta(days=32)).replace(day=1)
        start, end = _instant(first.isoformat(), zone), _instant(after.isoformat(), zone)
        if now_ms >= end:
            first, start = after, end
            end = _instant((after + timedelta(days=32)).replace(day=1).isoformat(), zone)
        return Window(label=first.isoformat()[:7], start_ms=start, end_ms=end)
    start, end = _instant(date.isoformat(), zone), _instant((date + timedelta(days=1)).isoformat(), zone)
    if now_ms >= end:
        date += timedelta(days=1)
        start, end = end, _instant((date + timedelta(days=1)).isoformat(), zone)
    return Window(label=date.isoformat(), start_ms=start, end_ms=end)


def _instant(date: str, zone: ZoneInfo) -> int:
    """First instant of a date in a zone (fold=0: the earlier one; a skipped midnight is the instant of the change)."""
    moment = datetime.fromisoformat(date).replace(tzinfo=zone)
    return int(moment.timestamp()) * 1000


def drained(*, debt: int, cap: int, since_ms: int, now_ms: int) -> int:
    """Debt of a bucket in grains after its refill. A clock that went back drains nothing."""
    return max(0, debt - cap * max(0, now_ms - since_ms))


def refund(*, grains: int, cap: int, since_ms: int, now_ms: int) -> int:
    """How much of a charge made at `since_ms` may be given back: what cannot have drained yet."""
    return max(0, grains - cap * max(0, now_ms - since_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A counter as it stands at `now_ms`: `used` in grains for buckets, else in units; `held` in units."""

    used: int
    held: int


def free(*, metric: Metric, cap: int, reading: Reading) -> int:
    """What one request may still ask of a limit now, in its unit; never negative."""
    if RULES[metric].kind in (Kind.RATE, Kind.OUTPUT):
        return max(0, ((cap - reading.held) * GRAINS - reading.used) // GRAINS)
    return max(0, cap - reading.used - reading.held)


def reset_ms(*, metric: Metric, cap: int, reading: Reading, window: Window, now_ms: int) -> int:
    """Milliseconds until a limit is whole again, as far as it is known."""
    kind = RULES[metric].kind
    if kind in (Kind.RATE, Kind.OUTPUT):
        return 0 if cap == 0 else -(-reading.used // cap)
    return max(0, window.end_ms - now_ms) if kind is Kind.WINDOW else 0


def retry_after_ms(*, metric: Metric, cap: int, need: int, reading: Reading, window: Window, now_ms: int) -> int | None:
    """How long until a request for `need` fits, if nobody else asks; None when no waiting helps.

    Exact for buckets and windows. What requests under way hold is given back at a time nobody knows: where only that
    is in the way, the answer is `IN_FLIGHT_RETRY_MS`.
    """
    if cap == 0 or need > cap:
        return None
    kind = RULES[metric].kind
    if kind is Kind.RATE or kind is Kind.OUTPUT:
        if need > cap - reading.held:
            return IN_FLIGHT_RETRY_MS
        excess = reading.used + (reading.held + need - cap) * GRAINS
        return max(1, -(-excess // cap))
    if kind in (Kind.CONCURRENT, Kind.QUEUED) or reading.used + need <= cap:
        return IN_FLIGHT_RETRY_MS
    return max(1, window.end_ms - now_ms) if kind is Kind.WINDOW else None


def tightest(rooms: Iterable[Headroom]) -> Headroom | None:
    """The headroom that a client runs into first: least remaining, then the longest reset."""
    return min(rooms, key=lambda room: (room.remaining, -room.reset_ms, room.limit), default=None)


def scope_name(scope: Scope) -> str:
    """How messages call a scope."""
    return {Scope.KEY: "API key", Scope.PROJECT: "project", Scope.TENANT: "organization"}[scope]
