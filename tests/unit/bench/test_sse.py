"""Reading recorded answers: the same events however the network cut them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench.sse import BadAnswer, Event, Part, is_whole, read_body, read_events, read_head

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WAVE = "🌊".encode()
PAYLOADS = (
    b": queued\n\n",
    b"data: one\n\n",
    b": ping\n",
    b"id: 1-2\ndata: " + WAVE + b"\r\n\r\n",
    b"data: [DONE]\n\n",
)


def framed(payloads: tuple[bytes, ...]) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(payload), payload) for payload in payloads)
    return HEAD + chunks + b"0\r\n\r\n"


def cut(data: bytes, places: list[int]) -> list[Part]:
    edges = [0, *sorted(place % len(data) for place in places), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    return [Part(float(number), piece) for number, piece in enumerate(pieces) if piece]


def events_of(parts: list[Part]) -> list[Event]:
    head = read_head(b"".join(part.data for part in parts))
    assert head is not None
    return read_events(read_body(parts, head=head))


class TestReadEvents:
    @given(st.lists(st.integers(min_value=0), max_size=40))
    def test_finds_the_same_events_in_every_split(self, places: list[int]) -> None:
        events = events_of(cut(framed(PAYLOADS), places))
        assert [event.data for event in events] == [b"one", WAVE, b"[DONE]"]
        assert [event.at for event in events] == sorted(event.at for event in events)

    @given(st.lists(st.binary(min_size=1, max_size=30), max_size=12), st.lists(st.integers(min_value=0), max_size=20))
    def test_gives_back_any_chunks_whole(self, payloads: list[bytes], places: list[int]) -> None:
        parts = cut(framed(tuple(payloads)), places)
        head = read_head(b"".join(part.data for part in parts))
        assert head is not None
        assert [piece.data for piece in read_body(parts, head=head)] == payloads

    def test_gives_an_event_the_time_of_its_last_byte(self) -> None:
        data = framed((b"data: one\n\n", b"data: two\n\n"))
        end_of_first = data.index(b"one\n\n") + len(b"one\n\n")
        parts = [Part(1.0, data[: end_of_first - 1]), Part(2.0, data[end_of_first - 1 :])]
        assert [event.at for event in events_of(parts)] == [2.0, 2.0]
        parts = [Part(1.0, data[:end_of_first]), Part(2.0, data[end_of_first:])]
        assert [event.at for event in events_of(parts)] == [1.0, 2.0]

    def test_joins_the_data_lines_of_one_event(self) -> None:
        assert read_events([Part(0.0, b"data: a\ndata: b\n\n")]) == [Event(0.0, b"a\nb")]

    def test_passes_over_an_event_that_is_not_finished(self) -> None:
        assert read_events([Part(0.0, b"data: a\n\ndata: b\n")]) == [Event(0.0, b"a")]


class TestIsWhole:
    def test_sees_the_end_of_a_chunked_answer_and_no_earlier(self) -> None:
        data = framed(PAYLOADS)
        head = read_head(data)
        assert head is not None
        ends = [
            length
            for length in range(head.length, len(data) + 1)
            if is_whole(head=head, received=length, tail=data[:length])
        ]
        assert ends == [len(data)]

    def test_counts_the_bytes_of_a_plain_answer(self) -> None:
        head = read_head(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n")
        assert head is not None
        assert head.status == 404
        assert not is_whole(head=head, received=head.length + 1, tail=b"")
        assert is_whole(head=head, received=head.length + 2, tail=b"")


class TestBadAnswers:
    def test_waits_for_the_rest_of_a_head(self) -> None:
        assert read_head(b"HTTP/1.1 200 OK\r\nA: b\r\n") is None

    def test_refuses_what_is_not_http(self) -> None:
        with pytest.raises(BadAnswer, match="not a status line"):
            read_head(b"SSH-2.0-x\r\n\r\n")

    @pytest.mark.parametrize("body", [b"5\r\nab", b"zz\r\nab\r\n", b""])
    def test_refuses_broken_chunks(self, body: bytes) -> None:
        head = read_head(HEAD)
        assert head is not None
        with pytest.raises(BadAnswer):
            read_body([Part(0.0, HEAD + body)], head=head)
