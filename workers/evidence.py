"""Evidence of engine deaths: what the engine said last, for whoever looks at a dead letter. Called by `loop`.

A death is written once, with the tail of its engine's log; each request that this worker held then refers to it.
Invariants: never in the way of a request: a store that does not take it costs the evidence and nothing else; bounded in
bytes, in number and in time.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.clock import Clock
from fairqueue.keys import PoolKeys
from stores.system import mint_nonce

TAIL_BYTES = 16 * 1024
KEPT_MS = 7 * 86_400_000
DEATHS_MAX = 8  # of one request; a request that ran at two deaths is set aside
WAITING_MAX = 64  # deaths that are not written yet
WRITE_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A request that this worker held when its engine died."""

    request_id: str
    attempt: int


class Evidence:
    """`note` returns at once; `run` must be running. `log_file`: where the engine's output goes."""

    def __init__(self, redis: Redis, *, pool: str, worker_id: str, log_file: Path, clock: Clock) -> None:
        self._redis = redis
        self._keys = PoolKeys(pool)
        self._worker_id = worker_id
        self._log_file = log_file
        self._clock = clock
        self._waiting: asyncio.Queue[tuple[int, tuple[Held, ...]]] = asyncio.Queue(WAITING_MAX)

    def note(self, held: Sequence[Held]) -> None:
        """The engine has just died with these requests. Nothing is kept of a death that hit nobody."""
        if held and not self._waiting.full():
            self._waiting.put_nowait((self._clock.now_ms(), tuple(held)))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            at_ms, held = await self._waiting.get()
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._write(at_ms, held)
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("evidence_lost", requests=len(held), error=type(error).__name__)

    async def _write(self, at_ms: int, held: Sequence[Held]) -> None:
        tail = await asyncio.to_thread(read_tail, self._log_file)
        death = mint_nonce()
        document = {
            "worker": self._worker_id,
            "at_ms": at_ms,
            "log": tail,
            "held": [{"request": one.request_id, "attempt": one.attempt} for one in held],
        }
        await self._redis.set(self._keys.death(death), orjson.dumps(document), px=KEPT_MS)
        for one in held:
            key = self._keys.deaths_of(one.request_id)
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.rpush(key, death)
                pipe.ltrim(key, -DEATHS_MAX, -1)
                pipe.pexpire(key, KEPT_MS)
                await pipe.execute()


def read_tail(path: Path) -> str:
    """The last whole lines of a file, at most TAIL_BYTES of them; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except FileNotFoundError:
        return ""
    cut = data.find(b"\n") + 1 if size > TAIL_BYTES else 0
    return data[cut:].decode("utf-8", "replace")
