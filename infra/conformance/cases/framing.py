"""Where a message ends: lengths, chunks, smuggling shapes. Kind `framing`. RFC 9112 sections 5 to 7 and 11.

Each message whose end two readers could see in two places carries a second request behind the doubtful end: a server
that answers it would let one client speak with another one's voice behind a proxy.
"""

from __future__ import annotations

from infra.conformance.build import JSON_POST, case, message, wire
from infra.conformance.case import Case, Check, Kind
from infra.conformance.checks import any_of, in_turn, refused_then, turned_away, turned_away_or

_CHUNKED = "Transfer-Encoding: chunked"
_LENGTH = "Content-Length: <LENGTH>"
_LENGTHS = "RFC 9112 6.2, 6.3; RFC 9110 8.6"
_CODINGS = "RFC 9112 6.1, 6.3, 11.2"
_CHUNKS = "RFC 9112 7.1"
_FIELDS = "RFC 9112 5; RFC 9110 5.5"
_REFUSE = "400 and closed; what follows is not read as a request"
_TAKE = "taken: 200"
_CLEAR = "400 or 501; its end is clear, so the next request may be answered"
_EITHER = "refused, or read in one way only"


def _doubtful(
    name: str, *headers: str | bytes, source: str, body: bytes = b"0\r\n\r\n<NEXT>", clear: bool = False
) -> Case:
    """A message and a request behind it. `clear`: only one reading is left, so the request behind may be answered."""
    check: Check = refused_then(200) if clear else turned_away()
    must = _CLEAR if clear else _REFUSE
    return case(
        name, wire(message("POST <V1>/chat/completions HTTP/1.1", *headers, body=body)), check, must=must, source=source
    )


