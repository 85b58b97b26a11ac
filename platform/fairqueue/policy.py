"""Step 5, QUEUE: the arithmetic of fair service. Pure; called by `queue`, `model` and the tests.

Start-time fair queueing over a virtual token counter (Sheng et al., "Fairness in Serving Large Language Models",
arXiv 2401.00588; Goyal et al., "Start-time Fair Queuing", 1996). Service is counted in milli-tokens; a tenant's
counter moves by service divided by its weight. Invariant: every amount is a whole number below 2**53.
"""

from dataclasses import dataclass

from contracts.tokens import TokenCounts

# What one token costs the engine, in milli-tokens of service. Output costs twice the input (the paper's w_q = 2);
# input found in the prefix cache costs a quarter, since only its attention is still paid.
INPUT_MILLI = 1_000
CACHED_MILLI = 250
OUTPUT_MILLI = 2_000

TICK_TOKENS = 32
TICK_MS = 500
QUANTUM_MILLI = 4_096_000  # Q: how far service may lean from the least served, in virtual milli-tokens
TENANTS_LOOKED_AT = 16  # heads that one claim looks at, at most
INTERACTIVE_SHARE = 4  # while requests of both classes wait: four parts of the service,
BATCH_SHARE = 1  # and one
HEADS_LOOKED_AT = 4  # requests of one tenant that a claim looks at, where the first are left to other workers
NEIGHBOURS = 4  # heads of other tenants that a claim looks at for a prefix of its worker
WARM_MAX = 256  # prefixes that are remembered of one worker
PREFILL_TOKENS_PER_S = 8_000  # what a prompt saves where its prefix is cached, at most; only bounds the patience
WINDOW_MS = 60_000  # window of the measured service rate
RETRY_AFTER_MIN_MS = 250
RETRY_AFTER_MAX_MS = 60_000
RETRY_AFTER_UNKNOWN_MS = 2_000  # nothing has finished yet, so there is no rate to go by


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Bounds and times of one pool. Counts are of waiting requests; times in milliseconds."""

    queued_total_max: int = 10_000
    queued_bytes_max: int = 256 * 1024 * 1024
    queued_tokens_max: int = 64_000_000  # prompt and longest answer of all that waits
    tenant_bytes_max: int = 64 * 1024 * 1024
    tenant_tokens_max: int = 16_000_000
    patience_ms_max: int = 250  # how long a request is left to the worker that holds its prefix, at most
    lease_ms: int = 5_000
    holding_margin_ms: int = 2_000  # a claim younger than this may still be on its way to the worker
    wake_margin_ms: int = 1_000  # a wake older than this was lost with its worker
    lapses_max: int = 5
    deaths_max: int = 2
    log_bytes_max: int = 16 * 1024 * 1024
    log_ttl_ms: int = 600_000
    job_ttl_ms: int = 3_600_000
    tombstone_ms: int = 3_600_000  # also the furthest ahead that an enqueue deadline may lie


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """Finished work in the current window of WINDOW_MS and in the one before it. `into_ms` of the current passed."""

    into_ms: int
    requests: int
    tokens: int
    requests_before: int
    tokens_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fullness:
    """Why there is no room. `leave_first`: requests that must leave before there is; 0: there never will be.

    `tenants_waiting`, in its class; `parts` of the service are its class's, and `parts_of_others` the other's.
    """

    of_tenant: bool
    leave_first: int
    tenants_waiting: int
    parts: int
    parts_of_others: int


def input_service(counts: TokenCounts) -> int:
    """Milli-tokens of service of the prompt; cached input is discounted."""
    return (counts.prompt - counts.cached) * INPUT_MILLI + counts.cached * CACHED_MILLI


def output_service(tokens: int) -> int:
    return tokens * OUTPUT_MILLI


def prepaid_output(max_tokens: int, choices: int) -> int:
    """Milli-tokens prepaid for output at claim: one tick, so that a burst of claims is charged before it streams."""
    return output_service(min(max_tokens * choices, TICK_TOKENS))


def virtual(service_milli: int, weight_milli: int) -> int:
    """Service in the tenant's own measure: weight 2,000 halves it. Floor of a cumulative amount, so no drift."""
    return service_milli * 1_000 // weight_milli


def led(*, before: int, after: int, weight_milli: int, batch: bool) -> int:
    """What a tenant's charge, as cumulative virtual amounts, moves the lead of the interactive class by.

    The lead is interactive service times the batch share less batch service times the interactive share.
    """
    service = after * weight_milli // 1_000 - before * weight_milli // 1_000
    return -INTERACTIVE_SHARE * service if batch else BATCH_SHARE * service


def without_credit(lead: int, *, batch: bool) -> int:
    """The lead when a class begins to wait: it has earned nothing by idling, and keeps what it owes."""
    return min(lead, 0) if batch else max(lead, 0)


def patience_ms(*, prompt_tokens: int, most: int) -> int:
    """How long a request is worth leaving to the worker that holds its prefix: no longer than that can save.

    Then waiting in vain costs at most twice the best (the ski-rental rule; delay scheduling of Zaharia et al., 2010).
    """
    return min(prompt_tokens * 1_000 // PREFILL_TOKENS_PER_S, most)


def lifted(counter: int, clock: int) -> int:
    """Counter of a tenant that begins to wait: idling earns no credit."""
    return max(counter, clock)


def kv_need(*, prompt_tokens: int, max_tokens: int, choices: int) -> int:
    """KV tokens that a request can come to hold; choices share the prompt."""
    return prompt_tokens + max_tokens * choices


def per_1000s(*, current: int, before: int, into_ms: int) -> int:
    """Rate per 1,000 seconds by a sliding window of two buckets; a young pool is measured over what has passed."""
    if before == 0:
        return current * 1_000_000 // max(into_ms, 1_000)
    weighted = before * (WINDOW_MS - into_ms) + current * WINDOW_MS
    return weighted * 1_000_000 // (WINDOW_MS * WINDOW_MS)


def wait_ms(*, position: int, requests_per_1000s: int) -> int | None:
    """When a request that waits likely starts: after as many ends as it is in line. None: nothing has ended lately."""
    return position * 1_000_000 // requests_per_1000s if requests_per_1000s else None


def retry_after_ms(*, window: RateWindow, full: Fullness) -> int | None:
    """When a place is likely free, by the measured rate of ends. None: never, it is larger than its bound.

    The pool's place frees with each end; a tenant's with each of its turns, in the share that its class has.
    """
    if full.leave_first == 0:
        return None
    rate = per_1000s(current=window.requests, before=window.requests_before, into_ms=window.into_ms)
    if rate == 0:
        return RETRY_AFTER_UNKNOWN_MS
    ends = full.leave_first
    if full.of_tenant:
        ends *= max(full.tenants_waiting, 1)
        ends += ends * full.parts_of_others // full.parts
    return min(max(ends * 1_000_000 // rate, RETRY_AFTER_MIN_MS), RETRY_AFTER_MAX_MS)
