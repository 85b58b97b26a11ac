"""What an attempt needs of the world. Built by `wiring`, used by `loop`, `attempt` and `closing`."""

from dataclasses import dataclass
from typing import Protocol

from contracts.clock import Clock
from contracts.tenancy import PolicyRef
from fairqueue.queue import FairQueue
from safety.engines.pool import ValidatorPool
from safety.policy import CompiledPolicy
from tenants.limits.buckets import Limits
from workers.attempts import AttemptLog
from workers.engines.base import EngineHost
from workers.evaluation import EvaluationLog
from workers.publish import Publisher

# Seconds between tries to tell the queue what it must know; then the lease lapses and the reaper does it.
TELL_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)


class Policies(Protocol):
    """`safety.published.PolicyStore`."""

    async def get(self, ref: PolicyRef) -> CompiledPolicy: ...

    async def keep_warm(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The worker's stores, engine and clock."""

    worker_id: str
    queue: FairQueue
    limits: Limits
    policies: Policies
    validators: ValidatorPool
    host: EngineHost
    publisher: Publisher
    attempts: AttemptLog
    evaluation: EvaluationLog
    clock: Clock
