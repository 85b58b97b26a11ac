"""Header fields: malformed, huge, doubled, contradicting, or with a meaning that must not be theirs. Kind `headers`."""

from __future__ import annotations

import gzip
import zlib

from infra.conformance.build import case, chat, get, message, raw, wire
from infra.conformance.case import Answer, Case, Check, Kind, Seen, Skipped, Wrong
from infra.conformance.checks import answered, any_of, in_turn, refused, turned_away, turned_away_or

_KEY = ("Host: <HOST>", "Authorization: Bearer <KEY>")
_FIELDS = "RFC 9110 5.5; RFC 9112 5"
_SIZES = "RFC 6585 5; RFC 9110 5.4"
_MEDIA = "RFC 9110 8.3, 15.5.16; litellm#13040"
_CODING = "RFC 9110 8.4, 15.5.16"


def _field(name: str, *headers: str | bytes, check: Check | None = None, must: str, source: str = _FIELDS) -> Case:
    sent = wire(message("GET <V1>/models HTTP/1.1", *headers, base=_KEY, body=b""))
    return case(name, sent, check or turned_away(), must=must, source=source)


_TAKEN_OR_NOT = turned_away_or(200)

_SYNTAX = (
    _field("NUL in a value", b"X: a\0b", must="refused, or taken as a space", check=_TAKEN_OR_NOT),
    _field("a bare CR in a value", b"X: a\rb", must="refused, or taken as a space", check=_TAKEN_OR_NOT),
    _field("a control character in a value", b"X: a\x01b", must="refused or passed over", check=_TAKEN_OR_NOT),
    _field(
        "a vertical tab in a value",
        b"X: a\x0bb",
        must="refused or passed over",
        check=_TAKEN_OR_NOT,
        source="CVE-2026-44546",
    ),
    _field("NEL in a value", b"X: a\x85X-Injected: b", must="one value", check=_TAKEN_OR_NOT, source="CVE-2026-44546"),
    _field(
        "bytes above ASCII in a value",
        b"X: \xf0\x9f\x8c\x8a",
        must="opaque: passed over, or refused",
        check=_TAKEN_OR_NOT,
    ),
    _field("an empty value", "X:", must="200", check=in_turn((200,))),
    _field("tabs around a value", "X:\t\ta\t", must="200", check=in_turn((200,)), source="RFC 9112 5.1"),
    _field("an empty name", ": a", must="400"),
    _field("a line without a colon", "just words", must="400"),
    _field("a name with a space", "X Y: a", must="400", source="RFC 9110 5.1"),
    _field("a space before the colon", "X : a", must="400", source="RFC 9112 5.1"),
    _field("a name with NUL", b"X\0: a", must="400", source="RFC 9110 5.1"),
    _field("a name above ASCII", b"X\xe9: a", must="400", source="RFC 9110 5.1"),
    _field("a name in brackets", "X[1]: a", must="400", source="RFC 9110 5.1"),
    _field("a folded value", "X: a\r\n b", must="400, or one value", check=_TAKEN_OR_NOT, source="RFC 9112 5.2"),
    _field("a folded key", "Y: a", "X: b\r\n\tc", must="400, or one value", check=_TAKEN_OR_NOT, source="RFC 9112 5.2"),
    case(
        "white space before the first header",
        wire(b"GET <V1>/models HTTP/1.1\r\n Host: <HOST>\r\nAuthorization: Bearer <KEY>\r\n\r\n"),
        turned_away(),
        must="refused",
        source="RFC 9112 2.2",
    ),
)

_LARGE = (
    _field("one header of 100,000 bytes", "X: " + "y" * 100_000, must="431, another refusal, or closed"),
    _field(
        "one header of 1,000,000 bytes", "X: " + "y" * 1_000_000, must="431, another refusal, or closed", source=_SIZES
    ),
    _field("a name of 100,000 bytes", "X" * 100_000 + ": y", must="431, another refusal, or closed", source=_SIZES),
    _field(
        "a cookie of 200,000 bytes", "Cookie: a=" + "y" * 200_000, must="431, another refusal, or closed", source=_SIZES
    ),
    _field(
        "10,000 headers",
        *(f"X-{number}: y" for number in range(10_000)),
        must="431, another refusal, or closed",
        source=_SIZES,
    ),
    _field("10,000 equal headers", *["X: y"] * 10_000, must="431, another refusal, or closed", source="CVE-2025-14550"),
    _field(
        "100,000 short headers", *["a:b"] * 100_000, must="431, another refusal, or closed", source="CVE-2025-14550"
    ),
    _field("50 headers", *(f"X-{number}: y" for number in range(50)), must="200", check=in_turn((200,)), source=_SIZES),
    _field("a header of 4,000 bytes", "X: " + "y" * 4_000, must="200, or 431", check=_TAKEN_OR_NOT, source=_SIZES),
)


