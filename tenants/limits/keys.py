"""Names in the {tenant} slot, and in no other module. All keys of one tenant share the tag `{t:<tenant>}`.

Invariant: a script gets only keys of one tenant. Counters are fields of one hash per tenant,
`<scope letter>:<scope id>:<metric code>` with the endings `:u :h :w :c`. A limit per model would append `:<model>`.
"""

from contracts.tenancy import Limit, Scope
from tenants.limits.policy import RULES

# Endings of a counter's fields: u used (grains or units), h held, w window or the bucket's last refill, c last cap.
TENANTS = "w:tenants"
REVOKED_CHANNEL = "w:revoked"
_LETTERS = {Scope.KEY: "k", Scope.PROJECT: "p", Scope.TENANT: "t"}


def hold(tenant_id: str, request_id: str) -> str:
    """HASH of one hold."""
    return f"w:{{t:{tenant_id}}}:hold:{request_id}"


def holds(tenant_id: str) -> str:
    """ZSET of open holds: request id -> time to look at it, in ms."""
    return f"w:{{t:{tenant_id}}}:holds"


def use(tenant_id: str) -> str:
    """HASH of all counters of a tenant."""
    return f"w:{{t:{tenant_id}}}:use"


def epoch(tenant_id: str) -> str:
    """HASH: API key id -> epoch, `tenant` -> epoch; negative = revoked or suspended."""
    return f"w:{{t:{tenant_id}}}:epoch"


def idempotency(tenant_id: str, key_digest: str) -> str:
    """HASH of one Idempotency-Key. An empty digest names the place of a request without one: never written."""
    return f"w:{{t:{tenant_id}}}:idem:{key_digest or '-'}"


def counter(limit: Limit, *, tenant_id: str, project_id: str, api_key_id: str) -> str:
    """Base name of a limit's counter fields."""
    ids = {Scope.KEY: api_key_id, Scope.PROJECT: project_id, Scope.TENANT: tenant_id}
    return f"{_LETTERS[limit.scope]}:{ids[limit.scope]}:{RULES[limit.metric].code}"
