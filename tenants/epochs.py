"""Pushes epochs to the {tenant} slot, from Django. Called on commit by services and again by the beat.

Invariant: PostgreSQL is the truth. A revocation is in force once its transaction commits: key caches learn of it
within their time to live, the hold script as soon as this push arrives; a push that fails is repeated by the beat.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from redis.exceptions import RedisError

from contracts.wire import encode
from stores.lua import LuaScript
from stores.redis_blocking import blocking_redis
from tenants.limits import keys
from tenants.limits.revocation import Revocation

_SCRIPT = LuaScript.load(Path(__file__).parent / "limits" / "scripts" / "epochs.lua")
_log = logging.getLogger(__name__)


def push(*, tenant_id: str, tenant_epoch: int, epochs: dict[str, int], revoked: Sequence[str] = ()) -> bool:
    """Write epochs and tell every gateway. `revoked`: keys whose running streams are to be cut. False: not reached."""
    fields: list[str | int] = ["tenant", tenant_epoch]
    for key_id, epoch in epochs.items():
        fields += [key_id, epoch]
    message = Revocation(tenant_id=tenant_id, revoked_keys=tuple(revoked), suspended=tenant_epoch < 0)
    try:
        client = blocking_redis(settings.ENV.redis)
        client.sadd(keys.TENANTS, tenant_id)
        client.register_script(_SCRIPT.text)(keys=[keys.epoch(tenant_id)], args=fields)
        client.publish(keys.REVOKED_CHANNEL, encode(message))
    except (RedisError, OSError) as error:
        _log.warning("epochs of tenant %s were not pushed (%s); the beat repeats it", tenant_id, type(error).__name__)
        return False
    return True