def _type(name: str, content_type: str | None, *, taken: bool = False) -> Case:
    body = raw(b"<CHAT>", content_type=content_type)
    if taken:
        return case(f"Content-Type {name}", body, answered(), must="200", source=_MEDIA)
    return case(f"Content-Type {name}", body, refused(statuses=(400, 415)), must="415 or 400", source=_MEDIA)


_TYPES = (
    _type("missing", None),
    _type("empty", ""),
    _type("text/plain", "text/plain"),
    _type("text/json", "text/json"),
    _type("text/html", "text/html"),
    _type("of a form", "application/x-www-form-urlencoded"),
    _type("of a multipart form", "multipart/form-data; boundary=x"),
    _type("of bytes", "application/octet-stream"),
    _type("application/jsonx", "application/jsonx"),
    _type("application/json5", "application/json5"),
    _type("application/jsonl", "application/jsonl"),
    _type("of XML", "application/xml"),
    _type("of a pattern", "*/*"),
    _type("json without a type", "json"),
    _type("with UTF-16", "application/json; charset=utf-16"),
    _type("with latin-1", "application/json; charset=iso-8859-1"),
    _type("with UTF-7", "application/json; charset=utf-7"),
    _type("two in one line", "text/plain, application/json"),
    _type("of 10,000 bytes", "application/" + "x" * 10_000),
    _type("with UTF-8", "application/json; charset=utf-8", taken=True),
    _type("with UTF-8 in quotes", 'application/json; charset="UTF-8"', taken=True),
    _type("in capital letters", "APPLICATION/JSON", taken=True),
    _type("with a parameter nobody knows", "application/json; x=y", taken=True),
    _type("with spaces", "application/json ;  charset=utf-8", taken=True),
    case(
        "Content-Type given twice",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Content-Type: text/plain", "Content-Length: <LENGTH>")),
        any_of(200, 400, 415, shape=False),
        must="400, or the first one counts",
        source=_MEDIA,
    ),
)


def _coded(name: str, body: bytes, coding: str, *, check: Check | None = None, must: str = "refused") -> Case:
    sent = raw(body, headers=(("Content-Encoding", coding),))
    return case(f"Content-Encoding {name}", sent, check or refused(statuses=(400, 413, 415)), must=must, source=_CODING)


def _gzipped_is_taken(seen: Seen) -> None:
    if seen.answer.status == 415:
        raise Skipped("takes no coded bodies, and says so")
    answered()(seen)


def _whole_gzip(seen: Seen) -> None:
    """A gzip body that can be made before the model's name is known: the name stands in no coded byte."""
    if seen.answer.status == 415:
        raise Skipped("takes no coded bodies, and says so")
    refused("messages", "model", "prompt")(seen)


_ZEROS = gzip.compress(b" " * (64 * 1024 * 1024), compresslevel=9)
_EMPTY_OBJECT = gzip.compress(b"{}")

_CODINGS = (
    _coded(
        "gzip of an object without fields",
        _EMPTY_OBJECT,
        "gzip",
        check=_whole_gzip,
        must="read: 400 for its fields, or 415",
    ),
    _coded("gzip that is none", b"<CHAT>", "gzip"),
    _coded("gzip cut short", _EMPTY_OBJECT[:-6], "gzip"),
    _coded("gzip with bytes behind it", _EMPTY_OBJECT + b"more", "gzip"),
    _coded("gzip with a wrong sum", _EMPTY_OBJECT[:-8] + b"\0" * 8, "gzip"),
    _coded("gzip of two members", _EMPTY_OBJECT * 2, "gzip"),
    _coded("gzip of nothing", b"", "gzip"),
    _coded("a bomb: 64 MB in 65 kB", _ZEROS, "gzip", must="413 or 415 before it is unpacked whole"),
    _coded("a bomb in a bomb", gzip.compress(_ZEROS), "gzip, gzip", must="415, or 413"),
    _coded("gzip twice", gzip.compress(_EMPTY_OBJECT), "gzip, gzip"),
    _coded("gzip named ten times", _EMPTY_OBJECT, ", ".join(["gzip"] * 10)),
    _coded("deflate", zlib.compress(b"{}"), "deflate"),
    _coded("br", b"\x0b\x01\x80{}\x03", "br"),
    _coded("zstd", b"\x28\xb5\x2f\xfd\x04\x00\x11\x00\x00{}", "zstd"),
    _coded("nobody knows", b"<CHAT>", "cow"),
    _coded("chunked", b"<CHAT>", "chunked"),
    _coded("identity", b"<CHAT>", "identity", check=any_of(200, 415), must="200, or 415"),
    _coded("gzip in capital letters", _EMPTY_OBJECT, "GZIP", check=_whole_gzip, must="as gzip"),
)

