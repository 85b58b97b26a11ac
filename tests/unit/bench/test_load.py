"""What the load generator makes of a recorded answer."""

import json

import pytest

from infra.bench.load import Answer, Target, read_answer
from infra.bench.sse import Part, read_head


def event(**document: object) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def delta(text: str, *, finish: str | None = None) -> bytes:
    return event(id="chatcmpl-1", choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def answer_of(*pieces: bytes, status: str = "200 OK") -> Answer:
    """Each piece comes one second after the one before; the request was written at 100."""
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    parts = [Part(100.0 + number, data) for number, data in enumerate([head, *chunks, b"0\r\n\r\n"])]
    read = read_head(head)
    assert read is not None
    return read_answer(written=100.0, head=read, parts=parts)


class TestReadAnswer:
    def test_times_the_first_text_not_the_first_event(self) -> None:
        role = event(id="chatcmpl-1", choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        answer = answer_of(
            b": queued\n\n",
            role,
            delta("Hi "),
            delta("水"),
            delta("", finish="stop"),
            event(choices=[], usage=USAGE),
            b"data: [DONE]\n\n",
        )
        assert answer.failure == ""
        assert (answer.text, answer.finish_reason, answer.request_id) == ("Hi 水", "stop", "chatcmpl-1")
        assert answer.ttft == 3.0
        assert answer.gaps == [1.0]
        assert answer.total == 8.0
        assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (9, 3, 4)

    def test_counts_a_stream_without_done_as_failed(self) -> None:
        assert answer_of(delta("Hi")).failure == "the stream ended without [DONE]"

    def test_counts_an_error_frame_as_failed(self) -> None:
        answer = answer_of(delta("Hi"), event(error={"message": "gone", "code": "worker_lost"}), b"data: [DONE]\n\n")
        assert "worker_lost" in answer.failure

    def test_tells_status_and_body_of_a_refusal(self) -> None:
        answer = answer_of(b'{"error": {}}', status="429 Too Many Requests")
        assert answer.status == 429
        assert "429" in answer.failure

    def test_has_no_first_token_when_no_text_came(self) -> None:
        answer = answer_of(event(choices=[], usage=USAGE), b"data: [DONE]\n\n")
        assert answer.failure == "no text came"
        with pytest.raises(IndexError):
            _ = answer.ttft


class TestTarget:
    def test_writes_a_whole_request(self) -> None:
        target = Target(name="weir", model="m", api_key="k")
        request = target.request(method="POST", path="/v1/x", body="水".encode())
        head, _, body = request.partition(b"\r\n\r\n")
        assert head.splitlines()[0] == b"POST /v1/x HTTP/1.1"
        assert b"Authorization: Bearer k" in head
        assert b"Content-Length: 3" in head
        assert body == "水".encode()

    def test_names_no_key_to_one_who_asks_for_none(self) -> None:
        assert b"Authorization" not in Target(name="engine", model="m").request(method="GET", path="/")
