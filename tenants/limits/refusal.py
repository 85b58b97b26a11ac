"""Step 3, LIMITS: from counter readings to what a client is told: rate headers, messages, errors. Pure.

Invariant: a message names the limit, its scope, its cap, what is used, held and asked, who raises it and where; and
never another tenant's data.
"""

from collections.abc import Sequence

from contracts.errors import BudgetSpent, Rejected
from contracts.money import text_from_nano
from contracts.tenancy import Limit, Metric, Scope
from tenants.limits import policy
from tenants.limits.holds import Headroom, HoldRequest, LimitUse, RateLimited
from tenants.limits.policy import GRAINS, RULES, Amount, Kind, Reading, Window

_BY_CUSTOMERS = "it is raised at /api/v1/limits of the management API, or by an operator under Limits in the console"
_BY_OPERATORS = "only an operator raises it, at /api/v1/limits of the management API or under Limits in the console"
_BOUGHT = "more credit raises it: an operator books it under Credit grants in the console"


def rates(
    limits: Sequence[Limit], readings: Sequence[Reading], windows: Sequence[Window], now_ms: int
) -> tuple[Headroom | None, Headroom | None]:
    """The tightest headroom for requests and for tokens, as the `x-ratelimit-*` headers want it."""
    requests: list[Headroom] = []
    tokens: list[Headroom] = []
    for limit, reading, window in zip(limits, readings, windows, strict=True):
        if not policy.is_rate(limit):
            continue
        room = Headroom(
            limit=limit.cap,
            remaining=policy.free(metric=limit.metric, cap=limit.cap, reading=reading),
            reset_ms=policy.reset_ms(metric=limit.metric, cap=limit.cap, reading=reading, window=window, now_ms=now_ms),
        )
        (requests if limit.metric is Metric.REQUESTS_PER_MINUTE else tokens).append(room)
    return policy.tightest(requests), policy.tightest(tokens)


def rooms(uses: Sequence[LimitUse]) -> tuple[Headroom | None, Headroom | None]:
    """As `rates`, from counters that were only read."""
    requests: list[Headroom] = []
    tokens: list[Headroom] = []
    for use in uses:
        same = requests if use.limit.metric is Metric.REQUESTS_PER_MINUTE else tokens
        same.append(Headroom(limit=use.limit.cap, remaining=use.free, reset_ms=use.reset_ms))
    return policy.tightest(requests), policy.tightest(tokens)


def refused(
    request: HoldRequest,
    windows: Sequence[Window],
    fits: Sequence[int],
    readings: Sequence[Reading],
    now_ms: int,
) -> Rejected:
    """The error of a refused hold: money that is spent first, else the limit that takes longest to let it in."""
    failed = [
        (limit, reading, window)
        for limit, reading, window, fit in zip(request.limits, readings, windows, fits, strict=True)
        if not fit
    ]
    for limit, reading, _ in failed:
        if policy.is_money(limit.metric) and reading.used + need_of(limit.metric, request) > limit.cap:
            return BudgetSpent(_message(limit, reading, request))
        if policy.is_money(limit.metric) and limit.cap == 0:
            return BudgetSpent(_message(limit, reading, request))
    waits = [
        policy.retry_after_ms(
            metric=limit.metric,
            cap=limit.cap,
            need=need_of(limit.metric, request),
            reading=reading,
            window=window,
            now_ms=now_ms,
        )
        for limit, reading, window in failed
    ]
    # None (no waiting helps) outlasts every wait.
    worst = max(range(len(failed)), key=lambda i: float("inf") if waits[i] is None else (waits[i] or 0))
    requests, tokens = rates(request.limits, readings, windows, now_ms)
    limit, reading, _ = failed[worst]
    return RateLimited(_message(limit, reading, request), retry_after_ms=waits[worst], requests=requests, tokens=tokens)


def need_of(metric: Metric, request: HoldRequest) -> int:
    """What a request asks of a limit at worst, in the limit's unit."""
    return {
        Amount.REQUESTS: 1,
        Amount.INPUT: request.prompt_tokens,
        Amount.OUTPUT: request.output_tokens_max,
        Amount.TOKENS: request.prompt_tokens + request.output_tokens_max,
        Amount.MONEY: request.cost_max_nano,
    }[RULES[metric].amount]


def _message(limit: Limit, reading: Reading, request: HoldRequest) -> str:
    rule = RULES[limit.metric]
    if limit.cap == 0:
        return blocked(limit)
    whole = -(-reading.used // GRAINS) if rule.kind in (Kind.RATE, Kind.OUTPUT) else reading.used
    amounts = limit.cap, whole, reading.held, need_of(limit.metric, request)
    cap, used, held, need = (
        f"{text_from_nano(each)} {request.currency}" if rule.amount is Amount.MONEY else str(each) for each in amounts
    )
    return (
        f"Limit on {_where(limit)} reached: limit {cap}, used {used}, held by requests under way {held}, "
        f"requested at most {need}; {_raised(limit)}."
    )


def blocked(limit: Limit) -> str:
    """What a limit of 0 says."""
    return f"Blocked: the limit on {_where(limit)} is 0; {_raised(limit)}."


def too_many(limit: Limit, *, asked: int) -> str:
    """What the limit on max_tokens says of a request that asks for more."""
    return f"{asked} asked for, and the limit on {_where(limit)} is {limit.cap}; {_raised(limit)}"


def _raised(limit: Limit) -> str:
    """Who raises it, and where. What an organization may use in all is its contract."""
    if limit.metric is Metric.PREPAID_CREDIT:
        return _BOUGHT
    return _BY_OPERATORS if limit.scope is Scope.TENANT else _BY_CUSTOMERS


def _where(limit: Limit) -> str:
    of_model = "" if limit.model is None else f" for the model {limit.model}"
    return f"{RULES[limit.metric].unit} of the {policy.scope_name(limit.scope)}{of_model}"
