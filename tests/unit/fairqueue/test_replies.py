"""What a client reads that the queue has no room for: the whole sentence, of every bound."""

import pytest

from contracts.errors import QueueFull
from fairqueue.policy import RETRY_AFTER_UNKNOWN_MS
from fairqueue.replies import FULL_TEXT, enqueued

OPERATORS = (
    "only an operator raises it, as `queued_max` at /api/v1/tenants or /api/v1/plans of the management API, or under "
    "Tenants or Plans in the console."
)
SMALLER = "no setting raises it, and a smaller request may fit."
SAID = {
    "blocked": f"Blocked: the limit on waiting requests of the organization is 0; {OPERATORS}",
    "tenant": "Limit on waiting requests of the organization for this model reached: limit 50, waiting 45, "
    f"requested 7; {OPERATORS}",
    "tenant_tokens": "Limit on waiting tokens of the organization for this model reached: limit 50, waiting 45, "
    f"requested at most 7; {SMALLER}",
    "tenant_bytes": "Limit on bytes of waiting requests of the organization for this model reached: limit 50, "
    f"waiting 45, requested 7; {SMALLER}",
    "pool": "The queue of this model is full: limit 50 for all customers together, requested 7; no setting raises it, "
    "and it has room again as requests begin to run.",
    "tokens": "The queue of this model has no room for so many tokens: limit 50 for all customers together, "
    f"requested 7; {SMALLER}",
    "bytes": "The queue of this model has no room for so many bytes: limit 50 for all customers together, "
    f"requested 7; {SMALLER}",
}


class TestQueueFull:
    def test_is_asked_about_for_every_bound(self) -> None:
        assert set(SAID) == set(FULL_TEXT)

    @pytest.mark.parametrize("bound", SAID)
    def test_names_the_limit_its_value_what_waits_and_is_asked_and_where_it_is_raised(self, bound: str) -> None:
        window, share, figures = [0] * 5, [1, 1, 4, 0], [50, 45, 7]
        with pytest.raises(QueueFull) as caught:
            enqueued([b"full", bound.encode(), *window, *share, *figures])
        again = None if bound == "blocked" else RETRY_AFTER_UNKNOWN_MS
        assert (str(caught.value), caught.value.retry_after_ms) == (SAID[bound], again)

    @pytest.mark.parametrize("bound", [bound for bound in SAID if bound not in ("blocked", "tenant")])
    def test_promises_no_time_to_what_never_fits(self, bound: str) -> None:
        with pytest.raises(QueueFull) as caught:
            enqueued([b"full", bound.encode(), *[0] * 5, *[1, 0, 4, 0], *[50, 0, 51]])
        assert caught.value.retry_after_ms is None

    @pytest.mark.parametrize("bound", ["pool", "tokens", "bytes"])
    def test_says_nothing_of_how_much_others_have_waiting(self, bound: str) -> None:
        assert "{used}" not in FULL_TEXT[bound]
