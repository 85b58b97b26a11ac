"""What a refused client reads: the whole sentence, of every metric and every scope."""

import pytest

from contracts.errors import BudgetSpent
from contracts.tenancy import Limit, Metric, Scope
from tenants.limits import policy
from tenants.limits.holds import RateLimited
from tenants.limits.policy import EVER, GRAINS, RULES, Kind, Reading
from tenants.limits.refusal import blocked, refused, too_many
from tests.functional.tenants.cast import NOON, request

BY_CUSTOMERS = "it is raised at /api/v1/limits of the management API, or by an operator under Limits in the console"
BY_OPERATORS = "only an operator raises it, at /api/v1/limits of the management API or under Limits in the console"
BY_CREDIT = "more credit raises it: an operator books it under Credit grants in the console"
OWNERS = [
    (Scope.KEY, None, "of the API key", BY_CUSTOMERS),
    (Scope.PROJECT, "m-1", "of the project for the model m-1", BY_CUSTOMERS),
    (Scope.TENANT, None, "of the organization", BY_OPERATORS),
]
MONEY = (
    "limit 0.000000029 USD, used 0.000000005 USD, held by requests under way 0.000000004 USD, "
    "requested at most 0.000001 USD"
)
# Of a cap of 29 with 5 used and 4 held: 10 tokens come, at most 20 go, for at most 1,000 nano-units.
SAID = {
    Metric.REQUESTS_PER_MINUTE: ("requests per minute", "requested at most 1"),
    Metric.INPUT_TOKENS_PER_MINUTE: ("input tokens per minute", "requested at most 10"),
    Metric.OUTPUT_TOKENS_PER_MINUTE: ("output tokens per minute", "requested at most 20"),
    Metric.CONCURRENT_REQUESTS: ("concurrent requests", "requested at most 1"),
    Metric.QUEUED_REQUESTS: ("queued requests", "requested at most 1"),
    Metric.TOKENS_PER_DAY: ("tokens per day", "requested at most 30"),
    Metric.TOKENS_PER_MONTH: ("tokens per month", "requested at most 30"),
    Metric.SPEND_PER_DAY: ("spend per day", MONEY),
    Metric.SPEND_PER_MONTH: ("spend per month", MONEY),
    Metric.SPEND_LIFETIME: ("lifetime spend", MONEY),
    Metric.PREPAID_CREDIT: ("prepaid credit", MONEY),  # of an organization only
    Metric.MAX_TOKENS_PER_REQUEST: ("max_tokens per request", ""),  # compared by the gateway, held by nobody
}


CASES = [
    (
        Limit(scope=scope, metric=metric, cap=29, model=model),
        f"{unit} {whose}",
        figures,
        BY_CREDIT if metric is Metric.PREPAID_CREDIT else raised,
    )
    for metric, (unit, figures) in SAID.items()
    for scope, model, whose, raised in OWNERS
]


def refusal(limit: Limit) -> RateLimited | BudgetSpent:
    """Of one more request, where 5 are used and 4 held; a bucket counts in grains, and one that began counts whole."""
    bucket = RULES[limit.metric].kind in (Kind.RATE, Kind.OUTPUT)
    reading = Reading(used=5 * GRAINS - 1 if bucket else 5, held=4)
    window = EVER
    if policy.is_calendar(limit.metric):
        window = policy.window_of(metric=limit.metric, timezone="UTC", now_ms=NOON)
    told = refused(request(1, limit), [window], [0], [reading], NOON)
    assert isinstance(told, RateLimited | BudgetSpent)
    return told


class TestRefusal:
    def test_is_asked_about_for_every_metric(self) -> None:
        assert set(SAID) == set(Metric)

    @pytest.mark.parametrize(("limit", "what", "figures", "raised"), CASES)
    def test_names_the_limit_its_value_what_is_used_and_asked_and_where_it_is_raised(
        self, limit: Limit, what: str, figures: str, raised: str
    ) -> None:
        if limit.metric is Metric.MAX_TOKENS_PER_REQUEST:
            assert too_many(limit, asked=30) == f"30 asked for, and the limit on {what} is 29; {raised}"
            return
        told = refusal(limit)
        if figures is not MONEY:
            figures = f"limit 29, used 5, held by requests under way 4, {figures}"
        assert str(told) == f"Limit on {what} reached: {figures}; {raised}."
        assert isinstance(told, BudgetSpent) is (figures is MONEY)

    @pytest.mark.parametrize(("limit", "what", "figures", "raised"), CASES)
    def test_says_of_a_limit_of_zero_that_it_blocks(self, limit: Limit, what: str, figures: str, raised: str) -> None:
        zero = Limit(scope=limit.scope, metric=limit.metric, cap=0, model=limit.model)
        said = f"Blocked: the limit on {what} is 0; {raised}."
        assert blocked(zero) == said
        if zero.metric is not Metric.MAX_TOKENS_PER_REQUEST:
            told = refusal(zero)
            assert (str(told), told.retry_after_ms) == (said, None)