_OVERRIDES = "must not move a request elsewhere: CVE-2026-3902 (class); Symfony, Rails and IIS overrides"


def _ignored(
    name: str, *headers: tuple[str, str], path: str = "/models", status: int = 200, method: str = "GET"
) -> Case:
    check = any_of(status, 400, shape=False)
    return case(name, get(path, headers=headers, method=method), check, must="ignored", source=_OVERRIDES)


_MEANINGS = (
    _ignored("X-HTTP-Method-Override on a POST", ("X-HTTP-Method-Override", "GET"), method="POST", status=405),
    _ignored("X-Original-URL", ("X-Original-URL", "/admin/")),
    _ignored("X-Rewrite-URL", ("X-Rewrite-URL", "/no-such-path")),
    _ignored("X-Forwarded-Host", ("X-Forwarded-Host", "evil.example"), ("X-Forwarded-Proto", "gopher")),
    _ignored("X-Forwarded-For of nonsense", ("X-Forwarded-For", "'; DROP TABLE x; --")),
    _ignored("X-Forwarded-Prefix", ("X-Forwarded-Prefix", "/evil")),
    _ignored("Forwarded of nonsense", ("Forwarded", 'for=;;;by=,,"')),
    _ignored("Range", ("Range", "bytes=0-1")),
    _ignored("If-Match", ("If-Match", '"x"')),
    _ignored("Accept of HTML", ("Accept", "text/html")),
    _ignored("Accept of nonsense", ("Accept", ";;;q=9,,/")),
    _ignored("Accept-Encoding that rules all out", ("Accept-Encoding", "identity;q=0, *;q=0")),
    _ignored("Accept-Language of 4,000 bytes", ("Accept-Language", "a," * 2_000)),
    _ignored("Cookie of another session", ("Cookie", "sessionid=../../x; csrftoken=<KEY>")),
    _ignored("OpenAI-Organization of another", ("OpenAI-Organization", "org-other"), ("OpenAI-Project", "proj_other")),
    _ignored("X-Tenant with another's name", ("X-Tenant", "other"), ("X_Tenant", "other"), ("X-Tenant-Id", "1")),
    _ignored(
        "Upgrade to h2c", ("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")
    ),
    _ignored("Upgrade to what nobody knows", ("Connection", "Upgrade"), ("Upgrade", "cow/1.0")),
    _ignored("Connection that names the key's header", ("Connection", "close, Authorization")),
    case(
        "Upgrade to a WebSocket on an inference route",
        wire(
            message(
                "GET <V1>/models HTTP/1.1",
                "Connection: Upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                base=_KEY,
                body=b"",
            )
        ),
        lambda seen: _no_hang(seen),
        must="answered or closed in time; no open line without a use",
        source="RFC 6455 4.2.2",
    ),
    case(
        "Upgrade to a WebSocket without its key",
        wire(message("GET <V1>/models HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", base=_KEY, body=b"")),
        lambda seen: _no_hang(seen),
        must="answered or closed in time",
        source="RFC 6455 4.2.1",
    ),
)


def _no_hang(seen: Seen) -> None:
    reply = seen.replies[-1]
    if reply.late and not reply.interim:
        raise Wrong("neither answered nor closed in time")
    if any(answer.status not in range(200, 500) for answer in reply.answers):
        raise Wrong(seen.summary())


def _continued(seen: Seen) -> None:
    reply = seen.replies[-1]
    if not reply.answers:
        raise Wrong("no final answer to a request that expects 100")
    if reply.answers[0].status not in (200, 417):
        raise Wrong(seen.summary())