_TWO_ENDS = (
    _doubtful("Content-Length and Transfer-Encoding", "Content-Length: 5", _CHUNKED, source=_CODINGS),
    _doubtful("Transfer-Encoding and Content-Length", _CHUNKED, "Content-Length: 5", source=_CODINGS),
    _doubtful("Transfer-Encoding and the whole length", _CHUNKED, _LENGTH, source=_CODINGS),
    _doubtful("two lengths that differ", "Content-Length: 5", "Content-Length: 6", source=_LENGTHS),
    _doubtful("two lengths, the second of all", "Content-Length: 5", _LENGTH, source=_LENGTHS),
    _doubtful("a list of lengths that differ", "Content-Length: 5, 6", source=_LENGTHS),
    _doubtful("a list of equal lengths", "Content-Length: 5, 5", source=_LENGTHS, clear=True),
    _doubtful("chunked twice in one line", "Transfer-Encoding: chunked, chunked", source=_CODINGS, clear=True),
    _doubtful("chunked on two lines", _CHUNKED, _CHUNKED, source=_CODINGS, clear=True),
    _doubtful("chunked before identity", "Transfer-Encoding: chunked, identity", source=_CODINGS),
    _doubtful("identity alone", "Transfer-Encoding: identity", source=_CODINGS),
    _doubtful("identity with a length", "Transfer-Encoding: identity", "Content-Length: 5", source=_CODINGS),
    _doubtful("gzip before chunked", "Transfer-Encoding: gzip, chunked", source=f"{_CODINGS}: 501", clear=True),
    _doubtful("a coding nobody knows", "Transfer-Encoding: xchunked", source=_CODINGS),
    _doubtful("an unknown coding beside a length", "Transfer-Encoding: x", "Content-Length: 5", source=_CODINGS),
    _doubtful("an unknown coding before chunked", "Transfer-Encoding: cow, chunked", source=_CODINGS, clear=True),
    _doubtful("an empty coding", "Transfer-Encoding:", "Content-Length: 5", source=_CODINGS),
    _doubtful("chunked in quotes", 'Transfer-Encoding: "chunked"', "Content-Length: 5", source=_CODINGS),
    _doubtful("chunked with a parameter", "Transfer-Encoding: chunked;q=1", "Content-Length: 5", source=_CODINGS),
    _doubtful("chunked after a vertical tab", b"Transfer-Encoding: \x0bchunked", "Content-Length: 5", source=_CODINGS),
    _doubtful("chunked before a vertical tab", b"Transfer-Encoding: chunked\x0b", "Content-Length: 5", source=_CODINGS),
    _doubtful(
        "chunked before NEL (0x85)", b"Transfer-Encoding: chunked\x85", "Content-Length: 5", source="CVE-2026-44546"
    ),
    _doubtful("chunked before NUL", b"Transfer-Encoding: chunked\0", "Content-Length: 5", source=_FIELDS),
    _doubtful(
        "a space before the colon of Transfer-Encoding",
        "Transfer-Encoding : chunked",
        "Content-Length: 5",
        source="RFC 9112 5.1",
    ),
    _doubtful("a space before the colon of Content-Length", "Content-Length : 5", source="RFC 9112 5.1"),
    _doubtful("a tab before the colon", "Transfer-Encoding\t: chunked", "Content-Length: 5", source="RFC 9112 5.1"),
    _doubtful(
        "a folded Transfer-Encoding", "Transfer-Encoding:\r\n chunked", "Content-Length: 5", source="RFC 9112 5.2"
    ),
    _doubtful("a folded Content-Length", "Content-Length: 5\r\n 6", source="RFC 9112 5.2"),
    _doubtful(
        "a bare CR before Transfer-Encoding",
        b"X: a\rTransfer-Encoding: chunked",
        "Content-Length: 5",
        source="RFC 9112 2.2",
    ),
    _doubtful(
        "a Transfer-Encoding folded onto another header",
        " Transfer-Encoding: chunked",
        "Content-Length: 5",
        source="RFC 9112 5.2",
        clear=True,
    ),
    _doubtful(
        "Transfer_Encoding with an underscore",
        "Transfer_Encoding: chunked",
        "Content-Length: 5",
        source="CVE-2026-3902 (class)",
        clear=True,
    ),
    _doubtful(
        "Content_Length with an underscore",
        "Content_Length: 500",
        "Content-Length: 5",
        source="CVE-2026-3902 (class)",
        clear=True,
    ),
    case(
        "chunked in HTTP/1.0",
        wire(message("POST <V1>/chat/completions HTTP/1.0", _CHUNKED, body=b"<CHUNKS><NEXT>")),
        turned_away_or(200),
        must="refused, or the connection is closed after it",
        source="RFC 9112 6.1",
    ),
)


def _length(value: str, *, name: str | None = None) -> Case:
    shown = repr(value) if name is None else name
    return _doubtful(f"the length {shown}", f"Content-Length: {value}", source=_LENGTHS, body=b"{}   <NEXT>")


_BAD_LENGTHS = (
    *(_length(value) for value in ("-1", "+5", "5.0", "5e0", "0x5", "5;", "1_0", "five", "5 5", "\u00b2", '"5"', "")),
    _length("18446744073709551617"),
    _length("9" * 40, name="of forty nines"),
    _length("9" * 5_000, name="of five thousand nines"),
    case(
        "two equal lengths",
        wire(message("POST <V1>/chat/completions HTTP/1.1", _LENGTH, _LENGTH)),
        turned_away_or(200),
        must=_EITHER,
        source=_LENGTHS,
    ),
    case(
        "a length with zeros in front",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Content-Length: 000<LENGTH>")),
        turned_away_or(200),
        must="read as decimal, or refused",
        source=_LENGTHS,
    ),
    case(
        "a length and a body cut short",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Content-Length: 5000"), half_close=True),
        turned_away(),
        must="never taken as a whole request",
        source="RFC 9112 8",
    ),
    case(
        "a chunked body cut short",
        wire(message("POST <V1>/chat/completions HTTP/1.1", _CHUNKED, body=b"1000\r\n<CHAT>"), half_close=True),
        turned_away(),
        must="never taken as a whole request",
        source="RFC 9112 8",
    ),
    case(
        "a chunked body without its last chunk",
        wire(message("POST <V1>/chat/completions HTTP/1.1", _CHUNKED, body=b"2\r\n{}\r\n"), half_close=True),
        turned_away(),
        must="never taken as a whole request",
        source="RFC 9112 8",
    ),
    case(
        "a body without any length",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Connection: close")),
        turned_away(),
        must="the body is empty: 400 or 411",
        source="RFC 9112 6.3",
    ),
    case(
        "a GET with a body",
        wire(message("GET <V1>/models HTTP/1.1", "Content-Length: 5", body=b"12345"), b"<NEXT>", answers=2),
        in_turn((200, 200), (400,)),
        must="its body is read and not taken for a request",
        source="RFC 9110 9.3.1",
    ),
)


