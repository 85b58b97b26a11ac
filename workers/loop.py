"""The worker: claims while there is room, serves each claim in a task of its own, and keeps its services running.

Called by `__main__`. Invariants: nothing is claimed while the engine is down or the worker drains; a claim is in the
publisher's heartbeats before anything else happens to it; a lost claim reply is asked again under the same nonce.
"""

import asyncio
import contextlib
import os
from dataclasses import dataclass

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.jobs import Claim
from contracts.models import ModelCard
from fairqueue.messages import Wait
from stores.system import mint_nonce
from workers.admission import Room, compute_room
from workers.attempt import Attempt
from workers.config import WorkerSettings
from workers.drain import drain
from workers.engines.base import EngineError, EngineFacts
from workers.evidence import Evidence, Held
from workers.ports import Ports
from workers.publish import Lane
from workers.registration import (
    Heartbeat,
    publish_card,
    publish_heartbeat,
    read_card,
    restore_card,
    withdraw_heartbeat,
)

WAKE_SECONDS = 3.0
REDIS_RETRY_SECONDS = 0.2
REAP_LIMIT = 100
CANCEL_AGAIN_SECONDS = 0.5

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _State:
    facts: EngineFacts | None = None
    card: ModelCard | None = None
    known_incarnation: int = 0
    idle: bool = False
    draining: bool = False


