"""Step 5, QUEUE: every key name of a pool's slot. Called by `queue` and by the meter, which reads the usage stream.

Invariant: all keys of one pool carry the hash tag `{p:<pool>}`, so that every script runs on one Cluster node.
"""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class PoolKeys:
    """Names of one pool. Scripts get `script_keys` and make the names of jobs, logs and lists from the prefix."""

    pool: str

    @cached_property
    def prefix(self) -> str:
        return f"w:{{p:{self.pool}}}:"

    @cached_property
    def script_keys(self) -> tuple[str, ...]:
        """The KEYS of every script of this room, in the order that their headers give."""
        names = ("", "act", "busy", "rest", "loads", "meta", "expiry", "lease", "unsettled", "usage", "idle", "wakes")
        return tuple(self.prefix + name for name in (*names, "dead"))

    @property
    def usage(self) -> str:
        """STREAM of usage records: one entry per ended request."""
        return self.prefix + "usage"

    @property
    def dead(self) -> str:
        """STREAM of dead letters, bounded in length."""
        return self.prefix + "dead"

    def death(self, death_id: str) -> str:
        """STRING, JSON: what an engine said last, and what its worker held. For a week."""
        return f"{self.prefix}death:{death_id}"

    def deaths_of(self, request_id: str) -> str:
        """LIST of ids of the engine deaths that a request was held in. For a week."""
        return f"{self.prefix}deaths:{request_id}"

    def wake(self, worker_id: str) -> str:
        """LIST on which an idle worker blocks."""
        return f"{self.prefix}wake:{worker_id}"


def mailbox_channel(gateway_id: str) -> str:
    """Pub/sub channel of one gateway."""
    return f"w:mb:{gateway_id}"
