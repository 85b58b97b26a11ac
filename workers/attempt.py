"""One claim from start to ack, in PROTOCOL order: start, generate, step*, attempt log, end, settle, ack.

Called by `loop` for each claim. Invariants: no token is generated without a started hold; whatever happens, the
request is ended under this fence, given back to the queue, or was no longer ours; only what the engine counted is
billed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
import structlog
from redis.exceptions import RedisError

from billing.rating.rate import cost
from contracts.clock import Clock
from contracts.errors import Unavailable
from contracts.jobs import UsageRecord
from contracts.outcomes import Outcome
from contracts.tenancy import PolicyRef
from contracts.tokens import TokenCounts
from fairqueue.messages import AbortReason, Final, final_of
from fairqueue.queue import FairQueue, LogGapError
from safety.engines.pool import ValidatorPool
from safety.policy import CompiledPolicy, PolicyError
from safety.published import PolicyMissing
from safety.stream import OutputGuard
from safety.verdicts import Stage
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldHint
from workers.attempts import AttemptLog
from workers.engines.base import EngineBroke, EngineGone, EngineHost, EngineRefused, EngineRequest
from workers.evaluation import EvaluationLog, evaluation_document, evaluation_key
from workers.frames import FrameBuilder
from workers.latency import LatencyTrack
from workers.publish import Lane, Publisher

DRAINED = "drained"
END_TRIES = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)

log = structlog.get_logger(__name__)


class Policies(Protocol):
    """`safety.published.PolicyStore`."""

    async def get(self, ref: PolicyRef) -> CompiledPolicy: ...

    async def keep_warm(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What an attempt needs of the world."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """How the attempt ended. `status` and `message` only where the outcome's own do not say enough."""

    outcome: Outcome
    error_code: str = ""
    message: str = ""
    status: int = 0


class _GivenBack(Exception):
    """The request is in the queue again, or another worker's: nothing is left to do."""


_ABORTS = {
    AbortReason.CANCELLED: _Verdict(outcome=Outcome.CANCELLED, error_code="request_cancelled"),
    AbortReason.REVOKED: _Verdict(
        outcome=Outcome.CANCELLED, error_code="request_cancelled", message="The API key was revoked."
    ),
    AbortReason.GAP: _Verdict(outcome=Outcome.FAILED, error_code="worker_lost"),
    AbortReason.LOG_FULL: _Verdict(
        outcome=Outcome.FAILED, error_code="output_too_large", message="The output is larger than a request may have."
    ),
}
_LOST = _Verdict(outcome=Outcome.FAILED, error_code="worker_lost")
_BROKE = _Verdict(outcome=Outcome.FAILED, error_code="engine_error")


