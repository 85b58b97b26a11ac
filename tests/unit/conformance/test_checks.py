"""Every check says ok to what is right and wrong to what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.conformance import checks, stream_checks
from infra.conformance.case import Answer, Check, Reply, Seen, Skipped, Wrong
from infra.conformance.target import parse_base_url

TARGET = parse_base_url("http://127.0.0.1:1/v1", key="sk-ours-1234567890", other_key=None, model="m")
ERROR = {"message": "temperature: too high", "type": "invalid_request_error", "param": "temperature", "code": None}


def answer(status: int, document: Any, *headers: tuple[str, str], kind: str = "application/json") -> Answer:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Answer(status=status, headers=(("Content-Type", kind), *headers), body=body)


def seen(*answers: Answer, closed: bool = False, late: bool = False, rest: bytes = b"") -> Seen:
    reply = Reply(answers=answers, closed=closed, late=late, rest=rest)
    return Seen(target=TARGET, replies=(reply,))


def refusal(**changes: Any) -> Seen:
    return seen(answer(400, {"error": {**ERROR, **changes}}))


class TestRefused:
    def test_takes_openais_shape(self) -> None:
        checks.refused("temperature")(refusal())

    @pytest.mark.parametrize("param", ["temperature", "temperature[0]", "temperature.x"])
    def test_takes_a_path_into_the_field(self, param: str) -> None:
        checks.refused("temperature")(refusal(param=param))

    @pytest.mark.parametrize(
        "given",
        [
            refusal(param=None),
            refusal(param="temp"),
            refusal(param=7),
            refusal(code=400),
            refusal(code="None"),
            refusal(type="None"),
            refusal(type=None),
            refusal(message=""),
            refusal(message={"a": 1}),
            seen(answer(400, {"error": "temperature"})),
            seen(answer(400, {"detail": "temperature"})),
            seen(answer(400, {"error": {"message": "a"}})),
            seen(answer(400, [1])),
            seen(answer(400, b"<html>Bad Request</html>", kind="text/html")),
            seen(answer(400, b"Invalid HTTP request", kind="application/json")),
            seen(answer(200, {"error": ERROR})),
            seen(answer(404, {"error": ERROR})),
            seen(closed=True),
            seen(late=True),
        ],
        ids=repr,
    )
    def test_is_wrong_otherwise(self, given: Seen) -> None:
        with pytest.raises(Wrong):
            checks.refused("temperature")(given)

    def test_looks_at_the_code_where_one_must_be(self) -> None:
        checks.refused(codes=("too_high",))(refusal(code="too_high"))
        with pytest.raises(Wrong, match="code"):
            checks.refused(codes=("model_not_found",))(refusal(code="too_high"))


class TestSane:
    @pytest.mark.parametrize(
        "given",
        [
            answer(500, {"error": ERROR}),
            answer(503, b""),
            answer(400, b"Traceback (most recent call last):"),
            answer(400, b'{"error": "File \\"x.py\\""}'.replace(b'File \\"', b'File "/')),
            answer(401, {"error": {**ERROR, "message": "wrong key sk-ours-1234567890"}}),
            answer(429, {"error": ERROR}),
        ],
        ids=["500", "503", "traceback", "path", "key", "429 without Retry-After"],
    )
    def test_is_wrong_on_what_no_answer_may_be(self, given: Answer) -> None:
        with pytest.raises(Wrong):
            checks.sane(seen(given))

    def test_lets_a_case_expect_a_failure(self) -> None:
        checks.sane(seen(answer(503, b"")), may_fail=frozenset({503}))


class TestTurnedAway:
    @pytest.mark.parametrize("status", [400, 413, 431, 501, 505])
    def test_takes_one_refusal(self, status: int) -> None:
        checks.turned_away()(seen(answer(status, b"no")))

    def test_takes_a_closed_connection(self) -> None:
        checks.turned_away()(seen(closed=True))

    @pytest.mark.parametrize(
        "given",
        [
            seen(answer(200, {})),
            seen(answer(500, {})),
            seen(answer(400, {}), answer(200, {})),
            seen(answer(400, {}), rest=b"more"),
            seen(late=True),
        ],
        ids=["taken", "failed", "two answers", "bytes behind", "silence"],
    )
    def test_is_wrong_otherwise(self, given: Seen) -> None:
        with pytest.raises(Wrong):
            checks.turned_away()(given)

    def test_may_be_taken_where_the_case_says_so_but_never_twice(self) -> None:
        checks.turned_away_or(200)(seen(answer(200, {})))
        with pytest.raises(Wrong):
            checks.turned_away_or(200)(seen(answer(200, {}), answer(200, {})))

    @pytest.mark.parametrize(
        ("statuses", "ok"), [((400, 200), True), ((400,), True), ((200,), False), ((400, 404), False)]
    )
    def test_lets_the_next_request_be_answered_where_the_end_is_clear(
        self, statuses: tuple[int, ...], ok: bool
    ) -> None:
        given = seen(*(answer(status, {}) for status in statuses))
        if ok:
            checks.refused_then(200)(given)
        else:
            with pytest.raises(Wrong):
                checks.refused_then(200)(given)

    @pytest.mark.parametrize(
        ("statuses", "closed", "ok"),
        [
            ((200, 404), False, True),
            ((200,), True, True),
            ((200,), False, False),
            ((404, 200), True, False),
            ((), True, False),
        ],
    )
    def test_wants_answers_in_their_order(self, statuses: tuple[int, ...], closed: bool, ok: bool) -> None:
        given = seen(*(answer(status, {}) for status in statuses), closed=closed)
        if ok:
            checks.in_turn((200, 404))(given)
        else:
            with pytest.raises(Wrong):
                checks.in_turn((200, 404))(given)


class TestSupported:
    def test_skips_what_is_refused_by_name(self) -> None:
        with pytest.raises(Skipped, match="said so"):
            checks.supported(params=("temperature",))(refusal())

    def test_is_wrong_on_a_refusal_of_something_else(self) -> None:
        with pytest.raises(Wrong):
            checks.supported(params=("seed",))(refusal())


class TestUsage:
    def test_adds_up(self) -> None:
        checks.checked_usage({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})

    @pytest.mark.parametrize(
        "usage",
        [
            None,
            {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 8},
            {"prompt_tokens": 3, "completion_tokens": -3, "total_tokens": 0},
            {"prompt_tokens": "3", "completion_tokens": 4, "total_tokens": 7},
            {
                "prompt_tokens": 3,
                "completion_tokens": 4,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        ],
        ids=repr,
    )
    def test_is_wrong_otherwise(self, usage: Any) -> None:
        with pytest.raises(Wrong):
            checks.checked_usage(usage)


class TestHeaders:
    def test_of_rates_are_numbers_and_durations(self) -> None:
        good = answer(200, {}, ("x-ratelimit-limit-requests", "5"), ("x-ratelimit-reset-requests", "6m0s"))
        checks.rate_headers(good)

    @pytest.mark.parametrize(
        "header",
        [
            ("x-ratelimit-remaining-tokens", "-20"),
            ("x-ratelimit-reset-tokens", "soon"),
            ("x-ratelimit-limit-tokens", ""),
        ],
    )
    def test_of_rates_are_wrong_otherwise(self, header: tuple[str, str]) -> None:
        with pytest.raises(Wrong):
            checks.rate_headers(answer(200, {}, header))

    def test_that_are_missing_are_wrong_or_skipped(self) -> None:
        with pytest.raises(Wrong):
            checks.has_header("x-request-id", ".+")(answer(200, {}))
        with pytest.raises(Skipped):
            checks.has_header("openai-processing-ms", ".+", optional=True)(answer(200, {}))


def chunk(content: str | None = "a", *, finish: str | None = None, index: int = 0, **changes: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"role": "assistant", "content": content}, "finish_reason": finish}
    return {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk", "choices": [choice], **changes}


def stream(*chunks: Any, end: str = "data: [DONE]\n\n") -> Answer:
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + end
    return answer(200, body.encode(), kind="text/event-stream")


USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
LAST = chunk(None, usage=USAGE) | {"choices": []}


class TestStreams:
    def test_that_are_whole_are_right(self) -> None:
        whole = stream(chunk("a"), chunk("b", finish="stop"))
        for one in (stream_checks.same_head("chat.completion.chunk"), stream_checks.one_finish, stream_checks.no_usage):
            stream_checks.on_chunks(one)(whole)
        stream_checks.usage_last([chunk(usage=None), LAST])
        assert stream_checks.deltas_of(stream_checks.chunks_of(whole)) == "ab"

    @pytest.mark.parametrize(
        "given",
        [
            stream(chunk(), end=""),
            stream(chunk(), end="data: [DONE]\n\ndata: [DONE]\n\n"),
            stream(chunk(), {"error": ERROR}),
            answer(200, b"data: {\n\ndata: [DONE]\n\n", kind="text/event-stream"),
            answer(200, b"data: \xff\n\ndata: [DONE]\n\n", kind="text/event-stream"),
            answer(200, b"data: [DONE]\n\n"),
            answer(400, {"error": ERROR}),
        ],
        ids=["no end", "two ends", "an error", "no JSON", "no UTF-8", "another type", "refused"],
    )
    def test_that_are_broken_are_wrong(self, given: Answer) -> None:
        with pytest.raises(Wrong):
            stream_checks.chunks_of(given)

    @pytest.mark.parametrize(
        ("check", "chunks"),
        [
            (stream_checks.same_head("chat.completion.chunk"), [chunk(), chunk(id="other")]),
            (stream_checks.same_head("chat.completion.chunk"), [chunk(created=1), chunk(created=2)]),
            (stream_checks.same_head("text_completion"), [chunk()]),
            (stream_checks.one_finish, [chunk()]),
            (stream_checks.one_finish, [chunk(finish="stop"), chunk(finish="stop")]),
            (stream_checks.one_finish, [chunk(finish="stop"), chunk("more")]),
            (stream_checks.one_finish, [chunk(finish="because")]),
            (stream_checks.no_usage, [chunk(usage=USAGE)]),
            (stream_checks.no_usage, [chunk() | {"choices": []}]),
            (stream_checks.usage_last, [chunk(usage=None), chunk(usage=USAGE)]),
            (stream_checks.usage_last, [chunk(usage=USAGE), LAST]),
            (stream_checks.usage_last, [chunk(), LAST]),
            (stream_checks.indexes(2), [chunk(index=0)]),
            (stream_checks.role_first, [chunk() | {"choices": [{"index": 0, "delta": {"content": "a"}}]}]),
        ],
        ids=lambda value: getattr(value, "__qualname__", None),
    )
    def test_whose_chunks_contradict_are_wrong(self, check: Any, chunks: list[dict[str, Any]]) -> None:
        with pytest.raises(Wrong):
            check(chunks)

    def test_that_the_sdk_cannot_read_are_wrong(self) -> None:
        body = b'id: 1\ndata: {"choices": []}\n\n: ping\n\ndata: [DONE]\n\n'
        with pytest.raises(Wrong, match="SDK"):
            stream_checks.sdk_reads(answer(200, body, kind="text/event-stream"))

    def test_put_tool_calls_together_by_index(self) -> None:
        def call(**function: str) -> dict[str, Any]:
            delta = {"tool_calls": [{"index": 0, "function": function, **({"id": "c1"} if "name" in function else {})}]}
            return chunk() | {"choices": [{"index": 0, "delta": delta}]}

        found = stream_checks.tool_calls_of([call(name="river", arguments='{"a"'), call(arguments=": 1}")])
        assert found == [{"id": "c1", "name": "river", "arguments": '{"a": 1}'}]


class TestCombined:
    def test_first_of_takes_any_and_says_the_first(self) -> None:
        must: Check = checks.first_of(checks.refused("temperature"), checks.answered())
        must(seen(answer(200, {})))
        must(refusal())
        with pytest.raises(Wrong, match="404 where 400 or 422"):
            must(seen(answer(404, {})))
