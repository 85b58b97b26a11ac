"""Step 4, which guardrail policy holds: the published version that a context names, compiled.

Called by admission for every request. Invariant: it fails closed; a policy that cannot be read serves nothing.
"""

import logging
from dataclasses import dataclass

from redis.exceptions import RedisError

from contracts.errors import Unavailable
from contracts.tenancy import PolicyRef
from controlplane.reads.database import from_database
from safety import selectors as safety_reads
from safety.policy import CompiledPolicy, PolicyError
from safety.published import PolicyMissing, PolicyStore

log = logging.getLogger("weir.policies")


@dataclass(slots=True)
class PublishedPolicies:
    """`gateway.services.Policies`: Redis first, PostgreSQL when Redis lost it. The guard fails closed."""

    store: PolicyStore

    async def get(self, ref: PolicyRef) -> CompiledPolicy:
        """Raises Unavailable when neither holds it, or what they hold cannot be compiled here."""
        if ref.version == 0:
            log.error("policy %s is assigned to a tenant but was never published", ref.policy_id)
            raise Unavailable(
                "This organization's guardrail policy has no published version, so nothing is served. "
                "Ask the operator to publish it.",
                code="policy_not_published",
                retry_after_ms=60_000,
            )
        try:
            return await self._find(ref)
        except (RedisError, TimeoutError, PolicyMissing, PolicyError) as error:
            log.warning("policy %s v%d: %s", ref.policy_id, ref.version, type(error).__name__)
            raise Unavailable("The guardrail policy cannot be read right now.", retry_after_ms=2_000) from error

    async def _find(self, ref: PolicyRef) -> CompiledPolicy:
        try:
            return await self.store.get(ref)
        except PolicyMissing:
            document = await from_database(safety_reads.policy_document, ref.policy_id, ref.version)
            await self.store.put(document)
            return await self.store.get(ref)
