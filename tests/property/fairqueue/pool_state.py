"""The state of a pool as its keys hold it, in the shape of the reference model's."""

from __future__ import annotations

from typing import Any

from contracts.jobs import Timings
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import Final, usage_from_stream
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
    "ids_seq",
    "writers",
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
    "ids_seq",
}


def _fields(values: list[bytes | None]) -> dict[str, str]:
    pairs = zip(JOB_FIELDS, values, strict=True)
    return {name: (value or (b"0" if name in NUMBERS else b"")).decode() for name, value in pairs}


LANE_SETS = ("act", "busy", "rest", "b:act", "b:busy", "b:rest")


def load_of(packed: bytes) -> tuple[int, ...]:
    """Interactive and batch requests that run; requests that wait, their tokens and bytes."""
    sizes = (4, 4, 4, 6, 6)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pairs = zip(starts, sizes, strict=True)
    return tuple(int.from_bytes(packed[start : start + size], "little") for start, size in pairs)


async def read_state(redis: Any, queue: FairQueue, rids: list[str]) -> dict[str, Any]:
    prefix = queue.keys.prefix
    pipe = redis.pipeline(transaction=True)
    for name in (*LANE_SETS, "idle", "wakes", "unsettled", "lease", "expiry"):
        pipe.zrange(prefix + name, 0, -1, withscores=True)
    for name in ("meta", "warm", "loads", "alone"):
        pipe.hgetall(prefix + name)
    pipe.xrange(prefix + "usage")
    pipe.xrange(prefix + "dead")
    pipe.keys(prefix.replace("[", "\\[") + "tomb:*")
    for rid in rids:
        pipe.hmget(f"{prefix}job:{rid}", JOB_FIELDS)
        pipe.lrange(f"{prefix}out:{rid}", 0, -1)
        pipe.get(f"{prefix}ids:{rid}")
    replies = await pipe.execute()
    lanes = [replies[:3], replies[3:6]]
    idle, wakes, unsettled, lease, expiry, meta, warm, loads, alone, usage, dead, tombs, *jobs = replies[6:]

    def numbers(pairs: list[tuple[bytes, float]]) -> dict[str, int]:
        return {name.decode(): int(score) for name, score in pairs}

    def counters(lane: list[Any]) -> dict[str, int]:
        homes = [numbers(home) for home in lane]
        assert sum(map(len, homes)) == len({tenant for home in homes for tenant in home}), "one counter per tenant"
        return homes[0] | homes[1] | homes[2]

    figures = {name.decode(): int(value) for name, value in meta.items()}
    return {
        "v": [figures.get("v", 0), figures.get("b:v", 0)],
        "seq": figures.get("seq", 0),
        "pass_v": [figures.get("pass_v"), figures.get("b:pass_v")],
        "lead": figures.get("lead", 0),
        "warm": {key.decode(): worker.decode() for key, worker in warm.items()},
        "alone": {worker.decode(): rid.decode() for worker, rid in alone.items()},
        "loads": {tenant.decode(): load_of(packed) for tenant, packed in loads.items()},
        "waiting": len(expiry),
        "waiting_bytes": figures.get("waiting_bytes", 0),
        "waiting_tokens": figures.get("waiting_tokens", 0),
        "counters": [counters(lane) for lane in lanes],
        "act": [[tenant.decode() for tenant, _ in lane[0]] for lane in lanes],
        "idle": numbers(idle),
        "wakes": numbers(wakes),
        "unsettled": numbers(unsettled),
        "lease": numbers(lease),
        "usage": [usage_from_stream(fields).request_id for _, fields in usage],
        "dead": [fields[b"request"].decode() for _, fields in dead],
        "tombs": {key.decode().rsplit(":", 1)[1] for key in tombs},
        "jobs": {rid: _fields(values) for rid, values in zip(rids, jobs[::3], strict=True)},
        "logs": dict(zip(rids, jobs[1::3], strict=True)),
        "ids": {rid: ids or b"" for rid, ids in zip(rids, jobs[2::3], strict=True)},
    }


def final_for(request_id: str) -> Final:
    return Final(
        request_id=request_id,
        outcome=Outcome.OK,
        finish_reason="stop",
        error_code="",
        error_message="",
        status=200,
        counts=TokenCounts(),
        cost_nano=0,
        currency="EUR",
        attempt=1,
        timings=Timings(),
    )
