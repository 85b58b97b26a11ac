"""Errors, keys and the headers of every answer. Kind `errors`. OpenAI API reference: error codes, authentication."""

from __future__ import annotations

from infra.conformance.build import CHAT, USER, case, chat, get, message, raw, wire
from infra.conformance.case import Answer, Case, Check, Http, Kind, Seen, Skipped, Wrong
from infra.conformance.checks import (
    answered,
    any_of,
    error_of,
    has_header,
    has_no_header,
    in_turn,
    is_json,
    one_each,
    rate_headers,
    refused,
)

_ERRORS = "OpenAI API reference: error codes"
_AUTH = "OpenAI API reference: authentication; RFC 9110 11.6"
_KEY_ERRORS = (401,)


def _auth(name: str, value: str | None, *, path: str = "/models") -> Case:
    """A request whose Authorization is this, or none."""
    headers = () if value is None else (("Authorization", value),)
    step = get(path, headers=headers, key=None) if path == "/models" else chat(headers=headers, key=None)
    return case(name, step, refused(statuses=_KEY_ERRORS), must="401 in OpenAI's shape", source=_AUTH)


_KEYS = (
    _auth("no key", None),
    _auth("no key, on chat", None, path=CHAT),
    _auth("an empty Authorization", ""),
    _auth("a scheme without a key", "Bearer"),
    _auth("another scheme", "Basic dXNlcjpwYXNz"),
    _auth("a key without a scheme", "sk-0000000000000000000000000000000000000000"),
    _auth("a wrong key", "Bearer sk-0000000000000000000000000000000000000000"),
    _auth("a wrong key, on chat", "Bearer sk-0000000000000000000000000000000000000000", path=CHAT),
    _auth("a key of SQL", "Bearer x' OR pg_sleep(8)--"),
    _auth("a key of 5,000 letters", "Bearer " + "x" * 5_000),
    _auth("a key with a comma", "Bearer a, Bearer b"),
    _auth("a key of a template", "Bearer {{7*7}}${7*7}"),
    _auth("a token of JWT's kind without a signature", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."),
    _auth("a path as a key", "Bearer ../../../etc/passwd"),
    _auth("null as a key", "Bearer null"),
    _auth("undefined as a key", "Bearer undefined"),
)

_RAW_KEY = ("Host: <HOST>",)


def _raw_auth(name: str, *headers: str | bytes, check: Check | None = None, must: str = "401 or 400") -> Case:
    sent = wire(message("GET <V1>/models HTTP/1.1", *headers, base=_RAW_KEY, body=b""))
    return case(name, sent, check or in_turn((401,), (400,)), must=must, source=_AUTH)


_RAW_KEYS = (
    _raw_auth("a scheme and spaces", "Authorization: Bearer   "),
    _raw_auth(
        "the scheme in small letters",
        "Authorization: bearer <KEY>",
        check=in_turn((200,)),
        must="200: schemes are without case",
    ),
    _raw_auth(
        "two spaces before the key",
        "Authorization: Bearer  <KEY>",
        check=in_turn((200,), (401,)),
        must="200 (1*SP), or 401",
    ),
    _raw_auth(
        "spaces after the key",
        "Authorization: Bearer <KEY>   ",
        check=in_turn((200,)),
        must="200: trailing white space is no part",
    ),
    _raw_auth(
        "a tab before the key",
        "Authorization: Bearer\t<KEY>",
        check=in_turn((401,), (400,), (200,)),
        must="401, 400 or 200",
    ),
    _raw_auth("the key with a letter more", "Authorization: Bearer <KEY>x"),
    _raw_auth("the key behind a letter", "Authorization: Bearer x<KEY>"),
    _raw_auth(
        "the key twice",
        "Authorization: Bearer <KEY>",
        "Authorization: Bearer <KEY>",
        check=in_turn((401,), (400,), (200,)),
        must="one key, or a refusal",
    ),
    _raw_auth("a good key and a wrong one", "Authorization: Bearer <KEY>", "Authorization: Bearer wrong"),
    _raw_auth("a wrong key and a good one", "Authorization: Bearer wrong", "Authorization: Bearer <KEY>"),
    _raw_auth("a key in bytes above ASCII", b"Authorization: Bearer \xff\xfe\xfd"),
    _raw_auth("a key with NUL", b"Authorization: Bearer <KEY>\0"),
    _raw_auth("the header with an underscore", "X_Authorization: Bearer <KEY>"),
    _raw_auth("the key in a cookie", "Cookie: api_key=<KEY>; Authorization=Bearer <KEY>"),
)


def _key_in_body(seen: Seen) -> None:
    refused(statuses=(401,))(seen)


def _equal_refusals(seen: Seen) -> None:
    """Nothing tells a key that does not exist from one that is malformed, but the words for none at all."""
    errors = [error_of(seen.answer_to(index)) for index in range(2)]
    one_each([error["type"] for error in errors], "the type of a wrong key's error")
    one_each([error["code"] for error in errors], "the code of a wrong key's error")


def _no_key_echo(seen: Seen) -> None:
    text = seen.answer.body
    if b"sk-0123456789abcdefghijklmnopqrstuvwxyz" in text:
        raise Wrong("the refused key comes back whole")


def _unique_ids(seen: Seen) -> None:
    ids = [seen.answer_to(index).header("x-request-id") for index in range(len(seen.replies))]
    if None in ids:
        raise Wrong("an answer without x-request-id")
    if len(set(ids)) != len(ids):
        raise Wrong(f"x-request-id is the same twice: {ids}")


_REQUEST_ID = has_header("x-request-id", r"\S{4,128}")
_WRONG_KEY = (("Authorization", "Bearer sk-0123456789abcdefghijklmnopqrstuvwxyz"),)


def _id_on(name: str, step: Http, status: tuple[int, ...]) -> Case:
    return case(
        f"x-request-id on {name}",
        step,
        answered(_REQUEST_ID, statuses=status),
        must="every answer has one",
        source="OpenAI API reference: debugging requests",
    )


_HEADERS = (
    _id_on("200", get("/models"), (200,)),
    _id_on("a chat", chat(), (200,)),
    _id_on("a stream", chat(stream=True), (200,)),
    _id_on("400", chat(temperature=9), (400, 422)),
    _id_on("401", get("/models", key=None), (401,)),
    _id_on("404", get("/no-such-path"), (404,)),
    _id_on("405", get(CHAT), (405,)),
    case(
        "x-request-id is new each time",
        (get("/models"), get("/models"), chat()),
        _unique_ids,
        must="three different ids",
        source="OpenAI API reference: debugging requests",
    ),
    case(
        "openai-processing-ms",
        chat(),
        answered(has_header("openai-processing-ms", r"\d+", optional=True)),
        must="whole milliseconds, where sent",
        source="OpenAI API reference: HTTP headers",
    ),
    case(
        "x-ratelimit headers",
        chat(),
        answered(rate_headers),
        must="whole numbers, durations; remaining within limit",
        source="OpenAI rate limits guide; litellm PR#14736",
    ),
    case(
        "x-ratelimit headers on a stream",
        chat(stream=True),
        answered(rate_headers),
        must="whole numbers, durations",
        source="OpenAI rate limits guide",
    ),
    case("Content-Type of a list", get("/models"), answered(is_json), must="application/json", source=_ERRORS),
    case("Content-Type of an answer", chat(), answered(is_json), must="application/json", source=_ERRORS),
    case(
        "no cookies",
        chat(),
        answered(has_no_header("set-cookie")),
        must="an API sets none",
        source="OpenAI API: bearer keys only",
    ),
    case(
        "WWW-Authenticate on 401",
        get("/models", key=None),
        answered(has_header("www-authenticate", r"Bearer\b.*"), statuses=(401,)),
        must="a challenge with the scheme Bearer",
        source="RFC 9110 15.5.2, 11.6.1; RFC 6750 3",
    ),
    case(
        "no-store on 401",
        get("/models", key=None),
        answered(lambda answer: _not_cached(answer), statuses=(401,)),
        must="not cached as public",
        source="RFC 9111 3.5",
    ),
)


def _not_cached(answer: Answer) -> None:
    control = (answer.header("cache-control") or "").lower()
    if "public" in control or ("max-age" in control and "max-age=0" not in control):
        raise Wrong(f"Cache-Control: {control}")


def _code_is_text(seen: Seen) -> None:
    for index in range(len(seen.replies)):
        error_of(seen.answer_to(index))


def _short(seen: Seen) -> None:
    message = error_of(seen.answer)["message"]
    if len(message) > 2_000:
        raise Wrong(f"a message of {len(message)} characters")


def _other_model(seen: Seen) -> None:
    if seen.answer.status == 403:
        raise Skipped("models that are not there are refused as not allowed")
    refused("model", statuses=(404,), codes=("model_not_found",))(seen)


_SHAPES = (
    case(
        "the shape of 400",
        chat(temperature=9),
        refused("temperature"),
        must="message, type, param, code; param names the field",
        source=_ERRORS,
    ),
    case("the shape of 400 for no JSON", raw(b"{"), refused(), must="message, type, param, code", source=_ERRORS),
    case(
        "the type of 400",
        chat(temperature=9),
        answered(lambda answer: _typed(answer, "invalid_request_error"), statuses=(400, 422)),
        must="invalid_request_error",
        source=_ERRORS,
    ),
    case(
        "the shape of 404 for a path",
        get("/no-such-path"),
        refused(statuses=(404,)),
        must="JSON, never HTML",
        source=_ERRORS,
    ),
    case(
        "the shape of 404 for a model",
        chat(model="no-such-model"),
        _other_model,
        must="404, code model_not_found, param model",
        source=_ERRORS,
    ),
    case(
        "a model that is not there, streamed",
        chat(model="no-such-model", stream=True),
        _other_model,
        must="404 as JSON before the stream begins",
        source=_ERRORS,
    ),
    case(
        "a wrong field, streamed",
        chat(temperature=9, stream=True),
        refused("temperature"),
        must="400 as JSON before the stream begins",
        source=_ERRORS,
    ),
    case(
        "code and param are text or null",
        (chat(n="x"), chat(model="x"), get("/no"), get("/models", key=None)),
        _code_is_text,
        must="never a number, never the text None",
        source="litellm PR#39536, #4970",
    ),
    case(
        "a long value in an error",
        chat(reasoning_effort="x" * 100_000),
        _short,
        must="the message stays short",
        source="CWE-209",
    ),
    case(
        "a refused key does not come back",
        get("/models", headers=_WRONG_KEY, key=None),
        _no_key_echo,
        must="not in the body",
        source="litellm#31620; CWE-209",
    ),
    case(
        "an unknown key and a malformed one",
        (
            get("/models", headers=_WRONG_KEY, key=None),
            get("/models", headers=(("Authorization", "Bearer x"),), key=None),
        ),
        _equal_refusals,
        must="one kind of error",
        source="OWASP API2:2023",
    ),
    case(
        "the key in the body",
        raw(b'{"api_key":"<KEY>","model":"<MODEL>","messages":[{"role":"user","content":"a"}]}', key=None),
        _key_in_body,
        must="401: a key in a body is none",
        source=_AUTH,
    ),
    case(
        "no key and a bad body",
        raw(b"{", key=None),
        refused(statuses=(401,)),
        must="401 before the body is judged",
        source=_AUTH,
    ),
    case(
        "no key and an unknown model",
        chat(key=None, model="x"),
        refused(statuses=(401,)),
        must="401: nothing is told without a key",
        source=_AUTH,
    ),
    case(
        "no key and an unknown path", get("/no-such-path", key=None), any_of(401, 404), must="401 or 404", source=_AUTH
    ),
    case(
        "a prompt does not come back in an error",
        chat(messages=[{**USER, "content": "secret-of-a-user"}], temperature=9),
        lambda seen: _no_prompt(seen),
        must="an error quotes no prompt",
        source="CWE-209; OWASP LLM02",
    ),
)


def _typed(answer: Answer, kind: str) -> None:
    found = error_of(answer)["type"]
    if found != kind:
        raise Wrong(f"error.type is {found!r}, not {kind!r}")


def _no_prompt(seen: Seen) -> None:
    refused("temperature")(seen)
    if b"secret-of-a-user" in seen.answer.body:
        raise Wrong("the prompt comes back in an error")


KIND = Kind(
    name="errors",
    group="openai",
    about="keys, the error object, the headers of every answer",
    cases=(*_SHAPES, *_KEYS, *_RAW_KEYS, *_HEADERS),
)