def _chunks(name: str, body: bytes, *, taken: bool = False, strict: bool = False, source: str = _CHUNKS) -> Case:
    """A chunked body. `taken`: it must be; `strict`: it must not be; neither: both are right."""
    sent = wire(message("POST <V1>/chat/completions HTTP/1.1", _CHUNKED, body=body))
    if taken:
        return case(name, sent, any_of(200), must=_TAKE, source=source)
    check = turned_away() if strict else turned_away_or(200)
    return case(name, sent, check, must=_REFUSE if strict else _EITHER, source=source)


_SPACES = b"2\r\n  \r\n"

_CHUNKINGS = (
    _chunks("a whole request in one chunk", b"<CHUNKS>", taken=True),
    _chunks("a request behind many small chunks", _SPACES * 200 + b"<CHUNKS>", taken=True),
    _chunks("a chunk extension", b"2;a=b\r\n  \r\n<CHUNKS>", taken=True, source="RFC 9112 7.1.1"),
    _chunks("a quoted chunk extension", b'2;a="b c"\r\n  \r\n<CHUNKS>', taken=True, source="RFC 9112 7.1.1"),
    _chunks(
        "a chunk size in both cases", b"0a\r\n" + b" " * 10 + b"\r\n0A\r\n" + b" " * 10 + b"\r\n<CHUNKS>", taken=True
    ),
    _chunks("a chunk size with zeros in front", b"0000002\r\n  \r\n<CHUNKS>"),
    _chunks(
        "a chunk extension of 100,000 bytes", b"2;" + b"a" * 100_000 + b"\r\n  \r\n<CHUNKS>", source="RFC 9112 7.1.1"
    ),
    _chunks("a thousand chunk extensions", b"2" + b";a=b" * 1_000 + b"\r\n  \r\n<CHUNKS>", source="RFC 9112 7.1.1"),
    _chunks(
        "a line feed in a chunk extension", b"2;a\nb\r\n  \r\n<CHUNKS>", strict=True, source="RFC 9112 7.1.1, 11.2"
    ),
    _chunks("a bare CR in a chunk extension", b"2;a\rb\r\n  \r\n<CHUNKS>", strict=True, source="RFC 9112 2.2"),
    _chunks("a chunk size of letters", b"zz\r\n<NEXT>", strict=True),
    _chunks("a chunk size with 0x", b"0x2\r\n  \r\n<CHUNKS>", strict=True),
    _chunks("a chunk size with a minus", b"-2\r\n  \r\n<CHUNKS>", strict=True),
    _chunks("a chunk size with a plus", b"+2\r\n  \r\n<CHUNKS>", strict=True),
    _chunks("a chunk size with an underscore", b"0_2\r\n  \r\n<CHUNKS>", strict=True),
    _chunks("an empty chunk size", b"\r\n<NEXT>", strict=True),
    _chunks("a chunk size after a space", b" 2\r\n  \r\n<CHUNKS>", strict=True),
    _chunks("a chunk size of 17 hex digits", b"10000000000000002\r\n  \r\n<CHUNKS>", strict=True),
    _chunks("a chunk size of a thousand digits", b"0" * 1_000 + b"2\r\n  \r\n<CHUNKS>"),
    _chunks("a chunk longer than its size", b"2\r\n    \r\n<CHUNKS>", strict=True),
    _chunks("a chunk without its line end", b"2\r\n  <CHUNKS>", strict=True),
    _chunks("a chunk that ends in LF alone", b"2\r\n  \n<CHUNKS>", strict=True, source="RFC 9112 7.1; CVE-2025-43859"),
    _chunks("a chunk that ends in other bytes", b"2\r\n  XX<CHUNKS>", strict=True, source="CVE-2025-43859"),
    _chunks("a chunk size line that ends in LF alone", b"2\n  \r\n<CHUNKS>", source="RFC 9112 2.2, 7.1"),
    _chunks("a negative last chunk", b"2\r\n{}\r\n-0\r\n\r\n<NEXT>", strict=True),
    case(
        "a trailer with the key",
        wire(
            message(
                "POST <V1>/chat/completions HTTP/1.1",
                _CHUNKED,
                base=("Host: <HOST>", "Content-Type: application/json"),
                body=b"<OPEN>0\r\nAuthorization: Bearer <KEY>\r\n\r\n",
            )
        ),
        turned_away(400, 401),
        must="a trailer is no header: 401",
        source="RFC 9110 6.5.1",
    ),
    case(
        "a trailer with a length",
        wire(
            message(
                "POST <V1>/chat/completions HTTP/1.1", _CHUNKED, body=b"2\r\n{}\r\n0\r\nContent-Length: 500\r\n\r\n"
            )
        ),
        turned_away(),
        must="it does not count; {} is refused",
        source="RFC 9110 6.5.1",
    ),
    case(
        "a trailer of 200,000 bytes",
        wire(
            message(
                "POST <V1>/chat/completions HTTP/1.1",
                _CHUNKED,
                body=b"2\r\n{}\r\n0\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
            )
        ),
        turned_away(),
        must="refused in time",
        source="RFC 9112 7.1.2",
    ),
    case(
        "chunked in capital letters",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Transfer-Encoding: CHUNKED", body=b"<CHUNKS>")),
        any_of(200),
        must=_TAKE,
        source="RFC 9112 7: names of codings are without case",
    ),
)

