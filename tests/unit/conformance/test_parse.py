"""Answers and events out of bytes: several in a row, cut anywhere, and what is no answer kept apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.conformance.parse import parse_answers, parse_events, sdk_sees

PLAIN = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nX-A: b\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
TO_THE_END = b"HTTP/1.0 200 OK\r\n\r\nall of it"


class TestParseAnswers:
    def test_reads_several_in_a_row(self) -> None:
        parsed = parse_answers(PLAIN + CHUNKED + PLAIN, ended=False)
        assert [(answer.status, answer.body) for answer in parsed.answers] == [
            (404, b"{}"),
            (200, b"abcde"),
            (404, b"{}"),
        ]
        assert parsed.answers[1].pieces == 2
        assert parsed.answers[0].header("x-a") == "b"
        assert parsed.rest == b""

    def test_keeps_interim_answers_apart(self) -> None:
        parsed = parse_answers(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, ended=False)
        assert parsed.interim == (100,)
        assert [answer.status for answer in parsed.answers] == [404]

    def test_takes_an_answer_without_a_length_for_whole_at_the_end_alone(self) -> None:
        assert not parse_answers(TO_THE_END, ended=False).answers[0].complete
        assert parse_answers(TO_THE_END, ended=True).answers[0].complete

    def test_reads_no_body_of_a_head(self) -> None:
        parsed = parse_answers(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + PLAIN, ended=False, methods=("HEAD",))
        assert [answer.status for answer in parsed.answers] == [200, 404]

    def test_shows_bytes_that_are_no_answer(self) -> None:
        parsed = parse_answers(PLAIN + b"{bare bytes}", ended=True)
        assert parsed.rest == b"{bare bytes}"

    @given(st.integers(min_value=0, max_value=len(PLAIN + CHUNKED)))
    def test_finds_no_more_in_a_part_than_in_the_whole(self, cut: int) -> None:
        whole = PLAIN + CHUNKED
        parsed = parse_answers(whole[:cut], ended=False)
        assert [answer.status for answer in parsed.answers] == [404, 200][: len(parsed.answers)]
        assert parsed.whole == (cut >= len(PLAIN)) + (cut == len(whole))


class TestEvents:
    def test_are_blocks_with_fields(self) -> None:
        events = list(parse_events(": queued\n\nid: 1\ndata: a\ndata: b\n\ndata:c\r\n\r\nretry: 5\n\n"))
        assert [event.data for event in events] == ["a\nb", "c", None]
        assert events[0].fields[0] == ("id", "1")

    @pytest.mark.parametrize(
        ("stream", "handed"),
        [
            ("data: 1\n\n: ping\n\ndata: 2\n\n", ["1", "2"]),
            ("id: 7\ndata: 1\n\n: ping\ndata: 2\n\n", ["1", "2"]),
            ("id: 7\ndata: 1\n\n: ping\n\ndata: 2\n\n", ["1", "", "2"]),
        ],
        ids=["comments without ids", "a comment in a block", "a comment as a block after an id"],
    )
    def test_are_handed_to_the_parser_as_the_sdk_does(self, stream: str, handed: list[str]) -> None:
        assert sdk_sees(stream) == handed

    def test_of_the_sdk_are_those_of_its_own_decoder(self) -> None:
        from openai._streaming import SSEDecoder

        for stream in ("id: 7\ndata: 1\n\n: ping\n\ndata: 2\n\n", "data: 1\n\n: ping\n\n", "event: x\ndata: 1\n\n"):
            decoder = SSEDecoder()
            found = [event.data for event in decoder.iter_bytes(iter([stream.encode()]))]
            assert sdk_sees(stream) == found
