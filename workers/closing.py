"""From a verdict to the final frame: attempt log, end, settle, ack, in PROTOCOL order. Called by `attempt`.

Invariants: the attempt log is written before `end`; an answer that came to its end is billed as the engine counted it,
any other for what the log holds; what fails from `settle` on is the settler's to finish.
"""

import asyncio
from dataclasses import replace

import structlog
from redis.exceptions import RedisError

from billing.rating.rate import cost
from contracts.errors import Unavailable
from contracts.jobs import UsageRecord
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import Final, final_of
from fairqueue.queue import LogGapError
from tenants.limits.holds import HoldHint
from workers.evaluation import evaluation_document, evaluation_key
from workers.frames import FrameBuilder
from workers.latency import LatencyTrack
from workers.ports import TELL_PAUSES, Ports
from workers.publish import Lane
from workers.verdict import LOST, GivenBack, Verdict

log = structlog.get_logger(__name__)


class Closing:
    """The end of one attempt. Nothing is sent to the log any more: the lane is flushed or sealed.

    `builder` is None where nothing was generated; `counts` is all that the engine counted.
    """

    def __init__(
        self, ports: Ports, lane: Lane, *, track: LatencyTrack, builder: FrameBuilder | None, counts: TokenCounts
    ) -> None:
        self._ports = ports
        self._lane = lane
        self._claim = lane.claim
        self._ticket = lane.claim.ticket
        self._track = track
        self._builder = builder
        self._counts = counts

    async def close(self, verdict: Verdict) -> None:
        """Write the end down and settle it. Raises GivenBack when the request is no longer ours to end."""
        key, document = self._evaluation(verdict)
        record = self._record(verdict, log_key=key)
        kept = False
        try:
            await self._ports.attempts.append(record, fence=self._claim.fence)
            record, verdict = await self._end(record, verdict)
            await self._settle(record, verdict)
            kept = True
        finally:
            if key and kept:
                self._ports.evaluation.put(key=key, body=document)
            elif key:
                self._ports.evaluation.forget(size=len(document))

    def _evaluation(self, verdict: Verdict) -> tuple[str, bytes]:
        if not self._ticket.evaluation_log or self._builder is None:
            return "", b""
        facts = {"outcome": verdict.outcome.value, "verdicts": self._verdicts(), "attempt": self._claim.attempt}
        document = evaluation_document(self._ticket, answer=self._builder.answer(), facts=facts)
        accepted = self._ports.evaluation.accept(size=len(document))
        return (evaluation_key(self._ticket), document) if accepted else ("", b"")

    def _verdicts(self) -> tuple[str, ...]:
        return self._builder.verdicts if self._builder is not None else ()

    def _record(self, verdict: Verdict, *, log_key: str) -> UsageRecord:
        ticket, policy, builder = self._ticket, self._ticket.policy, self._builder
        if self._lane.first_released_at is not None and not self._claim.log_length:  # else not the first at all
            self._track.first_release_at = self._lane.first_released_at
        return UsageRecord(
            request_id=ticket.request_id,
            revision=1,
            tenant_id=ticket.tenant_id,
            project_id=ticket.project_id,
            api_key_id=ticket.api_key_id,
            pool=ticket.pool,
            model=ticket.model,
            endpoint=ticket.endpoint.value,
            service_class=ticket.service_class.value,
            admitted_at_ms=ticket.admitted_at_ms,
            billed_at_ms=self._ports.clock.now_ms(),
            counts=self._billed(verdict),
            delivered_tokens=self._lane.logged_tokens,
            outcome=verdict.outcome.value,
            finish_reason=builder.finish_reason if builder is not None else "",
            error_code=verdict.error_code,
            attempt=self._claim.attempt,
            worker_id=self._ports.worker_id,
            price=ticket.price,
            timings=self._track.timings(at=self._ports.clock.monotonic()),
            policy_id=policy.policy_id if policy else "",
            policy_version=policy.version if policy else 0,
            verdicts=(*ticket.guard_prompt, *self._verdicts()),
            stream=ticket.stream,
            end_user_hash=ticket.end_user_hash,
            log_key=log_key,
            budget_cut=ticket.budget_cut,
            error_param=verdict.param,
        )

    def _billed(self, verdict: Verdict) -> TokenCounts:
        """All that the engine counted, for an answer that came to its end; otherwise what the log holds of it."""
        if verdict.is_whole:
            return self._counts
        if not self._lane.last_seq:
            return TokenCounts()
        completion = min(self._counts.completion, self._lane.logged_tokens)
        return replace(self._counts, completion=completion, reasoning=min(self._counts.reasoning, completion))

    async def _end(self, record: UsageRecord, verdict: Verdict) -> tuple[UsageRecord, Verdict]:
        """The end that the queue took: a whole answer is lost where its log is not whole.

        Raises GivenBack for a stale fence, and when the queue never answered: the reaper ends it from the log.
        """
        for pause in TELL_PAUSES:
            try:
                ended = await self._ports.queue.end(
                    worker_id=self._ports.worker_id,
                    request_id=record.request_id,
                    fence=self._claim.fence,
                    last_seq=self._lane.last_seq,
                    outcome=Outcome(record.outcome),
                    finish_reason=record.finish_reason,
                    error_code=record.error_code,
                    counts=record.counts,
                    delivered_tokens=record.delivered_tokens,
                    timings=record.timings,
                    verdicts=self._verdicts(),
                    log_key=record.log_key,
                    error_param=record.error_param,
                )
            except LogGapError:
                log.exception("log_gap", request_id=record.request_id)
                verdict = LOST
                record = replace(record, outcome=LOST.outcome.value, finish_reason="", error_code=LOST.error_code)
            except RedisError as error:
                log.warning("queue_failed", what="end", error=type(error).__name__)
                await asyncio.sleep(pause)
            else:
                if not ended:
                    raise GivenBack("its fence is another worker's")
                return record, verdict
        raise GivenBack("the queue did not take its end")

    async def _settle(self, record: UsageRecord, verdict: Verdict) -> None:
        try:
            settled = await self._ports.limits.settle(
                tenant_id=record.tenant_id,
                request_id=record.request_id,
                counts=record.counts,
                cost_nano=cost(record.price, record.counts).total_nano,
                outcome=record.outcome,
                hint=HoldHint.of(record),
            )
            final = _final(record, verdict, cost_nano=settled.cost_nano)
            await self._ports.queue.ack(request_id=record.request_id, final=final)
        except (Unavailable, RedisError) as error:
            log.warning("settlement_left_to_the_settler", request_id=record.request_id, error=type(error).__name__)


def _final(record: UsageRecord, verdict: Verdict, *, cost_nano: int) -> Final:
    final = final_of(record, cost_nano=cost_nano)
    return replace(
        final,
        error_message=verdict.message or final.error_message,
        status=verdict.status or final.status,
    )
