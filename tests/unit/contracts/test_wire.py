"""Wire messages: what is written is read back, by this release and its neighbours."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.jobs import Endpoint, Ticket, Timings, UsageRecord
from contracts.money import PriceCard
from contracts.tenancy import PolicyRef, ServiceClass
from contracts.tokens import TokenCounts
from contracts.wire import VERSION, WireError, decode, encode

text = st.text(max_size=20)
natural = st.integers(min_value=0, max_value=2**53)
prices = st.builds(PriceCard, card_id=text, currency=text, input_nano=natural, cached_nano=natural, output_nano=natural)
tickets = st.builds(
    Ticket,
    request_id=text, tenant_id=text, project_id=text, api_key_id=text, pool=text, model=text,
    endpoint=st.sampled_from(Endpoint), body=st.binary(max_size=50), stream=st.booleans(), include_usage=st.booleans(),
    prompt_tokens=natural, max_tokens=natural, choices=natural, cache_salt=text, price=prices,
    policy=st.none() | st.builds(PolicyRef, policy_id=text, version=natural),
    service_class=st.sampled_from(ServiceClass), admitted_at_ms=natural, edge_us=natural, guard_us=natural,
    evaluation_log=st.booleans(), guard_prompt=st.tuples(text, text),
)  # fmt: skip
counts = st.builds(
    lambda prompt, cached, completion: TokenCounts(prompt=prompt + cached, cached=cached, completion=completion),
    natural, natural, natural,
)  # fmt: skip
timings = st.builds(Timings, itl=st.dictionaries(st.integers(0, 200), natural, max_size=5), ttft_us=natural)
records = st.builds(
    UsageRecord,
    request_id=text, revision=natural, tenant_id=text, project_id=text, api_key_id=text, pool=text, model=text,
    endpoint=text, service_class=text, admitted_at_ms=natural, billed_at_ms=natural, counts=counts,
    delivered_tokens=natural, outcome=text, finish_reason=text, error_code=text, attempt=natural, worker_id=text,
    price=prices, timings=timings, policy_id=text, policy_version=natural, verdicts=st.tuples(text),
    stream=st.booleans(),
    end_user_hash=text,
)  # fmt: skip


class TestRoundTrip:
    @given(tickets)
    def test_a_ticket_comes_back_equal(self, ticket: Ticket) -> None:
        assert decode(Ticket, encode(ticket)) == ticket

    @given(records)
    def test_a_usage_record_comes_back_equal(self, record: UsageRecord) -> None:
        assert decode(UsageRecord, encode(record)) == record


class TestOtherReleases:
    def _body(self) -> dict[str, object]:
        return {"policy_id": "p", "version": 3}

    def test_a_field_of_a_newer_release_is_ignored(self) -> None:
        data = msgpack.packb([VERSION, {**self._body(), "colour": "red"}])
        assert decode(PolicyRef, data) == PolicyRef(policy_id="p", version=3)

    def test_the_version_before_is_read(self) -> None:
        assert decode(PolicyRef, msgpack.packb([VERSION - 1, self._body()])) == PolicyRef(policy_id="p", version=3)

    @pytest.mark.parametrize("version", [VERSION + 1, VERSION - 2, None])
    def test_any_other_version_is_refused(self, version: int | None) -> None:
        with pytest.raises(WireError, match="version"):
            decode(PolicyRef, msgpack.packb([version, self._body()]))

    def test_a_missing_field_is_named(self) -> None:
        with pytest.raises(WireError, match="missing required field `version`"):
            decode(PolicyRef, msgpack.packb([VERSION, {"policy_id": "p"}]))

    @pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", msgpack.packb([VERSION, 7])])
    def test_garbage_is_refused(self, data: bytes) -> None:
        with pytest.raises(WireError):
            decode(PolicyRef, data)

    def test_a_value_that_breaks_an_invariant_is_refused(self) -> None:
        with pytest.raises(WireError, match="cached"):
            decode(TokenCounts, msgpack.packb([VERSION, {"prompt": 1, "cached": 2}]))
