"""Step 5, QUEUE: the fair queue of one pool on Redis. Called by the gateway, the worker and the settler.

Invariant: each operation is one Lua script in the pool's slot, safe to repeat; nothing is decided in Python but the
service that token counts stand for (`policy`). Every call raises redis.exceptions.RedisError when there is no answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from contracts.jobs import Claim, Ticket, Timings, UsageRecord
from contracts.outcomes import Outcome
from contracts.tenancy import ServiceClass
from contracts.tokens import TokenCounts
from contracts.wire import encode
from fairqueue import policy, prefix, replies
from fairqueue.keys import PoolKeys
from fairqueue.loading import load_pool_scripts
from fairqueue.messages import (
    AbortReason,
    CancelReply,
    Enqueued,
    Final,
    JobStatus,
    LogSlice,
    Place,
    QueueDepths,
    ReapReport,
    ServiceRate,
    StepEntry,
    StepReply,
    Wait,
    pack_verdicts,
    unpack_ids,
    without_body,
)
from fairqueue.policy import QueueBounds
from fairqueue.restating import entry_of
from stores.lua import BoundScript
from stores.redis import REPLY_TIMEOUT_SECONDS, Client

__all__ = ["FairQueue", "LogGapError", "QueueBounds"]

BLOCK_SECONDS_MAX = REPLY_TIMEOUT_SECONDS - 1  # one blocking pop; the client gives up on a reply after that
STEP_ENTRIES_MAX = 1024
FRAMES_MAX = 4096  # of one entry


_CLASS_NAMES = {ServiceClass.INTERACTIVE: "", ServiceClass.BATCH: "batch"}  # as the scripts name them


class LogGapError(RuntimeError):
    """An OK end does not name the log's last frame: a step was not sent, or the log lost writes."""


