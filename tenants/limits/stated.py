"""The second half of docs/limits.md: how each limit of a tenant counts. Pure; generated where the numbers live."""

from tenants.limits.gate import DEADLINE_SECONDS, FAILURES_MAX, REST_SECONDS
from tenants.limits.policy import IN_FLIGHT_RETRY_MS, RULES

_INTRO = """
## Limits of a tenant

Each may stand on an API key, a project or the organization, for all models together or for one; all that apply must
have room, or nothing is held and nothing is charged. No limit = unlimited, 0 = blocked.

| metric | unit | window |
|---|---|---|
"""
_REST = f"""
A bucket lets at most the cap plus the cap per minute through in any stretch of time. Days and months begin at the
first instant of their date in the tenant's zone; a request counts in the window of its admission, whenever it ends.
`queued_requests` counts a request until it first runs; the plan's own bound on waiting requests stands beside it.

What counts: the prompt's tokens by the model's own tokenizer; `max_tokens` times `n` as output until the request
ends, then what the engine counted. Reasoning, tool calls and logprobs are output tokens or free: they are never
counted twice. Cached prompt tokens count as input tokens and cost their own price. `best_of` other than `n` is
refused. A retry under one Idempotency-Key, and a second attempt after a lost worker, count once; speculated tokens
count when they are accepted. `max_tokens` that is absent is the plan's default (of completions
16, if that is less), within the context, the caps, and, where the tenant chose to have answers shortened, what the
budget leaves: an answer that ends there has the `finish_reason` `length`, and `weir.stopped_by` is `budget`.

Money is hard: the worst case is held, so a budget cannot be passed. A limit of a day, a month or a lifetime counts from
the moment that it is set; what was used before in its window is added from the meter within some seconds, of requests
that were under way meanwhile by the check that runs every five minutes, as it is after a loss of the store's counters
(sooner by `manage.py rebuild_limits`).
Alerts (50, 80 and 100 % unless set otherwise) refuse nothing and are told once per window, as `budget.threshold`;
`budget.spent` is told when not even the shortest answer fits.

| answer | code | when | again? |
|---|---|---|---|
| 402 | `budget_exceeded` | money is spent: what was billed in the window and this request's worst case pass the \
cap of `spend_per_day`, `spend_per_month`, `spend_lifetime` or `prepaid_credit`; or that cap is 0 | not by itself: \
`x-should-retry: false`, also where the window begins anew tomorrow. \
A smaller `max_tokens` may fit; else a larger budget, more credit, or the next window |
| 429 | `rate_limit_exceeded` | money is not spent, but held by requests under way: they end for less, as a rule | \
`retry-after` |
| 429 | `rate_limit_exceeded` | any other limit: requests, tokens (also of a day or month), concurrency | \
`retry-after`; `x-should-retry: false` where waiting never helps |
| 429 | `queue_full` | as many requests of the tenant wait for the model as its plan or it lets wait, or as many \
tokens or bytes, of it or of everybody, as the queue holds | `retry-after`; `x-should-retry: false` where waiting \
never helps |
| 400 | `max_tokens_cap` | `max_tokens` is more than the plan, or the limit `max_tokens_per_request`, allows | no: \
with a smaller `max_tokens` |

Each of these says in one sentence which limit it is, its value, what is used and what was asked, who raises it and
where.

Where several limits refuse, spent money is told first, else the limit that takes longest. The management API sets
budgets and limits and is under none of them: it answers no 402, and 429 only to more than ten webhook tests a minute.

`retry-after` is exact for buckets and windows if nobody else asks meanwhile. What requests under way hold is given
back at a time nobody knows: there it is {IN_FLIGHT_RETRY_MS / 1000:g} s. A cap of 0, and more than a cap
at once, say `x-should-retry: false`. When the limits' store does not answer, requests
are refused with 503 within {DEADLINE_SECONDS:g} s, after {FAILURES_MAX} failures at once, and one in
{REST_SECONDS:g} s is let through to see. A store that stops between two steps of one request costs it what
they may take together: {DEADLINE_SECONDS:g} s to see that a worker is there, {DEADLINE_SECONDS:g} s for the hold, 5 s
for the queue and 2 s to give the hold back. When PostgreSQL is away, keys that were good within the last 15 minutes go
on.
"""


def render_tenant_limits() -> str:
    """Markdown, to be put behind the limits of a request."""
    rows = [f"| `{metric.value}` | {rule.unit} | {rule.window} |" for metric, rule in RULES.items()]
    return _INTRO + "\n".join(rows) + "\n" + _REST
