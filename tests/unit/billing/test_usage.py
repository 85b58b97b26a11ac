"""Usage questions: what is refused, the SQL as it is sent, the pages."""

from decimal import Decimal
from typing import Any

import pytest

from billing.clickhouse.usage import LOOKBACK_MS, ROWS_MAX, UsagePlan, lay_out, plan_page
from contracts.errors import InvalidRequest

DAY = 86_400_000
START = 1_800_000_000_000 - 1_800_000_000_000 % DAY

PINNED = """SELECT
    intDiv(toUnixTimestamp64Milli(billed_at), {width_ms:Int64}) * {width_ms:Int64} AS bucket_ms, model_name, api_key_id,
    currency,
    countIf(revision = 1) AS requests,
    sum(prompt_tokens) AS input_tokens,
    sum(cached_tokens) AS cached_tokens,
    sum(completion_tokens) AS output_tokens,
    sum(reasoning_tokens) AS reasoning_tokens,
    sum(cost) AS cost
FROM inference_requests_audit FINAL
WHERE tenant_id = {tenant_id:String}
    AND billed_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({admitted_from_ms:Int64}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
    AND project_id IN {project_id:Array(String)}
GROUP BY bucket_ms, model_name, api_key_id, currency
ORDER BY bucket_ms, model_name, api_key_id, currency
LIMIT {rows_max:UInt32}"""


def plan(**changes: Any) -> UsagePlan:
    question: dict[str, Any] = {
        "tenant_id": "acme",
        "start_ms": START,
        "end_ms": START + 3 * DAY,
        "bucket_width": "1d",
        "group_by": (),
        "filters": {},
        "limit": None,
        "page": None,
    }
    return plan_page(**{**question, **changes})


class TestPlanPage:
    def test_sends_exactly_this_text(self) -> None:
        question = plan(group_by=("model", "api_key_id"), filters={"project_id": ["p'1"], "model": []}).question
        assert question.sql == PINNED
        assert question.params == {
            "tenant_id": "acme",
            "start_ms": START,
            "end_ms": START + 3 * DAY,
            "admitted_from_ms": START - LOOKBACK_MS,
            "width_ms": DAY,
            "rows_max": ROWS_MAX + 1,
            "project_id": ["p'1"],
        }

    def test_cuts_days_on_the_grid_of_utc(self) -> None:
        found = plan(start_ms=START + 5, end_ms=START + 2 * DAY + 1)
        assert found.starts_ms == (START + 5, START + DAY, START + 2 * DAY)
        assert found.next_page is None

    def test_pages_without_gap_or_overlap(self) -> None:
        pages, token = [], None
        while True:
            found = plan(start_ms=START + 5, end_ms=START + 4 * DAY, limit=2, page=token)
            pages.append((found.question.start_ms, found.question.end_ms))
            token = found.next_page
            if token is None:
                break
        assert pages == [(START + 5, START + 2 * DAY), (START + 2 * DAY, START + 4 * DAY)]

    @pytest.mark.parametrize(
        ("change", "param"),
        [
            ({"bucket_width": "1w"}, "bucket_width"),
            ({"group_by": ("user_id",)}, "group_by"),
            ({"group_by": ("model", "model")}, "group_by"),
            ({"start_ms": START + 3 * DAY}, "start_time"),
            ({"start_ms": -1}, "start_time"),
            ({"end_ms": START + 401 * DAY}, "start_time"),
            ({"limit": 0}, "limit"),
            ({"limit": 32}, "limit"),
            ({"page": "page_x"}, "page"),
            ({"page": f"page_{START}"}, "page"),
            ({"page": f"page_{START + 7}"}, "page"),
            ({"page": f"page_{START + 3 * DAY}"}, "page"),
            ({"filters": {"model": ["m"] * 101}}, "models"),
        ],
    )
    def test_names_the_field_it_refuses(self, change: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            plan(**change)
        assert caught.value.param == param

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"start_ms": START + 3 * DAY}, "start_time: must be before end_time, or now"),
            ({"end_ms": START + 401 * DAY}, "start_time: must be at most 400 days before end_time, or now"),
        ],
    )
    def test_says_which_bound_a_range_passes(self, change: dict[str, Any], said: str) -> None:
        with pytest.raises(InvalidRequest, match=said):
            plan(**change)


class TestLayOut:
    def test_is_openai_s_page_with_cost(self) -> None:
        row = {
            "bucket_ms": START + DAY,
            "model_name": "m",
            "currency": "USD",
            "requests": 2,
            "input_tokens": 30,
            "cached_tokens": 10,
            "output_tokens": 7,
            "reasoning_tokens": 1,
            "cost": Decimal("0.000001500000"),
        }
        page = lay_out(plan(group_by=("model",)), [row]).as_json()
        assert page["object"] == "page"
        assert page["has_more"] is False
        assert [len(bucket["results"]) for bucket in page["data"]] == [0, 1, 0]
        assert page["data"][1]["start_time"] == (START + DAY) // 1_000
        assert page["data"][1]["end_time"] == (START + 2 * DAY) // 1_000
        assert page["data"][1]["results"][0] == {
            "object": "organization.usage.completions.result",
            "input_tokens": 30,
            "output_tokens": 7,
            "num_model_requests": 2,
            "input_cached_tokens": 10,
            "output_reasoning_tokens": 1,
            "input_audio_tokens": 0,
            "output_audio_tokens": 0,
            "project_id": None,
            "user_id": None,
            "api_key_id": None,
            "model": "m",
            "batch": None,
            "cost": "0.0000015",
            "currency": "USD",
        }

    def test_refuses_an_answer_that_was_cut(self) -> None:
        with pytest.raises(InvalidRequest, match="too many"):
            lay_out(plan(), [{}] * (ROWS_MAX + 1))
