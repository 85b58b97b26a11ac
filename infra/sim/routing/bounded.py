"""A candidate for the queue: two bounds on what a worker takes before it is computed. Pure.

Called by `pull` for the policy `weir two bounds`. Where the production rule loses, it is by claiming as much as the
sequences allow: whoever looks first takes a burst, which then waits there while other workers idle. One bound on the
uncached tokens before a worker cures that and costs the caches: a worker at its bound leaves its own prefixes to
others, cold. So there are two: at `COLD_AHEAD` a worker takes only what it holds the prefix of, at `WARM_AHEAD`
nothing. And a request is left to another only where this worker does not hold its prefix; in production only the
worker that served it last counts as its holder, so one hot prefix waits for one worker.

Invariant: everything else is the production model's; the quantum bounds how far service leans, as there.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairqueue.model import PoolModel
from fairqueue.model_state import Job, Look
from fairqueue.policy import QueueBounds

COLD_AHEAD = 4_096  # uncached tokens: a quarter of a second of the stated engine
WARM_AHEAD = 16_384  # a second


class TwoBounds(PoolModel):
    """`backlog`: by worker, the uncached tokens before its next prompt; who makes it keeps it true."""

    def __init__(self, bounds: QueueBounds, backlog: Mapping[str, int]) -> None:
        super().__init__(bounds)
        self._backlog = backlog

    def _holds(self, look: Look, job: Job) -> bool:
        return job.prefix in self.warm_of.get(look.worker, {})

    def _left_to_another(self, job: Job, look: Look) -> bool:
        if self.is_suspect(job):
            return False
        holds = self._holds(look, job)
        backlog = self._backlog[look.worker]
        if backlog and backlog >= (WARM_AHEAD if holds else COLD_AHEAD):
            return True
        return not holds and super()._left_to_another(job, look)
