"""One simulated installation under one seed: clients, faults, then calm; and what must hold after it. Called by tests.

Invariant: `simulate(seed=S, …)` gives the same trace every time, on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from contracts.jobs import Ticket
from contracts.outcomes import JobState, Outcome
from fairqueue.model import PoolModel
from fairqueue.policy import QueueBounds
from infra.sim.engine import Clock, Running, Weather
from infra.sim.processes import DECODED, Reader, frame, gateway, settler, worker
from infra.sim.stores import TenantSlot

STORM_US = 8_000_000
CALM_US = 120_000_000
LOOK_US = 2_000_000
WORKERS = ("w1", "w2", "w3")
MakeTicket = Callable[[str, int, int], Ticket]  # (request id, prompt tokens, max tokens)


@dataclass(slots=True)
class World:
    """Everything of one run. `readers` are the clients' tries; those of one key share it."""

    clock: Clock
    pool: PoolModel
    slot: TenantSlot
    make_ticket: MakeTicket
    readers: list[Reader] = field(default_factory=list)
    workers: dict[str, Running] = field(default_factory=dict)
    settlers: list[Running] = field(default_factory=list)
    gateways: list[Running] = field(default_factory=list)
    nonces: int = 0

    @property
    def is_at_rest(self) -> bool:
        """Nothing is left to do: no hold is open, no job unsettled, nobody reads."""
        jobs = self.pool.jobs.values()
        return (
            all(hold.state in ("settled", "voided") for hold in self.slot.holds.values())
            and all(job.state is JobState.SETTLED for job in jobs)
            and not any(running.alive for running in self.gateways)
        )

    def nonce(self) -> str:
        self.nonces += 1
        return f"n{self.nonces}"

    def start_worker(self, name: str) -> None:
        """As a supervisor does: it comes again under the same name."""
        clock = self.clock
        running = clock.spawn(
            name,
            worker(
                self.pool,
                self.slot,
                name=name,
                nonces=self.nonce,
                engine_dies=lambda: not clock.calm and clock.chance.random() < 0.005,
            ),
        )
        # The last worker never comes again when it dies: its machine is gone, and the others take what it held.
        if name != WORKERS[-1]:
            running.on_death = lambda: clock.at(clock.now + 300_000, lambda: self.start_worker(name))
        running.dies_at_write = 0 if clock.calm else clock.chance.choice((0, clock.chance.randint(1, 60)))
        self.workers[name] = running

    def start_settler(self) -> None:
        clock = self.clock
        running = clock.spawn("settler", settler(self.pool, self.slot))
        running.on_death = lambda: clock.at(clock.now + 500_000, self.start_settler)
        running.dies_at_write = 0 if clock.calm else clock.chance.choice((0, clock.chance.randint(1, 20)))
        self.settlers[:] = [running]

    def ask(self, number: int, key: str) -> None:
        """One try of one client at some gateway, which may die in the middle of it."""
        chance = self.clock.chance
        rid = f"r{number}"
        body = random.Random(f"{self.clock.seed}/{key or rid}")  # noqa: S311 - one key, one body
        ticket = self.make_ticket(rid, body.randint(1, 50), body.randint(1, 60))
        reader = Reader(key)
        self.readers.append(reader)
        leaves = chance.choice((0, 0, chance.randint(1, 3_000_000)))
        process = gateway(self.pool, self.slot, ticket, reader, name=f"g{number % 2}", leaves_after_us=leaves)
        running = self.clock.spawn(f"g{number % 2}/{rid}", process)
        running.dies_at_write = chance.choice((0, 0, chance.randint(1, 12)))
        self.gateways.append(running)


