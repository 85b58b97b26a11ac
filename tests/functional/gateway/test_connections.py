"""One connection at a time, by raw sockets: what no client library sends, and what a hostile one does not send."""

import asyncio
import json
import logging

import pytest

from fairqueue.messages import AbortReason
from gateway.edge.http import HttpProtocol
from gateway.services import GatewaySettings
from gateway.surface import limits
from tests.functional.gateway.cast import MODEL, chat_frames
from tests.functional.gateway.conftest import Gateway
from tests.functional.gateway.wires import Wire, head, wire

LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
HANDSHAKE = {
    "Host": "x",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class Hurried(HttpProtocol):
    head_seconds = 0.2
    idle_seconds = 0.2
    connections_max = 2


class TestDeadlines:
    @pytest.fixture
    def http_protocol(self) -> type[HttpProtocol]:
        return Hurried

    async def test_a_head_that_drips_is_refused(self, gateway: Gateway) -> None:
        async with wire(gateway) as connection:
            await connection.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            reply = await connection.reply()
            assert (reply.status, reply.error()["code"]) == (408, "request_timeout")
            assert reply.headers["connection"] == "close"
            assert await connection.rest() == b""

    async def test_a_connection_that_sends_nothing_is_closed(self, gateway: Gateway) -> None:
        async with wire(gateway) as connection:
            assert await connection.rest() == b""

    async def test_empty_lines_are_no_head(self, gateway: Gateway) -> None:
        async with wire(gateway) as connection:
            await connection.send(b"\r\n\r\n")
            assert (await connection.reply()).status == 408

    async def test_an_idle_connection_is_closed(self, gateway: Gateway) -> None:
        async with wire(gateway) as connection:
            await connection.send(LIVE)
            assert (await connection.reply()).status == 200
            assert await connection.rest() == b""

    async def test_the_second_head_has_a_deadline_too(self, gateway: Gateway) -> None:
        async with wire(gateway) as connection:
            await connection.send(LIVE)
            assert (await connection.reply()).status == 200
            await connection.send(b"GET /health")
            assert (await connection.reply()).status == 408

    async def test_a_request_under_way_is_not_cut(self, gateway: Gateway) -> None:
        async with wire(gateway) as connection:
            body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}).encode()
            lines = (f"Authorization: Bearer {gateway.key}", "Content-Type: application/json")
            await connection.send(head("POST", "/v1/chat/completions", *lines, f"Content-Length: {len(body)}") + body)
            claim = await gateway.worker.claim()
            await asyncio.sleep(3 * Hurried.head_seconds)
            await gateway.worker.end(claim, last_seq=0)
            assert (await connection.reply()).status == 200

    async def test_one_connection_too_many_is_told_so(self, gateway: Gateway) -> None:
        async with wire(gateway), wire(gateway), wire(gateway) as third:
            reply = await third.reply()
            assert (reply.status, reply.error()["code"]) == (503, "service_unavailable")
            assert reply.headers["retry-after"] == "1"


class TestBodyDeadline:
    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, body_read_seconds=0.2)

    async def test_a_body_that_drips_is_refused(self, gateway: Gateway) -> None:
        lines = (f"Authorization: Bearer {gateway.key}", "Content-Type: application/json", "Content-Length: 1000")
        async with wire(gateway) as connection:
            await connection.send(head("POST", "/v1/chat/completions", *lines) + b"{")
            reply = await connection.reply()
        assert (reply.status, reply.error()["code"]) == (408, "request_timeout")
        assert reply.headers["connection"] == "close"


