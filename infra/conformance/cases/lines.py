"""Request lines: methods, versions, targets and the Host header. Kind `lines`. RFC 9112 sections 2 and 3; RFC 9110."""

from __future__ import annotations

from infra.conformance.build import case, message, wire
from infra.conformance.case import Case, Check, Kind
from infra.conformance.checks import any_of, in_turn, turned_away, turned_away_or

_KEY = ("Authorization: Bearer <KEY>",)
_HOST = ("Host: <HOST>", *_KEY)
_LINE = "RFC 9112 3"
_HOSTS = "RFC 9112 3.2"
_METHODS = "RFC 9110 9.1"
_REFUSE = "4xx, 501, 505 or closed; never taken"
_NOT_IMPLEMENTED = frozenset({501, 505})  # of the request, not a failure of the server's own


def _line(
    name: str,
    line: str | bytes,
    *headers: str | bytes,
    check: Check | None = None,
    must: str = _REFUSE,
    source: str = _LINE,
    base: tuple[str, ...] = _HOST,
    body: bytes = b"",
    end: str = "\r\n",
) -> Case:
    text = line.decode("latin-1") if isinstance(line, bytes) else line
    sent = wire(message(text, *headers, base=base, body=body, end=end))
    return case(name, sent, check or turned_away(), must=must, source=source, may_fail=_NOT_IMPLEMENTED)


_METHOD_CASES = (
    _line("a method in lower case", "get <V1>/models HTTP/1.1", source=_METHODS),
    _line("a method nobody knows", "BREW <V1>/models HTTP/1.1", source=_METHODS),
    _line("a method of a thousand letters", "G" * 1_000 + " <V1>/models HTTP/1.1", source=_METHODS),
    _line("a method that is no token", "GE(T <V1>/models HTTP/1.1", source=_METHODS),
    _line("an empty method", " <V1>/models HTTP/1.1", source=_LINE),
    _line("TRACE", "TRACE <V1>/models HTTP/1.1", must="refused; the key is not sent back", source="RFC 9110 9.3.8"),
    _line("CONNECT to elsewhere", "CONNECT 127.0.0.1:22 HTTP/1.1", must="refused: no tunnel", source="RFC 9110 9.3.6"),
    _line("CONNECT to a path", "CONNECT <V1>/models HTTP/1.1", source="RFC 9110 9.3.6"),
    _line("PRI, the preface of HTTP/2", "PRI * HTTP/2.0", base=(), body=b"SM\r\n\r\n", source="RFC 9113 3.4"),
    _line(
        "OPTIONS *",
        "OPTIONS * HTTP/1.1",
        check=turned_away_or(200, 204),
        must="200, 204 or a refusal",
        source="RFC 9112 3.2.4",
    ),
    _line("GET *", "GET * HTTP/1.1", source="RFC 9112 3.2.4"),
)

_VERSIONS = (
    _line("HTTP/0.9", "GET <V1>/models", base=(), source="RFC 9112 Appendix C: not supported any more"),
    _line("HTTP/0.9 with headers", "GET <V1>/models", source=_LINE),
    _line("HTTP/2.0 in a request line", "GET <V1>/models HTTP/2.0", check=turned_away_or(), source="RFC 9110 15.6.6"),
    _line("HTTP/3.7", "GET <V1>/models HTTP/3.7", source="RFC 9110 15.6.6"),
    _line("a version in lower case", "GET <V1>/models http/1.1", source="RFC 9112 2.3"),
    _line("a version with two digits", "GET <V1>/models HTTP/1.10", source="RFC 9112 2.3"),
    _line("a version with a space", "GET <V1>/models HTTP/ 1.1", source="RFC 9112 2.3"),
    _line("another protocol", "GET <V1>/models ICE/1.0", source="RFC 9112 2.3"),
    _line("a version without a number", "GET <V1>/models HTTP/", source="RFC 9112 2.3"),
    _line(
        "HTTP/1.2",
        "GET <V1>/models HTTP/1.2",
        check=turned_away_or(200),
        must="read as 1.1, or refused",
        source="RFC 9110 2.5",
    ),
    _line(
        "HTTP/1.0 without Host",
        "GET <V1>/models HTTP/1.0",
        base=_KEY,
        check=in_turn((200,)),
        must="200",
        source="RFC 9112 3.2, Appendix C.1.1",
    ),
)

