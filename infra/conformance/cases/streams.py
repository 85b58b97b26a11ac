"""Streams: framing, chunks, usage, the end, and clients that leave. Kind `streams`."""

from __future__ import annotations

from infra.conformance.build import case, chat, completion, get, message, raw, wire
from infra.conformance.case import ANSWER_SECONDS, SLOW_SECONDS, Answer, Case, Check, Http, Kind, Seen, Step, Wrong
from infra.conformance.checks import answered, any_of, has_header, is_json, refused, turned_away_or
from infra.conformance.parse import parse_events
from infra.conformance.stream_checks import (
    chunks_of,
    deltas_of,
    indexes,
    many_pieces,
    no_usage,
    on_chunks,
    one_finish,
    refusal_or,
    role_first,
    same_as_whole,
    same_head,
    sdk_reads,
    usage_last,
)

_STREAM = "OpenAI API reference: streaming"
_SSE = "WHATWG HTML 9.2: server-sent events"
_USAGE = {"include_usage": True}
_BODY = b'{"model":"<MODEL>","messages":[{"role":"user","content":"Count to fifty."}],"max_tokens":24,"stream":true}'
_LONG_BODY = _BODY.replace(b":24", b":120")


# A fast engine on a busy machine may be done before its first token is read; not each time.
_LONG = wire(
    message("POST <V1>/chat/completions HTTP/1.1", "Content-Length: <LENGTH>", body=_LONG_BODY), deadline=ANSWER_SECONDS
)
_THRICE = (_LONG, _LONG, _LONG)


def _of(
    name: str, step: Step | tuple[Step, ...], check: Check, *, must: str, source: str = _STREAM, **options: bool
) -> Case:
    return case(name, step, check, must=must, source=source, alone=options.get("alone", False))


def _only_known_lines(answer: Answer) -> None:
    """Every line is a comment, empty, or a field of the grammar."""
    chunks_of(answer)
    for event in parse_events(answer.body.decode()):
        for name, _ in event.fields:
            if name not in ("data", "id", "event", "retry"):
                raise Wrong(f"a line that begins with {name[:40]!r}")
        if event.data is None:
            raise Wrong(f"a block without data: {event.fields}")


def _nothing_after_done(answer: Answer) -> None:
    chunks_of(answer)
    tail = answer.body.rpartition(b"[DONE]")[2]
    if tail.strip(b"\r\n"):
        raise Wrong(f"after [DONE]: {tail[:40]!r}")
    if not tail.endswith((b"\n\n", b"\r\n\r\n")):
        raise Wrong("[DONE] without its empty line: a strict reader never sees it")


def _whole_characters(answer: Answer) -> None:
    if "\ufffd" in deltas_of(chunks_of(answer)):
        raise Wrong("a broken character in the stream")


def _limited(most: int) -> Check:
    def check(seen: Seen) -> None:
        usage = chunks_of(seen.answer)[-1].get("usage") or {}
        if usage.get("completion_tokens", 0) > most:
            raise Wrong(f"{usage['completion_tokens']} tokens, at most {most} asked for")

    return check


def _not_chunked_in_old_http(seen: Seen) -> None:
    turned_away_or(200)(seen)
    answer = seen.answer
    if "chunked" in (answer.header("transfer-encoding") or "").lower():
        raise Wrong("chunked to an HTTP/1.0 client")


def _served_on(seen: Seen) -> None:
    """The last request, after clients that left, is answered as ever."""
    answered(is_json)(seen)


_LEFT = chat(stream=True, max_tokens=400, messages=[{"role": "user", "content": "Count to a thousand."}])


def _leaving(after: int) -> Http:
    return Http(document=_LEFT.document, leave_after=after)


