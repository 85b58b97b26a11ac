"""What stands before Django, with an application in Django's place."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from controlplane.front import Front
from gateway.surface import limits

Message = MutableMapping[str, Any]
Application = Callable[[Message, Any, Any], Awaitable[None]]


async def echo(scope: Message, receive: Any, send: Any) -> None:
    """Answers with the path and the body it was given."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" " + body})


async def call(
    *chunks: bytes,
    path: str = "/api/v1/tenants",
    headers: dict[str, str] | None = None,
    inner: Application = echo,
    whole: bool = True,
    method: str = "POST",
    query: bytes = b"",
    **deadlines: float,
) -> tuple[int, bytes]:
    """(status, body) of one request; with `whole` False its body never ends."""
    pending = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if whole:
        pending.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[Message] = []

    async def receive() -> Message:
        return pending.pop(0) if pending else await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: Message) -> None:
        sent.append(message)

    fields = {"host": "localhost", **(headers or {})}
    scope: Message = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
    }  # fmt: skip
    await Front(inner, **deadlines)(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def code_of(body: bytes) -> str:
    document = json.loads(body)
    assert set(document["error"]) == {"message", "type", "param", "code"}
    code: str = document["error"]["code"]
    return code


class TestBodies:
    async def test_come_whole(self) -> None:
        assert await call(b'{"a":', b"1}") == (200, b'/api/v1/tenants {"a":1}')

    async def test_are_bounded_as_they_come(self) -> None:
        half = b"x" * (limits.MANAGEMENT_BODY_BYTES_MAX // 2)
        assert (await call(half, half))[0] == 200
        status, body = await call(half, half, b"x")
        assert (status, code_of(body)) == (413, "request_too_large")

    async def test_are_bounded_by_their_length_unread(self) -> None:
        status, body = await call(headers={"content-length": "99999999"})
        assert (status, code_of(body)) == (413, "request_too_large")

    async def test_have_a_deadline(self) -> None:
        status, body = await call(b"{", whole=False, body_seconds=0.01)
        assert (status, code_of(body)) == (408, "request_timeout")

    @pytest.mark.parametrize("coding", ["gzip", "br", "deflate"])
    async def test_come_in_no_coding(self, coding: str) -> None:
        status, body = await call(b"{}", headers={"content-encoding": coding})
        assert (status, code_of(body)) == (415, "unsupported_media_type")
        assert json.loads(body)["error"]["param"] == "Content-Encoding"

    @pytest.mark.parametrize("headers", [{"transfer-encoding": "chunked"}, {"content-length": "2"}])
    async def test_have_a_length_also_where_they_came_in_chunks(self, headers: dict[str, str]) -> None:
        lengths: list[bytes] = []

        async def seen(scope: Message, receive: Any, send: Any) -> None:
            lengths.extend(value for name, value in scope["headers"] if name == b"content-length")
            await echo(scope, receive, send)

        assert await call(b"{", b"}", headers=headers, inner=seen) == (200, b"/api/v1/tenants {}")
        assert lengths == [b"2"]


class TestPaths:
    @pytest.mark.parametrize(
        ("given", "seen"),
        [
            ("/api/v1/tenants/", "/api/v1/tenants"),
            ("/api/v1/tenants", "/api/v1/tenants"),
            ("/api/nope/", "/api/nope/"),
            ("/api/schema/", "/api/schema"),
            ("/api/docs", "/api/docs/"),
            ("/api/docs/", "/api/docs/"),
            ("/api/docs/inference", "/api/docs/inference/"),
            ("/admin/", "/admin/"),
            ("/admin/requests", "/admin/requests"),
        ],
    )
    async def test_have_one_form_and_never_a_redirect(self, given: str, seen: str) -> None:
        assert await call(path=given) == (200, seen.encode() + b" ")


class TestText:
    async def test_that_no_database_stores_is_refused(self) -> None:
        status, body = await call(path="/admin/tenants/tenant/\x00/")
        assert (status, json.loads(body)["error"]["param"]) == (400, "path")
        status, body = await call(path="/admin/tenants/tenant/", query=b"state__exact=%00")
        assert (status, json.loads(body)["error"]["param"]) == (400, "query")

    async def test_in_a_parameter_of_the_api_is_left_to_the_api(self) -> None:
        assert (await call(path="/api/v1/tenants", query=b"name=%00"))[0] == 200


class TestApi:
    async def test_reads_no_more_of_a_query_than_is_stated(self) -> None:
        query = b"name=" + b"x" * (limits.QUERY_BYTES_MAX - 5)
        for path in ("/api/v1/projects", "/api/schema", "/api/docs/", "/api/v1/finance/usage"):
            assert (await call(path=path, method="GET", query=query))[0] == 200
            status, body = await call(path=path, method="GET", query=query + b"x")
            error = json.loads(body)["error"]
            assert (status, error["param"], error["code"]) == (400, "query", "query_too_long")
            assert error["message"] == "the query string has more than 4096 bytes"
        assert (await call(path="/admin/", method="GET", query=query + b"x"))[0] == 200

    async def test_takes_one_authorization(self) -> None:
        scope: Message = {
            "type": "http", "method": "GET", "path": "/api/v1/projects", "raw_path": b"", "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer a"), (b"Authorization", b"Bearer b")],
        }  # fmt: skip
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        await Front(echo)(scope, receive, send)
        error = json.loads(sent[1]["body"])["error"]
        assert (sent[0]["status"], error["param"]) == (401, "Authorization")
        assert error["message"] == "the Authorization header must be one `Bearer weir_…`"
        assert dict(sent[0]["headers"])[b"www-authenticate"]


