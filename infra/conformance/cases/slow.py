"""Clients that take their time. Kind `slow`. All run beside everything else; none lasts longer than `SLOW_SECONDS`.

A server that waits for ever for each is out of connections after some thousands of them (slowloris). One that reads
slowly gets all of its answer, as anybody does.
"""

from __future__ import annotations

from infra.conformance.build import case, message, wire
from infra.conformance.case import SLOW_SECONDS, Case, Check, Kind, Seen, Wrong
from infra.conformance.checks import answered, is_json, refused, turned_away
from infra.conformance.stream_checks import on_chunks, one_finish, role_first, sdk_reads

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


def _sips(name: str, sent: bytes, check: Check, *, must: str, sip: int = 64, pause: float = 0.02) -> Case:
    """A client that reads little at a time, with pauses."""
    reading = wire(sent, sip=sip, pause=pause, deadline=SLOW_SECONDS)
    return case(name, reading, check, must=must, source="RFC 9112 9.6; WHATWG HTML 9.2", slow=True)


def _whole(body: bytes) -> bytes:
    return message(_POST, "Content-Length: <LENGTH>", body=body)


_STREAM = b'{"model":"<MODEL>","messages":[{"role":"user","content":"Count to ten."}],"max_tokens":12,"stream":true}'
_WHOLE = answered(on_chunks(role_first, one_finish), sdk_reads)

KIND = Kind(
    name="slow",
    group="odd",
    about="clients that send a byte a second, or nothing; clients that read slowly",
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
        _sips("a stream read 64 bytes at a time", _whole(_STREAM), _WHOLE, must="the whole stream"),
        _sips(
            "a stream of which nothing is read for three seconds at a time",
            _whole(_STREAM),
            _WHOLE,
            must="the whole stream",
            sip=2_048,
            pause=3.0,
        ),
        _sips(
            "an answer read a byte at a time",
            _whole(b"<CHAT>"),
            answered(is_json),
            must="the whole answer",
            sip=1,
            pause=0,
        ),
        _sips("a refusal read 16 bytes at a time", _whole(b"{"), refused(), must="400 in OpenAI's shape", sip=16),
        _sips(
            "a refusal of a large body read 16 bytes at a time",
            _whole(b'{"model": "' + b"m" * 4_000_000 + b'"}'),
            refused(statuses=(400, 404, 413)),
            must="400, 404 or 413 in OpenAI's shape",
            sip=16,
        ),
        _shut("hung up within the request line", b"GET <V1>/mod"),
        _shut("hung up within the headers", _START),
        _shut("hung up before the body", message(_POST, "Content-Length: 1000", body=b"")),
        _shut("hung up at once", b""),
    ),
)
