"""What a hold leaves for settlement."""

from dataclasses import replace

from tenants.limits.holds import HoldHint
from tests.factories.jobs import make_record


class TestHoldHint:
    def test_names_the_model_whose_own_limits_count_the_request_and_its_times(self) -> None:
        record = replace(make_record(), project_id="p", api_key_id="k", admitted_at_ms=7, billed_at_ms=9, model="m")
        hint = HoldHint(project_id="p", api_key_id="k", admitted_at_ms=7, ended_at_ms=9, model="m")
        assert HoldHint.of(record) == hint
