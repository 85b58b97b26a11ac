"""Bench `fairness`: how far apart do two tenants fall that both wait, under Weir's rule and under four others?

Called by `manage.py bench fairness`. No sockets and no clock: `infra.sim.fairness` serves the same arrivals once under
each rule, with the production arithmetic of `fairqueue.policy`. Cases:

- `long_short`: two tenants that always wait, one with answers of about 2,000 tokens, one of about 50.
- `noisy`: one tenant with 10,000 requests in the queue at once, and a quiet one that asks now and then.
- a trace, from a file or made: its requests drawn to eight tenants, some with many and some with few, and as much
  quicker or slower as makes the server a fifth too small for them.

Service is counted as the queue counts it: prompt 1, output 2 a token; here in tokens. The gap is the largest difference
of what two tenants got over any stretch in which both had requests waiting all the time.

Invariant: every rule gets the same requests at the same time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairqueue import policy
from infra.bench.output import Measure
from infra.bench.stats import percentile
from infra.bench.traces import Row, made_trace, read_trace
from infra.sim.fairness import RULES, Job, Outcome, Server

NAME = "fairness"
OURS = "weir"
MILLI = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of the cases; steps are of `step_ms`, as of a model that streams 40 tokens a second."""

    traces: Sequence[Path] = ()
    rows: int = 5_000
    step_ms: int = 25
    places: int = 64
    trace_places: int = 24
    steps: int = 20_000
    noisy_queued: int = 10_000
    tenants: int = 8
    overload: float = 1.2
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The same for every rule: what comes, how large the server is, and what a start brings."""

    name: str
    about: str
    arrivals: Sequence[Job]
    places: int
    steps_max: int
    quiet: int | None = None  # the tenant whose waits are told
    again: bool = False

    @property
    def bound(self) -> int:
        """2 (U + Q + tick) in milli-tokens: the queue's promise. U: the largest prompt, or a batch full of answers."""
        prompt = max(job.prompt for job in self.arrivals) * policy.INPUT_MILLI
        batch = policy.output_service(self.places * max(job.output for job in self.arrivals))
        return 2 * (max(prompt, batch) + policy.QUANTUM_MILLI + policy.output_service(policy.TICK_TOKENS))


@dataclass(slots=True, kw_only=True)
class Found:
    """All of a whole run: outcomes by case and rule."""

    plan: Plan
    cases: list[Case]
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)


def make_cases(plan: Plan) -> list[Case]:
    """Every case of the plan. Raises NoTrace, OSError."""
    cases = [_long_short(plan), _noisy(plan)]
    if not plan.traces:
        rows = made_trace(seed=plan.seed, rows=plan.rows)
        cases.append(_of_trace("made", f"made from seed {plan.seed}, no trace was given", rows, plan))
    for path in plan.traces:
        rows = read_trace(path, rows_max=plan.rows)
        cases.append(_of_trace(path.name.partition(".")[0], f"{path.name}, its first {len(rows)} rows", rows, plan))
    return cases


def run(*, plan: Plan, cases: list[Case], advance: Callable[[int], None]) -> Found:
    """Every case under every rule."""
    found = Found(plan=plan, cases=cases)
    for case in cases:
        for name, rule in RULES.items():
            again = _same_again if case.again else _nothing
            server = Server(rule=rule(), places=case.places, step_ms=plan.step_ms, again=again)
            outcome = server.run([replace(job) for job in case.arrivals], steps_max=case.steps_max)
            found.outcomes.setdefault(case.name, {})[name] = outcome
            advance(1)
    return found


def _same_again(job: Job) -> Job:
    return Job(tenant=job.tenant, prompt=job.prompt, output=job.output, arrival=0)


def _nothing(_: Job) -> None:
    return None


