"""The fairness bench's simulation: its rule is the queue's, by the reference model; and what each rule gives away."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.jobs import Claim
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import StepEntry
from fairqueue.model import PoolModel
from fairqueue.policy import QueueBounds
from infra.bench import fairness
from infra.sim.fairness import RULES, Fcfs, Job, Server, Vtc, Weir
from tests.factories.jobs import make_ticket

STEP_MS = 25
FAR_MS = 10**9


class ByModel:
    """The reference model of the queue as a rule: one worker with room for everything."""

    def __init__(self) -> None:
        self.model = PoolModel(QueueBounds(tombstone_ms=2 * FAR_MS))
        self.jobs: dict[str, tuple[Job, Claim | None]] = {}
        self.now_ms = 0

    def enqueue(self, job: Job) -> None:
        name = f"{len(self.jobs):05}"
        self.jobs[name] = (job, None)
        ticket = make_ticket(name, tenant_id=f"t{job.tenant}", prompt_tokens=job.prompt, max_tokens=job.output)
        self.model.enqueue(
            ticket, now_us=self.now_ms * 1000, size=1, mailbox="m", enqueue_deadline_ms=FAR_MS, weight_milli=1_000,
            queued_max=10**6, expires_at_ms=FAR_MS,
        )  # fmt: skip

    def pick(self, now_ms: int) -> Job | None:
        self.now_ms = now_ms
        claim = self.model.claim(
            now_us=now_ms * 1000,
            worker_id="w",
            nonce=f"n{len(self.model.receipts)}",
            free_kv_tokens=10**9,
            free_slots=99,
        )
        if not isinstance(claim, Claim):
            return None
        job, _ = self.jobs[claim.ticket.request_id]
        self.jobs[claim.ticket.request_id] = (job, claim)
        return job

    def _claim(self, job: Job) -> Claim:
        return next(claim for one, claim in self.jobs.values() if one is job and claim is not None)

    def token(self, job: Job, now_ms: int) -> None:
        claim = self._claim(job)
        entry = StepEntry(
            request_id=claim.ticket.request_id, fence=claim.fence, first_seq=job.made, frames=[b"f"],
            counts=TokenCounts(prompt=job.prompt, completion=job.made), delivered_tokens=job.made, progressed=True,
        )  # fmt: skip
        reply = self.model.step(now_us=now_ms * 1000, worker_id="w", entries=[entry], holding=self.model.held_by("w"))
        assert not reply.stale

    def done(self, job: Job, now_ms: int) -> None:
        claim = self._claim(job)
        ended = self.model.end(
            now_us=now_ms * 1000, request_id=claim.ticket.request_id, fence=claim.fence, last_seq=job.made,
            outcome=Outcome.OK, error_code="", counts=TokenCounts(prompt=job.prompt, completion=job.made),
            delivered_tokens=job.made,
        )  # fmt: skip
        assert ended == "ended"


def started(rule: Any, jobs: list[Job], places: int) -> list[tuple[int, int, int]]:
    """Who was started when, in order."""
    copies = [Job(tenant=job.tenant, prompt=job.prompt, output=job.output, arrival=job.arrival) for job in jobs]
    Server(rule=rule, places=places, step_ms=STEP_MS).run(copies, steps_max=10_000)
    return [(job.started, job.tenant, job.output) for job in sorted(copies, key=lambda job: job.started)]


jobs_of = st.lists(
    st.builds(
        Job,
        tenant=st.integers(0, 2),
        prompt=st.integers(1, 400),
        output=st.integers(1, 90),
        arrival=st.integers(0, 60),
    ),
    min_size=1,
    max_size=14,
).map(lambda jobs: sorted(jobs, key=lambda job: job.arrival))


class TestWeirRule:
    @settings(max_examples=60, deadline=None)
    @given(jobs=jobs_of, places=st.integers(1, 4))
    def test_starts_what_the_reference_model_starts_when_it_does(self, jobs: list[Job], places: int) -> None:
        assert started(Weir(), jobs, places) == started(ByModel(), jobs, places)


class TestRules:
    @pytest.mark.parametrize("name", RULES)
    def test_serve_everything_once_and_leave_no_place_empty(self, name: str) -> None:
        jobs = [Job(tenant=i % 3, prompt=10, output=5 + i % 7, arrival=i // 4) for i in range(60)]
        found = Server(rule=RULES[name](), places=4, step_ms=STEP_MS).run(jobs, steps_max=10_000)
        assert sum(found.service.values()) == sum(job.prompt * 1_000 + job.output * 2_000 for job in jobs)
        assert sum(map(len, found.waits.values())) == len(jobs)
        assert found.busy == 1.0

    def test_differ_in_what_they_let_a_flood_do(self) -> None:
        flood = [Job(tenant=0, prompt=10, output=20, arrival=0) for _ in range(200)]
        quiet = Job(tenant=1, prompt=10, output=20, arrival=5)
        waits = {}
        for rule in (Fcfs, Weir, Vtc):
            jobs = [Job(tenant=job.tenant, prompt=10, output=20, arrival=job.arrival) for job in (*flood, quiet)]
            waits[rule] = Server(rule=rule(), places=4, step_ms=STEP_MS).run(jobs, steps_max=10_000).waits[1]
        assert waits[Weir][0] <= 20 < 900 < waits[Fcfs][0]


class TestBench:
    def test_keeps_the_bound_and_tells_each_rule_on_the_same_arrivals(self) -> None:
        plan = fairness.Plan(rows=300, steps=1_500, places=16, noisy_queued=300)
        cases = fairness.make_cases(plan)
        found = fairness.run(plan=plan, cases=cases, advance=lambda _: None)
        lines = fairness.measures(found)
        gaps = {(line.case["arrivals"], line.peer): line for line in lines if line.metric == "service_gap_tokens"}
        assert set(gaps) == {(case.name, rule) for case in cases for rule in RULES if rule != fairness.OURS}
        for case in cases:
            assert found.outcomes[case.name][fairness.OURS].gap <= case.bound
            assert dict(fairness.record_rows(found, case))["bound 2(U + Q + tick)"].endswith("met")
        against_fcfs = gaps["long_short", "FCFS"]
        assert against_fcfs.ratio is not None
        assert against_fcfs.ratio < 0.5