class Attempt:
    """One use of one claim. `lane` is open in the publisher."""

    def __init__(self, ports: Ports, lane: Lane) -> None:
        self._ports = ports
        self._lane = lane
        self._claim = lane.claim
        self._ticket = lane.claim.ticket
        self._counts = lane.claim.counts
        self._builder: FrameBuilder | None = None
        self._track = LatencyTrack(
            claimed_at=ports.clock.monotonic(),
            edge_us=self._ticket.edge_us,
            guard_us=self._ticket.guard_us,
            queue_us=lane.claim.queue_us,
        )

    async def run(self) -> None:
        """Serve the claim. Never raises for what a store, an engine or a client may do."""
        try:
            verdict = await self._serve()
            self._lane.waits_for_engine = False  # the lease lives on while the end is written
            await self._close(verdict)
        except _GivenBack as why:
            log.info("request_given_back", request_id=self._ticket.request_id, why=str(why))

    async def _serve(self) -> _Verdict:
        if self._claim.log_length:
            return _LOST  # its output cannot be continued by this engine; what was released stands
        await self._start()
        try:
            guard = await self._guard()
        except (PolicyMissing, PolicyError, RedisError) as error:
            log.warning("policy_unavailable", request_id=self._ticket.request_id, error=type(error).__name__)
            return _Verdict(
                outcome=Outcome.FAILED,
                error_code="service_unavailable",
                status=503,
                message="The tenant's guardrail policy cannot be read.",
            )
        self._builder = FrameBuilder(self._ticket, guard)
        try:
            return await self._generate(self._builder)
        except EngineRefused as error:
            return _Verdict(outcome=Outcome.FAILED, error_code="invalid_value", message=str(error), status=400)

    async def _start(self) -> None:
        """The hold runs under this fence from here on; without it nothing is generated."""
        ticket, claim = self._ticket, self._claim
        try:
            started = await self._ports.limits.start(
                tenant_id=ticket.tenant_id, request_id=ticket.request_id, fence=claim.fence, attempt=claim.attempt
            )
        except Unavailable:
            await self._hand_back("limits cannot be reached")
        if not started:
            await self._close(_Verdict(outcome=Outcome.CANCELLED, error_code="hold_ended"))
            raise _GivenBack("its hold has ended")

    async def _guard(self) -> OutputGuard | None:
        """None where no rule looks at the output: then nothing is held back and nothing is touched."""
        if self._ticket.policy is None:
            return None
        policy = await self._ports.policies.get(self._ticket.policy)
        if not policy.pure(Stage.OUTPUT) and not policy.buffered(Stage.OUTPUT):
            return None
        return OutputGuard(policy, self._ports.validators, monotonic=self._ports.clock.monotonic)

    async def _generate(self, builder: FrameBuilder) -> _Verdict:
        """Read the engine until it is done, the guard blocks, or somebody aborts. Raises EngineRefused."""
        incarnation = self._ports.host.incarnation
        if self._lane.abort_reason:
            return await self._aborted()
        try:
            async with self._abortable():
                await self._read(builder)
        except EngineGone as error:
            return await self._engine_gone(incarnation, error)
        except EngineBroke as error:
            log.warning("engine_broke", request_id=self._ticket.request_id, error=str(error))
            if await self._ports.host.has_died(incarnation=incarnation):
                return await self._engine_gone(incarnation, error)
            return _BROKE
        if self._lane.is_aborted():
            return await self._aborted()
        if builder.blocked:
            return _Verdict(outcome=Outcome.GUARDRAIL, error_code="content_policy_violation")
        if not builder.finished:
            log.warning("engine_gave_no_finish_reason", request_id=self._ticket.request_id)
            return _BROKE
        return _Verdict(outcome=Outcome.OK)

    @asynccontextmanager
    async def _abortable(self) -> AsyncIterator[None]:
        """Leaves the block early, without an exception, when the lane is aborted."""
        loop = asyncio.get_running_loop()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._lane.on_abort = lambda: scope.reschedule(loop.time())
                yield
        except TimeoutError:
            if not self._lane.abort_reason:
                raise
        finally:
            self._lane.on_abort = None

    async def _read(self, builder: FrameBuilder) -> None:
        ports, lane, clock = self._ports, self._lane, self._ports.clock
        request = self._engine_request()
        self._track.sent_at = clock.monotonic()
        async with ports.host.adapter.generate(request) as chunks:
            async for chunk in chunks:
                arrived = clock.monotonic()
                ports.host.note_progress()
                if chunk.counts.completion > self._counts.completion:
                    self._track.token(at=arrived)
                self._counts = chunk.counts
                frames = await builder.build(chunk)
                released = clock.monotonic()
                self._track.guard_seconds += released - arrived
                self._track.release(at=released, tokens=builder.delivered_tokens)
                ports.publisher.put(lane, frames=frames, counts=chunk.counts, delivered_tokens=builder.delivered_tokens)
                if builder.blocked:
                    return
                await ports.publisher.room()

    def _engine_request(self) -> EngineRequest:
        ticket = self._ticket
        return EngineRequest(
            request_id=f"{ticket.request_id}-{self._claim.attempt}",
            endpoint=ticket.endpoint,
            body=orjson.loads(ticket.body),
            max_tokens=ticket.max_tokens,
            cache_salt=ticket.cache_salt,
        )

    async def _engine_gone(self, incarnation: int, error: Exception) -> _Verdict:
        """A death requeues what had released nothing; the queue ends the rest. A live engine failed this one alone."""
        log.warning("engine_gone", request_id=self._ticket.request_id, error=str(error))
        self._lane.waits_for_engine = False  # the lease lives on while it is found out what happened
        died = await self._ports.host.has_died(incarnation=incarnation)
        logged = await self._ports.publisher.seal(self._lane)
        if self._lane.abort_reason:
            return await self._aborted()
        if not died or logged:
            return _BROKE
        await self._tell(
            "engine_died",
            self._ports.queue.engine_died,
            worker_id=self._ports.worker_id,
            fences={self._ticket.request_id: self._claim.fence},
        )
        raise _GivenBack("its engine died")

    async def _aborted(self) -> _Verdict:
        await self._ports.publisher.seal(self._lane)
        reason = self._lane.abort_reason
        if reason == DRAINED:
            if self._lane.last_seq:
                return _LOST
            await self._hand_back("this worker drains")
        if reason == AbortReason.FENCE:
            raise _GivenBack("its fence is another worker's")
        return _ABORTS[AbortReason(reason)]

    async def _hand_back(self, why: str) -> None:
        await self._tell(
            "hand_back",
            self._ports.queue.hand_back,
            worker_id=self._ports.worker_id,
            request_id=self._ticket.request_id,
            fence=self._claim.fence,
        )
        raise _GivenBack(why)

    async def _tell(self, what: str, call: Any, **arguments: Any) -> None:
        """Give the request back; should the queue not answer, its lease lapses and the reaper does it."""
        for pause in END_TRIES:
            try:
                await call(**arguments)
            except RedisError as error:
                log.warning("queue_failed", what=what, error=type(error).__name__)
                await asyncio.sleep(pause)
            else:
                return

    async def _close(self, verdict: _Verdict) -> None:
        """Attempt log, end, settle, ack. What fails from `settle` on is the settler's to finish."""
        if verdict.outcome in (Outcome.OK, Outcome.GUARDRAIL):
            await self._lane.flushed.wait()
            if self._lane.pending:  # an abort came before the last frames were sent
                verdict = await self._aborted()
        else:
            await self._ports.publisher.seal(self._lane)
        key, document = self._evaluation(verdict)
        record = self._record(verdict, log_key=key)
        kept = False
        try:
            await self._ports.attempts.append(record, fence=self._claim.fence)
            if not await self._end(record):
                raise _GivenBack("its fence is another worker's")
            await self._settle(record, verdict)
            kept = True
        finally:
            if key and kept:
                self._ports.evaluation.put(key=key, body=document)
            elif key:
                self._ports.evaluation.forget(size=len(document))

    def _evaluation(self, verdict: _Verdict) -> tuple[str, bytes]:
        if not self._ticket.evaluation_log or self._builder is None:
            return "", b""
        facts = {"outcome": verdict.outcome.value, "verdicts": self._verdicts(), "attempt": self._claim.attempt}
        document = evaluation_document(self._ticket, answer=self._builder.answer(), facts=facts)
        accepted = self._ports.evaluation.accept(size=len(document))
        return (evaluation_key(self._ticket), document) if accepted else ("", b"")

    def _verdicts(self) -> tuple[str, ...]:
        return self._builder.verdicts if self._builder is not None else ()

    def _record(self, verdict: _Verdict, *, log_key: str) -> UsageRecord:
        ticket, policy, builder = self._ticket, self._ticket.policy, self._builder
        if self._lane.first_released_at is not None:
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
        )

    def _billed(self, verdict: _Verdict) -> TokenCounts:
        """All that the engine counted, for an answer that came to its end; otherwise what the log holds of it."""
        if verdict.outcome in (Outcome.OK, Outcome.GUARDRAIL):
            return self._counts
        if not self._lane.last_seq:
            return TokenCounts()
        if self._claim.log_length:
            return self._claim.counts
        completion = min(self._counts.completion, self._lane.logged_tokens)
        return replace(self._counts, completion=completion, reasoning=min(self._counts.reasoning, completion))

    async def _end(self, record: UsageRecord) -> bool:
        """False: stale fence. Raises _GivenBack when the queue never answered: the reaper ends it from the log."""
        for pause in END_TRIES:
            try:
                return await self._ports.queue.end(
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
                )
            except LogGapError:
                log.exception("log_gap", request_id=record.request_id)
                record = replace(record, outcome=Outcome.FAILED.value, finish_reason="", error_code="worker_lost")
            except RedisError as error:
                log.warning("queue_failed", what="end", error=type(error).__name__)
                await asyncio.sleep(pause)
        raise _GivenBack("the queue did not take its end")

    async def _settle(self, record: UsageRecord, verdict: _Verdict) -> None:
        hint = HoldHint(
            project_id=record.project_id,
            api_key_id=record.api_key_id,
            admitted_at_ms=record.admitted_at_ms,
            model=record.model,
        )
        try:
            settled = await self._ports.limits.settle(
                tenant_id=record.tenant_id,
                request_id=record.request_id,
                counts=record.counts,
                cost_nano=cost(record.price, record.counts).total_nano,
                outcome=record.outcome,
                hint=hint,
            )
            final = self._final(record, verdict, cost_nano=settled.cost_nano)
            await self._ports.queue.ack(request_id=record.request_id, final=final)
        except (Unavailable, RedisError) as error:
            log.warning("settlement_left_to_the_settler", request_id=record.request_id, error=type(error).__name__)

    def _final(self, record: UsageRecord, verdict: _Verdict, *, cost_nano: int) -> Final:
        final = final_of(record, cost_nano=cost_nano)
        return replace(
            final, error_message=verdict.message or final.error_message, status=verdict.status or final.status
        )
