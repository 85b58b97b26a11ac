"""Bad input is the client's fault and is told so: OpenAI's error object and the field, never a 500, never a hang."""

from __future__ import annotations

import gzip
import json
import socket
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.api import Api, assert_is_error
from tests.e2e.conftest import Platform
from tests.e2e.odd_requests import ODD, RAW, Odd

CHAT = "/chat/completions"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


def good(platform: Platform, path: str = CHAT) -> dict[str, Any]:
    own: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "say: hi"}]} if path == CHAT else {"prompt": "say: hi"}
    )
    return {"model": platform.model, "max_tokens": 8, **own}


class TestFields:
    @pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.name)
    def test_is_refused_with_the_field_named(self, platform: Platform, odd: Odd) -> None:
        document = {**good(platform, odd.path), **odd.changes}
        # ASCII escapes, so that a lone surrogate can be sent at all.
        content = json.dumps(document, ensure_ascii=True).encode()
        response = platform.api.request("POST", odd.path, content=content, headers={"Content-Type": "application/json"})
        assert_is_error(response, status=odd.status, param=odd.param)
        assert response.headers["x-request-id"]

    @pytest.mark.parametrize(
        "changes",
        [
            {"max_tokens": None},
            {"temperature": None, "stop": None, "n": None},
            {"temperature": 0},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "say: hi"}]}]},
            {"user": "someone"},
            {"stop": ["never said"]},
        ],
        ids=str,
    )
    def test_is_taken_where_it_only_looks_odd(self, platform: Platform, changes: dict[str, Any]) -> None:
        response = platform.api.post(CHAT, {**good(platform), **changes})
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"] == "hi"


class TestBodies:
    @pytest.mark.parametrize(
        ("body", "content_type", "statuses"), [row[1:] for row in RAW], ids=[row[0] for row in RAW]
    )
    def test_is_refused_whatever_its_bytes(
        self, platform: Platform, body: bytes, content_type: str | None, statuses: tuple[int, ...]
    ) -> None:
        headers = {"Content-Type": content_type} if content_type else {}
        assert_is_error(platform.api.request("POST", CHAT, content=body, headers=headers), status=statuses)

    def test_is_measured_after_decompression(self, platform: Platform) -> None:
        bomb = gzip.compress(b" " * 64 * 1024 * 1024)
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        assert_is_error(platform.api.request("POST", CHAT, content=bomb, headers=headers), status=413)

    def test_is_read_when_compressed(self, platform: Platform) -> None:
        body = gzip.compress(json.dumps(good(platform)).encode())
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        assert platform.api.request("POST", CHAT, content=body, headers=headers).status_code == 200

    def test_is_refused_in_an_unknown_coding(self, platform: Platform) -> None:
        headers = {"Content-Type": "application/json", "Content-Encoding": "br"}
        assert_is_error(platform.api.request("POST", CHAT, content=b"{}", headers=headers), status=(400, 415))


class TestRoutes:
    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/nothing-here", 404),
            ("POST", "/embeddings", 404),
            ("GET", CHAT, 405),
            ("DELETE", "/models", 405),
            ("GET", "/models/no-such-model", 404),
            ("GET", "/requests/not-an-id", 404),
            ("GET", "/requests/00000000-0000-7000-8000-000000000000", 404),
            ("POST", "/requests/00000000-0000-7000-8000-000000000000/cancel", 404),
            ("GET", "/requests/" + "x" * 2_000, 404),
        ],
    )
    def test_answers_json_for_what_is_not_there(self, platform: Platform, method: str, path: str, status: int) -> None:
        assert_is_error(platform.api.request(method, path), status=status)

    @pytest.mark.parametrize("path", [CHAT, CHAT + "/"])
    def test_never_redirects_a_post(self, platform: Platform, path: str) -> None:
        response = platform.api.post(path, good(platform))
        assert response.status_code in (200, 404)
        assert "location" not in response.headers

    @pytest.mark.parametrize(
        ("params", "param"),
        [
            ({"start_time": "yesterday"}, "start_time"),
            ({}, "start_time"),
            ({"start_time": 1_800_000_000, "bucket_width": "1y"}, "bucket_width"),
            ({"start_time": 1_800_000_000, "end_time": 1_800_086_400, "group_by": "colour"}, "group_by"),
            ({"start_time": 1_800_000_000, "limit": "many"}, "limit"),
            ({"start_time": 1_800_000_000, "end_time": 1_800_086_400, "page": "garbage"}, "page"),
            ({"start_time": 1_800_000_000, "end_time": 1_799_999_999}, "start_time"),
            ({"start_time": 1}, "start_time"),
        ],
        ids=str,
    )
    def test_names_the_wrong_part_of_a_query(self, platform: Platform, params: dict[str, Any], param: str) -> None:
        assert_is_error(platform.api.get("/usage", params=params), status=400, param=param)