_TARGETS = (
    _line(
        "two spaces before the target",
        "GET  <V1>/models HTTP/1.1",
        check=turned_away_or(200),
        must="read leniently or refused",
    ),
    _line(
        "a tab before the target",
        "GET\t<V1>/models HTTP/1.1",
        check=turned_away_or(200),
        must="read leniently or refused",
    ),
    _line("white space in the target", "GET <V1>/models x HTTP/1.1", must="400: not repaired", source="RFC 9112 3.2"),
    _line("a vertical tab in the target", b"GET <V1>/models\x0bx HTTP/1.1"),
    _line("NUL in the target", b"GET <V1>/models\0 HTTP/1.1"),
    _line("raw bytes above ASCII in the target", b"GET <V1>/models/\xc3\xa9 HTTP/1.1"),
    _line("a backslash in the target", "GET <V1>\\models HTTP/1.1"),
    _line(
        "a fragment in the target",
        "GET <V1>/models#x HTTP/1.1",
        check=turned_away_or(200),
        must="refused, or the fragment is ignored",
    ),
    _line("a target without a slash", "GET models HTTP/1.1", source="RFC 9112 3.2"),
    _line("a target of 100,000 bytes", "GET <V1>/models/" + "x" * 100_000 + " HTTP/1.1", must="414, 4xx or closed"),
    _line(
        "a target of 8,000 bytes",
        "GET <V1>/models/" + "x" * 8_000 + " HTTP/1.1",
        check=turned_away(400, 404, 414),
        must="read: 404, or 414",
    ),
    _line(
        "an empty line in front",
        "\r\nGET <V1>/models HTTP/1.1",
        check=turned_away_or(200),
        must="ignored: 200",
        source="RFC 9112 2.2",
    ),
    _line(
        "a hundred empty lines in front",
        "\r\n" * 100 + "GET <V1>/models HTTP/1.1",
        check=turned_away_or(200),
        must="ignored or refused",
        source="RFC 9112 2.2",
    ),
    _line(
        "line feeds alone",
        "GET <V1>/models HTTP/1.1",
        end="\n",
        check=turned_away_or(200),
        must="read leniently or refused",
        source="RFC 9112 2.2",
    ),
    _line(
        "carriage returns alone",
        "GET <V1>/models HTTP/1.1",
        end="\r",
        body=b"\r\r",
        must="refused or closed by the deadline",
        source="RFC 9112 2.2",
    ),
    _line(
        "white space after the version",
        "GET <V1>/models HTTP/1.1 ",
        check=turned_away_or(200),
        must="read leniently or refused",
    ),
    _line(
        "the absolute form",
        "GET http://<HOST><V1>/models HTTP/1.1",
        check=in_turn((200,)),
        must="200: a server must take it",
        source="RFC 9112 3.2.2",
    ),
    _line(
        "the absolute form of another server",
        "GET http://127.0.0.1:1/ HTTP/1.1",
        check=any_of(301, 302, 400, 403, 404, 405, 421, shape=False),
        must="not fetched: no proxy",
        source="RFC 9112 3.2.2; RFC 9110 7.4",
    ),
    _line(
        "the absolute form of a metadata address",
        "GET http://169.254.169.254/latest/meta-data/ HTTP/1.1",
        check=any_of(301, 302, 400, 403, 404, 405, 421, shape=False),
        must="not fetched: no proxy",
        source="RFC 9110 7.4; CVE-2026-24779 (class)",
    ),
    _line(
        "the absolute form with a user name",
        "GET http://user@<HOST><V1>/models HTTP/1.1",
        check=turned_away_or(200),
        must="refused, or the name ignored",
        source="RFC 9110 4.2.4",
    ),
    _line(
        "a scheme nobody knows",
        "GET gopher://<HOST><V1>/models HTTP/1.1",
        check=turned_away_or(200),
        must="refused, or read as a path",
        source="RFC 9112 3.2.2",
    ),
    _line("a file URL", "GET file:///etc/passwd HTTP/1.1", source="RFC 9112 3.2.2"),
    _line("bytes of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", base=(), source=_LINE),
    _line("garbage", b"\x00\xff\xfe garbage", base=(), source=_LINE),
    _line("a line of 100,000 bytes without a space", "G" * 100_000, base=(), source=_LINE),
)


def _host(name: str, *headers: str | bytes, taken: bool = False) -> Case:
    return _line(
        f"Host {name}",
        "GET <V1>/models HTTP/1.1",
        *headers,
        base=_KEY,
        check=turned_away_or(200) if taken else turned_away(),
        must="400, or ignored" if taken else "400",
        source=_HOSTS,
    )


_HOST_CASES = (
    _host("missing in HTTP/1.1"),
    _host("given twice", "Host: <HOST>", "Host: <HOST>"),
    _host("given twice, one of another", "Host: <HOST>", "Host: evil.example"),
    _host("with a space", "Host: a b"),
    _host("with a path", "Host: <HOST>/x"),
    _host("with a query", "Host: x?y"),
    _host("with a user name", "Host: user@x"),
    _host("with a port that is no number", "Host: x:port"),
    _host("with a port out of range", "Host: x:99999999", taken=True),
    _host("with two ports", "Host: x:1:2"),
    _host("with an open bracket", "Host: [::1"),
    _host("with a bracket of no address", "Host: [zz]"),
    _host("with NUL", b"Host: x\0y"),
    _host("with bytes above ASCII", b"Host: \xff\xfe"),
    _host("with a comma", "Host: <HOST>, evil.example"),
    _host("of 10,000 letters", "Host: " + "x" * 10_000, taken=True),
    _host("empty", "Host:", taken=True),
    _host("of an IPv6 address", "Host: [::1]:80", taken=True),
    _host("of another name", "Host: evil.example", taken=True),
    _host("folded", "Host:\r\n <HOST>"),
)

KIND = Kind(
    name="lines",
    group="odd",
    about="methods, versions, request targets, the Host header",
    cases=(*_METHOD_CASES, *_VERSIONS, *_TARGETS, *_HOST_CASES),
)