class Worker:
    """One process, one engine, one pool."""

    def __init__(self, *, ports: Ports, redis: Redis, settings: WorkerSettings, sequences_max: int) -> None:
        self._ports = ports
        self._redis = redis
        self._settings = settings
        self._sequences_max = sequences_max
        self._state = _State()
        self._poke = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._evidence = Evidence(
            redis,
            pool=settings.pool_name,
            worker_id=settings.worker_name,
            log_file=settings.log_dir / f"{settings.worker_name}.engine.log",
            clock=ports.clock,
        )

    def poke(self) -> None:
        """The engine came up or went down: look again whether there is work, and say so."""
        if not self._ports.host.ready:
            self._evidence.note(
                [Held(request_id=each.request_id, attempt=each.claim.attempt) for each in self._ports.publisher.lanes]
            )
        self._poke.set()
        self._beat_now.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`, then drain. Raises what a service raised when one gives up (the engine, for one)."""
        services = (
            self._ports.publisher.run,
            self._ports.attempts.run,
            self._ports.evaluation.run,
            self._evidence.run,
            self._ports.policies.keep_warm,
            self._listen,
            self._beat,
            self._reap,
        )
        try:
            async with asyncio.TaskGroup() as group:
                engine = group.create_task(self._ports.host.run())
                tasks = {group.create_task(service()) for service in services}
                tasks.add(group.create_task(self._poke_on(stop)))
                await self._work(stop)
                engine.cancel()
                await _end_all(tasks)
        finally:
            await self._ports.host.adapter.aclose()
            await self._ports.validators.close()
        await self._withdraw()

    async def _work(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as serving:
            await self._register(stop)
            await self._claim_until(stop, serving)
            self._state.draining = True
            self._beat_now.set()
            await self._leave()
            await drain(publisher=self._ports.publisher, requests=self._requests, seconds=self._settings.drain_seconds)
        await self._ports.evaluation.flush()

    @property
    def room(self) -> Room:
        tickets = (lane.claim.ticket for lane in self._ports.publisher.lanes)
        kv_tokens = self._state.facts.kv_tokens if self._state.facts else 0
        return compute_room(tickets=tickets, sequences_max=self._sequences_max, kv_tokens=kv_tokens)

    async def _register(self, stop: asyncio.Event) -> None:
        """What the last life of this worker left leased goes back to the queue."""
        while not stop.is_set():
            try:
                await self._ports.queue.register(worker_id=self._ports.worker_id)
            except RedisError as error:
                log.warning("register_failed", error=type(error).__name__)
                await asyncio.sleep(REDIS_RETRY_SECONDS)
            else:
                return

    async def _claim_until(self, stop: asyncio.Event, serving: asyncio.TaskGroup) -> None:
        while not stop.is_set():
            self._poke.clear()
            if not self._ports.host.ready:
                await self._leave()
                await self._pause(WAKE_SECONDS)
            elif self._ports.host.incarnation != self._state.known_incarnation:
                await self._meet_engine()
            elif self.room.free_slots == 0:
                await self._pause(WAKE_SECONDS)
            else:
                found = await self._claim(stop)
                if isinstance(found, Claim):
                    self._serve(found, serving)
                elif found is not None:
                    await self._pause(self._seconds_until(found))

    async def _claim(self, stop: asyncio.Event) -> Claim | Wait | None:
        """One claim; the nonce makes a repeated one the same. None: asked to stop while Redis was away."""
        nonce = mint_nonce()
        while True:
            room = self.room
            try:
                found = await self._ports.queue.claim(
                    worker_id=self._ports.worker_id,
                    nonce=nonce,
                    free_kv_tokens=room.free_kv_tokens,
                    free_slots=room.free_slots,
                )
            except RedisError as error:
                log.warning("claim_failed", error=type(error).__name__)
                if stop.is_set():
                    return None
                await asyncio.sleep(REDIS_RETRY_SECONDS)
            else:
                self._state.idle = isinstance(found, Wait)
                return found

    def _serve(self, claim: Claim, serving: asyncio.TaskGroup) -> None:
        lane = self._ports.publisher.open(claim)
        task = serving.create_task(self._attempt(lane))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _attempt(self, lane: Lane) -> None:
        try:
            await Attempt(self._ports, lane).run()
        except Exception:
            log.exception("attempt_failed", request_id=lane.request_id)
        finally:
            self._ports.publisher.close(lane)
            self._poke.set()

    async def _meet_engine(self) -> None:
        """A new engine is up: learn its size, and publish the card of what it serves."""
        incarnation = self._ports.host.incarnation
        settings = self._settings
        try:
            facts = await self._ports.host.adapter.facts()
            card = await asyncio.to_thread(
                read_card,
                folder=settings.model_dir,
                model=settings.model,
                pool=settings.pool_name,
                engine=settings.engine.value,
                facts=facts,
                created_at_ms=self._ports.clock.now_ms(),
            )
            await publish_card(self._redis, card)
        except (EngineError, RedisError) as error:
            log.warning("engine_not_met", error=str(error))
            await asyncio.sleep(REDIS_RETRY_SECONDS)
            return
        self._state.facts, self._state.card, self._state.known_incarnation = facts, card, incarnation
        self._beat_now.set()
        log.info("serving", model=card.model, pool=card.pool, kv_tokens=facts.kv_tokens)

    def _seconds_until(self, wait: Wait) -> float:
        if wait.until_ms is None:
            return WAKE_SECONDS
        return min(max(wait.until_ms - self._ports.clock.now_ms(), 1) / 1000, WAKE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Until a poke (a wake, a request that ended, the engine, a stop), or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._poke.wait()
        except TimeoutError:
            return  # look again

    async def _poke_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._poke.set()

    async def _listen(self) -> None:
        """Wakes from the queue become pokes."""
        while True:
            try:
                if await self._ports.queue.wait_wake(worker_id=self._ports.worker_id, timeout_s=WAKE_SECONDS):
                    self._poke.set()
            except RedisError as error:
                log.warning("wake_failed", error=type(error).__name__)
                await asyncio.sleep(REDIS_RETRY_SECONDS)

    async def _leave(self) -> None:
        """Out of the idle set, so that no wake is meant for a worker that cannot use it."""
        if not self._state.idle and not self._state.draining:
            return
        try:
            await self._ports.queue.leave(worker_id=self._ports.worker_id)
            self._state.idle = False
        except RedisError as error:
            log.warning("leave_failed", error=type(error).__name__)

    async def _beat(self) -> None:
        while True:
            try:
                await publish_heartbeat(self._redis, self._heartbeat())
                if self._state.card is not None:
                    await restore_card(self._redis, self._state.card)
            except RedisError as error:
                log.warning("heartbeat_failed", error=type(error).__name__)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.heartbeat_seconds):
                    await self._beat_now.wait()
            self._beat_now.clear()

    def _heartbeat(self) -> Heartbeat:
        room, known = self.room, self._state.known_incarnation
        ready = self._ports.host.ready and known == self._ports.host.incarnation  # the card is out, too
        up = "ready" if ready else "engine_down" if known else "starting"
        return Heartbeat(
            worker_id=self._ports.worker_id,
            pool=self._settings.pool_name,
            model=self._settings.model,
            engine=self._settings.engine.value,
            pid=os.getpid(),
            state="draining" if self._state.draining else up,
            running=len(self._requests),
            free_kv_tokens=room.free_kv_tokens,
            free_slots=room.free_slots,
            at_ms=self._ports.clock.now_ms(),
            attempt_log_failures=self._ports.attempts.failures,
            evaluation_logs_dropped=self._ports.evaluation.dropped,
        )

    async def _reap(self) -> None:
        """Any process may; the more do, the sooner a dead worker's requests are back."""
        while True:
            await asyncio.sleep(self._settings.reap_seconds)
            try:
                await self._ports.queue.reap(limit=REAP_LIMIT)
            except RedisError as error:
                log.warning("reap_failed", error=type(error).__name__)

    async def _withdraw(self) -> None:
        try:
            await withdraw_heartbeat(self._redis, self._ports.worker_id)
        except RedisError as error:
            log.warning("withdraw_failed", error=type(error).__name__)


async def _end_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel until all have ended: up to Python 3.11 `asyncio.wait_for`, which redis-py uses, can swallow a
    cancellation that comes together with its result (bugs.python.org/issue37658)."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_SECONDS)
