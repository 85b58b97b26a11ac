"""Receipts on request: a gateway asks, the settler, who has the key, answers. Redis between them, no Django.

Invariants: what is signed is what the settler itself read from the usage tables, never what the asker sent; an asker
names its tenant, and another tenant's request is unknown; the list of what is asked is bounded, an answer is kept for
a minute; asker and settler wait for a bounded time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.errors import Unavailable
from stores.stopping import stopped_within

ASKED = "w:receipts:asked"  # LIST of questions
ASKED_MAX = 1_000
ANSWER_SECONDS = 60
BLOCK_SECONDS = 1.0
RETRY_SECONDS = 0.25

Answer = Callable[[str, str], dict[str, Any] | None]  # request id, tenant id -> signed receipt; blocking

log = logging.getLogger("weir.billing")


def reply_key(nonce: str) -> str:
    """LIST of one answer."""
    return f"w:receipts:answer:{nonce}"


class ReceiptDesk:
    """The asker's side."""

    def __init__(self, redis: Redis, *, mint_nonce: Callable[[], str]) -> None:
        self._redis = redis
        self._mint_nonce = mint_nonce

    async def receipt(self, *, request_id: str, tenant_id: str, seconds: float) -> dict[str, Any] | None:
        """The signed receipt; None when within `seconds` the request was not metered as this tenant's.

        Raises contracts.errors.Unavailable while no settler answers.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            answer = await self._ask(request_id, tenant_id, seconds=max(until - loop.time(), BLOCK_SECONDS))
            if answer is not None or loop.time() + RETRY_SECONDS >= until:
                return answer
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask(self, request_id: str, tenant_id: str, *, seconds: float) -> dict[str, Any] | None:
        nonce = self._mint_nonce()
        question = orjson.dumps({"request_id": request_id, "tenant_id": tenant_id, "nonce": nonce})
        away = Unavailable("Receipts cannot be signed right now; nothing is lost.", retry_after_ms=5_000)
        try:
            async with asyncio.timeout(seconds + 2 * BLOCK_SECONDS):
                if await self._redis.rpush(ASKED, question) > ASKED_MAX:
                    await cast("Awaitable[Any]", self._redis.ltrim(ASKED, -ASKED_MAX, -1))
                reply = await self._wait(reply_key(nonce), seconds)
        except (RedisError, TimeoutError) as error:
            raise away from error
        if reply is None:
            raise away
        found: dict[str, Any] | None = orjson.loads(reply)
        return found

    async def _wait(self, key: str, seconds: float) -> bytes | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            reply: Any = await cast("Awaitable[Any]", self._redis.blpop([key], timeout=BLOCK_SECONDS))
            if reply is not None:
                return bytes(reply[1])
        return None


async def serve_receipts(redis: Redis, *, answer: Answer, stop: asyncio.Event) -> None:
    """The settler's side, until `stop`. A question that cannot be answered now gets none, and is asked again."""
    while not stop.is_set():
        try:
            asked: Any = await cast("Awaitable[Any]", redis.blpop([ASKED], timeout=BLOCK_SECONDS))
            if asked is not None:
                await _answer(redis, bytes(asked[1]), answer)
        except (RedisError, TimeoutError, OSError) as error:
            log.warning("a receipt was not given: %s", error or type(error).__name__)
            await stopped_within(stop, seconds=BLOCK_SECONDS)


async def _answer(redis: Redis, question: bytes, answer: Answer) -> None:
    try:
        asked = orjson.loads(question)
        request_id, tenant_id, nonce = str(asked["request_id"]), str(asked["tenant_id"]), str(asked["nonce"])
    except (ValueError, KeyError, TypeError) as error:
        log.error("a question for a receipt that nobody can read: %r", error)  # noqa: TRY400 - one line
        return
    async with asyncio.timeout(ANSWER_SECONDS):
        found = await asyncio.to_thread(answer, request_id, tenant_id)
    key = reply_key(nonce)
    await cast("Awaitable[Any]", redis.rpush(key, orjson.dumps(found)))
    await redis.expire(key, ANSWER_SECONDS)
