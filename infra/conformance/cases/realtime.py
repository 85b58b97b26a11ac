"""WebSockets on /realtime: handshakes, frames, messages, closing, events. Kind `realtime`. RFC 6455.

Events are those that OpenAI's Realtime API and ours share; a server without the route is skipped.
"""

from __future__ import annotations

from infra.conformance.build import case, wire
from infra.conformance.case import SLOW_SECONDS, Case, Check, Kind, Wire
from infra.conformance.frames import BINARY, CONTINUATION, PING, PONG, TEXT, close, event, frame
from infra.conformance.socket_checks import agreed, closed, ended, goes_on, not_opened, stands, told, unserved

_HEADERS = {
    "Host": "<HOST>",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Authorization": "Bearer <KEY>",
}
_PAUSE = 0.3
_GET = "GET <V1>/realtime HTTP/1.1"
_PROTOCOL = "RFC 6455 5.1, 7.4.1"
_GOES_ON = "taken, and the session goes on"


def _hello(line: str = _GET, *more: str, **changes: str | None) -> bytes:
    """A handshake with these headers changed (None: left out) or added."""
    headers = {**_HEADERS, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = [line, *(f"{name}: {value}" for name, value in headers.items() if value is not None), *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _said(hello: bytes, *frames: bytes) -> Wire:
    """Frames once the handshake is answered, as a client has to (section 4.1)."""
    return wire(hello, b"".join(frames), pause=_PAUSE)


def _refused(name: str, hello: bytes, *statuses: int, source: str = "RFC 6455 4.2.1, 4.2.2") -> Case:
    wanted = statuses or (400, 426)
    must = f"{' or '.join(map(str, wanted))} in OpenAI's shape, no 101"
    return case(name, wire(hello), not_opened(*wanted), must=must, source=source)


def _frames(name: str, *frames: bytes, check: Check, must: str, source: str = _PROTOCOL) -> Case:
    """Frames right behind a good handshake."""
    return case(name, _said(_hello(), *frames), check, must=must, source=source)


def _ends(name: str, *frames: bytes, codes: tuple[int, ...] = (1002,), source: str = _PROTOCOL) -> Case:
    must = f"closed with {' or '.join(map(str, codes))}" if codes else "closed, or taken"
    return _frames(name, *frames, check=closed(*codes), must=must, source=source)


def _event(name: str, text: bytes, *, param: str = "") -> Case:
    must = "an error event in OpenAI's shape, and it goes on"
    return _frames(name, frame(TEXT, text), check=told(param=param), must=must, source="OpenAI Realtime API")


def _agrees(name: str, value: str, *more: str, offered: tuple[str, ...] = ()) -> Case:
    hello = _hello(_GET, *more, Sec_WebSocket_Protocol=value)
    must = "101 with one of those offered or none, or refused"
    return case(name, wire(hello), agreed(*offered), must=must, source="RFC 6455 4.2.2, 11.3.4")


_HANDSHAKES = (
    case(
        "a good handshake",
        wire(_hello()),
        goes_on("session.created"),
        must="101 and session.created",
        source="RFC 6455 4.2.2",
    ),
    case(
        "names and values in another case",
        wire(_hello(Upgrade="WebSocket", Connection="keep-alive, UPGRADE")),
        goes_on("session.created"),
        must="101: both are without case, Connection is a list",
        source="RFC 6455 4.2.1",
    ),
    case(
        "an extension that nobody knows",
        wire(_hello(Sec_WebSocket_Extensions="x-unknown; a=1")),
        goes_on("session.created"),
        must="101 without it",
        source="RFC 6455 9.1",
    ),
    _agrees("a subprotocol that nobody knows", "x-unknown"),
    _agrees("the subprotocol of OpenAI's clients", "realtime", offered=("realtime",)),
    _agrees(
        "the subprotocols of OpenAI's clients in browsers, a key among them",
        "realtime, openai-insecure-api-key.<KEY>, openai-beta.realtime-v1",
        offered=("realtime", "openai-beta.realtime-v1"),
    ),
    _agrees("several that nobody knows", "x-a, x-b,x-c", offered=("x-a", "x-b", "x-c")),
    _agrees("subprotocols in two headers", "x-a", "Sec-WebSocket-Protocol: realtime", offered=("x-a", "realtime")),
    _agrees("a subprotocol in another case", "REALTIME", offered=("REALTIME",)),
    _agrees("the same subprotocol twice", "realtime, realtime", offered=("realtime",)),
    _agrees("an empty list of subprotocols", ""),
    _agrees("commas and no subprotocol", " , ,"),
    _agrees("a subprotocol that is no token", 'real time;"x"'),
    _agrees("a thousand subprotocols", ", ".join(f"x-{number}" for number in range(1_000))),
    _agrees("a subprotocol of 4,000 bytes", "x" * 4_000, offered=("x" * 4_000,)),
    case(
        "a ping that does not wait for the handshake's answer",
        wire(_hello() + frame(PING, b"early")),
        stands,
        must="taken or dropped: a client has to wait",
        source="RFC 6455 4.1",
    ),
    _refused("no Upgrade", _hello(Upgrade=None)),
    _refused("another Upgrade", _hello(Upgrade="h2c")),
    _refused("no Connection", _hello(Connection=None)),
    _refused("a Connection that does not upgrade", _hello(Connection="keep-alive")),
    _refused("no version", _hello(Sec_WebSocket_Version=None)),
    _refused("an older version", _hello(Sec_WebSocket_Version="8"), source="RFC 6455 4.4"),
    _refused("a version to come", _hello(Sec_WebSocket_Version="14"), source="RFC 6455 4.4"),
    _refused("a version that is no number", _hello(Sec_WebSocket_Version="x")),
    _refused("two versions", _hello(Sec_WebSocket_Version="13, 8")),
    _refused("no key of the handshake", _hello(Sec_WebSocket_Key=None)),
    _refused("an empty key of the handshake", _hello(Sec_WebSocket_Key="")),
    _refused("a short key of the handshake", _hello(Sec_WebSocket_Key="c2hvcnQ=")),
    _refused("a long key of the handshake", _hello(Sec_WebSocket_Key="A" * 64)),
    _refused("a key of the handshake that is no base64", _hello(Sec_WebSocket_Key="!" * 24)),
    _refused(
        "two keys of the handshake",
        _hello(_GET, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
    ),
    _refused("POST", _hello("POST <V1>/realtime HTTP/1.1"), 400, 405, 426),
    _refused("HEAD", _hello("HEAD <V1>/realtime HTTP/1.1"), 400, 405, 426),
    _refused("HTTP/1.0", _hello("GET <V1>/realtime HTTP/1.0")),
    _refused("no Host", _hello(Host=None), source="RFC 9112 3.2"),
    _refused(
        "no WebSocket at all", _hello(Upgrade=None, Connection=None, Sec_WebSocket_Key=None), source="RFC 9110 7.8"
    ),
    _refused("a header of 100,000 bytes", _hello(X_Long="a" * 100_000), 400, 431, source="RFC 6585 5"),
    _refused("two hundred headers", _hello(_GET, *["X-A: b"] * 200), 400, 431, source="RFC 6585 5"),
    case(
        "a WebSocket on another path",
        wire(_hello("GET <V1>/models HTTP/1.1")),
        unserved(400, 404, 405, 426),
        must="refused, or closed with 4404",
        source="RFC 6455 4.2.2",
    ),
    case(
        "a WebSocket on a path that is not there",
        wire(_hello("GET <V1>/nothing HTTP/1.1")),
        unserved(400, 403, 404),
        must="404, or closed with 4404",
        source="RFC 6455 4.2.2",
    ),
)

_KEYS = (
    case(
        "a wrong key",
        wire(_hello(Authorization="Bearer weir_wrong")),
        stands,
        must="401, or an error event and an end",
        source="OWASP API2:2023",
    ),
    *(
        case(name, _said(hello, event("response.create")), ended, must="ended", source="OWASP API2:2023")
        for name, hello in (
            ("a wrong key and a question", _hello(Authorization="Bearer weir_wrong")),
            ("another scheme and a question", _hello(Authorization="Basic <KEY>")),
            ("two keys and a question", _hello(_GET, "Authorization: Bearer x")),
            ("no key and a question", _hello(Authorization=None)),
            ("a key in the URL", _hello("GET <V1>/realtime?api_key=<KEY> HTTP/1.1", Authorization=None)),
        )
    ),
    case(
        "no key and nothing said",
        wire(_hello(Authorization=None), deadline=SLOW_SECONDS),
        ended,
        must=f"ended within {SLOW_SECONDS:g} s",
        source="CWE-400",
        slow=True,
    ),
    case(
        "no key and pings alone",
        wire(_hello(Authorization=None), pause=0.5, drip=frame(PING), deadline=SLOW_SECONDS),
        ended,
        must=f"ended within {SLOW_SECONDS:g} s",
        source="CWE-400",
        slow=True,
    ),
    case(
        "no key and a message that never ends",
        wire(
            _hello(Authorization=None),
            frame(TEXT, b"{", fin=False),
            pause=0.5,
            drip=frame(CONTINUATION, b" ", fin=False),
            deadline=SLOW_SECONDS,
        ),
        ended,
        must=f"ended within {SLOW_SECONDS:g} s",
        source="CWE-400 (slowloris)",
        slow=True,
    ),
)

_OPCODES = tuple(
    _ends(f"the opcode {opcode:#x}", frame(opcode, b"a"), source="RFC 6455 5.2")
    for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
)
_FRAMES = (
    *_OPCODES,
    *(
        _ends(f"the reserved bits {bits:03b}", frame(TEXT, b"{}", reserved=bits), source="RFC 6455 5.2")
        for bits in (1, 2, 4, 7)
    ),
    _ends("a frame without a mask", frame(TEXT, b"{}", masked=False)),
    _ends("a ping without a mask", frame(PING, masked=False)),
    _ends("a ping in pieces", frame(PING, b"a", fin=False), source="RFC 6455 5.5"),
    _ends("a ping of 126 bytes", frame(PING, b"a" * 126), source="RFC 6455 5.5"),
    _ends("a Close of 126 bytes", frame(8, b"\x03\xe8" + b"a" * 124), source="RFC 6455 5.5"),
    _ends("a continuation of nothing", frame(CONTINUATION, b"{}"), source="RFC 6455 5.4"),
    _ends("a message within a message", frame(TEXT, b"{", fin=False), frame(TEXT, b"}"), source="RFC 6455 5.4"),
    _ends(
        "a length with its first bit set",
        frame(TEXT, length=b"\x7f" + b"\x80" + b"\0" * 7),
        codes=(1002, 1009),
        source="RFC 6455 5.2",
    ),
    _ends(
        "a length of 2^62",
        frame(TEXT, length=b"\x7f\x40" + b"\0" * 7),
        codes=(1009, 1002, 4413),
        source="RFC 6455 7.4.1; CWE-770",
    ),
    _ends("a message of 3 MB", frame(TEXT, b" " * 3_000_000), codes=(1009, 4413, 4400), source="RFC 6455 7.4.1"),
    _ends(
        "a message of 3 MB in pieces",
        frame(TEXT, b" " * 100_000, fin=False),
        *[frame(CONTINUATION, b" " * 100_000, fin=False)] * 30,
        codes=(1009, 4413, 4400),
        source="RFC 6455 7.4.1",
    ),
    _frames(
        "a length longer than it need be",
        frame(PING, b"", length=b"\x7e\0\0"),
        check=stands,
        must="closed, or read as the length it says",
        source="RFC 6455 5.2",
    ),
    _ends("a binary message", frame(BINARY, b"\x00\x01"), codes=(1003, 4400), source="RFC 6455 7.4.1"),
    _ends("an empty binary message", frame(BINARY), codes=(1003, 4400), source="RFC 6455 7.4.1"),
    _ends("HTTP within a WebSocket", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    _ends("NUL bytes", b"\0" * 64),
    _ends("bytes of 0xff", b"\xff" * 64),
)

_UTF8 = tuple(
    _ends(f"text that is no UTF-8: {name}", *frames, codes=(1007,), source="RFC 6455 8.1")
    for name, frames in (
        ("a byte 0xff", (frame(TEXT, b"\xff"),)),
        ("cut off", (frame(TEXT, b"\xf0\x9f\xa6"),)),
        ("an overlong slash", (frame(TEXT, b"\xc0\xaf"),)),
        ("half of a surrogate pair", (frame(TEXT, b"\xed\xa0\x80"),)),
        ("past U+10FFFF", (frame(TEXT, b"\xf4\x90\x80\x80"),)),
        ("in its second piece", (frame(TEXT, b'{"a":"', fin=False), frame(CONTINUATION, b'\xff"}'))),
    )
)

_GOOD = (
    _frames(
        "a ping",
        frame(PING, b"payload"),
        check=goes_on(pong=b"payload"),
        must="a pong with its payload",
        source="RFC 6455 5.5.2",
    ),
    _frames(
        "a ping of 125 bytes",
        frame(PING, b"p" * 125),
        check=goes_on(pong=b"p" * 125),
        must="a pong with its payload",
        source="RFC 6455 5.5.2",
    ),
    _frames(
        "a pong that nobody asked for",
        frame(PONG, b"x"),
        frame(PING, b"y"),
        check=goes_on(pong=b"y"),
        must=_GOES_ON,
        source="RFC 6455 5.5.3",
    ),
    _frames(
        "a ping between two pieces",
        frame(TEXT, b'{"type":"session.up', fin=False),
        frame(PING, b"mid"),
        frame(CONTINUATION, b'date","session":{}}'),
        check=goes_on("session.updated", pong=b"mid"),
        must=_GOES_ON,
        source="RFC 6455 5.4",
    ),
    _frames(
        "a character cut in two by its pieces",
        frame(TEXT, b'{"type":"session.update","session":{"instructions":"\xf0\x9f', fin=False),
        frame(CONTINUATION, b'\xa6\x8a"}}'),
        check=goes_on("session.updated"),
        must=_GOES_ON,
        source="RFC 6455 5.6, 8.1",
    ),
    _frames(
        "a message of one byte in each piece",
        *[
            frame(TEXT if i == 0 else CONTINUATION, b'{"type":"session.update","session":{}}'[i : i + 1], fin=False)
            for i in range(38)
        ],
        frame(CONTINUATION),
        check=goes_on("session.updated"),
        must=_GOES_ON,
        source="RFC 6455 5.4",
    ),
    _frames(
        "5,000 pings",
        frame(PING, b"flood") * 5_000,
        frame(PING, b"last"),
        check=stands,
        must="answered, or closed",
        source="CWE-400; CVE-2019-9512 (class)",
    ),
    _frames(
        "20,000 empty pieces",
        frame(TEXT, b"{", fin=False),
        frame(CONTINUATION, fin=False) * 20_000,
        frame(PING, b"after"),
        check=stands,
        must="borne, or closed",
        source="CWE-770",
    ),
)

_CLOSING = (
    *(
        _ends(f"a Close with the code {code}", close(code), codes=(1002,), source="RFC 6455 7.4")
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
    ),
    *(
        _ends(
            f"a Close with the code {code}, which is a good one",
            close(code, b"bye"),
            codes=(code, 1000),
            source="RFC 6455 5.5.1",
        )
        for code in (1000, 1001, 1003, 1007, 1008, 1009, 3000, 3999, 4000, 4999)
    ),
    _ends("a Close of one byte", frame(8, b"\x03"), source="RFC 6455 5.5.1"),
    _ends("a Close without a code", frame(8), codes=(1000, 1005), source="RFC 6455 5.5.1"),
    _ends("a Close whose reason is no UTF-8", close(1000, b"\xff"), codes=(1002, 1007), source="RFC 6455 5.5.1"),
    _ends("a question behind a Close", close(1000), event("response.create"), codes=(1000,), source="RFC 6455 5.5.1"),
    _ends("two Closes", close(1000), close(1001), codes=(1000,), source="RFC 6455 5.5.1"),
    case(
        "hung up within a frame",
        wire(_hello(), b"\x81\xfe", pause=_PAUSE, half_close=True),
        ended,
        must="ended",
        source="RFC 6455 7.1.5",
    ),
)

_EVENTS = (
    _event("no JSON", b"hello", param="body"),
    _event("an empty message", b"", param="body"),
    _event("a list", b"[]", param="body"),
    _event("null", b"null", param="body"),
    _event("two objects", b"{}{}", param="body"),
    _event("NaN in an event", b'{"type":"session.update","session":{"temperature":NaN}}', param="session"),
    _event("a field twice in an event", b'{"type":"a","type":"b"}', param="type"),
    _event("a lone surrogate in an event", b'{"type":"\\ud800"}', param="type"),
    _event("an event of 100,000 levels", b'{"type":' + b"[" * 100_000 + b"]" * 100_000 + b"}", param="type"),
    _event(
        "a huge integer in an event",
        b'{"type":"session.update","session":{"seed":1' + b"0" * 400 + b"}}",
        param="session",
    ),
    _event("no type", b"{}", param="type"),
    _event("a type that nobody knows", b'{"type":"no.such.event"}', param="type"),
    _event("null as a type", b'{"type":null}', param="type"),
    _event("a number as a type", b'{"type":7}', param="type"),
    _event("an object as a type", b'{"type":{}}', param="type"),
    _event("a type of a million letters", b'{"type":"' + b"a" * 1_000_000 + b'"}', param="type"),
    _event("a session that is a string", b'{"type":"session.update","session":"x"}', param="session"),
    _event("no session", b'{"type":"session.update"}', param="session"),
    _event("a session's field that nobody knows", b'{"type":"session.update","session":{"no_such":1}}'),
    _event(
        "a session's field of another type",
        b'{"type":"session.update","session":{"temperature":"hot"}}',
        param="temperature",
    ),
    _event("an item that is null", b'{"type":"conversation.item.create","item":null}', param="item"),
    _event("an item of another kind", b'{"type":"conversation.item.create","item":{"type":"image"}}', param="item"),
    _event(
        "an item without a role",
        b'{"type":"conversation.item.create","item":{"type":"message","content":"a"}}',
        param="item",
    ),
    _event(
        "an item of audio",
        b'{"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"input_audio","audio":"AA=="}]}}',
        param="item",
    ),
    _event("a question without an item", b'{"type":"response.create","response":{"model":"a"}}'),
    _event(
        "a question to a model that is not there",
        b'{"type":"response.create","response":{"model":"none","input":[{"type":"message","role":"user","content":"a"}]}}',
        param="model",
    ),
    _event("a response that is a list", b'{"type":"response.create","response":[]}', param="response"),
    _event("a cancel of nothing", b'{"type":"response.cancel"}', param="response_id"),
    _event("a cancel of a number", b'{"type":"response.cancel","response_id":7}', param="response_id"),
    _event("audio", b'{"type":"input_audio_buffer.append","audio":"AA=="}', param="type"),
)

KIND = Kind(
    name="realtime",
    group="odd",
    about="WebSockets: handshakes, frames, closing, events (RFC 6455)",
    cases=(*_HANDSHAKES, *_KEYS, *_FRAMES, *_UTF8, *_GOOD, *_CLOSING, *_EVENTS),
)
