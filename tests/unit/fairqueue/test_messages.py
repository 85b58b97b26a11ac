from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from contracts.jobs import Endpoint, Timings
from contracts.tenancy import PolicyRef, ServiceClass
from contracts.tokens import TokenCounts
from contracts.wire import WireError, decode, encode
from fairqueue.keys import PoolKeys, mailbox_channel
from fairqueue.loading import load_pool_scripts
from fairqueue.messages import Ended, Final, Released, decode_mailbox, final_of, pack_verdicts, usage_from_stream
from tests.factories.jobs import make_ticket

TICKET = make_ticket(
    "r1",
    endpoint=Endpoint.COMPLETIONS,
    stream=False,
    include_usage=True,
    policy=PolicyRef(policy_id="policy", version=3),
    service_class=ServiceClass.BATCH,
    admitted_at_ms=5,
    guard_prompt=("prompt:flag:names",),
)
FIELDS = {
    b"ticket": encode(TICKET),
    b"prompt": b"10",
    b"cached": b"4",
    b"completion": b"6",
    b"reasoning": b"2",
    b"delivered": b"6",
    b"outcome": b"guardrail",
    b"finish": b"content_filter",
    b"error": b"",
    b"attempt": b"2",
    b"worker": b"w1",
    b"billed_at_ms": b"77",
    b"queue_us": b"33",
    b"timings": b"",
    b"verdicts": pack_verdicts(["output:block:secrets"]),
    b"log_key": b"logs/r1",
}


class TestUsageFromStream:
    def test_joins_the_ticket_and_the_end(self) -> None:
        record = usage_from_stream(FIELDS)
        assert (record.request_id, record.revision, record.tenant_id) == ("r1", 1, "acme")
        assert record.counts == TokenCounts(prompt=10, cached=4, completion=6, reasoning=2)
        assert (record.outcome, record.attempt, record.worker_id) == ("guardrail", 2, "w1")
        assert (record.policy_id, record.policy_version) == ("policy", 3)
        assert record.verdicts == ("prompt:flag:names", "output:block:secrets")
        assert (record.billed_at_ms, record.log_key, record.service_class) == (77, "logs/r1", "batch")

    def test_knows_the_wait_of_a_request_that_no_worker_ended(self) -> None:
        assert usage_from_stream(FIELDS).timings == Timings(edge_us=11, guard_us=22, queue_us=33)

    def test_takes_the_workers_own_timings_when_it_ended_it(self) -> None:
        timings = Timings(ttft_us=9, itl={3: 4})
        assert usage_from_stream(FIELDS | {b"timings": encode(timings)}).timings == timings

    @pytest.mark.parametrize("cut", [True, False])
    def test_knows_that_the_budget_cut_the_answer(self, cut: bool) -> None:
        record = usage_from_stream(FIELDS | {b"ticket": encode(replace(TICKET, budget_cut=cut))})
        assert final_of(record, cost_nano=0).budget_cut is cut

    @pytest.mark.parametrize(("said", "param"), [({b"param": b"seed"}, "seed"), ({b"param": b""}, ""), ({}, "")])
    def test_names_the_field_that_the_engine_refused(self, said: dict[bytes, bytes], param: str) -> None:
        record = usage_from_stream(FIELDS | said)  # a release before this one writes none
        assert (record.error_param, final_of(record, cost_nano=0).error_param) == (param, param)


class TestFinalOf:
    @pytest.mark.parametrize(
        ("outcome", "error", "status", "code"),
        [
            (b"ok", b"", 200, ""),
            (b"guardrail", b"", 200, "content_policy_violation"),
            (b"cancelled", b"", 499, "request_cancelled"),
            (b"cancelled", b"key_revoked", 401, "key_revoked"),
            (b"expired", b"deadline_exceeded", 504, "deadline_exceeded"),
            (b"failed", b"dead_letter", 502, "dead_letter"),
            (b"failed", b"engine_error", 502, "engine_error"),
        ],
    )
    def test_tells_status_and_code(self, outcome: bytes, error: bytes, status: int, code: str) -> None:
        final = final_of(usage_from_stream(FIELDS | {b"outcome": outcome, b"error": error}), cost_nano=9)
        assert (final.status, final.error_code, final.cost_nano, final.currency) == (status, code, 9, "EUR")
        assert bool(final.error_message) == bool(code)

    def test_survives_the_wire(self) -> None:
        final = final_of(usage_from_stream(FIELDS), cost_nano=9)
        assert decode(Final, encode(final)) == final


class TestDecodeMailbox:
    def test_reads_frames_and_ends_in_order(self) -> None:
        final = final_of(usage_from_stream(FIELDS), cost_nano=9)
        data = msgpack.packb([["f", "r1", "1-n", 4, [b"\xff", b"{}"]], ["e", "r1", "1-n", 5, encode(final)]])
        assert decode_mailbox(data) == [
            Released(request_id="r1", epoch="1-n", first_seq=4, frames=[b"\xff", b"{}"]),
            Ended(request_id="r1", epoch="1-n", last_seq=5, final=final),
        ]

    @pytest.mark.parametrize("data", [b"", b"\xc1", msgpack.packb([["x", "r", "e", 1, []]]), msgpack.packb([[1, 2]])])
    def test_refuses_what_is_no_mailbox_message(self, data: bytes) -> None:
        with pytest.raises(WireError):
            decode_mailbox(data)


class TestKeys:
    def test_of_a_pool_are_in_one_slot(self) -> None:
        keys = PoolKeys("m")
        assert all(key.startswith("w:{p:m}:") for key in (*keys.script_keys, keys.usage, keys.dead, keys.wake("w1")))
        assert len(set(keys.script_keys)) == len(keys.script_keys)

    def test_name_a_gateways_mailbox(self) -> None:
        assert mailbox_channel("g1") == "w:mb:g1"


class TestScripts:
    def test_all_take_the_keys_of_the_pool(self) -> None:
        scripts = load_pool_scripts()
        assert {"enqueue", "claim", "step", "end", "ack", "cancel", "reap", "look"} <= set(scripts)
        assert all(script.keys.fits(len(PoolKeys("m").script_keys)) for script in scripts.values())

    def test_hold_the_shared_functions_that_they_use_and_no_others(self) -> None:
        scripts = load_pool_scripts()
        uses = {name for name, script in scripts.items() if "local function give_up(" in script.text}
        assert uses == {"step", "hand_back", "engine_died", "register", "reap"}
        assert "local function close(" in scripts["reap"].text
        assert scripts["look"].text.count("local function") == 1
