"""The whole path under seeds: losses, crashes between any two writes, freezes; then everything has ended once.

Two hundred seeds here; `WEIR_SIM_SEEDS=10000` at night; `WEIR_SIM_SEED=S` replays one, with its trace when it fails.
The queue is the production reference model, the limits are their reference model with real caps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from contracts.jobs import Ticket
from contracts.tenancy import Limit, Metric, Scope
from fairqueue.messages import CancelReply, StepEntry, StepReply
from fairqueue.model import PoolModel
from infra.sim.stores import TenantSlot
from infra.sim.world import World, broken, simulate
from tests.factories.jobs import make_ticket
from tests.property.tenants.model import Model

SEEDS = int(os.environ.get("WEIR_SIM_SEEDS", "200"))
ONE = os.environ.get("WEIR_SIM_SEED")
MUTANT_SEEDS = 300
TRACE_LINES = 200
CAPS = {Metric.CONCURRENT_REQUESTS: 8, Metric.TOKENS_PER_DAY: 600, Metric.OUTPUT_TOKENS_PER_MINUTE: 400}


def ticket_of(request_id: str, prompt: int, output: int) -> Ticket:
    return make_ticket(request_id, prompt_tokens=prompt, max_tokens=output)


def slot(kind: type[TenantSlot] = TenantSlot) -> TenantSlot:
    caps: list[Any] = [Limit(scope=Scope.TENANT, metric=metric, cap=cap) for metric, cap in CAPS.items()]
    return kind(Model(now=0, zone="UTC"), caps)


def run(seed: int, pool: type[PoolModel] = PoolModel, holds: type[TenantSlot] = TenantSlot) -> World:
    return simulate(seed=seed, pool=pool, slot=slot(holds), make_ticket=ticket_of)


def held(world: World) -> dict[object, int]:
    """What the limits still hold: nothing, once all has ended."""
    counters = world.slot.limits.counters  # type: ignore[attr-defined]
    return {where: counter.held for where, counter in counters.items() if counter.held}


class TestPath:
    @pytest.mark.timeout(60 + SEEDS // 2)
    def test_ends_and_bills_every_request_once_whatever_is_lost_or_dies(self) -> None:
        for seed in [int(ONE)] if ONE else range(SEEDS):
            world = run(seed)
            found = broken(world) + [f"held: {held(world)}"] * bool(held(world))
            trace = "\n".join(world.clock.trace[-TRACE_LINES:])
            assert not found, f"WEIR_SIM_SEED={seed}\n" + "\n".join(found) + f"\n{trace}"

    def test_is_the_same_for_the_same_seed(self) -> None:
        assert run(5).clock.trace == run(5).clock.trace
        assert run(5).clock.trace != run(6).clock.trace

    def test_meets_what_it_is_for(self) -> None:
        worlds = [run(seed) for seed in range(60)]
        jobs = [job for world in worlds for job in world.pool.jobs.values()]
        trace = "\n".join(line for world in worlds for line in world.clock.trace)
        assert {job.outcome for job in jobs} >= {"ok", "cancelled", "failed"}
        assert {hold.state for world in worlds for hold in world.slot.holds.values()} == {"settled", "voided"}
        assert any(job.attempt > 1 and job.outcome == "ok" for job in jobs)
        continued = [reader for world in worlds for reader in world.readers if len(reader.writers) > 1]
        assert {reader.end for reader in continued} >= {"done", "failed"}
        for name in ("w1 dies", "settler dies", "is frozen", "engine_died", "void", "Refused", "DeadlinePassed"):
            assert name in trace, name


class RepeatsFrames(PoolModel):
    """`step` without its expected seq."""

    def step(self, *, now_us: int, worker_id: str, entries: Sequence[StepEntry], holding: Sequence[str]) -> StepReply:
        blind = [
            replace(entry, first_seq=len(self.jobs[entry.request_id].log) + 1)
            for entry in entries
            if entry.request_id in self.jobs
        ]
        return super().step(now_us=now_us, worker_id=worker_id, entries=blind, holding=holding)


class ForgetsItsTombs(PoolModel):
    """`look` and `cancel` of an unknown request leave no tombstone."""

    def look(self, *, request_id: str) -> bool:
        known = super().look(request_id=request_id)
        self.tombs.pop(request_id, None)
        return known

    def cancel(self, *, now_us: int, request_id: str, generation: int | None, reason: str) -> CancelReply:
        reply = super().cancel(now_us=now_us, request_id=request_id, generation=generation, reason=reason)
        self.tombs.pop(request_id, None)
        return reply


class TakesLateTickets(ForgetsItsTombs):
    """`enqueue` past its deadline as well."""

    def enqueue(self, ticket: Ticket, **options: Any) -> Any:
        return super().enqueue(ticket, **{**options, "enqueue_deadline_ms": options["now_us"] // 1000 + 1})


class NeverReaps(PoolModel):
    """Leases lapse, and nobody takes them back."""

    def reap(self, *, now_us: int, limit: int) -> Any:
        return super().reap(now_us=now_us, limit=0)


class GoesOnWithoutItsIds(PoolModel):
    """A request goes on although its tokens do not say what follows."""

    def _give_up(self, rid: str, now_us: int, why: str, tally: Any) -> None:
        self.jobs[rid].ids_seq = len(self.jobs[rid].log)
        super()._give_up(rid, now_us, why, tally)


class VoidsWithoutALook(TenantSlot):
    """A hold is called dead as soon as it is made."""

    def due(self, now_us: int, *, margin_ms: int) -> list[str]:
        del margin_ms
        late = [hold for hold in self.holds.values() if hold.state == "held"]
        for hold in late:
            self.void(now_us, request_id=hold.request_id)
        return []


class ForgetsItsKeys(TenantSlot):
    """The hold without its idempotency record."""

    def hold(self, now_us: int, **asked: Any) -> Any:
        hold = super().hold(now_us, **asked)
        self.keys.clear()
        return hold


class TestRulesBite:
    """Each rule of the protocol that is taken out is missed by some seed: the simulation can fail."""

    @pytest.mark.parametrize("pool", [RepeatsFrames, TakesLateTickets, NeverReaps, GoesOnWithoutItsIds])
    def test_of_the_pool(self, pool: type[PoolModel]) -> None:
        assert any(broken(run(seed, pool=pool)) for seed in range(MUTANT_SEEDS))

    @pytest.mark.parametrize("holds", [VoidsWithoutALook, ForgetsItsKeys])
    def test_of_the_tenant(self, holds: type[TenantSlot]) -> None:
        assert any(broken(run(seed, holds=holds)) for seed in range(MUTANT_SEEDS))
