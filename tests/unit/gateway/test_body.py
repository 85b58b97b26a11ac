import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from contracts.errors import InvalidRequest, TooLarge, UnsupportedMedia
from gateway.edge.body import ClientGone, read_body
from gateway.surface import limits
from gateway.surface.errors import ReadTimeout
from gateway.surface.json_text import parse_object

PACKED = gzip.compress(b"{}", mtime=0)
JSON = {b"content-type": b"application/json"}


def sends(*chunks: bytes, gone: bool = False) -> Callable[[], Awaitable[dict[str, Any]]]:
    messages = [
        {"type": "http.request", "body": chunk, "more_body": gone or index < len(chunks) - 1}
        for index, chunk in enumerate(chunks)
    ]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        if gone:
            return {"type": "http.disconnect"}
        await asyncio.Event().wait()
        raise AssertionError

    return receive


async def read(*chunks: bytes, headers: dict[bytes, bytes] = JSON, gone: bool = False) -> bytes:
    return await read_body(sends(*chunks, gone=gone), headers, deadline_seconds=5)


class TestReadBody:
    async def test_joins_chunks(self) -> None:
        assert await read(b'{"a"', b":1", b"}") == b'{"a":1}'

    async def test_inflates_gzip(self) -> None:
        packed = gzip.compress(b'{"a":1}')
        headers = JSON | {b"content-encoding": b"gzip"}
        assert await read(packed[:5], packed[5:], headers=headers) == b'{"a":1}'

    async def test_counts_a_bomb_after_decompression(self) -> None:
        bomb = gzip.compress(b" " * (limits.BODY_BYTES_MAX + 1))
        assert len(bomb) < 10_000
        with pytest.raises(TooLarge):
            await read(bomb, headers=JSON | {b"content-encoding": b"gzip"})

    async def test_takes_exactly_the_limit_and_no_byte_more(self) -> None:
        assert len(await read(b"x" * limits.BODY_BYTES_MAX)) == limits.BODY_BYTES_MAX
        with pytest.raises(TooLarge):
            await read(b"x" * limits.BODY_BYTES_MAX, b"y")

    async def test_refuses_by_content_length_before_reading(self) -> None:
        with pytest.raises(TooLarge):
            await read(headers=JSON | {b"content-length": b"99999999999999999999999"})

    @pytest.mark.parametrize("packed", [b"not gzip", PACKED[:-3], PACKED + b"tail"])
    async def test_refuses_broken_gzip(self, packed: bytes) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await read(packed, headers=JSON | {b"content-encoding": b"gzip"})
        assert caught.value.code == "invalid_body"

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {b"content-type": b"text/plain"},
            {b"content-type": b"application/x-www-form-urlencoded"},
            {b"content-type": b"application/json; charset=latin-1"},
            {b"content-type": b'application/json; profile="x"; Charset = UTF-16'},
            {b"content-type": b"application/json, text/plain"},
            JSON | {b"content-encoding": b"br"},
            JSON | {b"content-encoding": b"gzip, gzip"},
        ],
    )
    async def test_refuses_other_media(self, headers: dict[bytes, bytes]) -> None:
        with pytest.raises(UnsupportedMedia):
            await read(b"{}", headers=headers)

    @pytest.mark.parametrize("kind", [b"application/json; charset=utf-8", b"Application/JSON", b"application/x+json"])
    async def test_takes_json_by_its_other_names(self, kind: bytes) -> None:
        assert await read(b"{}", headers={b"content-type": kind}) == b"{}"

    async def test_notices_that_the_client_left(self) -> None:
        with pytest.raises(ClientGone):
            await read(b"{", gone=True)

    async def test_does_not_wait_past_its_deadline(self) -> None:
        with pytest.raises(ReadTimeout):
            await read_body(sends(), JSON, deadline_seconds=0)


