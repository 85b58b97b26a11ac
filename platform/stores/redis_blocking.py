"""The blocking client, for what runs in threads: Django's services and pages, Celery's jobs. One for each process.

Called by rooms that push to Redis after a commit, relay out of it or show it. The URL may name any node of a Redis
Cluster: whether it does is asked once, and a cluster gets redis-py's own client for it, which follows MOVED and ASK.
Invariant: every wait has an end, so a page or a commit is held up by a Redis that hangs for two seconds and no longer;
in a cluster, where a node that hangs is asked again after the others, for three times that.
"""

from functools import cache
from typing import Any, cast

from redis import BlockingConnectionPool, Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

WAIT_SECONDS = 2.0
CONNECTIONS_MAX = 16


@cache
def blocking_redis(url: str) -> Redis:
    """This process's blocking client of `url`, answers as bytes. Raises redis.exceptions.RedisError, as its calls do.

    A thread waits `WAIT_SECONDS` for a free connection, for its opening, and for each reply. RESP2 as in `redis`.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=CONNECTIONS_MAX,
        timeout=WAIT_SECONDS,
        socket_timeout=WAIT_SECONDS,
        socket_connect_timeout=WAIT_SECONDS,
        health_check_interval=30,
        protocol=2,
        decode_responses=False,
    )
    client = Redis(connection_pool=pool)
    if not _is_of_a_cluster(client):
        return client
    pool.disconnect()
    return cast("Redis", _Cluster(url))


class _Cluster(RedisCluster):
    """With the same bounds, for each node. Its calls answer as those of `Redis`, as far as they are used here."""

    def __init__(self, url: str) -> None:
        super().__init__(
            url=url,
            connection_pool_class=_pool_of_a_node,
            retry=Retry(NoBackoff(), retries=1),
            socket_timeout=WAIT_SECONDS,
            socket_connect_timeout=WAIT_SECONDS,
            protocol=2,
            decode_responses=False,
        )

    def time(self, **options: Any) -> Any:
        """One node's: redis-py asks them all."""
        return super().time(target_nodes=self.get_default_node(), **options)  # type: ignore[no-untyped-call]


def _pool_of_a_node(**kwargs: Any) -> BlockingConnectionPool:
    """RedisCluster hands on what a connection takes, and nothing of the bounds of a pool."""
    return BlockingConnectionPool(  # type: ignore[no-untyped-call]
        max_connections=CONNECTIONS_MAX, timeout=WAIT_SECONDS, health_check_interval=30, **kwargs
    )


def _is_of_a_cluster(client: Redis) -> bool:
    try:
        return bool(client.info("cluster").get("cluster_enabled"))
    except ResponseError:  # a login that may not ask
        return False