class TestMethods:
    @pytest.mark.parametrize("path", ["/", "/favicon.ico", "/admin"])
    async def test_that_only_read_are_all_that_some_paths_take(self, path: str) -> None:
        status, body = await call(path=path)
        assert (status, code_of(body)) == (405, "method_not_allowed")
        assert (await call(path=path, method="GET"))[0] == 200
        assert await call(path=path, method="OPTIONS") == (204, b"")

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "OPTIONS"])
    async def test_of_pages_are_those_of_people(self, method: str) -> None:
        for path in ("/admin/", "/admin/usage/", "/admin/login/"):
            status, body = await call(path=path, method=method)
            assert (status, code_of(body)) == (405, "method_not_allowed")
            assert json.loads(body)["error"]["message"] == "this path takes GET, HEAD, POST"
            for taken in ("GET", "HEAD", "POST"):
                assert (await call(path=path, method=taken))[0] == 200

    @pytest.mark.parametrize(("path", "allow"), [("/admin/", b"GET, HEAD, POST"), ("/", b"GET, HEAD, OPTIONS")])
    async def test_are_told(self, path: str, allow: bytes) -> None:
        heads: list[Message] = []

        async def send(message: Message) -> None:
            heads.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope: Message = {
            "type": "http", "method": "PUT", "path": path, "query_string": b"", "headers": [(b"host", b"localhost")],
        }  # fmt: skip
        await Front(echo)(scope, receive, send)
        assert (heads[0]["status"], dict(heads[0]["headers"])[b"allow"]) == (405, allow)

    async def test_without_a_path_is_options_alone(self) -> None:
        assert await call(path="*", method="OPTIONS") == (204, b"")
        status, body = await call(path="*", method="GET")
        assert (status, code_of(body)) == (400, "invalid_http")


class TestHosts:
    @pytest.mark.parametrize("host", ["evil.example", "", "a b", "localhost.evil.example"])
    async def test_of_others_are_refused(self, settings: Any, host: str) -> None:
        settings.ALLOWED_HOSTS = ["localhost"]
        status, body = await call(headers={"host": host})
        assert (status, code_of(body)) == (400, "invalid_host")

    async def test_of_ours_are_served_with_their_port(self, settings: Any) -> None:
        settings.ALLOWED_HOSTS = ["localhost"]
        assert (await call(headers={"host": "localhost:8080"}))[0] == 200


class TestFailures:
    async def test_are_500_in_json_and_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        async def broken(scope: Message, receive: Any, send: Any) -> None:
            raise ZeroDivisionError

        status, body = await call(inner=broken)
        assert (status, code_of(body)) == (500, "internal_error")
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]

    async def test_to_answer_in_time_is_503(self) -> None:
        async def stuck(scope: Message, receive: Any, send: Any) -> None:
            await asyncio.Event().wait()

        status, body = await call(inner=stuck, answer_seconds=0.01)
        assert (status, code_of(body)) == (503, "service_unavailable")