_HIDDEN = "the unread body is not taken for a request: the next answer is that of the next request, or none"
_OTHER = b"GET <V1>/no-such-path HTTP/1.1\r\nHost: <HOST>\r\nAuthorization: Bearer <KEY>\r\n\r\n"


def _unread(name: str, status: tuple[int, ...], line: str, *headers: str, base: tuple[str, ...] = JSON_POST) -> Case:
    """A refusal before the body is read. The body holds a request that would be answered 200; a 404 follows it."""
    sent = wire(message(line, _LENGTH, *headers, base=base, body=b"<NEXT>"), _OTHER, answers=2)
    check = in_turn(*((one, 404) for one in status))
    return case(name, sent, check, must=_HIDDEN, source="RFC 9112 9.3, 11.2")


_UNREAD = (
    _unread("a body sent to a path that is not there", (404,), "POST <V1>/no-such-path HTTP/1.1"),
    _unread("a body sent with a method that is not taken", (405,), "PUT <V1>/models HTTP/1.1"),
    _unread("a body sent without a key", (401,), "POST <V1>/chat/completions HTTP/1.1", base=("Host: <HOST>",)),
    _unread(
        "a body of another type",
        (400, 415),
        "POST <V1>/chat/completions HTTP/1.1",
        base=("Host: <HOST>", "Authorization: Bearer <KEY>", "Content-Type: text/plain"),
    ),
    _unread("a body in another coding", (400, 415), "POST <V1>/chat/completions HTTP/1.1", "Content-Encoding: br"),
    _unread("a body that is not JSON", (400,), "POST <V1>/chat/completions HTTP/1.1"),
    _unread("a body sent with DELETE", (404, 405), "DELETE <V1>/models HTTP/1.1"),
    _unread("a body sent with OPTIONS", (200, 204, 400, 405), "OPTIONS <V1>/models HTTP/1.1"),
    case(
        "a chunked body sent to a path that is not there",
        wire(message("POST <V1>/no-such-path HTTP/1.1", _CHUNKED, body=b"<CHUNKS>"), b"<NEXT>", answers=2),
        in_turn((404, 200)),
        must=_HIDDEN,
        source="RFC 9112 9.3",
    ),
)