class FairQueue:
    """One pool's queue. Any number of processes may hold one; it keeps no state but its scripts.

    `now_us` replaces the pool's clock (Redis TIME) in tests.
    """

    def __init__(
        self, redis: Client, pool: str, bounds: QueueBounds, *, now_us: Callable[[], int] | None = None
    ) -> None:
        self._redis = redis
        self._bounds = bounds
        self._now_us = now_us
        self.keys = PoolKeys(pool)
        self._scripts: dict[str, BoundScript] = {
            name: script.bind(redis) for name, script in load_pool_scripts().items()
        }

    async def _run(self, name: str, *args: str | bytes | int) -> Any:
        now = "" if self._now_us is None else self._now_us()
        return await self._scripts[name](keys=self.keys.script_keys, args=(now, *args))

    async def enqueue(
        self,
        ticket: Ticket,
        *,
        mailbox: str,
        enqueue_deadline_ms: int,
        weight_milli: int,
        queued_max: int,
        expires_at_ms: int,
    ) -> Enqueued:
        """Queue a ticket, or attach `mailbox` (a pub/sub channel) to a request that is already known.

        Times are in the pool's milliseconds. `queued_max` 0 blocks the tenant. Raises QueueFull (says which bound,
        with the time after which a place is likely free; none for a blocked tenant, or for what
        never fits) and DeadlinePassed (past the
        deadline, or a tombstone); after either, the request can never be queued: the caller voids its hold.
        """
        need = policy.kv_need(prompt_tokens=ticket.prompt_tokens, max_tokens=ticket.max_tokens, choices=ticket.choices)
        reply = await self._run(
            "enqueue",
            ticket.request_id,
            ticket.tenant_id,
            mailbox,
            ticket.body,
            encode(without_body(ticket)),
            enqueue_deadline_ms,
            expires_at_ms,
            weight_milli,
            need,
            policy.input_service(TokenCounts(prompt=ticket.prompt_tokens)),
            policy.prepaid_output(ticket.max_tokens, ticket.choices),
            queued_max,
            self._bounds.queued_total_max,
            self._bounds.queued_bytes_max,
            self._bounds.tombstone_ms,
            self._bounds.queued_tokens_max,
            self._bounds.tenant_tokens_max,
            self._bounds.tenant_bytes_max,
            _CLASS_NAMES[ticket.service_class],
            prefix.prefix_key(ticket),
            policy.patience_ms(prompt_tokens=ticket.prompt_tokens, most=self._bounds.patience_ms_max),
        )
        return replies.enqueued(reply)

    async def claim(self, *, worker_id: str, nonce: str, free_kv_tokens: int, free_slots: int) -> Claim | Wait:
        """The next request for this worker under a fresh fence; a repeated nonce gets the same request.

        Call it until it says Wait or no slot is free, then `wait_wake`. Wait also enters the worker in the idle set.
        """
        reply = await self._run(
            "claim",
            worker_id,
            nonce,
            free_kv_tokens,
            free_slots,
            self._bounds.lease_ms,
            policy.QUANTUM_MILLI,
            policy.TENANTS_LOOKED_AT,
            self._bounds.job_ttl_ms,
            self._bounds.deaths_max,
        )
        return replies.claimed(reply)

    async def wait_wake(self, *, worker_id: str, timeout_s: float) -> bool:
        """Sleep until a request may be there for this idle worker (True) or the time is over. Claim after either."""
        left = timeout_s
        while left > 0:
            block = min(left, BLOCK_SECONDS_MAX)
            if await self._redis.blpop([self.keys.wake(worker_id)], timeout=block) is not None:
                return True
            left -= block
        return False

    async def step(self, *, worker_id: str, entries: Sequence[StepEntry], holding: Sequence[str]) -> StepReply:
        """Log and publish what one engine step released, extend leases, charge; learn what to abort.

        `holding`: every request that the worker claimed and has not ended. A request leased to the worker but not
        named here goes back to the queue once its claim is older than a margin (its claim reply was lost). Also
        the heartbeat: call it at least twice a second while anything runs, with or without entries.
        """
        if len(entries) > STEP_ENTRIES_MAX or any(len(entry.frames) > FRAMES_MAX for entry in entries):
            raise ValueError(f"a step takes {STEP_ENTRIES_MAX} entries of {FRAMES_MAX} frames at most")
        reply = await self._run(
            "step",
            worker_id,
            self._bounds.lease_ms,
            policy.TICK_TOKENS,
            policy.TICK_MS,
            self._bounds.log_bytes_max,
            self._bounds.holding_margin_ms,
            msgpack.packb(list(holding), use_bin_type=False),
            msgpack.packb([_packed(entry) for entry in entries], use_bin_type=False),
        )
        return replies.stepped(reply)

    async def end(
        self,
        *,
        worker_id: str,
        request_id: str,
        fence: str,
        last_seq: int,
        outcome: Outcome,
        finish_reason: str,
        error_code: str,
        counts: TokenCounts,
        delivered_tokens: int,
        timings: Timings,
        verdicts: Sequence[str] = (),
        log_key: str = "",
        error_param: str = "",
    ) -> bool:
        """End a request: usage record on the stream, unsettled list, charge reconciled. False: the fence is stale.

        Raises LogGapError when an OK outcome names another last frame than the log's; end it as FAILED then.
        """
        reply = await self._run(
            "end",
            worker_id,
            request_id,
            fence,
            last_seq,
            outcome.value,
            finish_reason,
            error_code,
            counts.prompt,
            counts.cached,
            counts.completion,
            counts.reasoning,
            delivered_tokens,
            policy.input_service(counts) + policy.output_service(counts.completion),
            encode(timings),
            pack_verdicts(verdicts),
            log_key,
            error_param,
        )
        if reply == b"gap":
            raise LogGapError(f"request {request_id} ended at frame {last_seq}, but its log does not")
        return bool(reply == b"ended")

    async def ack(self, *, request_id: str, final: Final) -> bool:
        """Mark an ended request settled, publish its final frame, start the clocks that drop its log and itself.

        False: nothing to do (unknown, not ended, or settled before).
        """
        reply = await self._run("ack", request_id, encode(final), self._bounds.log_ttl_ms, self._bounds.job_ttl_ms)
        return bool(reply)

    async def cancel(self, *, request_id: str, generation: int | None, reason: str) -> CancelReply:
        """Cancel by the client, an operator or a revocation (`reason` "cancelled" | "revoked").

        `generation` comes with a lost connection: it does nothing when another has attached since. Raises ValueError
        for another reason.
        """
        reply = await self._run(
            "cancel",
            request_id,
            "" if generation is None else generation,
            AbortReason(reason).value,
            self._bounds.tombstone_ms,
        )
        return CancelReply(reply.decode())

    async def look(self, *, request_id: str) -> bool:
        """Whether the pool knows the request; if not, it never will: a tombstone is left."""
        return bool(await self._run("look", request_id, self._bounds.tombstone_ms))

    async def hand_back(self, *, worker_id: str, request_id: str, fence: str) -> bool:
        """Give a claimed request back (drain): no death, no lapse. False: the fence is stale.

        One with released frames goes on at another worker if all of them came with their token ids; else it ends
        FAILED (`worker_lost`), billed for what its log holds.
        """
        return bool(await self._run("hand_back", worker_id, request_id, fence))

    async def engine_died(self, *, worker_id: str, fences: Mapping[str, str]) -> ReapReport:
        """Count an engine death against each running request (id -> fence) and requeue it at its old place."""
        flat = [part for pair in fences.items() for part in pair]
        return replies.reaped(
            await self._run("engine_died", worker_id, self._bounds.lapses_max, self._bounds.deaths_max, *flat)
        )

    async def register(self, *, worker_id: str) -> ReapReport:
        """A worker starts and holds nothing: what its last life left leased goes back to the queue at once."""
        return replies.reaped(await self._run("register", worker_id, self._bounds.lapses_max, self._bounds.deaths_max))

    async def leave(self, *, worker_id: str) -> None:
        """A worker stops claiming: out of the idle set; a wake that it has not used is passed on."""
        await self._run("leave", worker_id)

    async def reap(self, *, limit: int) -> ReapReport:
        """Take back lapsed leases, end expired requests, pass on lost wakes: `limit` of each at most."""
        return replies.reaped(
            await self._run(
                "reap", limit, self._bounds.lapses_max, self._bounds.deaths_max, self._bounds.wake_margin_ms
            )
        )

    async def read_log(self, *, request_id: str, after_seq: int, limit: int) -> LogSlice | None:
        """Up to `limit` released frames after `after_seq`. None: unknown, or dropped after its time."""
        return replies.log_slice(await self._run("read_log", request_id, after_seq, limit), after_seq=after_seq)

    async def read_ids(self, *, request_id: str, fence: str) -> list[int] | None:
        """Token ids of what earlier attempts released, for the worker that goes on. None: the fence is stale."""
        packed = await self._run("read_ids", request_id, fence)
        return None if packed is None else unpack_ids(packed)

    async def status(self, *, request_id: str) -> JobStatus | None:
        return replies.job_status(await self._run("status", request_id), request_id=request_id)

    async def place(self, status: JobStatus) -> Place | None:
        """Where a request stands in line, by its status; None when it does not wait."""
        if not status.position:
            return None
        rate = await self.service_rate()
        wait_ms = policy.wait_ms(position=status.position, requests_per_1000s=rate.requests_per_1000s)
        return Place(position=status.position, waited_ms=status.queued_ms, wait_ms=wait_ms)

    async def unsettled(self, *, older_than_ms: int, limit: int) -> list[UsageRecord]:
        """Ended requests that nobody has settled for `older_than_ms`: settle each, then `ack`."""
        return replies.usage_records(await self._run("unsettled", older_than_ms, limit))

    async def restate(self, record: UsageRecord) -> bool:
        """Put on the usage stream what ended before this pool lost it. False: it knows the request, or did so before.

        Raises ValueError for what is no record of a request of ours.
        """
        flat = [part for pair in entry_of(record).items() for part in pair]
        packed = msgpack.packb(flat, use_bin_type=False)
        return bool(await self._run("restate", record.request_id, self._bounds.tombstone_ms, packed))

    async def depths(self) -> QueueDepths:
        return replies.queue_depths(await self._run("depths"))

    async def service_rate(self) -> ServiceRate:
        """Measured rate of finished work."""
        return replies.service_rate(await self._run("depths"))


def _packed(entry: StepEntry) -> list[Any]:
    counts = entry.counts
    return [
        entry.request_id,
        entry.fence,
        entry.first_seq,
        entry.frames,
        counts.prompt,
        counts.cached,
        counts.completion,
        counts.reasoning,
        entry.delivered_tokens,
        policy.input_service(counts),
        policy.output_service(counts.completion),
        entry.progressed,
        list(entry.ids),
    ]