_EXPECT = (
    case(
        "Expect: 100-continue with the body at once",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Expect: 100-continue", "Content-Length: <LENGTH>")),
        _continued,
        must="100 or nothing, then the answer",
        source="RFC 9110 10.1.1",
    ),
    case(
        "Expect: 100-continue with an oversized length and no body",
        wire(
            message(
                "POST <V1>/chat/completions HTTP/1.1", "Expect: 100-continue", "Content-Length: 999999999999", body=b""
            )
        ),
        turned_away(),
        must="refused without waiting for the body",
        source="RFC 9110 10.1.1",
    ),
    case(
        "Expect of what nobody knows",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Expect: 200-maybe", "Content-Length: <LENGTH>")),
        _continued,
        must="417, or ignored",
        source="RFC 9110 10.1.1",
    ),
    case(
        "a length of a terabyte and no body",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Content-Length: 1099511627776", body=b"{")),
        turned_away(),
        must="413 at once: not waited for",
        source="RFC 9110 15.5.14",
    ),
)


def _same_id_is_not_mine(seen: Seen) -> None:
    ids = [seen.answer_to(index).json().get("id") for index in range(2)]
    if ids[0] == ids[1]:
        raise Wrong(f"two requests with one X-Request-Id have one id, {ids[0]}")
    if any("mine-0001" in str(one) for one in ids):
        raise Wrong(f"the client chose the id: {ids[0]}")


def _not_echoed(answer: Answer) -> None:
    for name, value in answer.headers:
        if "injected" in name.lower() or "\n" in value or "\r" in value:
            raise Wrong(f"the header {name}: {value}")


_IDS = (
    case(
        "X-Request-Id of the client, twice",
        (chat(headers=(("X-Request-Id", "mine-0001"),)), chat(headers=(("X-Request-Id", "mine-0001"),))),
        _same_id_is_not_mine,
        must="two ids of the server's own",
        source="CVE-2026-116176, CVE-2026-105755",
    ),
    case(
        "X-Request-Id of 4,000 bytes",
        chat(headers=(("X-Request-Id", "x" * 4_000),)),
        any_of(200, 400, 431),
        must="passed over, or refused",
        source="CVE-2026-105755",
    ),
    case(
        "X-Request-Id with an encoded line end",
        chat(headers=(("X-Request-Id", "a%0d%0aX-Injected: b"),)),
        answered(_not_echoed, statuses=(200, 400)),
        must="no header of the answer comes out of it",
        source="CWE-113",
    ),
    case(
        "values of the body with line ends",
        chat(user="a\r\nX-Injected: b", model="m\r\nX-Injected: b"),
        answered(_not_echoed, statuses=(400, 404)),
        must="no header of the answer comes out of them",
        source="CWE-113",
    ),
    case(
        "Origin with line ends, encoded",
        get("/models", headers=(("Origin", "http://a%0d%0aX-Injected: b"),)),
        answered(_not_echoed, statuses=(200, 400, 403)),
        must="no header of the answer comes out of it",
        source="CWE-113",
    ),
    case(
        "traceparent of nonsense",
        get("/models", headers=(("traceparent", "00-zz-zz-01"), ("tracestate", ",,,=,"))),
        answered(),
        must="ignored",
        source="W3C Trace Context 3.2",
    ),
    *(
        case(
            f"Idempotency-Key {name}",
            wire(message("POST <V1>/chat/completions HTTP/1.1", *lines, "Content-Length: <LENGTH>")),
            any_of(200, 400, 409),
            must="ignored, or refused; 409 where an earlier run used it",
            source="draft-ietf-httpapi-idempotency-key-header",
        )
        for name, lines in (
            ("that is empty", ("Idempotency-Key:",)),
            ("with a space", ("Idempotency-Key: a b",)),
            ("in bytes above ASCII", (b"Idempotency-Key: \xff\xfe",)),
            ("given twice", ("Idempotency-Key: a-0001", "Idempotency-Key: a-0002")),
            ("of a path", ("Idempotency-Key: ../../etc/passwd",)),
            ("of a Redis command", ("Idempotency-Key: *1 $8 FLUSHALL {t:x} \\r\\n",)),
        )
    ),
    case(
        "Idempotency-Key of 10,000 bytes",
        chat(headers=(("Idempotency-Key", "x" * 10_000),)),
        any_of(200, 400, 431),
        must="ignored, or refused",
        source="draft-ietf-httpapi-idempotency-key-header",
    ),
)

KIND = Kind(
    name="headers",
    group="odd",
    about="header fields: malformed, huge, doubled, or with a meaning that must not be theirs",
    cases=(*_SYNTAX, *_LARGE, *_TYPES, *_CODINGS, *_MEANINGS, *_EXPECT, *_IDS),
)