class TestHeads:
    @pytest.mark.parametrize(
        ("sent", "status", "code"),
        [
            (b"garbage\r\n\r\n", 400, "invalid_http"),
            (b"GE(T /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b" /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b"FOO /v1/models\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b"FOO /v1/models HTTP/2.0\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b"GET /v1/models HTTP/3.0\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b"GET /v1/models HTTP/2.0\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b"GET /v1/models\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b"GET /v1/mod\xffels HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
            (b"GET /v1/models HTTP/1.1\r\nHost : x\r\n\r\n", 400, "invalid_http"),
            (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400, "invalid_http"),
            (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", 400, "invalid_http"),
            (b"GET /v1/models HTTP/1.1\r\n\r\n", 400, "invalid_host"),
            (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "invalid_host"),
            (head("GET", "/v1/models", host="a b"), 400, "invalid_host"),
            (head("GET", "/v1/models", host="<script>"), 400, "invalid_host"),
            (head("GET", "/v1/models", host="x/?"), 400, "invalid_host"),
            (head("GET", "/v1/models", host=""), 400, "invalid_host"),
            (head("POST", "/v1/models", "Content-Type: a/b", "Content-Type: c/d"), 400, "duplicate_header"),
            (head("POST", "/v1/models", "Content-Length: 5", "Content-Length: 6"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Content-Length: 5", "Content-Length: 5"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Content-Length: 5, 5"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Content-Length: -1"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Content-Length: +5"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Content-Length: 0x5"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Content-Length: 99999999999999999999"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Transfer-Encoding: chunked", "Content-Length: 5"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Content-Length: 5", "Transfer-Encoding: chunked"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Transfer-Encoding: xchunked"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Transfer-Encoding: chunked, identity"), 400, "invalid_http"),
            (head("POST", "/v1/models", "Transfer-Encoding: gzip"), 400, "invalid_http"),
            (b"POST /v1/models HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_http"),
            (head("GET", "/v1/models", "X: " + "y" * limits.HEAD_BYTES_MAX), 431, "headers_too_large"),
            (head("GET", "/" + "y" * limits.HEAD_BYTES_MAX), 431, "headers_too_large"),
            (head("GET", "/v1/models", *["X: y"] * limits.HEADERS_MAX), 431, "headers_too_large"),
            (b"GET /v1/models HTTP/1.1\r\nX: " + b"y" * 3 * limits.HEAD_BYTES_MAX, 431, "headers_too_large"),
        ],
        ids=lambda value: value[:60].decode("latin-1") if isinstance(value, bytes) else None,
    )  # fmt: skip
    async def test_t22_a_bad_one_is_refused_and_the_connection_closed(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture, sent: bytes, status: int, code: str
    ) -> None:
        async with wire(gateway) as connection:
            await connection.send(sent)
            reply = await connection.reply()
            assert (reply.status, reply.error()["code"]) == (status, code)
            assert reply.headers["connection"] == "close"
            assert reply.headers["x-request-id"]
            assert await connection.rest() == b""
        assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []

    @pytest.mark.parametrize(
        "sent",
        [
            b"GET http://elsewhere.example/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /health/live/ HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n",
            b"GET /health/live HTTP/1.0\r\n\r\n",
            b"\r\nGET /health/live?a=%ff HTTP/1.1\r\nHost: x\r\n\r\n",
            head("GET", "/health/live", "Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
            b"GET /health/live HTTP/1.0\r\nExpect: 200-maybe\r\n\r\n",
            head("GET", "/health/live", "Expect: "),
            head("GET", "/health/live", "Expect: 100-Continue, 100-continue"),
        ],
        ids=lambda sent: sent.split(b"\r\n")[0].decode("latin-1"),
    )
    async def test_an_odd_one_is_served(self, gateway: Gateway, sent: bytes) -> None:
        async with wire(gateway) as connection:
            await connection.send(sent)
            reply = await connection.reply()
        assert (reply.status, json.loads(reply.body)) == (200, {"status": "live"})

    @pytest.mark.parametrize("method", ["FOO", "get", "GETX", "DESCRIBE", "M-SEARCHES", "X" * 1_000])
    async def test_a_method_that_nobody_knows_is_501(self, gateway: Gateway, method: str) -> None:
        async with wire(gateway) as connection:
            await connection.send(head(method, "/v1/models"))
            reply = await connection.reply()
            assert await connection.rest() == b""
        error = reply.error()
        assert (reply.status, error["code"], error["param"]) == (501, "method_not_implemented", "method")
        assert error["message"].startswith(f"no path of this server takes `{method[:100]}")
        assert (reply.headers["x-should-retry"], reply.headers["connection"]) == ("false", "close")

    @pytest.mark.parametrize(
        ("path", "lines", "expected"),
        [
            ("/health/live", ["Expect: 200-maybe"], (417, "expectation_failed", "Expect")),
            ("/v1/models", ["Expect: 100-continue, x"], (417, "expectation_failed", "Expect")),
            ("/v1/models", ["Idempotency-Key: a"] * 2, (400, "duplicate_header", "Idempotency-Key")),
            ("/v1/models", ["last-event-id: a"] * 2, (400, "duplicate_header", "Last-Event-ID")),
            ("/v1/models", ["CONTENT-TYPE: a/b"] * 2, (400, "duplicate_header", "Content-Type")),
            ("/v1/models", ["Content-Encoding: gzip"] * 2, (400, "duplicate_header", "Content-Encoding")),
        ],
    )
    async def test_a_header_that_is_wrong_is_named_as_it_is_written(
        self, gateway: Gateway, path: str, lines: list[str], expected: tuple[int, str, str]
    ) -> None:
        async with wire(gateway) as connection:
            await connection.send(head("GET", path, *lines))
            reply = await connection.reply()
        assert (reply.status, reply.error()["code"], reply.error()["param"]) == expected

    async def test_an_older_client_never_gets_100(self, gateway: Gateway) -> None:
        lines = ("Content-Type: application/json", "Expect: 100-continue", "Content-Length: 2")
        sent = head("POST", "/v1/chat/completions", *lines, f"Authorization: Bearer {gateway.key}")
        async with wire(gateway) as connection:
            await connection.send(sent.replace(b"HTTP/1.1", b"HTTP/1.0"))
            await connection.send(b"{}")
            reply = await connection.reply()
        assert (reply.status, reply.error()["param"]) == (400, "model")

    async def test_a_bad_chunk_is_refused(self, gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
        lines = (f"Authorization: Bearer {gateway.key}", "Content-Type: application/json")
        async with wire(gateway) as connection:
            await connection.send(head("POST", "/v1/chat/completions", *lines, "Transfer-Encoding: chunked"))
            await connection.send(b"zz\r\n{}\r\n")
            reply = await connection.reply()
            assert (reply.status, reply.error()["code"]) == (400, "invalid_http")
            assert await connection.rest() == b""
        assert [record for record in caplog.records if record.exc_info] == []

    async def test_a_trailer_is_no_header(self, gateway: Gateway) -> None:
        lines = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        async with wire(gateway) as connection:
            trailer = f"Authorization: Bearer {gateway.key}\r\n\r\n".encode()
            await connection.send(head("POST", "/v1/chat/completions", *lines) + b"2\r\n{}\r\n0\r\n" + trailer)
            reply = await connection.reply()
        assert (reply.status, reply.error()["code"]) == (401, "missing_api_key")
        assert reply.headers["www-authenticate"].startswith("Bearer ")

    async def test_a_body_far_too_large_gets_a_refusal_that_is_read(self, gateway: Gateway) -> None:
        answer = await gateway.http.post("/v1/chat/completions", content=b"x" * 19_000_000, headers=gateway.auth())
        assert answer.status_code in (413, 415)

    async def test_an_older_client_gets_a_stream_without_chunks(self, gateway: Gateway) -> None:
        document = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        body = json.dumps(document).encode()
        lines = (f"Authorization: Bearer {gateway.key}", "Content-Type: application/json")
        sent = head("POST", "/v1/chat/completions", *lines, f"Content-Length: {len(body)}") + body
        async with wire(gateway) as connection:
            await connection.send(sent.replace(b"HTTP/1.1", b"HTTP/1.0"))
            await gateway.worker.end(await gateway.worker.claim(), last_seq=0)
            first, _, rest = (await connection.rest()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in first.lower()
        assert rest.startswith(b":")
        assert rest.endswith(b"data: [DONE]\n\n")

    async def test_a_client_that_waits_for_100_gets_it_before_it_sends(self, gateway: Gateway) -> None:
        lines = (f"Authorization: Bearer {gateway.key}", "Content-Type: application/json", "Expect: 100-continue")
        async with wire(gateway) as connection:
            await connection.send(head("POST", "/v1/chat/completions", *lines, "Content-Length: 2"))
            assert (await connection.reply()).status == 100
            await connection.send(b"{}")
            reply = await connection.reply()
        assert (reply.status, reply.error()["param"]) == (400, "model")

    async def test_a_client_that_waits_for_100_is_refused_before_it_sends(self, gateway: Gateway) -> None:
        lines = ("Content-Type: application/json", "Expect: 100-continue", "Content-Length: 99999999")
        async with wire(gateway) as connection:
            await connection.send(head("POST", "/v1/chat/completions", *lines, f"Authorization: Bearer {gateway.key}"))
            reply = await connection.reply()
        assert (reply.status, reply.error()["code"]) == (413, "request_too_large")


class TestHalfClose:
    """A client that sends no more and still reads, as `nc -N` and some libraries do."""

    async def ask(self, one: Wire, gateway: Gateway, *, stream: bool, version: str = "1.1") -> None:
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}).encode()
        head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer {gateway.key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await one.send(head.encode() + body)

    @pytest.mark.parametrize("version", ["1.1", "1.0"])
    @pytest.mark.parametrize("stream", [True, False])
    async def test_gets_its_whole_answer(self, gateway: Gateway, stream: bool, version: str) -> None:
        async with wire(gateway) as one:
            await self.ask(one, gateway, stream=stream, version=version)
            one.writer.write_eof()
            await gateway.worker.serve(["one ", "two"])
            answer = await one.rest()
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert b"two" in answer
        assert (b"data: [DONE]" in answer) == stream
        assert (b"100 Continue" in answer) == (version == "1.1")

    async def test_is_answered_whatever_it_asks(self, gateway: Gateway) -> None:
        async with wire(gateway) as one:
            await one.send(LIVE)
            one.writer.write_eof()
            assert b'{"status":"live"}' in await one.rest()

    @pytest.mark.parametrize("begun", [True, False])
    @pytest.mark.parametrize("stream", [True, False])
    async def test_that_is_a_whole_one_cancels(self, gateway: Gateway, stream: bool, begun: bool) -> None:
        async with wire(gateway) as one:
            await self.ask(one, gateway, stream=stream)
            claim = await gateway.worker.claim()
            if begun:
                await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
                if stream:
                    await one.reader.readuntil(b"data: ")
            one.writer.close()
            abort = await gateway.worker.aborted(claim)
        assert abort.reason is AbortReason.CANCELLED

    async def test_and_then_a_whole_one_cancels_too(self, gateway: Gateway) -> None:
        async with wire(gateway) as one:
            await self.ask(one, gateway, stream=True)
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
            one.writer.write_eof()
            await one.reader.readuntil(b": ping\n")
            one.writer.close()
            assert (await gateway.worker.aborted(claim)).reason is AbortReason.CANCELLED

    async def test_before_the_request_is_whole_is_refused(self, gateway: Gateway) -> None:
        for sent in (
            b"GET /health/live HTTP/1.1\r\nHo",
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
        ):
            async with wire(gateway) as one:
                await one.send(sent)
                one.writer.write_eof()
                reply = await one.reply()
                assert (reply.status, reply.error()["code"]) in ((400, "incomplete"), (401, "missing_api_key"))
                assert await one.rest() == b""


class TestPipelining:
    async def test_a_request_before_the_answer_gets_none_and_hurts_nothing(self, gateway: Gateway) -> None:
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}).encode()
        lines = (f"Authorization: Bearer {gateway.key}", "Content-Type: application/json")
        post = head("POST", "/v1/chat/completions", *lines, f"Content-Length: {len(body)}") + body
        async with wire(gateway) as connection:
            await connection.send(post + LIVE + b"garbage" * 1_000)
            await gateway.worker.serve(["Hello"])
            reply = await connection.reply()
            assert json.loads(reply.body)["choices"][0]["message"]["content"] == "Hello"
            assert reply.headers["connection"] == "close"
            assert await connection.rest() == b""

    async def test_a_body_that_nobody_reads_is_never_answered_twice(self, gateway: Gateway) -> None:
        async with wire(gateway) as connection:
            await connection.send(head("GET", "/health/live", "Content-Length: 1000000"))
            assert (await connection.reply()).status == 200
            await connection.send(b"x" * 2 * limits.HEAD_BYTES_MAX)
            assert await connection.rest() == b""

    async def test_one_after_the_other_share_a_connection(self, gateway: Gateway) -> None:
        async with wire(gateway) as connection:
            for _ in range(3):
                await connection.send(LIVE)
                assert (await connection.reply()).status == 200


class TestMethods:
    async def test_head_is_get_without_its_body(self, gateway: Gateway) -> None:
        authorization = f"Authorization: Bearer {gateway.key}"
        async with wire(gateway) as connection:
            await connection.send(head("HEAD", "/v1/models", authorization, "Connection: close"))
            answer = await connection.rest()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\ncontent-length: " in answer
        assert answer.endswith(b"\r\n\r\n")

    @pytest.mark.parametrize(
        ("path", "allow"),
        [
            ("/v1/chat/completions", "OPTIONS, POST"),
            ("/v1/models", "GET, HEAD, OPTIONS"),
            ("/v1/requests/x/cancel", "OPTIONS, POST"),
        ],
    )
    async def test_options_tells_what_a_path_takes(self, gateway: Gateway, path: str, allow: str) -> None:
        async with wire(gateway) as connection:
            await connection.send(head("OPTIONS", path))
            reply = await connection.reply()
        assert (reply.status, reply.headers["allow"]) == (204, allow)
        assert "content-length" not in reply.headers

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "TRACE"])
    async def test_another_method_is_405(self, gateway: Gateway, method: str) -> None:
        async with wire(gateway) as connection:
            await connection.send(head(method, "/v1/chat/completions", "Connection: close"))
            answer = await connection.rest()
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"\r\nallow: OPTIONS, POST\r\n" in answer


