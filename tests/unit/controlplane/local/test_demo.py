"""How the demo request reads a stream."""

from __future__ import annotations

import pytest

from controlplane.local.demo import DemoFailed, Measured, parse_events
from controlplane.local.doctor import hide_password


class TestParseEvents:
    def test_reads_events_up_to_done(self) -> None:
        lines = [": heartbeat", "", 'data: {"a": 1}', "", 'data: {"a": 2}', "data: [DONE]", 'data: {"a": 3}']
        assert list(parse_events(iter(lines))) == [{"a": 1}, {"a": 2}]

    def test_refuses_a_stream_that_breaks_off(self) -> None:
        with pytest.raises(DemoFailed, match="without"):
            list(parse_events(iter(['data: {"a": 1}'])))

    def test_says_what_an_error_event_says(self) -> None:
        with pytest.raises(DemoFailed, match="engine is gone"):
            list(parse_events(iter(['data: {"error": {"message": "the engine is gone"}}'])))


class TestMeasured:
    def test_counts_the_rate_after_the_first_token(self) -> None:
        measured = Measured(ttft=1.0, seconds=3.0, usage={"completion_tokens": 21})
        assert measured.tokens_per_second == 10.0

    def test_has_no_rate_for_one_token(self) -> None:
        assert Measured(ttft=1.0, seconds=1.0, usage={"completion_tokens": 1}).tokens_per_second is None

    def test_reads_cached_tokens_where_they_are_sent(self) -> None:
        assert Measured(usage={"prompt_tokens_details": {"cached_tokens": 128}}).cached_tokens == 128
        assert Measured(usage={"prompt_tokens_details": None}).cached_tokens == 0


class TestHidePassword:
    def test_never_shows_a_password(self) -> None:
        assert hide_password("redis://:secret@127.0.0.1:6379/0") == "redis://:…@127.0.0.1:6379/0"

    def test_leaves_a_url_without_one_as_it_is(self) -> None:
        assert hide_password("chdb+unix:///run/meter.sock") == "chdb+unix:///run/meter.sock"
