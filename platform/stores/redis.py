"""One way to open Redis or Valkey, so that every client has the same timeouts, bounds and protocol.

RESP2 and the default retry: with RESP3 redis-py hands out a connection that the server closed (redis/redis-py#4252).
The default retry can run a command twice, therefore every write of ours is a Lua script that is idempotent by an id.
"""

from redis.asyncio import BlockingConnectionPool, Redis

CONNECT_TIMEOUT_SECONDS = 2.0
REPLY_TIMEOUT_SECONDS = 5.0
CONNECTIONS_MAX = 64


def open_redis(url: str, *, connections_max: int = CONNECTIONS_MAX, reply_timeout: float | None = None) -> Redis:
    """A client on `url`, answers as bytes. Waits for a free connection up to the reply timeout (seconds)."""
    timeout = REPLY_TIMEOUT_SECONDS if reply_timeout is None else reply_timeout
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections_max,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        health_check_interval=30,
        protocol=2,
        decode_responses=False,
    )
    return Redis(connection_pool=pool)


def open_subscriber(url: str) -> Redis:
    """A client for one long-lived subscription: its reads wait, so a silent channel is not an error."""
    return Redis.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
        socket_keepalive=True,
        health_check_interval=10,
        protocol=2,
        decode_responses=False,
    )