KIND = Kind(
    name="streams",
    group="openai",
    about="streams: framing, chunks, usage, the end, clients that leave",
    cases=(
        _of(
            "Content-Type",
            chat(stream=True),
            answered(has_header("content-type", r"text/event-stream(;.*)?")),
            must="text/event-stream",
        ),
        _of(
            "not cached",
            chat(stream=True),
            answered(has_header("cache-control", r".*no-(cache|store).*")),
            must="Cache-Control: no-cache",
            source=_SSE,
        ),
        _of(
            "[DONE] ends it",
            chat(stream=True),
            answered(_nothing_after_done),
            must="one [DONE], last, with its empty line",
        ),
        _of(
            "every line is of the grammar",
            chat(stream=True),
            answered(_only_known_lines),
            must="data, id, event, retry or a comment; no block without data",
            source=_SSE,
        ),
        _of(
            "the OpenAI SDK's decoder reads it",
            chat(stream=True),
            answered(sdk_reads),
            must="no empty data after an id",
            source="openai/openai-python#2722",
        ),
        _of(
            "one id, created, model, object",
            chat(stream=True),
            answered(on_chunks(same_head("chat.completion.chunk"))),
            must="the same in every chunk",
        ),
        _of(
            "the role comes first",
            chat(stream=True),
            answered(on_chunks(role_first)),
            must="delta.role assistant in the first chunk",
        ),
        _of(
            "one finish_reason",
            chat(stream=True),
            answered(on_chunks(one_finish)),
            must="once for each choice, at its end",
        ),
        _of(
            "no usage unless asked for",
            chat(stream=True),
            answered(on_chunks(no_usage)),
            must="no usage, no chunk without choices",
            source="litellm#8450; Portkey#1338",
        ),
        _of(
            "no usage when refused",
            chat(stream=True, stream_options={"include_usage": False}),
            answered(on_chunks(no_usage)),
            must="no usage, no chunk without choices",
        ),
        _of(
            "usage when asked for",
            chat(stream=True, stream_options=_USAGE),
            answered(on_chunks(usage_last)),
            must="last chunk: choices [], usage; before it usage null",
        ),
        _of(
            "usage of a completion",
            completion(stream=True, stream_options=_USAGE),
            answered(on_chunks(usage_last)),
            must="last chunk: choices [], usage",
        ),
        _of(
            "a completion's chunks",
            completion(stream=True),
            answered(on_chunks(same_head("text_completion"), one_finish)),
            must="object text_completion, one finish_reason",
        ),
        _of(
            "n = 2",
            chat(stream=True, n=2, temperature=1),
            refusal_or(on_chunks(indexes(2), one_finish), "n"),
            must="chunks with index 0 and 1",
            source="litellm#38180",
        ),
        _of(
            "as the whole answer",
            (chat(max_tokens=16), chat(max_tokens=16, stream=True, stream_options=_USAGE)),
            same_as_whole,
            must="the same text and tokens at temperature 0",
            alone=True,
        ),
        _of(
            "a completion as the whole answer",
            (completion(max_tokens=16), completion(max_tokens=16, stream=True)),
            same_as_whole,
            must="the same text at temperature 0",
            alone=True,
        ),
        _of(
            "max_tokens",
            chat(stream=True, max_tokens=3, stream_options=_USAGE),
            _limited(3),
            must="at most three tokens",
        ),
        _of(
            "in pieces",
            _THRICE,
            many_pieces,
            must="more than two pieces for 120 tokens, one time of three",
            source="channels#1761, daphne#413",
        ),
        _of(
            "with gzip in Accept-Encoding",
            chat(stream=True, headers=(("Accept-Encoding", "gzip, br"),)),
            answered(on_chunks(one_finish)),
            must="whole, every event readable",
            source="Django GZipMiddleware on streams",
        ),
        _of(
            "with Accept of JSON",
            chat(stream=True, headers=(("Accept", "application/json"),)),
            answered(on_chunks(one_finish)),
            must="a stream: the body decides",
        ),
        _of(
            "to an HTTP/1.0 client",
            wire(
                message("POST <V1>/chat/completions HTTP/1.0", "Content-Length: <LENGTH>", body=_BODY),
                deadline=SLOW_SECONDS,
            ),
            _not_chunked_in_old_http,
            must="not chunked, ended by closing",
            source="RFC 9112 6.1",
        ),
        _of(
            "emoji and Chinese",
            chat(stream=True, max_tokens=16, messages=[{"role": "user", "content": "\u6cb3 \U0001f30a"}]),
            answered(_whole_characters),
            must="whole characters only",
            source="api7/aisix#111; katanemo/plano#980",
        ),
        _of("stream: null", chat(stream=None), answered(is_json), must="one JSON answer"),
        _of("stream: false", chat(stream=False), answered(is_json), must="one JSON answer"),
        _of(
            "Accept of an event stream without `stream`",
            chat(headers=(("Accept", "text/event-stream"),)),
            answered(is_json),
            must="one JSON answer: the body decides",
        ),
        _of("a refusal is no stream", chat(stream=True, messages=[]), refused("messages"), must="400 as JSON"),
        _of(
            "a body that is no JSON, with Accept of an event stream",
            raw(b"{", headers=(("Accept", "text/event-stream"),)),
            refused(),
            must="400 as JSON",
        ),
        _of(
            "the client leaves at the first byte",
            (_leaving(1), chat()),
            _served_on,
            must="the next request is answered",
            source="vllm#9428; new-api#4186",
        ),
        _of(
            "the client leaves in the middle",
            (_leaving(400), chat()),
            _served_on,
            must="the next request is answered",
            source="vllm#9428",
        ),
        _of(
            "eight clients leave, one after the other",
            (*[_leaving(200)] * 8, chat()),
            _served_on,
            must="the next request is answered",
            source="litellm#20256: slots that leak",
        ),
        _of(
            "the client leaves a whole answer",
            (wire(message("POST <V1>/chat/completions HTTP/1.1", "Content-Length: <LENGTH>"), half_close=True), chat()),
            _served_on,
            must="the next request is answered",
            source="litellm#13245",
        ),
        _of(
            "a message in parts, streamed",
            chat(stream=True, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}]),
            answered(on_chunks(one_finish)),
            must="as without parts",
        ),
        _of(
            "x-accel-buffering or none",
            chat(stream=True),
            answered(has_header("x-accel-buffering", "no", optional=True)),
            must="no, where sent",
            source="nginx: X-Accel-Buffering",
        ),
        _of(
            "no length",
            chat(stream=True),
            answered(lambda answer: _no_length(answer)),
            must="no Content-Length",
            source=_SSE,
        ),
        _of(
            "GET of a stream's route", get("/chat/completions"), any_of(405, 404), must="405", source="RFC 9110 15.5.6"
        ),
        _of(
            "two streams have two ids",
            (chat(stream=True), chat(stream=True)),
            lambda seen: _two_ids(seen),
            must="two ids",
        ),
    ),
)


def _no_length(answer: Answer) -> None:
    if answer.header("content-length") is not None:
        raise Wrong("a stream with Content-Length")


def _two_ids(seen: Seen) -> None:
    ids = {chunks_of(seen.answer_to(index))[0].get("id") for index in range(2)}
    if len(ids) != 2:
        raise Wrong(f"one id for two streams: {ids}")
