"""Paths and query strings as nobody means them. Kind `paths`.

Each is asked with the key and, where it could lead past a check, without: then nothing but a refusal is right.
"""

from __future__ import annotations

from infra.conformance.build import case, get, message, wire
from infra.conformance.case import Answer, Case, Kind, Wrong
from infra.conformance.checks import answered, any_of, refused

_KEY = ("Host: <HOST>", "Authorization: Bearer <KEY>")
_URI = "RFC 3986 3.3, 6.2; RFC 9110 4.2"
_TRICKS = (
    ("a double slash in front", "/<V1>/models"),
    ("a double slash within", "<V1>//models"),
    ("a dot segment", "<V1>/./models"),
    ("a parent segment", "<V1>/../models"),
    ("a parent segment out of the root", "/../../../../etc/passwd"),
    ("a parent segment, encoded", "<V1>/%2e%2e/admin/"),
    ("a parent segment, encoded twice", "<V1>/%252e%252e/admin/"),
    ("an encoded slash", "<V1>/models%2f"),
    ("an encoded slash in a route", "<V1>/chat%2Fcompletions"),
    ("a model with parent segments", "<V1>/models/..%2f..%2f..%2fetc%2fpasswd"),
    ("a model with raw parent segments", "<V1>/models/../../../../etc/passwd"),
    ("a model that is a dot", "<V1>/models/."),
    ("a model that is two dots, encoded", "<V1>/models/%2e%2e"),
    ("an encoded backslash", "<V1>/models/..%5c..%5cwindows"),
    ("an encoded NUL", "<V1>/models%00"),
    ("a model that is NUL", "<V1>/models/%00"),
    ("an encoded line end", "<V1>/models/%0d%0aX-Injected:%20yes"),
    ("an encoded byte that is no UTF-8", "<V1>/models/%ff"),
    ("an overlong encoded slash", "<V1>/models/%c0%af"),
    ("an encoded lone surrogate", "<V1>/models/%ed%a0%80"),
    ("a percent sign without digits", "<V1>/models/%"),
    ("a percent sign with no hex digits", "<V1>/models/%zz"),
    ("an old-style %u escape", "<V1>/models/%u002e"),
    ("capital letters", "<V1>/MODELS"),
    ("path parameters", "<V1>/models;a=b"),
    ("a semicolon parent", "<V1>/..;/admin/"),
    ("a thousand segments", "<V1>" + "/a" * 1_000),
    ("a thousand slashes", "<V1>" + "/" * 1_000 + "models"),
    ("a file of the server", "/.env"),
    ("a folder of the server", "/.git/config"),
    ("a model of a template", "<V1>/models/{{7*7}}"),
    ("a model of a script", "<V1>/models/%3Cscript%3Ealert(1)%3C%2Fscript%3E"),
    ("a model of SQL", "<V1>/models/x'%20OR%20'1'='1"),
    ("a model of 4,000 letters", "<V1>/models/" + "m" * 4_000),
    ("a model of emoji", "<V1>/models/%F0%9F%8C%8A"),
)


def _no_foreign_content(answer: Answer) -> None:
    """Neither a file of the machine, nor an injected header, nor the script as HTML."""
    if b"root:x:0" in answer.body or answer.header("x-injected") is not None:
        raise Wrong(f"{answer.status} with what was asked for by a trick")
    if b"<script>" in answer.body and answer.media_type == "text/html":
        raise Wrong(f"{answer.status}: the path comes back as HTML")


def _trick(name: str, path: str) -> Case:
    sent = wire(message(f"GET {path} HTTP/1.1", base=_KEY, body=b""))
    check = answered(_no_foreign_content, statuses=(200, 301, 302, 307, 308, 400, 404, 405, 414, 421))
    must = "404 or 400 (or the path it plainly means); never a failure, never a file"
    return case(name, sent, check, must=must, source=_URI)


def _without_key(name: str, path: str) -> Case:
    sent = wire(message(f"GET {path} HTTP/1.1", base=("Host: <HOST>",), body=b""))
    must = "no way past the key: never 200"
    check = any_of(301, 302, 307, 308, 400, 401, 403, 404, 405, 414, 421, shape=False)
    return case(f"without a key: {name}", sent, check, must=must, source="OWASP API2:2023")


