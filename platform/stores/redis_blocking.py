"""The blocking client, for what runs in threads: Django's services and pages, Celery's jobs. One for each process.

Called by rooms that push to Redis after a commit, relay out of it or show it. Invariant: every wait has an end, so a
page or a commit is held up by a Redis that hangs for two seconds and no longer.
"""

from functools import cache

from redis import BlockingConnectionPool, Redis

WAIT_SECONDS = 2.0
CONNECTIONS_MAX = 16


@cache
def blocking_redis(url: str) -> Redis:
    """This process's blocking client of `url`, answers as bytes. Its calls raise redis.exceptions.RedisError.

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
    return Redis(connection_pool=pool)