def _long_short(plan: Plan) -> Case:
    waiting = 2 * plan.places
    source = random.Random(plan.seed)  # noqa: S311 - repeatable, no secret
    arrivals = [
        Job(tenant=tenant, prompt=100, output=source.randint(output // 2, output * 3 // 2), arrival=0)
        for _ in range(waiting)
        for tenant, output in ((0, 2_000), (1, 50))
    ]
    about = f"two tenants, {waiting} requests each waiting at all times: answers of about 2,000 and of about 50 tokens"
    return Case(name="long_short", about=about, arrivals=arrivals, places=plan.places, steps_max=plan.steps, again=True)


def _noisy(plan: Plan) -> Case:
    source = random.Random(plan.seed)  # noqa: S311 - repeatable, no secret
    noisy = [
        Job(tenant=0, prompt=500, output=min(max(int(source.lognormvariate(4.87, 0.9)), 1), 2_000), arrival=0)
        for _ in range(plan.noisy_queued)
    ]
    quiet = [Job(tenant=1, prompt=500, output=100, arrival=step) for step in range(200, plan.steps, 100)]
    about = f"{plan.noisy_queued} requests of one tenant at once; one of another every 2.5 s"
    arrivals = sorted([*noisy, *quiet], key=lambda job: job.arrival)
    return Case(name="noisy", about=about, arrivals=arrivals, places=plan.places, steps_max=plan.steps, quiet=1)


def _of_trace(name: str, about: str, rows: Sequence[Row], plan: Plan) -> Case:
    source = random.Random(plan.seed)  # noqa: S311 - repeatable, no secret
    shares = [1 / (rank + 1) for rank in range(plan.tenants)]
    tenants = source.choices(range(plan.tenants), weights=shares, k=len(rows))
    span = max(rows[-1].at, 1.0)  # seconds; it shall take the server `overload` times as long to do it all
    steps = math.ceil(sum(row.output for row in rows) / plan.trace_places / plan.overload)
    arrivals = [
        Job(tenant=tenant, prompt=row.prompt, output=row.output, arrival=int(row.at / span * steps))
        for tenant, row in zip(tenants, rows, strict=True)
    ]
    speed = f"{span * 1_000 / plan.step_ms / steps:.2f} times as fast as it was"
    drawn = f"{plan.tenants} tenants drawn with shares 1, 1/2, 1/3 … by seed {plan.seed}"
    return Case(
        name=name, about=f"{about}, {speed}; {drawn}", arrivals=arrivals, places=plan.trace_places,
        steps_max=4 * steps, quiet=plan.tenants - 1,
    )  # fmt: skip


def measures(found: Found) -> list[Measure]:
    """The lines of a run: gap against every rule, and the quiet tenant's p99 wait where the case has one."""
    lines = []
    for case in found.cases:
        outcomes = found.outcomes[case.name]
        for peer in RULES:
            if peer == OURS:
                continue
            lines.append(_line(case.name, "service_gap_tokens", "tokens", _gaps(outcomes), peer))
            if case.quiet is not None:
                waits = _waits(outcomes, case.quiet, found.plan.step_ms)
                lines.append(_line(case.name, "quiet_wait_p99_s", "s", waits, peer))
    return lines


def _line(arrivals: str, metric: str, unit: str, values: Mapping[str, float], peer: str) -> Measure:
    case = {"arrivals": arrivals, "against": peer.replace(" ", "_")}
    return Measure(
        bench=NAME, case=case, metric=metric, value=values[OURS], unit=unit, peer=peer, peer_value=values[peer]
    )


def _gaps(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    return {rule: outcome.gap / MILLI for rule, outcome in outcomes.items()}


def _waits(outcomes: Mapping[str, Outcome], tenant: int, step_ms: int) -> dict[str, float]:
    return {
        rule: percentile([float(wait) for wait in outcome.waits.get(tenant, [outcome.steps])], percent=99)
        * step_ms
        / 1_000
        for rule, outcome in outcomes.items()
    }


def record_rows(found: Found, case: Case) -> list[tuple[str, str]]:
    """What a case was, and each rule's outcome in words."""
    rows = [("arrivals", case.about), ("server", f"{case.places} places, a step every {found.plan.step_ms} ms")]
    for rule, outcome in found.outcomes[case.name].items():
        total = sum(outcome.service.values()) or 1
        shares = " ".join(f"{outcome.service[tenant] / total:.3f}" for tenant in sorted(outcome.service))
        text = f"gap {outcome.gap / MILLI:,.0f} tokens; shares {shares}; places used {outcome.busy:.3f}"
        rows.append((rule, f"{text}; {outcome.steps} steps"))
    gap = found.outcomes[case.name][OURS].gap
    met = "met" if gap <= case.bound else "MISSED"
    rows.append(("bound 2(U + Q + tick)", f"{case.bound / MILLI:,.0f} tokens, Weir {gap / MILLI:,.0f}: {met}"))
    return rows
