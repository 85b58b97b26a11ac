"""Writes a published version to Redis, from Django, once its transaction has committed.

PostgreSQL is the truth: a write that fails is made good by the first gateway that misses the version.
"""

import logging
from typing import Any

from django.conf import settings
from redis.exceptions import RedisError

from contracts.names import POLICIES, policy_key
from safety.published import ANNOUNCED_MAX, announcement, encode_document
from stores.redis_blocking import blocking_redis

_log = logging.getLogger(__name__)


def push(document: dict[str, Any]) -> bool:
    """Write one version, and announce it to who compiles ahead. False: Redis was not reached."""
    key = policy_key(document["id"], document["version"])
    news: Any = announcement(document["id"], document["version"])
    try:
        client = blocking_redis(settings.ENV.redis)
        client.set(key, encode_document(document))
        client.xadd(POLICIES, news, maxlen=ANNOUNCED_MAX, approximate=False)
    except (RedisError, OSError) as error:
        _log.warning("%s was not written to Redis (%s); the next request reads it", key, type(error).__name__)
        return False
    return True
