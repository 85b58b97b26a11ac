"""Step 4, GUARDRAIL: published policies in Redis (`w:policy:<id>:<version>`), for gateways and workers. No Django.

Invariant: a version never changes, so a compiled copy is kept for good (within a bound) and asks no store again.
"""

import asyncio
import json
from collections import OrderedDict
from typing import Any

from redis.asyncio import Redis

from contracts.tenancy import PolicyRef
from safety.policy import CompiledPolicy, PolicyError

CACHED_POLICIES_MAX = 512


class PolicyMissing(LookupError):
    """Redis does not hold this version; the caller reads it from the control plane and puts it."""


def policy_key(policy_id: str, version: int) -> str:
    """A key of its own slot: never in one script with another."""
    return f"w:policy:{policy_id}:{version}"


class PolicyStore:
    """Reads each version once, compiles it off the event loop, and remembers it."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._compiled: OrderedDict[PolicyRef, CompiledPolicy] = OrderedDict()

    async def get(self, ref: PolicyRef) -> CompiledPolicy:
        """The policy of `ref`. Raises PolicyMissing, PolicyError, and redis.RedisError (timeouts are the client's)."""
        known = self._compiled.get(ref)
        if known is not None:
            self._compiled.move_to_end(ref)
            return known
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
        await self._redis.set(policy_key(compiled.policy_id, compiled.version), encode_document(document))


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