class TestParseObject:
    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"", "invalid_json"),
            (b"{", "invalid_json"),
            (b"\xef\xbb\xbf{}", "invalid_json"),
            (b'{"a":1,}', "invalid_json"),
            (b"[]", "invalid_json"),
            (b"null", "invalid_json"),
            (b'"x"', "invalid_json"),
            (b"{} {}", "invalid_json"),
            (b'\xef\xbb\xbf{"a":1}', "invalid_json"),
            (b'{"a":"\xff"}', "invalid_json"),
            (b'{"a":"\xed\xa0\x80"}', "invalid_json"),
            (b'{"a":NaN}', "invalid_json"),
            (b'{"a":-Infinity}', "invalid_json"),
            (b'{"a":"\n"}', "invalid_json"),
            (b"{'a':1}", "invalid_json"),
            (b'{"a":1,"a":2}', "duplicate_key"),
            (b'{"a":{"b":1,"b":2}}', "duplicate_key"),
            (b'{"a":1e999}', "number_out_of_range"),
            (b'{"a":9223372036854775808}', "integer_out_of_range"),
            (b'{"a":' + b"9" * 5000 + b"}", "integer_out_of_range"),
            (b'{"a":"\\ud83d"}', "invalid_unicode"),
            (b'{"\\udead":1}', "invalid_unicode"),
            (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "nesting_too_deep"),
            (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nesting_too_deep"),
            (b'{"a":' + b'{"a":' * 100_000, "nesting_too_deep"),
        ],
    )
    def test_refuses_what_json_leaves_open(self, body: bytes, code: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_object(body)
        assert caught.value.code == code

    def test_names_the_place_of_a_lone_surrogate(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_object(b'{"messages":[{"content":"a\\udc00"}]}')
        assert caught.value.param == "messages[0].content"

    def test_takes_escapes_pairs_and_the_deepest_nesting(self) -> None:
        assert parse_object(b'{"a":"\\ud83d\\ude00\\u0000"}') == {"a": "\U0001f600\0"}
        body = b'{"a":' + b"[" * 63 + b"]" * 63 + b"}"
        assert parse_object(body)["a"]

    def test_takes_the_widest_integers(self) -> None:
        assert parse_object(b'{"a":[9223372036854775807,-9223372036854775808]}') == {"a": [2**63 - 1, -(2**63)]}


class TestIntegers:
    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (b'{"n":18446744073686646784}', "n"),
            (b'{"seed":-9223372036854775809}', "seed"),
            (b'{"logit_bias":{"5":99999999999999999999}}', "logit_bias.5"),
            (b'{"prompt":[1,99999999999999999999]}', "prompt[1]"),
        ],
    )
    def test_that_do_not_fit_are_refused_by_the_name_of_their_field(self, body: bytes, field: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            parse_object(body)
        assert (refused.value.param, refused.value.code) == (field, "integer_out_of_range")


class TestPlaces:
    """Every refusal of a body names a field of it, or `body` where none can be named."""

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (b"", "body"),
            (b"[]", "body"),
            (b"{'a':1}", "body"),
            (b'{"a":"\xff"}', "body"),
            (b"\xef\xbb\xbf{}", "body"),
            (b'{"temperature":NaN}', "temperature"),
            (b'{"stop":["a",-Infinity]}', "stop[1]"),
            (b'{"messages":[{"content":"a"}],"logit_bias":{"5":Infinity}}', "logit_bias.5"),
            (b'{"temperature":1e999}', "temperature"),
            (b'{"a":{"b":[0.1,-2.5E+400]}}', "a.b[1]"),
            (b'{"a":1' + b"0" * 400 + b".5}", "a"),
            (b'{"a":{"b":1,"b":2}}', "a.b"),
            (b'{"messages":[{"role":"user","content":"x","content":"y"}]}', "messages[0].content"),
            (b'{"a":[1,[{},{"b":{"c":[{"d":1,"e":2,"d":3}]}}]]}', "a[1][1].b.c[0].d"),
            (b'{"x":{"a":{"b":1,"b":2},"a":3}}', "x.a"),
            (b'{"x":{"a":{"b":1,"b":2}},"x":3}', "x"),
            (b'{"a":[{"\\u0062":1,"b":2}]}', "a[0].b"),
            (b'{"a":{"b":1,"b":2}', "body"),
            (b'[{"b":1,"b":2}]', "body"),
            (b'{"":1,"":2}', "body"),
            (b'{"a":[{"":1,"":2}]}', "a[0]"),
            (b'{"":{"x":NaN}}', "body"),
            (b'{"a":[{"":[{"x":1e999}]}]}', "a[0]"),
            (b'{"a":{"":99999999999999999999}}', "a"),
            (b'{"a":[{"b":"\\udc00"}]}', "a[0].b"),
            (b'{"a":[{"":"\\udc00"}]}', "a[0]"),
            (b'{"a":[{"\\udc00":1}]}', "a[0]"),
            (b'{"a":[{"\\udc00":1,"\\udc00":2}]}', "a[0].?"),
            (b'{"\\udead":1}', "body"),
            (b'{"model":"m","messages":' + b"[" * 64 + b"]" * 64 + b"}", "messages"),
            (b'{"model":"a:{[","x":{"y":1},"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "messages"),
            (b'{"t\\u006f\\"ols":' + b'{"a":' * 100_000, 'to"ols'),
            (b"[" * 100_000, "body"),
        ],
    )
    def test_are_named(self, body: bytes, field: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            parse_object(body)
        assert refused.value.param == field

    def test_of_a_doubled_field_is_told_in_words(self) -> None:
        for body, said in (
            (b'{"a":[{"b":1,"b":2}]}', "the field a[0].b is given twice"),
            (b'{"a":[{"":1,"":2}]}', "a[0]: has a field without a name twice"),
        ):
            with pytest.raises(InvalidRequest) as refused:
                parse_object(body)
            assert (refused.value.message, refused.value.code) == (said, "duplicate_key")

    def test_are_not_longer_than_an_error_may_be(self) -> None:
        with pytest.raises(InvalidRequest) as refused:
            parse_object(b'{"' + b"k" * 100_000 + b'":{"x":NaN}}')
        assert len(str(refused.value.param)) == 256

    def test_leave_words_in_texts_alone(self) -> None:
        given = {"a": "NaN", "b": "1e999 Infinity", "c": 1e3}
        assert parse_object(json.dumps(given).encode()) == given
