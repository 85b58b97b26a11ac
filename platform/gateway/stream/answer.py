"""An admitted request as one reader has it: what to send, and what its leaving cancels. Step 7.

Made by `edge/` and `realtime/`. Invariant: what nobody reads any more is cancelled within bounded time, under the
generation it was attached with.
"""

import asyncio
import logging
from dataclasses import dataclass

from redis.exceptions import RedisError

from contracts.jobs import Ticket
from fairqueue.queue import FairQueue
from gateway.stream.mailbox import Inbox
from gateway.stream.relay import Relay

log = logging.getLogger("weir.gateway.answers")

CANCEL_TRIES = 3
CANCEL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to send to whom. `generation` None: this reader's leaving cancels nothing."""

    ticket: Ticket
    queue: FairQueue
    inbox: Inbox
    generation: int | None
    from_log: bool = False
    after_seq: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def relay(self) -> Relay:
        return Relay(queue=self.queue, inbox=self.inbox, after_seq=self.after_seq)


async def release(answer: Answer) -> None:
    """Cancels what nobody reads any more; bounded, and finished even while this task is being cancelled."""
    if answer.generation is not None:
        await asyncio.shield(_cancel(answer.queue, answer.ticket.request_id, answer.generation))


async def _cancel(queue: FairQueue, request_id: str, generation: int) -> None:
    for _ in range(CANCEL_TRIES):
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await queue.cancel(request_id=request_id, generation=generation, reason="cancelled")
        except (RedisError, OSError, TimeoutError):
            continue
        return
    log.warning("request %s: its client left and it could not be cancelled", request_id)
