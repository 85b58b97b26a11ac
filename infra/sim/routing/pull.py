"""Weir's way: requests wait in the fair queue and workers claim them. The production reference model decides. Pure.

Called by `run`. `fairqueue.model.PoolModel` is the queue itself, in memory; a simulated worker claims as a production
worker does (workers/loop.py): while it has a free sequence, again and again until the queue says wait, and anew when it
is woken or its time has come.

Invariant: no second rule stands beside the model's (`bounded` is a model of its own); here is only who calls it when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.jobs import Claim, Endpoint, Ticket
from contracts.money import PriceCard
from contracts.outcomes import Outcome
from contracts.tenancy import ServiceClass
from contracts.tokens import TokenCounts
from fairqueue import policy
from fairqueue.messages import StepEntry
from fairqueue.model import PoolModel
from fairqueue.policy import QueueBounds
from fairqueue.prefix import PREFIX_BYTES
from infra.sim.routing.bounded import TwoBounds
from infra.sim.routing.workers import Request, Worker

FAR_MS = 10**9
_PRICE = PriceCard(card_id="sim", currency="EUR", input_nano=1, cached_nano=1, output_nano=1)
_BOUNDS = QueueBounds(
    queued_total_max=10**6, queued_bytes_max=10**12, queued_tokens_max=10**12, tenant_bytes_max=10**12,
    tenant_tokens_max=10**12, tombstone_ms=2 * FAR_MS, lease_ms=FAR_MS,
)  # fmt: skip


def ticket_of(request: Request) -> Ticket:
    """What the gateway would have enqueued. The body begins with as many bytes as the prefix key is made of."""
    first = request.blocks[0] if request.blocks else -1 - request.number
    beginning = hashlib.sha256(str(first).encode()).hexdigest().ljust(PREFIX_BYTES, "x")
    return Ticket(
        request_id=f"{request.number:08}", tenant_id=f"t{request.tenant:05}", project_id="p", api_key_id="k",
        pool="pool", model="m", endpoint=Endpoint.CHAT, body=b'{"messages":' + beginning.encode() + b"}", stream=True,
        include_usage=False, prompt_tokens=request.prompt, max_tokens=request.output, choices=1,
        cache_salt=f"t{request.tenant:05}", price=_PRICE, policy=None, service_class=ServiceClass.INTERACTIVE,
        admitted_at_ms=0, edge_us=0, guard_us=0, evaluation_log=False,
    )  # fmt: skip


@dataclass(slots=True)
class Pull:
    """The queue and who holds what of it. Times in seconds, as everywhere here; the model's are made from them."""

    workers: Sequence[Worker]
    two_bounds: bool = False
    model: PoolModel = field(init=False)
    _backlog: dict[str, int] = field(default_factory=dict)
    _requests: dict[str, Request] = field(default_factory=dict)
    _claims: dict[str, Claim] = field(default_factory=dict)
    _kv_held: dict[int, int] = field(default_factory=dict)
    _again_at: dict[int, float] = field(default_factory=dict)
    _nonces: int = 0

    def __post_init__(self) -> None:
        self.model = TwoBounds(_BOUNDS, self._backlog) if self.two_bounds else PoolModel(_BOUNDS)

    def open(self) -> None:
        """Every worker says that it is there, and looks once, which makes it idle."""
        for worker in self.workers:
            self.model.register(now_us=0, worker_id=_name(worker))
            self._kv_held[worker.number] = 0
            self._claim(worker, 0.0)

    def arrive(self, request: Request, now: float) -> list[Worker]:
        """Enqueue; the workers that got something by it."""
        ticket = ticket_of(request)
        self._requests[ticket.request_id] = request
        self.model.enqueue(
            ticket, now_us=_us(now), size=len(ticket.body), mailbox="m", enqueue_deadline_ms=FAR_MS, weight_milli=1_000,
            queued_max=10**6, expires_at_ms=FAR_MS,
        )  # fmt: skip
        return self.woken(now)

    def woken(self, now: float) -> list[Worker]:
        """Those whom the queue woke claim until nobody is left; the workers that got something."""
        got: list[Worker] = []
        tried: set[tuple[int, int]] = set()
        while True:
            awake = [w for w in self.workers if _name(w) in self.model.wakes and (w.number, len(got)) not in tried]
            if not awake:
                return got
            for worker in awake:
                tried.add((worker.number, len(got)))
                if self._claim(worker, now):
                    got.append(worker)

    def free(self, worker: Worker, now: float) -> list[Worker]:
        """A worker has room again, or its time has come: it looks, and so does whom the queue then wakes."""
        got = [worker] if self._claim(worker, now) else []
        return got + self.woken(now)

    def first_token(self, request: Request, now: float) -> None:
        """The prompt's charge is corrected by what was cached, as the first step of an attempt does."""
        claim = self._claims[f"{request.number:08}"]
        entry = StepEntry(
            request_id=claim.ticket.request_id, fence=claim.fence, first_seq=1, frames=[b"f"],
            counts=TokenCounts(prompt=request.prompt, cached=request.cached, completion=1), delivered_tokens=1,
            progressed=True,
        )  # fmt: skip
        name = f"w{request.worker:03}"
        reply = self.model.step(now_us=_us(now), worker_id=name, entries=[entry], holding=self.model.held_by(name))
        assert not reply.stale

    def finished(self, request: Request, now: float) -> None:
        """End, settle, ack; and the model forgets it, which the real one does by time."""
        claim = self._claims.pop(f"{request.number:08}")
        rid = claim.ticket.request_id
        ended = self.model.end(
            now_us=_us(now), request_id=rid, fence=claim.fence, last_seq=1, outcome=Outcome.OK, error_code="",
            counts=TokenCounts(prompt=request.prompt, cached=request.cached, completion=request.output),
            delivered_tokens=request.output,
        )  # fmt: skip
        assert ended == "ended"
        self.model.ack(request_id=rid)
        del self.model.jobs[rid], self._requests[rid]
        self._kv_held[request.worker] -= _need(request)

    def next_look(self) -> tuple[float, Worker] | None:
        """When the first of those that wait for a time looks again."""
        if not self._again_at:
            return None
        number = min(self._again_at, key=lambda one: (self._again_at[one], one))
        return self._again_at[number], self.workers[number]

    def _claim(self, worker: Worker, now: float) -> bool:
        self._again_at.pop(worker.number, None)
        got = False
        while worker.bound < worker.model.slots:
            self._nonces += 1
            self._backlog[_name(worker)] = worker.backlog
            held = self._kv_held[worker.number]
            found = self.model.claim(
                now_us=_us(now), worker_id=_name(worker), nonce=f"n{self._nonces}",
                free_kv_tokens=max(worker.model.cache_tokens - held, 0) if held else FAR_MS,
                free_slots=worker.model.slots - worker.bound,
            )  # fmt: skip
            if not isinstance(found, Claim):
                if found.until_ms is not None and found.until_ms < FAR_MS:
                    self._again_at[worker.number] = max(found.until_ms / 1_000, now + 0.001)
                return got
            request = self._requests[found.ticket.request_id]
            self._claims[found.ticket.request_id] = found
            self._kv_held[worker.number] += _need(request)
            worker.bind(request)
            got = True
        if _name(worker) in self.model.wakes:  # a wake that it cannot use is passed on
            self.model.claim(now_us=_us(now), worker_id=_name(worker), nonce="none", free_kv_tokens=0, free_slots=0)
        return got


def _need(request: Request) -> int:
    return policy.kv_need(prompt_tokens=request.prompt, max_tokens=request.output, choices=1)


def _name(worker: Worker) -> str:
    return f"w{worker.number:03}"


def _us(now: float) -> int:
    return round(now * 1_000_000)