def _posted(name: str, path: str) -> Case:
    sent = wire(
        message(f"POST {path} HTTP/1.1", "Content-Type: application/json", "Content-Length: <LENGTH>", base=_KEY)
    )
    check = any_of(200, 400, 403, 404, 405, shape=False)
    return case(
        f"POST to {name}", sent, check, must="answered in place: a POST is never redirected", source="OpenAI SDKs"
    )


_POSTS = tuple(
    _posted(name, path)
    for name, path in (
        ("a trailing slash", "<V1>/chat/completions/"),
        ("a double slash", "<V1>/chat//completions"),
        ("a double slash in front", "/<V1>/chat/completions"),
        ("a dot segment", "<V1>/./chat/completions"),
        ("two trailing slashes", "<V1>/chat/completions//"),
        ("the base alone", "<V1>"),
        ("the base with a slash", "<V1>/"),
        ("the root", "/"),
    )
)

_QUERY = "RFC 3986 3.4"


def _query(name: str, query: str, *, path: str = "<V1>/models") -> Case:
    sent = wire(message(f"GET {path}?{query} HTTP/1.1", base=_KEY, body=b""))
    return case(
        f"query: {name}",
        sent,
        any_of(200, 400, 404, 414, 431),
        must="200 or 400; 414 or 431 for its size",
        source=_QUERY,
    )


_QUERIES = (
    _query("empty", ""),
    _query("of question marks", "???"),
    _query("of ampersands", "&" * 500),
    _query("without a name", "=x"),
    _query("with a bad escape", "a=%zz"),
    _query("with a byte that is no UTF-8", "a=%ff"),
    _query("with NUL", "a=%00"),
    _query("with a line end", "a=%0d%0aX-Injected:%20yes"),
    _query("of brackets", "a[]=1&a[b][c]=2&a[=3"),
    _query("of a thousand names", "&".join(f"a{number}=1" for number in range(1_000))),
    _query("of 3,000 bytes", "a=" + "x" * 3_000),
    _query("of 60,000 bytes", "a=" + "x" * 60_000),
    _query("that names another method", "_method=DELETE"),
    _query("that repeats a name", "limit=1&limit=2"),
    _query("with a huge number", "limit=" + "9" * 400),
    _query("with a negative number", "limit=-1"),
    case(
        "query: the key in it, and no header",
        wire(
            message(
                "GET <V1>/models?api_key=<KEY>&key=<KEY>&access_token=<KEY> HTTP/1.1", base=("Host: <HOST>",), body=b""
            )
        ),
        any_of(401, 400, 403),
        must="401: keys in URLs end in logs",
        source="RFC 9700 4.3.2; OWASP API2:2023",
    ),
    case(
        "query: on a POST",
        wire(
            message(
                "POST <V1>/chat/completions?stream=true&a=%ff HTTP/1.1",
                "Content-Type: application/json",
                "Content-Length: <LENGTH>",
                base=_KEY,
            )
        ),
        any_of(200, 400),
        must="200 with what the body asks for, or 400",
        source=_QUERY,
    ),
)

_ROUTES = (
    case(
        "a request id that is none",
        get("/requests/not-an-id"),
        refused(statuses=(404,)),
        must="404 in OpenAI's shape",
        source="OpenAI API reference",
    ),
    case(
        "an operator's route of the engine: /metrics",
        get("root:/metrics", key=None),
        any_of(401, 403, 404, shape=False),
        must="not open to the public",
        source="vLLM docs/usage/security.md",
    ),
    *(
        case(
            f"an operator's route of the engine: {path}",
            get(f"root:{path}", method="POST"),
            any_of(401, 403, 404, 405, shape=False),
            must="no such route for a client's key",
            source="vLLM docs/usage/security.md: routes without a key",
        )
        for path in (
            "/invocations",
            "/pause",
            "/resume",
            "/sleep",
            "/wake_up",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/update_weights",
            "/init_weights_update",
            "/start_profile",
            "/server_info",
            "/inference/v1/generate",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/tokenizer_info",
            "/scale_elastic_ep",
        )
    ),
)

KIND = Kind(
    name="paths",
    group="odd",
    about="paths and query strings as nobody means them, with and without the key; routes of the engine",
    cases=(
        *(_trick(*row) for row in _TRICKS),
        *(_without_key(*row) for row in _TRICKS[:24]),
        *_POSTS,
        *_QUERIES,
        *_ROUTES,
    ),
)