_ONE_WRITE = (
    case(
        "two requests in one write",
        wire(b"<NEXT>", b"<NEXT>", answers=2),
        in_turn((200, 200)),
        must="answered in their order, or the connection closed after one",
        source="RFC 9112 9.3.2",
    ),
    case(
        "a good request behind a refused one",
        wire(_OTHER, b"<NEXT>", answers=2),
        in_turn((404, 200)),
        must="answered in their order, or the connection closed after one",
        source="RFC 9112 9.3.2",
    ),
    case(
        "a POST and a GET in one write",
        wire(message("POST <V1>/chat/completions HTTP/1.1", _LENGTH), b"<NEXT>", answers=2),
        in_turn((200, 200)),
        must="answered in their order, or the connection closed after one",
        source="RFC 9112 9.3.2",
    ),
    case(
        "a chunked POST and a GET in one write",
        wire(message("POST <V1>/chat/completions HTTP/1.1", _CHUNKED, body=b"<CHUNKS>"), b"<NEXT>", answers=2),
        in_turn((200, 200)),
        must="answered in their order, or the connection closed after one",
        source="RFC 9112 9.3.2",
    ),
    case(
        "an empty line between two requests",
        wire(message("POST <V1>/chat/completions HTTP/1.1", _LENGTH), b"\r\n<NEXT>", answers=2),
        in_turn((200, 200)),
        must="ignored, or the connection closed after one",
        source="RFC 9112 2.2",
    ),
    case(
        "a length of nought and a request behind it",
        wire(message("POST <V1>/chat/completions HTTP/1.1", "Content-Length: 0", body=b""), b"<NEXT>", answers=2),
        in_turn((400, 200), (411, 200), (422, 200)),
        must="400 for the empty body, then the next",
        source="RFC 9112 6.3",
    ),
    case(
        "HTTP/1.0 that asks to be kept alive",
        wire(message("POST <V1>/chat/completions HTTP/1.0", "Connection: keep-alive", _LENGTH)),
        in_turn((200,)),
        must="200",
        source="RFC 9112 9.3, Appendix C.2.2",
    ),
    case(
        "twenty requests in one write",
        wire(*[b"<NEXT>"] * 20, answers=20),
        in_turn((200,) * 20),
        must="answered in their order, or the connection closed after some",
        source="RFC 9112 9.3.2",
    ),
    case(
        "garbage behind a good request",
        wire(b"<NEXT>", b"\0\1garbage\r\n\r\n", answers=2),
        in_turn((200, 400)),
        must="the good one is answered, then 400 or closed",
        source="RFC 9112 9.3, 2.2",
    ),
    case(
        "a request with `Connection: close` and another behind it",
        wire(message("GET <V1>/models HTTP/1.1", "Connection: close", body=b""), b"<NEXT>", answers=2),
        in_turn((200,)),
        must="only the first is answered",
        source="RFC 9112 9.6",
    ),
)

KIND = Kind(
    name="framing",
    group="odd",
    about="lengths, chunks, smuggling shapes, several messages on one connection",
    cases=(*_TWO_ENDS, *_BAD_LENGTHS, *_CHUNKINGS, *_UNREAD, *_ONE_WRITE),
)
