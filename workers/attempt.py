"""One claim from start to its last released token, in PROTOCOL order: start, generate, step*; `closing` does the rest.

Called by `loop` for each claim. Invariants: no token is generated without a started hold; whatever happens, the
request is ended under this fence, given back to the queue, or was no longer ours; only what the engine counted is
billed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NoReturn

import orjson
import structlog
from redis.exceptions import RedisError

from contracts.errors import Unavailable
from contracts.jobs import Endpoint
from fairqueue.messages import AbortReason
from safety.policy import PolicyError
from safety.published import PolicyMissing
from safety.stream import OutputGuard
from safety.verdicts import Stage
from workers.closing import Closing
from workers.continuation import CannotContinue, as_continued, engine_id, is_plain, plan, read_past
from workers.engines.base import EngineBroke, EngineChunk, EngineGone, EngineRefused, EngineRequest
from workers.frames import FrameBuilder
from workers.latency import LatencyTrack
from workers.ports import TELL_PAUSES, Ports
from workers.publish import Lane
from workers.refusals import explain, no_grammar
from workers.verdict import ABORTED, BLOCKED, BROKE, HOLD_ENDED, LOST, NO_POLICY, OK, GivenBack, Verdict

DRAINED = "drained"

log = structlog.get_logger(__name__)


class Attempt:
    """One use of one claim. `lane` is open in the publisher."""

    def __init__(self, ports: Ports, lane: Lane) -> None:
        self._ports = ports
        self._lane = lane
        self._claim = lane.claim
        self._ticket = lane.claim.ticket
        self._counts = lane.claim.counts
        self._builder: FrameBuilder | None = None
        self._replayed = 0
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
            verdict = await self._released(verdict)
            closing = Closing(self._ports, self._lane, track=self._track, builder=self._builder, counts=self._counts)
            await closing.close(verdict)
        except GivenBack as why:
            log.info("request_given_back", request_id=self._ticket.request_id, why=str(why))

    async def _serve(self) -> Verdict:
        if not await self._start():
            return HOLD_ENDED
        try:
            guard = await self._guard()
        except (PolicyMissing, PolicyError, RedisError) as error:
            log.warning("policy_unavailable", request_id=self._ticket.request_id, error=type(error).__name__)
            return NO_POLICY
        body = orjson.loads(self._ticket.body)
        keeps_ids = self._ports.host.adapter.capabilities.replays and is_plain(self._ticket, body)
        self._builder = FrameBuilder(self._ticket, guard, keeps_ids=keeps_ids)
        try:
            return await self._generate(self._builder, body)
        except EngineRefused as error:
            log.warning("engine_refused", request_id=self._ticket.request_id, param=error.param, error=str(error))
            return LOST if self._claim.log_length else explain(error, body)
        except CannotContinue as error:
            log.warning("not_continued", request_id=self._ticket.request_id, why=str(error))
            return LOST  # what was released stands
        except RedisError:
            await self._hand_back("its log cannot be read")

    async def _start(self) -> bool:
        """The hold runs under this fence from here on; without it (False) nothing is generated."""
        ticket, claim = self._ticket, self._claim
        try:
            started = await self._ports.limits.start(
                tenant_id=ticket.tenant_id, request_id=ticket.request_id, fence=claim.fence, attempt=claim.attempt
            )
        except Unavailable:
            await self._hand_back("limits cannot be reached")
        return started

    async def _guard(self) -> OutputGuard | None:
        """None where no rule looks at the output: then nothing is held back and nothing is touched."""
        if self._ticket.policy is None:
            return None
        policy = await self._ports.policies.get(self._ticket.policy)
        if not policy.pure(Stage.OUTPUT) and not policy.buffered(Stage.OUTPUT):
            return None
        return OutputGuard(policy, self._ports.validators, monotonic=self._ports.clock.monotonic)

    async def _generate(self, builder: FrameBuilder, body: dict[str, Any]) -> Verdict:
        """Read the engine until it is done, the guard blocks, or somebody aborts. Raises EngineRefused."""
        host = self._ports.host
        if self._lane.abort_reason:
            return await self._aborted()
        if not host.ready:  # it died since the claim, and was not asked: the next one counts from before it serves
            await self._hand_back("its engine is not up")
        incarnation = host.incarnation
        try:
            async with self._abortable():
                await self._read(builder, body)
        except EngineGone as error:
            return await self._engine_gone(incarnation, error)
        except EngineBroke as error:
            log.warning("engine_broke", request_id=self._ticket.request_id, error=str(error))
            if await self._ports.host.has_died(incarnation=incarnation):
                return await self._engine_gone(incarnation, error)
            return no_grammar(error.param) if error.param else BROKE
        if self._lane.is_aborted():
            return await self._aborted()
        if builder.blocked:
            return BLOCKED
        if not builder.finished:
            log.warning("engine_gave_no_finish_reason", request_id=self._ticket.request_id)
            return BROKE
        return OK

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

    async def _read(self, builder: FrameBuilder, body: dict[str, Any]) -> None:
        ports, lane, clock = self._ports, self._lane, self._ports.clock
        request = await self._resume(builder, body) if self._claim.log_length else self._engine_request(body)
        if builder.finished:
            return
        self._track.sent_at = clock.monotonic()
        async with ports.host.adapter.generate(request) as chunks:
            async for chunk in chunks:
                arrived = clock.monotonic()
                ports.host.note_progress()
                chunk = self._counted(chunk)
                if chunk.counts.completion > self._counts.completion:
                    self._track.token(at=arrived)
                self._counts = chunk.counts
                frames = await builder.build(chunk)
                released = clock.monotonic()
                self._track.guard_seconds += released - arrived
                self._track.release(at=released, tokens=builder.delivered_tokens)
                ports.publisher.put(
                    lane,
                    frames=frames,
                    counts=chunk.counts,
                    delivered_tokens=builder.delivered_tokens,
                    ids=builder.take_ids(frames=len(frames)),
                )
                if builder.blocked:
                    return
                await ports.publisher.room()

    async def _resume(self, builder: FrameBuilder, body: dict[str, Any]) -> EngineRequest:
        """Go on where an attempt before this one was lost. Raises CannotContinue, RedisError."""
        claim, adapter = self._claim, self._ports.host.adapter
        past = await read_past(self._ports.queue, claim)
        request, past = await plan(adapter, ticket=self._ticket, claim=claim, past=past, body=body)
        self._replayed = len(past.ids)
        fits = await builder.resume(
            text=past.text,
            shown=past.shown,
            tokens=self._replayed,
            finish_reason=past.finish_reason,
            is_cut=past.is_cut,
        )
        if not fits:
            raise CannotContinue("its released ids say another text than was released")
        builder.delivered_tokens = max(builder.delivered_tokens, claim.counts.completion)
        self._counts = replace(claim.counts, completion=max(claim.counts.completion, self._replayed))
        self._track.resume(tokens=builder.delivered_tokens)
        log.info("request_continued", request_id=self._ticket.request_id, tokens=self._replayed, attempt=claim.attempt)
        return request

    def _counted(self, chunk: EngineChunk) -> EngineChunk:
        """The chunk as one of the whole request, whose first tokens an earlier attempt may have made."""
        if not self._claim.log_length:
            return chunk
        chat = self._ticket.endpoint is Endpoint.CHAT
        return as_continued(chunk, chat=chat, before=self._claim.counts, tokens=self._replayed)

    def _engine_request(self, body: dict[str, Any]) -> EngineRequest:
        ticket = self._ticket
        return EngineRequest(
            request_id=engine_id(self._claim),
            endpoint=ticket.endpoint,
            body=body,
            max_tokens=ticket.max_tokens,
            cache_salt=ticket.cache_salt,
        )

    async def _engine_gone(self, incarnation: int, error: Exception) -> Verdict:
        """A death requeues what had released nothing, or can go on elsewhere. A live engine failed this one alone."""
        log.warning("engine_gone", request_id=self._ticket.request_id, error=str(error))
        self._lane.waits_for_engine = False  # the lease lives on while it is found out what happened
        died = await self._ports.host.has_died(incarnation=incarnation)
        logged = await self._ports.publisher.seal(self._lane)
        if self._lane.abort_reason:
            return await self._aborted()
        if not died or (logged and not self._lane.replayable):
            return BROKE
        await self._tell(
            "engine_died",
            self._ports.queue.engine_died,
            worker_id=self._ports.worker_id,
            fences={self._ticket.request_id: self._claim.fence},
        )
        raise GivenBack("its engine died")

    async def _aborted(self) -> Verdict:
        await self._ports.publisher.seal(self._lane)
        reason = self._lane.abort_reason
        if reason == DRAINED:
            if self._lane.last_seq and not self._lane.replayable:
                return LOST
            await self._hand_back("this worker drains")
        if reason == AbortReason.FENCE:
            raise GivenBack("its fence is another worker's")
        return ABORTED[AbortReason(reason)]

    async def _hand_back(self, why: str) -> NoReturn:
        await self._tell(
            "hand_back",
            self._ports.queue.hand_back,
            worker_id=self._ports.worker_id,
            request_id=self._ticket.request_id,
            fence=self._claim.fence,
        )
        raise GivenBack(why)

    async def _tell(self, what: str, call: Any, **arguments: Any) -> None:
        """Give the request back; should the queue not answer, its lease lapses and the reaper does it."""
        for pause in TELL_PAUSES:
            try:
                await call(**arguments)
            except RedisError as error:
                log.warning("queue_failed", what=what, error=type(error).__name__)
                await asyncio.sleep(pause)
            else:
                return

    async def _released(self, verdict: Verdict) -> Verdict:
        """Nothing waits for the log any more: what was generated is in it, or will never be."""
        if verdict.is_whole:
            await self._lane.flushed.wait()
            return await self._aborted() if self._lane.pending else verdict  # an abort came before the last frames
        await self._ports.publisher.seal(self._lane)
        return verdict
