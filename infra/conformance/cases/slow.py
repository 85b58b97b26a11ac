"""Clients that take their time. Kind `slow`. All run beside everything else; none lasts longer than `SLOW_SECONDS`.

A server that waits for ever for each is out of connections after some thousands of them (slowloris).
"""

from __future__ import annotations

from infra.conformance.build import case, message, wire
from infra.conformance.case import SLOW_SECONDS, Case, Kind, Seen, Wrong
from infra.conformance.checks import turned_away

_SOURCE = "RFC 9110 15.5.9; CWE-400 (slowloris)"
_MUST = f"408, another refusal, or closed within {SLOW_SECONDS:g} s"
_POST = "POST <V1>/chat/completions HTTP/1.1"
_START = b"GET <V1>/models HTTP/1.1\r\nHost: <HOST>\r\nAuthorization: Bearer <KEY>\r\n"


def _ended(seen: Seen) -> None:
    """The server ended it, with a refusal or without a word."""
    reply = seen.replies[-1]
    if not reply.closed and not reply.answers:
        raise Wrong(f"still open after {SLOW_SECONDS:g} s")
    turned_away()(seen)


def _slow(name: str, *parts: bytes, drip: bytes = b"") -> Case:
    sent = wire(*parts, pause=1.0, drip=drip, deadline=SLOW_SECONDS)
    return case(name, sent, _ended, must=_MUST, source=_SOURCE, slow=True)


def _shut(name: str, *parts: bytes) -> Case:
    """A client that says it will send no more, in the middle of a message."""
    must = "closed or refused, never taken"
    return case(name, wire(*parts, half_close=True), turned_away(), must=must, source="RFC 9112 8", slow=True)


KIND = Kind(
    name="slow",
    group="odd",
    about="clients that send a byte a second, or nothing",
    cases=(
        _slow("not one byte"),
        _slow("a request line a byte a second", b"GET /", drip=b"a"),
        _slow("a request line and no more", b"GET <V1>/models HTTP/1.1\r\n"),
        _slow("half a header and no more", _START + b"X-Slow: "),
        _slow("a header a byte a second", _START + b"X-Slow: ", drip=b"a"),
        _slow("a new header each second", _START, drip=b"X: y\r\n"),
        _slow("empty lines in front, one a second", b"\r\n", drip=b"\r\n"),
        _slow("a body announced and not sent", message(_POST, "Content-Length: 1000", body=b"")),
        _slow("a body a byte a second", message(_POST, "Content-Length: 1000", body=b"{"), drip=b" "),
        _slow("a body that stops in its middle", message(_POST, "Content-Length: 1000", body=b'{"model": "')),
        _slow(
            "a body of another type a byte a second",
            message(
                _POST,
                "Content-Length: 1000",
                base=("Host: <HOST>", "Authorization: Bearer <KEY>", "Content-Type: text/plain"),
                body=b"",
            ),
            drip=b"a",
        ),
        _slow(
            "a body without a key a byte a second",
            message(_POST, "Content-Length: 1000", base=("Host: <HOST>", "Content-Type: application/json"), body=b""),
            drip=b" ",
        ),
        _slow("a chunk announced and not sent", message(_POST, "Transfer-Encoding: chunked", body=b"10\r\n")),
        _slow(
            "a chunk of one byte each second",
            message(_POST, "Transfer-Encoding: chunked", body=b""),
            drip=b"1\r\n \r\n",
        ),
        _slow("a chunk size a digit each second", message(_POST, "Transfer-Encoding: chunked", body=b""), drip=b"0"),
        _slow(
            "a chunk extension a byte each second", message(_POST, "Transfer-Encoding: chunked", body=b"1;"), drip=b"a"
        ),
        _slow(
            "a trailer a byte each second",
            message(_POST, "Transfer-Encoding: chunked", body=b"1\r\n{\r\n0\r\nX: "),
            drip=b"a",
        ),
        _slow(
            "a gzip body a byte each second",
            message(_POST, "Content-Encoding: gzip", "Content-Length: 1000", body=b"\x1f\x8b\x08"),
            drip=b"\0",
        ),
        _slow(
            "100-continue expected, the body not sent",
            message(_POST, "Expect: 100-continue", "Content-Length: 1000", body=b""),
        ),
        _shut("hung up within the request line", b"GET <V1>/mod"),
        _shut("hung up within the headers", _START),
        _shut("hung up before the body", message(_POST, "Content-Length: 1000", body=b"")),
        _shut("hung up at once", b""),
    ),
)
