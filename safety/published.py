"""Step 4, GUARDRAIL: published policies in Redis (`w:policy:<id>:<version>`), for gateways and workers. No Django.

Whoever writes a version also announces it on a stream, from which every process compiles it before a request asks.
Invariant: a version never changes, so a compiled copy is kept for good (within a bound) and asks no store again.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.names import POLICIES, policy_key
from contracts.tenancy import PolicyRef
from safety.policy import CompiledPolicy, PolicyError

CACHED_POLICIES_MAX = 512
ANNOUNCED_MAX = CACHED_POLICIES_MAX  # versions that the stream remembers, and that a new process compiles
NEWS_WAIT_MS = 2_000  # below the client's reply timeout
RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class PolicyMissing(LookupError):
    """Redis does not hold this version; the caller reads it from the control plane and puts it."""


class PolicyStore:
    """Reads each version once, compiles it off the event loop, and remembers it."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._compiled: OrderedDict[PolicyRef, CompiledPolicy] = OrderedDict()
        self._loading: dict[PolicyRef, asyncio.Lock] = {}

    async def get(self, ref: PolicyRef) -> CompiledPolicy:
        """The policy of `ref`. Raises PolicyMissing, PolicyError, and redis.RedisError (timeouts are the client's)."""
        known = self._known(ref)
        if known is not None:
            return known
        loading = self._loading.setdefault(ref, asyncio.Lock())
        try:
            async with loading:  # many requests may meet a version at once: one of them compiles it
                return self._known(ref) or await self._load(ref)
        finally:
            if not loading.locked():
                self._loading.pop(ref, None)

    def _known(self, ref: PolicyRef) -> CompiledPolicy | None:
        known = self._compiled.get(ref)
        if known is not None:
            self._compiled.move_to_end(ref)
        return known

    async def _load(self, ref: PolicyRef) -> CompiledPolicy:
        raw = await self._redis.get(policy_key(ref.policy_id, ref.version))
        if raw is None:
            raise PolicyMissing(f"policy {ref.policy_id} version {ref.version}")
        compiled = await asyncio.to_thread(CompiledPolicy.compile, _document(raw))
        if (compiled.policy_id, compiled.version) != (ref.policy_id, ref.version):
            raise PolicyError([("id", f"the document under {ref.policy_id} version {ref.version} is another policy's")])
        self._compiled[ref] = compiled
        while len(self._compiled) > CACHED_POLICIES_MAX:
            self._compiled.popitem(last=False)
        return compiled

    async def put(self, document: dict[str, Any]) -> None:
        """Publish a version for all to read. Raises PolicyError for a document that does not compile."""
        compiled = await asyncio.to_thread(CompiledPolicy.compile, document)
        key = policy_key(compiled.policy_id, compiled.version)
        await self._redis.set(key, encode_document(document))
        news: Any = announcement(compiled.policy_id, compiled.version)
        await self._redis.xadd(POLICIES, news, maxlen=ANNOUNCED_MAX, approximate=False)

    async def keep_warm(self) -> None:
        """Compiles what was announced lately, then each version as it is announced. Never returns."""
        after: bytes | str = "0"
        me = asyncio.current_task()
        while True:
            if me is not None and me.cancelling():  # redis-py may have swallowed it (bugs.python.org/issue37658)
                raise asyncio.CancelledError
            try:
                replies: Any = await self._redis.xread({POLICIES: after}, block=NEWS_WAIT_MS)
            except (RedisError, TimeoutError) as error:
                _log.warning("announced policies cannot be read: %s", type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            entries = replies[0][1] if replies else []
            for ref in _newest(fields for _, fields in entries):
                await self._warm(ref)
            after = entries[-1][0] if entries else after

    async def _warm(self, ref: PolicyRef) -> None:
        """What fails here fails again, with its reason, for the request that asks."""
        try:
            await self.get(ref)
        except (PolicyMissing, PolicyError, RedisError, TimeoutError) as error:
            _log.warning("policy %s v%d is not warm: %s", ref.policy_id, ref.version, type(error).__name__)


def announcement(policy_id: str, version: int) -> dict[str, str | int]:
    """The entry of the stream `POLICIES` for one version."""
    return {"policy": policy_id, "version": version}


def _newest(entries: Iterable[dict[bytes, bytes]]) -> list[PolicyRef]:
    """The last announced version of each policy; entries of another shape are passed over."""
    newest: dict[str, int] = {}
    for fields in entries:
        policy_id, version = fields.get(b"policy", b"").decode("utf-8", "replace"), fields.get(b"version", b"")
        if version.isdigit():
            newest[policy_id] = int(version)
    return [PolicyRef(policy_id=policy_id, version=version) for policy_id, version in newest.items()]


def encode_document(document: dict[str, Any]) -> bytes:
    """The one form in which documents are stored and compared."""
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def _document(raw: bytes | str) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise PolicyError([("document", "is not JSON")]) from error
    if not isinstance(document, dict):
        raise PolicyError([("document", "is not a JSON object")])
    return document
