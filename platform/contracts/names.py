"""Names in Redis that more than one room reads or writes. Each is a slot of its own: never in one script with another.

What one room keeps to itself is named there (`fairqueue.keys`, `tenants.limits.keys`, `billing.metering.keys`).
"""

MODELS = "w:models"  # HASH model -> encoded ModelCard: workers write, gateways, meter and console read
POLICIES = "w:policies"  # STREAM of published policy versions, the newest ones: control plane writes, all read
_WORKERS = "w:workers:"
WORKERS_PATTERN = f"{_WORKERS}*"  # of SCAN


def worker_key(worker_id: str) -> str:
    """STRING with a TTL: the heartbeat of one worker, JSON."""
    return f"{_WORKERS}{worker_id}"


def worker_id_of(key: str) -> str:
    """The worker whose heartbeat is under `key`."""
    return key.removeprefix(_WORKERS)


def policy_key(policy_id: str, version: int) -> str:
    """STRING: the JSON document of one published version of a policy."""
    return f"w:policy:{policy_id}:{version}"