def simulate(
    *,
    seed: int,
    pool: Callable[[QueueBounds], PoolModel],
    slot: TenantSlot,
    make_ticket: MakeTicket,
    requests: int = 12,
) -> World:
    """A storm of requests, losses, crashes and freezes, then calm until all should be settled."""
    clock = Clock(seed, Weather())
    world = World(clock, pool(QueueBounds()), slot, make_ticket)
    for name in WORKERS:
        world.start_worker(name)
    world.start_settler()
    chance, begin = clock.chance, clock.now
    for number in range(requests):
        key = f"k{chance.randrange(requests // 2)}" if chance.random() < 0.5 else ""
        clock.at(begin + chance.randrange(STORM_US), lambda number=number, key=key: world.ask(number, key))  # type: ignore[misc]
    for _ in range(chance.randint(0, 6)):
        clock.at(begin + chance.randrange(STORM_US), lambda: _freeze(world))
    clock.run(until=begin + STORM_US)
    clock.calm = True
    for running in (*world.workers.values(), *world.settlers):
        running.dies_at_write = 0
    while not world.is_at_rest and clock.now < begin + STORM_US + CALM_US:
        clock.run(until=clock.now + LOOK_US)
    return world


def _freeze(world: World) -> None:
    """A process that hears and says nothing for a while: a worker past its leases, a gateway past its deadline."""
    clock = world.clock
    running = clock.chance.choice([*world.workers.values(), *world.gateways[-3:]])
    running.frozen_until = clock.now + clock.chance.randint(100_000, 14_000_000)
    clock.note(f"{running.name} is frozen until {running.frozen_until}")


def broken(world: World) -> list[str]:
    """What does not hold of a world that has come to rest."""
    waiting = [f"{running.name}: still waits" for running in world.gateways if running.alive]
    return [*_holds(world), *_jobs(world.pool), *_readers(world), *waiting]


def _holds(world: World) -> list[str]:
    """Each hold ended once, as its job did; a voided one never had a job."""
    found: list[str] = []
    for rid, hold in world.slot.holds.items():
        job = world.pool.jobs.get(rid)
        if hold.state not in ("settled", "voided"):
            found.append(f"{rid}: its hold is {hold.state}, its job {job and job.state}")
        elif hold.state == "voided" and job is not None:
            found.append(f"{rid}: its hold was voided and its job is {job.state}")
        elif hold.state == "settled" and (job is None or hold.counts != job.counts or hold.settlements != 1):
            counts = job and job.counts
            found.append(f"{rid}: settled {hold.settlements} times for {hold.counts}, its job says {counts}")
    return found


def _jobs(pool: PoolModel) -> list[str]:
    """Each job is settled with one usage record; its log has every frame once; a whole answer is billed whole."""
    found: list[str] = []
    for rid, job in pool.jobs.items():
        if job.state is not JobState.SETTLED or pool.usage.count(rid) != 1:
            found.append(f"{rid}: is {job.state} with {pool.usage.count(rid)} usage records")
        numbers = range(1, len(job.log) + 1)
        if not any(job.log == [frame(rid, n, attempt) for n in numbers] for attempt in range(job.attempt + 1)):
            found.append(f"{rid}: its log has a gap, a repeat, or two writers that do not fit: {job.log}")
        if len(job.log) < job.ids_seq or job.counts.completion > len(job.log) * DECODED:
            found.append(f"{rid}: billed {job.counts.completion} for a log of {len(job.log)} frames")
        if job.outcome == Outcome.OK.value and job.counts.completion != job.ticket.max_tokens:
            found.append(f"{rid}: whole, but billed {job.counts.completion} of {job.ticket.max_tokens}")
    return found


def _readers(world: World) -> list[str]:
    """Each client read the log from its beginning, to its end where it was told so; one key is one request."""
    found: list[str] = []
    keys: dict[str, str] = {}
    for reader in world.readers:
        rid, job = reader.request_id, world.pool.jobs.get(reader.request_id)
        if job is None:
            continue
        if reader.frames != job.log[: len(reader.frames)]:
            found.append(f"{rid}: a client read {reader.frames}, the log has {job.log}")
        if reader.end == "done" and len(reader.frames) != len(job.log):
            found.append(f"{rid}: done after {len(reader.frames)} of {len(job.log)} frames")
        if reader.cancelled_at not in (-1, job.attempt):
            found.append(f"{rid}: was claimed after its cancel was answered")
        if reader.key and keys.setdefault(reader.key, rid) != rid:
            found.append(f"{reader.key}: became {keys[reader.key]} and {rid}")
    return found
