"""The parameters of GET /v1/usage: one fault has one message, whoever finds it."""

import pytest

from billing.clickhouse.usage import plan_page
from contracts.errors import InvalidRequest
from gateway.edge.reports import read_query


def plan(limit: str, width: str) -> None:
    """As the route and the report behind it do."""
    query = read_query({"start_time": ["0"], "limit": [limit], "bucket_width": [width]}, now_ms=86_400_000)
    plan_page(
        tenant_id="t", start_ms=query.start_ms, end_ms=query.end_ms, bucket_width=query.bucket_width,
        group_by=(), filters={}, limit=query.limit, page=None,
    )  # fmt: skip


def ask(limit: str, width: str = "1d") -> str:
    """The message for a limit."""
    with pytest.raises(InvalidRequest) as refused:
        plan(limit, width)
    assert refused.value.param == ("limit" if width in ("1m", "1h", "1d") else "bucket_width")
    return refused.value.message


class TestLimit:
    @pytest.mark.parametrize("limit", ["abc", "", "-1", "1.5", "+5", "٣", "0", "32", "10001", "9" * 30, "1\x00"])
    def test_that_cannot_be_is_refused_in_the_same_words(self, limit: str) -> None:
        assert ask(limit) == "limit is a whole number from 1 to 31 for bucket_width 1d"

    def test_names_the_range_of_its_width(self) -> None:
        assert ask("169", "1h") == ask("x", "1h") == "limit is a whole number from 1 to 168 for bucket_width 1h"

    def test_of_no_width_is_about_the_width(self) -> None:
        assert ask("x", "1y") == ask("5", "1y") == "bucket_width is one of 1m, 1h, 1d"
