"""Key names that the consumers of usage streams add to Redis, and the one they share with the fair queue.

The stream's own name belongs to `fairqueue.keys`; rooms of one layer do not import each other, so a contract test holds
the two together. Invariant: what must change together with a pool's stream carries that pool's hash tag.
"""

KNOWN_POOLS = "w:usage:pools"  # SET of pools ever seen: a model that left must still be drained


def usage_stream(pool: str) -> str:
    """STREAM of usage records of one pool."""
    return f"w:{{p:{pool}}}:usage"


def dead_usage(pool: str) -> str:
    """STREAM of records that no group member could take, with the reason. Never trimmed by us: it blocks a close."""
    return f"w:{{p:{pool}}}:usage:dead"


def ended_in_hour(pool: str, hour: int) -> str:
    """HASH tenant -> requests, tenant:tokens -> tokens: what the pool's queue ended in that hour since 1970."""
    return f"w:{{p:{pool}}}:ended:{hour}"


def counted_from(pool: str) -> tuple[str, str]:
    """HASH and field: the milliseconds at which the pool's queue began to count."""
    return f"w:{{p:{pool}}}:meta", "counted_from"


def manifests(group: str) -> str:
    """HASH batch id -> manifest: batches whose insert may or may not have happened."""
    return f"w:usage:manifests:{group}"