class TestHandshakes:
    @pytest.mark.parametrize(
        ("changes", "status", "code"),
        [
            ({"Sec-WebSocket-Key": None}, 400, "invalid_handshake"),
            ({"Sec-WebSocket-Key": "short"}, 400, "invalid_handshake"),
            ({"Sec-WebSocket-Version": "8"}, 426, "invalid_handshake"),
            ({"X-Long": "y" * 16_000}, 431, "headers_too_large"),
            ({"Upgrade": None, "Connection": None}, 426, "upgrade_required"),
        ],
        ids=["no key", "short key", "old version", "long header", "no upgrade"],
    )
    async def test_a_wrong_one_is_refused(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture, changes: dict[str, str | None], status: int, code: str
    ) -> None:
        headers = {name: value for name, value in {**HANDSHAKE, **changes}.items() if value is not None}
        lines = [f"{name}: {value}" for name, value in headers.items() if name != "Host"]
        async with wire(gateway) as connection:
            await connection.send(head("GET", "/v1/realtime", *lines))
            reply = await connection.reply()
        assert (reply.status, reply.error()["code"]) == (status, code)
        assert [record for record in caplog.records if record.exc_info] == []

    @pytest.mark.parametrize(
        "path", ["/v1/models", "/admin/", "/", "/v1/realtime2", "/v1/realtime//", "/v1/realtime%0a", "/V1/realtime?x=1"]
    )
    async def test_a_path_that_takes_none_is_404_before_the_upgrade(self, gateway: Gateway, path: str) -> None:
        lines = [f"{name}: {value}" for name, value in HANDSHAKE.items() if name != "Host"]
        async with wire(gateway) as connection:
            await connection.send(head("GET", path, *lines, f"Authorization: Bearer {gateway.key}"))
            reply = await connection.reply()
            assert await connection.rest() == b""
        assert (reply.status, reply.error()["code"], reply.error()["param"]) == (404, "not_found", "path")

    @pytest.mark.parametrize("path", ["/v1/realtime", "/v1/realtime/", "/v1/re%61ltime", "/v1/realtime?model=toy-1"])
    async def test_the_one_path_opens_one(self, gateway: Gateway, path: str) -> None:
        lines = [f"{name}: {value}" for name, value in HANDSHAKE.items() if name != "Host"]
        async with wire(gateway) as connection:
            await connection.send(head("GET", path, *lines, f"Authorization: Bearer {gateway.key}"))
            assert (await connection.reply()).status == 101

    async def test_only_get_opens_one(self, gateway: Gateway) -> None:
        lines = [f"{name}: {value}" for name, value in HANDSHAKE.items() if name != "Host"]
        async with wire(gateway) as connection:
            await connection.send(head("POST", "/v1/realtime", *lines, "Content-Length: 2") + b"{}")
            reply = await connection.reply()
        assert (reply.status, reply.error()["code"]) == (400, "invalid_handshake")

    @pytest.mark.parametrize("cut", [0, 2], ids=["in one write", "behind the head's last line"])
    async def test_frames_that_do_not_wait_for_its_answer_are_read_after_it(self, gateway: Gateway, cut: int) -> None:
        lines = [f"{name}: {value}" for name, value in HANDSHAKE.items() if name != "Host"]
        asked = head("GET", "/v1/realtime", *lines, f"Authorization: Bearer {gateway.key}")
        unmasked = b"\x88\x02\x03\xe8"  # a Close with 1000 that breaks RFC 6455, section 5.1
        async with wire(gateway) as connection:
            if cut:
                await connection.send(asked[:-cut])
            await connection.send(asked[len(asked) - cut if cut else 0 :] + unmasked)
            reply = await connection.reply()
            rest = await connection.rest()
        assert reply.status == 101
        assert b"\x88" in rest
        assert b"\x03\xea" in rest  # 1002, a protocol error
