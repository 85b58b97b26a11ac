"""Which node of a Redis Cluster has which slot, learned from what the nodes answer. Called by `redis.Client`.

One server needs nothing of it: until a node has said MOVED, every call goes to the server of the URL. From then on a
call goes where its slot is known to be, else to that server, and follows what it is told (the rules of
redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec). Invariants: one pool of connections for each node,
NODES_MAX of them; a call follows REDIRECTS_MAX answers, so nodes that point at each other end in an error.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis.asyncio import BlockingConnectionPool
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, RedisError

from stores.multiplex import Multiplexer

REDIRECTS_MAX = 5
NODES_MAX = 64
_WITHOUT_KEY = re.compile(
    "ACL|CLIENT|CLUSTER|CONFIG|DBSIZE|DEBUG|FLUSHALL|FLUSHDB|INFO|KEYS|LATENCY|MEMORY|PING|PUBLISH|PUBSUB|SCAN|SCRIPT"
    "|SLOWLOG|TIME|WAIT"
)

Address = tuple[str, int]


class Node:
    """One server: the connections of redis-py's client, and the one that all script calls share."""

    def __init__(self, pool: BlockingConnectionPool, *, reply_seconds: float) -> None:
        self.pool = pool
        self.calls = Multiplexer(make_connection=pool.make_connection, reply_seconds=reply_seconds)


class Nodes:
    """The nodes that were told of so far, and the slots of each."""

    def __init__(self, seed: BlockingConnectionPool, *, reply_seconds: float) -> None:
        self.seed = Node(seed, reply_seconds=reply_seconds)
        self._first = self.seed
        self._reply_seconds = reply_seconds
        self._nodes: dict[Address, Node] = {}
        self._slots: dict[int, Node] = {}

    def node_of(self, key: str | bytes | None) -> Node:
        """Where the key is known to be; where nothing is known, the server of the URL, or one that took its part."""
        if key is None or not self._slots:
            return self._first
        return self._slots.get(key_slot(key.encode() if isinstance(key, str) else key), self._first)

    def told(self, error: AskError) -> Node:
        """The node that MOVED or ASK names. MOVED is for all later calls of the slot, ASK for the one that got it."""
        host = error.host or str(self.seed.pool.connection_kwargs.get("host", "localhost"))
        node = self._node((host, error.port))
        if isinstance(error, MovedError):  # which is a kind of AskError in redis-py
            self._slots[error.slot_id] = node
        return node

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            if len(self._nodes) >= NODES_MAX:
                raise ClusterTooLargeError(f"the cluster told of more than {NODES_MAX} nodes")
            node = self._nodes[address] = Node(self._pool(address), reply_seconds=self._reply_seconds)
        return node

    def _pool(self, address: Address) -> BlockingConnectionPool:
        """As the seed's: the same login, timeouts and bounds."""
        seed = self.seed.pool
        kwargs: Mapping[str, Any] = {**seed.connection_kwargs, "host": address[0], "port": address[1]}
        return BlockingConnectionPool(
            connection_class=seed.connection_class,
            max_connections=seed.max_connections,
            timeout=seed.timeout,
            **kwargs,
        )

    def lost(self, node: Node) -> None:
        """A node does not answer: what it had may be elsewhere, and another one is asked where."""
        self._slots = {slot: owner for slot, owner in self._slots.items() if owner is not node}
        if node is self._first:
            every = list(self.every())
            self._first = every[(every.index(node) + 1) % len(every)]

    def every(self) -> Iterator[Node]:
        yield self.seed
        yield from self._nodes.values()


def key_of(command: Sequence[Any]) -> str | bytes | None:
    """The key by which a command finds its node; None for one that any node answers."""
    if "STREAMS" in command[1:] or b"STREAMS" in command[1:]:
        at = next(i for i, part in enumerate(command) if part in ("STREAMS", b"STREAMS"))
        key = command[at + 1]
    elif len(command) < 2 or _WITHOUT_KEY.fullmatch(str(command[0]).split(" ", 1)[0].upper()):
        return None
    else:
        key = command[1]
    return key if isinstance(key, str | bytes) else None


class ClusterTooLargeError(RedisError):
    """More nodes than a process connects to."""
