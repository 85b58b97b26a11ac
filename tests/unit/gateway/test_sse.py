import json

from openai._streaming import SSEDecoder

from fairqueue.messages import Place
from gateway.stream import sse
from tests.unit.gateway.frames import content, frame


def decode(data: bytes) -> list[tuple[str | None, str]]:
    return [(event.id, event.data) for event in SSEDecoder().iter_bytes(iter([data]))]


class TestSse:
    def test_writes_events_byte_for_byte(self) -> None:
        written = sse.events(epoch="2-nonce", first_seq=7, frames=[b'{"a":1}', b'{"b":2}'])
        assert written == b'id: 2-nonce-7\ndata: {"a":1}\n\nid: 2-nonce-8\ndata: {"b":2}\n\n'

    def test_is_read_by_the_openai_sdk_with_heartbeats_anywhere(self) -> None:
        one = frame(content("🦊 日本"))
        stream = (
            sse.QUEUED
            + sse.PING
            + sse.events(epoch="1-x", first_seq=1, frames=[one])
            + sse.PING
            + sse.PING
            + sse.events(epoch="1-x", first_seq=2, frames=[one])
            + sse.DONE
        )
        events = decode(stream)
        assert [data for _, data in events] == [one.decode(), one.decode(), "[DONE]"]
        assert [name for name, _ in events[:2]] == ["1-x-1", "1-x-2"]

    def test_comments_have_exactly_one_line_end(self) -> None:
        assert (sse.QUEUED, sse.PING) == (b": queued\n", b": ping\n")

    def test_a_waiting_request_is_told_its_place_in_one(self) -> None:
        told = sse.waiting(Place(position=3, waited_ms=1_004, wait_ms=5_200))
        assert told == b": queued position=3 waited_ms=1004 wait_ms=5200\n"
        assert sse.waiting(Place(position=1, waited_ms=0, wait_ms=None)) == b": queued position=1 waited_ms=0\n"
        assert decode(told + sse.DONE) == decode(sse.DONE)

    def test_an_event_of_its_own_has_no_id(self) -> None:
        assert sse.data({"error": {"message": "é"}}) == 'data: {"error":{"message":"é"}}\n\n'.encode()
        assert json.loads(decode(sse.data({"choices": []}))[0][1]) == {"choices": []}

    def test_event_ids_come_back_although_a_nonce_may_hold_dashes(self) -> None:
        assert sse.parse_event_id("3-a-_b-12") == ("3-a-_b", 12)

    def test_what_is_no_event_id_is_none(self) -> None:
        wrong = ["", "x", "-1", "1-", "a-b", "a--1x", "a-\uff19", "e-" + "9" * 10, "n" * 65 + "-1"]
        assert [sse.parse_event_id(text) for text in wrong] == [None] * len(wrong)
