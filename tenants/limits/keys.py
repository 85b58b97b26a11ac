"""Names in the {tenant} slot, and in no other module. All keys of one tenant share the tag `{t:<tenant>}`.

Invariant: a script gets only keys of one tenant. Counters are fields of one hash per tenant, named
`<scope letter>:<scope id>:<metric code>`, for a limit of one model `…:<model>`, with these endings: `:u` used (grains
of a bucket, else units), `:h` held, `:w` window or the bucket's last refill, `:c` last cap, `:a` alerts told in a
window under a cap, `:s0`… `:s31` settled by time of admission in slots of five minutes, `:f` what the last
rebuild counted: admitted before, recorded until. The field `born`: since when the hash is there, where that is known;
what was admitted before is the meter's. The field `reading`: until when a rebuild may write what it reads.
"""

from dataclasses import dataclass

from contracts.tenancy import Limit, Metric, Scope
from tenants.limits.policy import RULES

TENANTS = "w:tenants"
REVOKED_CHANNEL = "w:revoked"
ALERTED = "w:alerted"  # SET of tenants whose alerts stream has news; the slow round over TENANTS finds the rest
_METRICS = {rule.code: metric for metric, rule in RULES.items()}
_LETTERS = {Scope.KEY: "k", Scope.PROJECT: "p", Scope.TENANT: "t"}
_SCOPES = {letter: scope for scope, letter in _LETTERS.items()}


def hold(tenant_id: str, request_id: str) -> str:
    """HASH of one hold."""
    return f"w:{{t:{tenant_id}}}:hold:{request_id}"


def holds(tenant_id: str) -> str:
    """ZSET of open holds: request id -> time to look at it, in ms."""
    return f"w:{{t:{tenant_id}}}:holds"


def use(tenant_id: str) -> str:
    """HASH of all counters of a tenant."""
    return f"w:{{t:{tenant_id}}}:use"


def refused(tenant_id: str) -> str:
    """STREAM of a tenant's refused requests, bounded in length and time; an empty id: of callers that are not known."""
    return f"w:{{t:{tenant_id}}}:refused" if tenant_id else "w:refused"


def epoch(tenant_id: str) -> str:
    """HASH: API key id -> epoch, `tenant` -> epoch; negative = revoked or suspended."""
    return f"w:{{t:{tenant_id}}}:epoch"


def alerts(tenant_id: str) -> str:
    """STREAM of crossed thresholds and spent budgets, bounded in length; emptied by the beat."""
    return f"w:{{t:{tenant_id}}}:alerts"


def idempotency(tenant_id: str, key_digest: str) -> str:
    """HASH of one Idempotency-Key. An empty digest names the place of a request without one: never written."""
    return f"w:{{t:{tenant_id}}}:idem:{key_digest or '-'}"


def counter(limit: Limit, *, tenant_id: str, project_id: str, api_key_id: str) -> str:
    """Base name of a limit's counter fields."""
    ids = {Scope.KEY: api_key_id, Scope.PROJECT: project_id, Scope.TENANT: tenant_id}
    name = f"{_LETTERS[limit.scope]}:{ids[limit.scope]}:{RULES[limit.metric].code}"
    return name if limit.model is None else f"{name}:{limit.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterName:
    """What a counter's name says."""

    scope: Scope
    owner_id: str
    metric: Metric
    model: str | None


def parse_counter(name: str) -> CounterName:
    """The inverse of `counter`. Raises ValueError, KeyError for any other text."""
    letter, owner_id, code, *model = name.split(":", 3)
    scope = _SCOPES[letter]
    return CounterName(scope=scope, owner_id=owner_id, metric=_METRICS[code], model=model[0] if model else None)
