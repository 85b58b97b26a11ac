"""When to try again, and when to give up. Pure: the caller brings the instant and the dice.

Exponential back-off with full jitter (Brooker, «Exponential Backoff And Jitter»): before try n+1 a random time between
0 and 40 s * 2^(n-1). Twelve tries: on the average over 11.4 hours, never over more than 22.8.
"""

from datetime import datetime, timedelta

TRIES_MAX = 12
BASE = timedelta(seconds=40)
RETRY_AFTER_MAX = timedelta(hours=1)
# An endpoint is switched off when it has failed for so long, and so often, without one success.
FAILING_FOR = timedelta(days=3)
FAILURES_MIN = 20


def pause(*, tries: int, dice: float, retry_after_s: int | None = None) -> timedelta | None:
    """Time until the next try after `tries` failed ones; None when it was the last. `dice` lies in [0, 1)."""
    if tries >= TRIES_MAX:
        return None
    jittered = BASE * (1 << (tries - 1)) * dice
    if retry_after_s is None:
        return jittered
    return max(jittered, min(timedelta(seconds=retry_after_s), RETRY_AFTER_MAX))


def longest() -> timedelta:
    """The most time that all pauses together can take."""
    return sum((BASE * (1 << (tries - 1)) for tries in range(1, TRIES_MAX)), timedelta())


def failed_for_long(*, failures: int, failing_since: datetime | None, now: datetime) -> bool:
    """Whether an endpoint is to be switched off."""
    return failures >= FAILURES_MIN and failing_since is not None and now - failing_since >= FAILING_FOR
