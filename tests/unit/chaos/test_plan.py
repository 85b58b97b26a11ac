"""A round of chaos is drawn from its seed alone; what clients read is noted as it came."""

from __future__ import annotations

import json
from decimal import Decimal

from infra.chaos.clients import KINDS, read_data, read_whole
from infra.chaos.facts import Connection, EventSeen, Tokens
from infra.chaos.faults import CUT, CUTS, FREEZE, TARGETS
from infra.chaos.output import json_line
from infra.chaos.round import Result, plan_round, seed_of_round

TENANTS = ("Acme", "Bakery")
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 2},
    "cost": "0.0000025",
}


class TestPlan:
    def test_is_the_same_for_the_same_seed_and_no_other(self) -> None:
        first = plan_round(seed=7, count=40, tenants=TENANTS)
        assert first == plan_round(seed=7, count=40, tenants=TENANTS)
        assert first.calls != plan_round(seed=8, count=40, tenants=TENANTS).calls

    def test_can_be_repeated_round_by_round(self) -> None:
        assert seed_of_round(seed=7, number=0) == 7
        assert len({seed_of_round(seed=7, number=number) for number in range(100)}) == 100

    def test_meets_every_kind_of_client_and_fault(self) -> None:
        plans = [plan_round(seed=seed, count=40, tenants=TENANTS) for seed in range(200)]
        faults = [fault for plan in plans for fault in plan.faults]
        assert {call.kind for plan in plans for call in plan.calls} == set(KINDS)
        assert {fault.target for fault in faults} == {*TARGETS, *CUTS}
        assert all((fault.seconds > 0) == (fault.kind in (FREEZE, CUT)) for fault in faults)
        assert all(1 <= len(plan.faults) <= 3 for plan in plans)

    def test_lets_no_two_calls_of_a_round_say_the_same(self) -> None:
        said = [call.said for call in plan_round(seed=3, count=60, tenants=TENANTS).calls]
        assert len(set(said)) == 60


class TestReading:
    def test_notes_ids_text_usage_and_end_of_a_stream(self) -> None:
        seen = Connection()
        read_data(json.dumps({"choices": [{"delta": {"content": "wa"}}]}), "1-ab-cd-1", seen)
        read_data(json.dumps({"choices": [], "usage": USAGE}), "", seen)
        read_data("[DONE]", "", seen)
        assert seen.events == [EventSeen("1-ab-cd", 1, "wa")]
        assert (seen.text, seen.usage, seen.cost, seen.end) == ("wa", Tokens(9, 2, 4), Decimal("0.0000025"), "done")

    def test_notes_an_error_in_the_stream(self) -> None:
        seen = Connection(status=200)
        read_data(json.dumps({"error": {"code": "worker_lost"}}), "", seen)
        assert (seen.end, seen.code) == ("error", "worker_lost")

    def test_notes_a_plain_answer_a_refusal_and_what_is_no_json(self) -> None:
        whole, refused, odd = Connection(status=200), Connection(status=503), Connection(status=502)
        read_whole(json.dumps({"choices": [{"message": {"content": "wa"}}], "usage": USAGE}).encode(), whole)
        read_whole(b'{"error": {"code": "queue_full"}}', refused)
        read_whole(b"<html>", odd)
        assert (whole.end, whole.text, whole.usage) == ("done", "wa", Tokens(9, 2, 4))
        assert (refused.end, refused.code) == ("error", "queue_full")
        assert (odd.end, odd.code) == ("error", "not_json")


class TestJsonLine:
    def test_counts_what_faults_hit_and_not_what_they_spared(self) -> None:
        result = Result(plan=plan_round(seed=1, count=1, tenants=TENANTS))
        result.hit = ["kill -9 worker: worker-1 (5)", "kill -9 meter: spared: none runs"]
        document = json.loads(json_line([result], seed=1, engine="simulated"))
        assert document["faults"] == {"kill -9 worker": {"times": 1, "broken_rounds": 0}}
        assert (document["rounds"], document["violations"]) == (1, [])
