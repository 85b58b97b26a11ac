"""Step 5, QUEUE: the whole protocol of one pool in memory, for tests and simulations. Pure: the caller brings the time.

Called by the state-machine test, which runs the Lua scripts against it step by step, and by the fairness tests.
Invariant: the same calls give the same answers and the same counters here and in Redis. One simplification: nothing
is dropped by age (receipts, tombstones, logs and settled requests stay).
"""

from collections.abc import Mapping, Sequence

from contracts.errors import DeadlinePassed, QueueFull
from contracts.jobs import Claim, Ticket
from contracts.outcomes import JobState, Outcome
from contracts.tokens import TokenCounts
from fairqueue import policy
from fairqueue.messages import (
    Abort,
    AbortReason,
    CancelReply,
    Enqueued,
    ReapReport,
    StepEntry,
    StepReply,
    Wait,
    cancel_code,
    unpack_ids,
)
from fairqueue.model_state import Job, Lane, Look, PoolState, Tally, kv_need, owner
from fairqueue.replies import full_text

EXPIRED_MAX = 64  # expired heads that one claim ends
MAILBOXES_MAX = 4
WRITERS_MAX = 16  # attempts that are remembered of one request


class PoolModel(PoolState):
    """The pool. Every public method is one operation of `queue.FairQueue`, plus the time."""

    def enqueue(
        self,
        ticket: Ticket,
        *,
        now_us: int,
        size: int,
        mailbox: str,
        enqueue_deadline_ms: int,
        weight_milli: int,
        queued_max: int,
        expires_at_ms: int,
    ) -> Enqueued:
        rid, now_ms = ticket.request_id, now_us // 1000
        known = self.jobs.get(rid)
        if known is not None:
            boxes = [box for box in known.mailboxes if box != mailbox] + [mailbox]
            known.mailboxes = boxes[-MAILBOXES_MAX:]
            known.generation += 1
            return Enqueued(position=self.position(rid), generation=known.generation, already=True)
        if rid in self.tombs:
            _, full, bound = self.tombs[rid].partition("full:")
            raise self._full(bound, ticket, queued_max, size) if full else DeadlinePassed("tombstone")
        if now_ms > enqueue_deadline_ms or enqueue_deadline_ms - now_ms > self.bounds.tombstone_ms:
            self.tombs[rid] = "deadline"
            raise DeadlinePassed("deadline")
        bound = self._bound_reached(ticket, queued_max, size)
        if bound:
            self.tombs[rid] = f"full:{bound}"
            raise self._full(bound, ticket, queued_max, size)
        self.seq += 1
        self.jobs[rid] = Job(
            ticket=ticket,
            seq=self.seq,
            size=size,
            weight=weight_milli,
            expires_ms=expires_at_ms,
            mailboxes=[mailbox],
            since_us=now_us,
        )
        self._place(self.jobs[rid], 0)
        self._wake_one(now_ms, self.warm.get(self.jobs[rid].prefix))
        return Enqueued(position=self.position(rid), generation=1, already=False)

    def _bound_reached(self, ticket: Ticket, queued_max: int, size: int) -> str:
        if queued_max == 0:
            return "blocked"
        bounds = self._bounds_of(ticket, queued_max, size)
        return next((name for name, (limit, used, asked) in bounds.items() if used + asked > limit), "")

    def _bounds_of(self, ticket: Ticket, queued_max: int, size: int) -> dict[str, tuple[int, int, int]]:
        """Each bound's value, what is in use of it, and what the request adds."""
        bounds, need = self.bounds, kv_need(ticket)
        every = self.queued()
        own = [job for job in every if owner(job) == ticket.tenant_id]
        return {
            "tenant": (queued_max, len(own), 1),
            "tenant_tokens": (bounds.tenant_tokens_max, sum(job.need for job in own), need),
            "tenant_bytes": (bounds.tenant_bytes_max, sum(job.size for job in own), size),
            "pool": (bounds.queued_total_max, len(every), 1),
            "tokens": (bounds.queued_tokens_max, sum(job.need for job in every), need),
            "bytes": (bounds.queued_bytes_max, sum(job.size for job in every), size),
        }

    def _full(self, bound: str, ticket: Ticket, queued_max: int, size: int) -> QueueFull:
        limit, used, asked = self._bounds_of(ticket, queued_max, size).get(bound, (0, 0, 0))
        return QueueFull(full_text(bound, limit=limit, used=used, asked=asked))

    def claim(self, *, now_us: int, worker_id: str, nonce: str, free_kv_tokens: int, free_slots: int) -> Claim | Wait:
        now_ms = now_us // 1000
        had_wake = self._awake(worker_id)
        known = self._claimed_before(worker_id, nonce)
        if known is not None:
            return _claim_of(known)
        bound, chosen = self._bound_to(worker_id, now_ms)
        if free_slots < 1 or bound:
            return self._pass(had_wake, now_ms)
        both = all(lane.waiting_tenants for lane in self.lanes.values())
        lead = self.lead if both else 0
        look = Look(worker=worker_id, now_us=now_us, free_kv=free_kv_tokens, fits_all=not self.held_by(worker_id))
        look.chosen = chosen
        for batch in (True, False) if lead > 0 else (False, True):
            if look.chosen is not None or look.stopped:
                break
            self._look(look, batch=batch)
        if look.stopped == "drains":
            return self._pass(had_wake, now_ms)
        if look.stopped == "again":
            return Wait(until_ms=now_ms)
        if look.chosen is None:
            return self._wait(look, now_ms)
        job = self.jobs[look.chosen]
        if chosen is None:
            self._advance(job)
        for other in look.passed:
            other.passed_v = self.lane_of(other).v
        self.lead = lead
        blocked = self._take(job, now_us, worker_id, nonce)
        self._pass_on(self.lane_of(job), now_ms, blocked, free_slots)
        return _claim_of(job)

    def _pass(self, had_wake: bool, now_ms: int) -> Wait:  # noqa: FBT001 - mirrors the script
        if had_wake and self.waiting():
            self._wake_one(now_ms)
        return Wait(until_ms=None)

    def _bound_to(self, worker: str, now_ms: int) -> tuple[bool, str | None]:
        """Whether the worker may take nothing, and else what it must take: the request that it drained for."""
        rid = self.alone.get(worker)
        if rid is None:
            return False, None
        job = self.jobs[rid]
        if job.state == JobState.RUNNING and job.worker == worker:
            return True, None
        if job.state == JobState.QUEUED and job.expires_ms > now_ms:
            busy = bool(self.held_by(worker))
            return busy, None if busy else rid
        del self.alone[worker]
        return False, None

    def _claimed_before(self, worker: str, nonce: str) -> Job | None:
        job = self.jobs.get(self.receipts.get(nonce, ""))
        if job is None or job.state != JobState.RUNNING or job.worker != worker:
            return None
        return job if job.fence == f"{job.attempt}-{nonce}" else None

    def _look(self, look: Look, *, batch: bool) -> None:
        lane = self.lanes[batch]
        index = look.expired = 0
        least: int | None = None
        left = False
        while not look.stopped and index < policy.TENANTS_LOOKED_AT and index < len(lane.order()):
            tenant = lane.order()[index]
            counter = lane.counters[tenant]
            least = counter if least is None else least
            if left and counter > least + self.quantum:
                return
            index += 1
            for rid in self.queue_of(tenant, batch=batch)[: policy.HEADS_LOOKED_AT]:
                job = self.jobs[rid]
                if job.expires_ms <= look.now_us // 1000:
                    self._expire(rid, look)
                    index -= 1
                    break
                if self.is_suspect(job) and not look.fits_all:
                    if self._drains_for(rid, look.worker):
                        look.stopped = "drains"
                        return
                    continue
                if self._left_to_another(job, look):
                    left = True
                    continue
                if look.fits_all or job.need <= look.free_kv:
                    look.chosen = self._warmer(rid, look, lane.order()[index : index + policy.NEIGHBOURS], least)
                    return
                if not self._may_pass(job, lane, look):
                    look.stopped = "blocked"
                    return
                break

    def _expire(self, rid: str, look: Look) -> None:
        if look.expired == EXPIRED_MAX:
            look.stopped = "again"
            return
        look.expired += 1
        self._close(rid, look.now_us, Outcome.EXPIRED, "deadline_exceeded")

    def _warmer(self, found: str, look: Look, neighbours: list[str], least: int) -> str:
        """What this worker has the prefix of, among the next tenants within a quantum of the least served."""
        batch = self.jobs[found].batch
        job = self.jobs[found]
        if look.worker not in self.warm_of or self._holds(look, job) or self.is_suspect(job):
            return found
        for tenant in neighbours:
            if self.lanes[batch].counters[tenant] > least + self.quantum:
                break
            job = self.jobs[self.queue_of(tenant, batch=batch)[0]]
            fits = look.fits_all or job.need <= look.free_kv
            if self._holds(look, job) and not self.is_suspect(job) and fits and job.expires_ms > look.now_us // 1000:
                return job.ticket.request_id
        return found

    def _holds(self, look: Look, job: Job) -> bool:
        return self.warm.get(job.prefix) == look.worker

    def _left_to_another(self, job: Job, look: Look) -> bool:
        over = job.since_us + self._patience_us(job)
        if self.is_suspect(job) or not job.prefix or not job.since_us <= look.now_us < over:
            return False
        if self.warm.get(job.prefix, look.worker) == look.worker:
            return False
        until = -(-over // 1000)
        look.left_until = until if look.left_until is None else min(look.left_until, until)
        return True

    def _patience_us(self, job: Job) -> int:
        most = self.bounds.patience_ms_max
        return policy.patience_ms(prompt_tokens=job.ticket.prompt_tokens, most=most) * 1000

    def _may_pass(self, job: Job, lane: Lane, look: Look) -> bool:
        job.blocking = look.unfit = True
        if job.passed_v is not None and lane.v < job.passed_v + self.quantum:
            again = job.passed_v + self.quantum
            lane.pass_v = again if lane.pass_v is None else min(lane.pass_v, again)
            return False
        look.passed.append(job)
        return True

    def _wait(self, look: Look, now_ms: int) -> Wait:
        self.idle[look.worker] = self.seq
        if not self.waiting():
            return Wait(until_ms=None)
        if look.unfit or look.left_until is None:
            self._wake_one(now_ms)
        expires_ms = min(job.expires_ms for job in self.queued())
        return Wait(until_ms=expires_ms if look.left_until is None else min(expires_ms, look.left_until))

    def _take(self, job: Job, now_us: int, worker: str, nonce: str) -> bool:
        job.attempt += 1
        if job.log:
            job.writers = [*job.writers, (job.epoch, len(job.log))][-WRITERS_MAX:]
        job.fence = job.epoch = f"{job.attempt}-{nonce}"
        job.state, job.worker = JobState.RUNNING, worker
        job.queue_us += max(now_us - job.since_us, 0)
        job.claimed_ms = now_us // 1000
        job.lease_ms = job.claimed_ms + self.bounds.lease_ms
        job.charged_tokens = job.charged_ms = 0
        uncached = policy.input_service(TokenCounts(prompt=job.ticket.prompt_tokens))
        self.receipts[nonce] = job.ticket.request_id
        if job.prefix:
            self._remember(worker, job.prefix, job.claimed_ms)
        if self.is_suspect(job):
            self.alone[worker] = job.ticket.request_id
        self._charge(job, max(job.spent, policy.virtual(uncached + job.prepaid_output, job.weight)))
        blocked, job.blocking = job.blocking, False
        return blocked

    def _pass_on(self, lane: Lane, now_ms: int, was_blocking: bool, free_slots: int) -> None:  # noqa: FBT001 - mirrors the script
        passable = lane.pass_v is not None and lane.v >= lane.pass_v
        if passable:
            lane.pass_v = None
        if was_blocking or passable:
            self._changed(now_ms)
        elif free_slots == 1 and self.waiting():
            self._wake_one(now_ms)

    def step(self, *, now_us: int, worker_id: str, entries: Sequence[StepEntry], holding: Sequence[str]) -> StepReply:
        aborts: dict[str, AbortReason] = {}
        stale: list[str] = []
        for entry in entries:
            job = self.jobs.get(entry.request_id)
            if job is None or job.state != JobState.RUNNING or job.fence != entry.fence:
                stale.append(entry.request_id)
                aborts.setdefault(entry.request_id, AbortReason.FENCE)
                continue
            reason = self._write(entry, job, now_us // 1000)
            if reason is not None:
                aborts.setdefault(entry.request_id, reason)
        held = self.held_by(worker_id)
        for rid in held:
            if self.jobs[rid].cancel:
                aborts.setdefault(rid, AbortReason(self.jobs[rid].cancel))
        named = {*holding, *(entry.request_id for entry in entries)}
        for rid in held:
            young = self.jobs[rid].claimed_ms + self.bounds.holding_margin_ms >= now_us // 1000
            if rid not in named and not young:
                self._give_up(rid, now_us, "back", Tally())
        for rid in holding:
            if rid not in held:
                aborts.setdefault(rid, AbortReason.FENCE)
        return StepReply(aborts=[Abort(request_id=rid, reason=why) for rid, why in aborts.items()], stale=stale)

    def _write(self, entry: StepEntry, job: Job, now_ms: int) -> AbortReason | None:
        known = len(job.log) + 1 - entry.first_seq
        if known < 0:
            return AbortReason.GAP
        fresh = entry.frames[known:]
        size = job.log_bytes + sum(map(len, fresh))
        if fresh and size > self.bounds.log_bytes_max:
            return AbortReason.LOG_FULL
        if entry.counts.completion < job.counts.completion or (entry.frames and not fresh):
            return None
        if fresh and len(entry.ids) == len(entry.frames) and job.ids_seq == len(job.log):
            job.ids += b"".join(entry.ids[known:])
            job.ids_seq += len(fresh)
        job.log += fresh
        job.log_bytes, job.counts, job.delivered = size, entry.counts, entry.delivered_tokens
        self._tick(job, now_ms)
        if entry.progressed:
            job.lease_ms = now_ms + self.bounds.lease_ms
        return None

    def _tick(self, job: Job, now_ms: int) -> None:
        counts = job.counts
        if counts.prompt == 0 and counts.completion == 0:
            return
        fresh = counts.completion - job.charged_tokens
        if job.charged_ms and fresh < policy.TICK_TOKENS and now_ms - job.charged_ms < policy.TICK_MS:
            return
        service, output = policy.input_service(counts), policy.output_service(counts.completion)
        job.spent = max(job.spent, policy.virtual(service + output, job.weight))
        target = max(job.spent, policy.virtual(service + max(output, job.prepaid_output), job.weight))
        self._charge(job, target)
        job.charged_tokens, job.charged_ms = counts.completion, now_ms

    def end(
        self,
        *,
        now_us: int,
        request_id: str,
        fence: str,
        last_seq: int,
        outcome: Outcome,
        error_code: str,
        counts: TokenCounts,
        delivered_tokens: int,
    ) -> str:
        """Returns what the script does: "ended", "stale" or "gap"."""
        job = self.jobs.get(request_id)
        if job is None or job.fence != fence or job.state == JobState.QUEUED:
            return "stale"
        if job.state != JobState.RUNNING:
            stands = (job.outcome, job.error, job.counts, job.delivered)
            return "ended" if stands == (outcome.value, error_code, counts, delivered_tokens) else "stale"
        if outcome == Outcome.OK and last_seq != len(job.log):
            return "gap"
        service = policy.input_service(counts) + policy.output_service(counts.completion)
        job.spent = max(job.spent, policy.virtual(service, job.weight))
        job.counts, job.delivered = counts, delivered_tokens
        self._close(request_id, now_us, outcome, error_code)
        return "ended"

    def ack(self, *, request_id: str) -> bool:
        job = self.jobs.get(request_id)
        if job is None or job.state != JobState.ENDED:
            return False
        job.state = JobState.SETTLED
        del self.unsettled[request_id]
        return True

    def read_ids(self, *, request_id: str, fence: str) -> list[int] | None:
        job = self.jobs.get(request_id)
        if job is None or job.state != JobState.RUNNING or job.fence != fence:
            return None
        return unpack_ids(job.ids)

    def cancel(self, *, now_us: int, request_id: str, generation: int | None, reason: str) -> CancelReply:
        job = self.jobs.get(request_id)
        if job is None:
            self.tombs[request_id] = "cancel"
            return CancelReply.TOMBSTONED
        if job.state in (JobState.ENDED, JobState.SETTLED):
            return CancelReply.ENDED if job.outcome == Outcome.CANCELLED else CancelReply.ALREADY_ENDED
        if generation is not None and generation != job.generation:
            return CancelReply.STALE
        if job.state == JobState.QUEUED:
            self._close(request_id, now_us, Outcome.CANCELLED, cancel_code(reason))
            return CancelReply.ENDED
        job.cancel = job.cancel or reason
        return CancelReply.FLAGGED

    def look(self, *, request_id: str) -> bool:
        if request_id in self.jobs:
            return True
        self.tombs.setdefault(request_id, "look")
        return False

    def hand_back(self, *, now_us: int, request_id: str, fence: str) -> bool:
        job = self.jobs.get(request_id)
        if job is None or job.state != JobState.RUNNING or job.fence != fence:
            return False
        self._give_up(request_id, now_us, "back", Tally())
        return True

    def engine_died(self, *, now_us: int, fences: Mapping[str, str]) -> ReapReport:
        tally = Tally()
        for rid, fence in fences.items():
            job = self.jobs.get(rid)
            if job is not None and job.state == JobState.RUNNING and job.fence == fence:
                self._give_up(rid, now_us, "death", tally)
        return tally.report()

    def register(self, *, now_us: int, worker_id: str) -> ReapReport:
        tally, had_wake = Tally(), self._awake(worker_id)
        self._forget(worker_id)
        self.alone.pop(worker_id, None)
        for rid in sorted(self.held_by(worker_id), key=lambda rid: (self.jobs[rid].claimed_ms, rid)):
            self._give_up(rid, now_us, "lapse", tally)
        if had_wake and self.waiting():
            tally.wakes = self._wake_one(now_us // 1000)
        return tally.report()

    def leave(self, *, now_us: int, worker_id: str) -> None:
        self._forget(worker_id)
        self.alone.pop(worker_id, None)
        if self._awake(worker_id) and self.waiting():
            self._wake_one(now_us // 1000)

    def reap(self, *, now_us: int, limit: int) -> ReapReport:
        tally, now_ms = Tally(), now_us // 1000
        running = [(job.lease_ms, rid) for rid, job in self.jobs.items() if job.state == JobState.RUNNING]
        for _, rid in [pair for pair in sorted(running) if pair[0] <= now_ms][:limit]:
            self._give_up(rid, now_us, "lapse", tally)
        queued = [(job.expires_ms, rid) for rid, job in self.jobs.items() if job.state == JobState.QUEUED]
        for _, rid in [pair for pair in sorted(queued) if pair[0] <= now_ms][:limit]:
            self._close(rid, now_us, Outcome.EXPIRED, "deadline_exceeded")
            tally.expired += 1
        old = sorted((since, worker) for worker, since in self.wakes.items())
        for _, worker in [pair for pair in old if pair[0] <= now_ms - self.bounds.wake_margin_ms][:limit]:
            self._awake(worker)
            self._forget(worker)
            if self.waiting():
                tally.wakes += self._wake_one(now_ms)
        return tally.report()


def _claim_of(job: Job) -> Claim:
    return Claim(
        ticket=job.ticket,
        fence=job.fence,
        attempt=job.attempt,
        log_length=len(job.log),
        queue_us=job.queue_us,
        engine_deaths=job.deaths,
        counts=job.counts,
    )