class TestManagementRoutes:
    """Django's routes: JSON errors in the same shape, one form of each path, never a redirect of an API path."""

    @pytest.mark.parametrize("path", ["/api/v1/nothing", "/api", "/nothing"])
    def test_answer_json_for_what_is_not_there(self, platform: Platform, path: str) -> None:
        assert_is_error(root(platform).request("GET", path), status=404)

    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_take_a_path_with_and_without_its_last_slash(self, platform: Platform, method: str) -> None:
        bare = root(platform).request(method, "/api/v1/tenants")
        slashed = root(platform).request(method, "/api/v1/tenants/")
        assert (slashed.status_code, slashed.json()) == (bare.status_code, bare.json())
        assert slashed.status_code in (401, 403)

    def test_bound_a_body(self, platform: Platform) -> None:
        headers = {"Content-Type": "application/json"}
        answer = root(platform).request("POST", "/api/v1/tenants", content=b" " * 1_048_577, headers=headers)
        assert_is_error(answer, status=413)

    def test_have_an_icon(self, platform: Platform) -> None:
        answer = root(platform).request("GET", "/favicon.ico")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")


def root(platform: Platform) -> Api:
    return Api(platform.api.root, None)


class TestKeys:
    @pytest.mark.parametrize(
        "authorization",
        [
            None,
            "",
            "Bearer",
            "Basic dXNlcjpwYXNz",
            "Bearer x' OR pg_sleep(8)--",
            "Bearer " + "weir_" + "a" * 38,
            "Bearer " + "x" * 5_000,
        ],
        ids=["none", "empty", "scheme alone", "basic", "injection", "wrong checksum", "long"],
    )
    def test_is_refused_when_it_is_none_of_ours(self, platform: Platform, authorization: str | None) -> None:
        headers = {} if authorization is None else {"Authorization": authorization}
        anonymous = Api(platform.base_url, None)
        for path, document in (("/models", None), (CHAT, good(platform))):
            method = "GET" if document is None else "POST"
            response = anonymous.request(method, path, headers=headers, json=document)
            error = assert_is_error(response, status=401)
            assert error["code"] in ("invalid_api_key", "missing_api_key")
            assert "x" * 30 not in error["message"]

    def test_with_one_letter_changed_is_refused(self, platform: Platform) -> None:
        key = str(platform.demo["api_key"])
        changed = key[:-1] + ("a" if key[-1] != "a" else "b")
        assert_is_error(Api(platform.base_url, changed).get("/models"), status=401)


class TestWire:
    """Bytes that no HTTP client would send. Each ends within the deadline, and the platform serves on."""

    @pytest.mark.parametrize(
        "request_bytes",
        [
            b"GARBAGE\r\n\r\n",
            POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            POST + b"Content-Length: -1\r\n\r\n",
            POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
            b"GET //v1//models HTTP/1.1\r\nHost: x/?\r\n\r\n",
            b"GET /v1/models%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        ],
        ids=["garbage", "two lengths", "negative length", "bad chunk", "huge header", "double slashes", "nul"],
    )
    def test_is_answered_with_a_refusal_or_closed(self, platform: Platform, request_bytes: bytes) -> None:
        address = urlsplit(platform.base_url)
        with closing(socket.create_connection((address.hostname, address.port), timeout=20)) as connection:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while part := connection.recv(65_536):
                    answer += part
            except ConnectionResetError:
                pass
        assert answer == b"" or answer.split(b" ")[1][:1] == b"4", answer[:200]
        assert b"Traceback" not in answer
        assert platform.api.get("/models").status_code == 200


class TestLogs:
    def test_hold_no_traceback_and_no_key_after_all_this(self, platform: Platform) -> None:
        """Runs last in this module: what the requests above left in the logs of the gateway."""
        secrets = [str(platform.demo[name]) for name in ("api_key", "other_api_key", "admin_password")]
        for log in sorted((platform.instance.home / "logs").glob("*")):
            text = log.read_text(errors="replace") if log.is_file() else ""
            assert [secret for secret in secrets if secret in text] == [], f"{log.name} holds a secret"
            if "gateway" in log.name:
                assert "Traceback" not in text, text[text.index("Traceback") :][:3_000]
