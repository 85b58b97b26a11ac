"""The state of a pool as its keys hold it, in the shape of the reference model's."""

from __future__ import annotations

from typing import Any

from fairqueue.messages import usage_from_stream
from fairqueue.queue import FairQueue

JOB_FIELDS = [
    "state",
    "tenant",
    "generation",
    "mailboxes",
    "attempt",
    "fence",
    "worker",
    "last_seq",
    "prompt",
    "cached",
    "completion",
    "delivered",
    "paid",
    "spent",
    "deaths",
    "lapses",
    "cancel",
    "queue_us",
    "outcome",
    "error",
]


# A number that was never written is 0.
NUMBERS = {
    "attempt",
    "last_seq",
    "prompt",
    "cached",
    "completion",
    "delivered",
    "paid",
    "spent",
    "deaths",
    "lapses",
    "queue_us",
}


def _fields(values: list[bytes | None]) -> dict[str, str]:
    pairs = zip(JOB_FIELDS, values, strict=True)
    return {name: (value or (b"0" if name in NUMBERS else b"")).decode() for name, value in pairs}


async def read_state(redis: Any, queue: FairQueue, rids: list[str]) -> dict[str, Any]:
    prefix = queue.keys.prefix
    pipe = redis.pipeline(transaction=True)
    for name in ("act", "busy", "rest", "idle", "wakes", "unsettled", "lease", "expiry"):
        pipe.zrange(prefix + name, 0, -1, withscores=True)
    pipe.hgetall(prefix + "meta")
    pipe.xrange(prefix + "usage")
    pipe.xrange(prefix + "dead")
    pipe.keys(prefix.replace("[", "\\[") + "tomb:*")
    for rid in rids:
        pipe.hmget(f"{prefix}job:{rid}", JOB_FIELDS)
        pipe.lrange(f"{prefix}out:{rid}", 0, -1)
    act, busy, rest, idle, wakes, unsettled, lease, expiry, meta, usage, dead, tombs, *jobs = await pipe.execute()

    def numbers(pairs: list[tuple[bytes, float]]) -> dict[str, int]:
        return {name.decode(): int(score) for name, score in pairs}

    homes = [numbers(act), numbers(busy), numbers(rest)]
    assert sum(map(len, homes)) == len({tenant for home in homes for tenant in home}), "one counter per tenant"
    figures = {name.decode(): int(value) for name, value in meta.items()}
    return {
        "v": figures.get("v", 0),
        "seq": figures.get("seq", 0),
        "pass_v": figures.get("pass_v"),
        "waiting": len(expiry),
        "waiting_bytes": figures.get("waiting_bytes", 0),
        "counters": homes[0] | homes[1] | homes[2],
        "act": [tenant.decode() for tenant, _ in act],
        "idle": numbers(idle),
        "wakes": numbers(wakes),
        "unsettled": numbers(unsettled),
        "lease": numbers(lease),
        "usage": [usage_from_stream(fields).request_id for _, fields in usage],
        "dead": [fields[b"request"].decode() for _, fields in dead],
        "tombs": {key.decode().rsplit(":", 1)[1] for key in tombs},
        "jobs": {rid: _fields(values) for rid, values in zip(rids, jobs[::2], strict=True)},
        "logs": dict(zip(rids, jobs[1::2], strict=True)),
    }
