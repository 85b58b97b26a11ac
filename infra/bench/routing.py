"""Bench `routing`: which engine should take a request? Weir's queue and seven other policies on the same arrivals.

Called by `manage.py bench routing`. No sockets and no clock: `infra.sim.routing` serves the same requests once under
each policy; for `weir` the production reference model of the queue decides. Workloads made from a seed: `even` tenants
with a long system prompt each, one `hot` tenant, `zipf`, `multi_turn` chat, `no_reuse`; with `--trace FILE`,
Mooncake's traces.

Two candidates run beside: `weir two bounds` (a worker takes only so many uncached tokens at a time, and more of what it
holds the prefix of; tuned on another seed) and `cost rule` (the least time to the first token, by rates). They are what
could be, not what runs, and no peer.

Invariant: every policy gets the same requests, engines and knowledge; the peer of a number is the best other policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.bench.output import Measure
from infra.bench.stats import percentile
from infra.sim.routing.run import CANDIDATES, OURS, POLICIES, TWO_BOUNDS, Outcome, run
from infra.sim.routing.workers import EngineModel
from infra.sim.routing.workloads import Workload, multi_turn, no_reuse, of_trace, shared_prefixes

NAME = "routing"
AIM = 1.1
MILLI = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes; rates in requests a second for eight engines of the stated model, near what they can carry."""

    traces: Sequence[Path] = ()
    rows: int = 2_000
    workers: int = 8
    seed: int = 1
    model: EngineModel = field(default_factory=EngineModel)
    even: float = 40.0
    hot: float = 50.0
    zipf: float = 60.0
    turns: float = 60.0
    fresh: float = 45.0
    trace_load: float = 0.6  # of what all engines can prefill, in tokens that no cache could have

    @property
    def warm_up(self) -> int:
        return self.rows // 4


@dataclass(slots=True, kw_only=True)
class Found:
    """All of a whole run: outcomes by workload and policy."""

    plan: Plan
    workloads: list[Workload]
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)


def make_workloads(plan: Plan) -> list[Workload]:
    """Every workload of the plan. Raises NoPrefixes, OSError."""
    shape = {"seed": plan.seed, "rows": plan.rows}
    made = [
        shared_prefixes(name="even", per_second=plan.even, weight=lambda _: 1.0, **shape),
        # 60 % of all requests are of one tenant
        shared_prefixes(name="hot", per_second=plan.hot, weight=lambda t: 1.5 * 149 if t == 0 else 1.0, **shape),
        shared_prefixes(name="zipf", per_second=plan.zipf, weight=lambda t: 1 / (t + 1), **shape),
        multi_turn(per_second=plan.turns, **shape),
        no_reuse(per_second=plan.fresh, **shape),
    ]
    rate = plan.trace_load * plan.workers * plan.model.prefill_tokens_per_s
    return made + [of_trace(path, tokens_per_s=rate, **shape) for path in plan.traces]


def run_all(*, plan: Plan, workloads: list[Workload], advance: Callable[[int], None]) -> Found:
    """Every workload under every policy."""
    found = Found(plan=plan, workloads=workloads)
    for workload in workloads:
        for policy in POLICIES:
            outcome = run(
                workload.requests, policy=policy, model=plan.model, workers=plan.workers, seed=plan.seed,
                warm_up=min(plan.warm_up, len(workload.requests) // 4),
            )  # fmt: skip
            found.outcomes.setdefault(workload.name, {})[policy] = outcome
            advance(1)
    return found


def measures(found: Found) -> list[Measure]:
    """Four numbers for each workload and policy; the peer is the best other policy in that number."""
    lines = []
    for workload, outcomes in found.outcomes.items():
        for policy in outcomes:
            for metric, unit in (
                ("ttft_p90_ms", "ms"), ("ttft_p99_ms", "ms"), ("hit_rate", "part"), ("fairness_gap", "tokens"),
            ):  # fmt: skip
                peer = best_other(outcomes, metric, but=policy)
                lines.append(
                    Measure(
                        bench=NAME, metric=metric, unit=unit, case={"workload": workload, "policy": policy},
                        value=number(outcomes[policy], metric), peer=peer, peer_value=number(outcomes[peer], metric),
                    )
                )  # fmt: skip
    return lines


def number(outcome: Outcome, metric: str) -> float:
    """One of the four."""
    if metric == "hit_rate":
        return outcome.hit_rate
    if metric == "fairness_gap":
        return outcome.gap / MILLI
    return percentile(outcome.ttft, percent=90 if metric == "ttft_p90_ms" else 99) * MILLI


def best_other(outcomes: dict[str, Outcome], metric: str, *, but: str) -> str:
    """The best policy that is somebody's, apart from `but`."""
    others = [name for name in outcomes if name != but and name not in CANDIDATES]
    best = max if metric == "hit_rate" else min
    return best(others, key=lambda name: number(outcomes[name], metric))


def verdict_rows(found: Found) -> list[tuple[str, str]]:
    """Weir, and what it could be, against the aim by p90 of the first token: near the best, and never the worst."""
    rows = []
    for workload, outcomes in found.outcomes.items():
        times = {name: number(outcome, "ttft_p90_ms") for name, outcome in outcomes.items()}
        others = [times[name] for name in outcomes if name != OURS and name not in CANDIDATES]
        best = best_other(outcomes, "ttft_p90_ms", but=OURS)
        for ours in (OURS, TWO_BOUNDS):
            ratio, worst = times[ours] / times[best], times[ours] >= max(others)
            met = "met" if ratio <= AIM and not worst else "MISSED"
            said = (
                f"{times[ours]:.0f} ms, {best} {times[best]:.0f} ms: {ratio:.2f} of it{', the worst' if worst else ''}"
            )
            rows.append((f"{workload}, {ours}: p90 within {AIM}", f"{said}: {met}"))
    return rows


def record_rows(found: Found, workload: Workload) -> list[tuple[str, str]]:
    """What was offered, and how each policy did."""
    rows = [("arrivals", workload.about)]
    for policy, outcome in found.outcomes[workload.name].items():
        p50, p90, p99 = (percentile(outcome.ttft, percent=part) * MILLI for part in (50, 90, 99))
        spread = f"{min(outcome.by_worker)} to {max(outcome.by_worker)} requests a worker"
        text = f"first token p50 {p50:,.0f}, p90 {p90:,.0f}, p99 {p99:,.0f} ms; hit rate {outcome.hit_rate:.3f}"
        rows.append((policy, f"{text}; gap {outcome.gap / MILLI:,.0f} tokens; {spread}; {outcome.seconds:,.0f} s"))
    return rows


def model_rows(plan: Plan) -> list[tuple[str, str]]:
    """What an engine is taken to be."""
    model = plan.model
    return [
        ("engines", f"{plan.workers}, simulated"),
        ("prefill", f"{model.prefill_tokens_per_s:,.0f} tokens/s, one prompt after the other"),
        ("decode", f"{model.step * MILLI:g} ms a step and {model.step_each * MILLI:g} ms for each running request"),
        ("sequences", str(model.slots)),
        ("cache", f"{model.cache_tokens:,} tokens, least recently used first out; told to every policy at once"),
        ("warm-up", f"the first quarter of the requests is served and not counted (seed {plan.seed})"),
        ("gap", "service is counted when a prompt is begun, whole; looked at four times a second"),
    ]
