"""What the settler tells of a request whose worker died between its end and its last word."""

from __future__ import annotations

import pytest

from contracts.outcomes import Outcome
from fairqueue.messages import final_of
from gateway.settlement import told
from tests.factories.jobs import make_record
from workers import verdict
from workers.engines.base import EngineRefused
from workers.refusals import explain
from workers.verdict import Verdict

_REFUSED = [
    explain(EngineRefused("longer than the maximum model length", param="max_tokens"), {"messages": []}),
    explain(EngineRefused("temperature is wrong"), {"temperature": 1}),
    explain(EngineRefused("xgrammar cannot"), {"response_format": {}}),
    explain(EngineRefused("?"), {}),
]


class TestTold:
    @pytest.mark.parametrize("said", [*_REFUSED, verdict.NO_POLICY])
    def test_is_the_status_and_code_that_the_worker_would_have_told(self, said: Verdict) -> None:
        record = make_record(
            outcome=said.outcome.value, error_code=said.error_code, error_param=said.param, finish_reason=""
        )
        final = told(record, cost_nano=0)
        assert (final.status, final.error_code, final.error_param) == (said.status, said.error_code, said.param)
        assert "worker" not in final.error_message

    @pytest.mark.parametrize(
        "said", [verdict.LOST, verdict.BROKE, verdict.OK, verdict.BLOCKED, *verdict.ABORTED.values()]
    )
    def test_is_the_queue_s_own_for_all_else(self, said: Verdict) -> None:
        record = make_record(outcome=said.outcome.value, error_code=said.error_code)
        assert told(record, cost_nano=7) == final_of(record, cost_nano=7)

    def test_never_makes_a_whole_answer_a_refusal(self) -> None:
        assert told(make_record(error_code="invalid_value"), cost_nano=0).outcome is Outcome.OK
        assert told(make_record(error_code="invalid_value"), cost_nano=0).status == 200
