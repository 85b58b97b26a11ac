"""Secrets that stay secret: canaries go through every door and every error, then everything that is kept is searched.

Threats T3 (keys in clear), T25 (tokens in URLs), T31 (prompts in logs) and T33 (secrets in pages and dumps).
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from redis import Redis
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from fairqueue.policy import QueueBounds
from gateway.refusals import KEPT_MS
from stores import secrets as purposes
from tenants.auth.keys import mint
from tests.e2e.api import ERROR_KEYS, Api, bare_id
from tests.e2e.conftest import Platform
from tests.e2e.kept import Piece, everything, of_redis, settings_of
from tests.factories.gateways import another_gateway

TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
LINK = re.compile(r'href="(/admin/[a-z_]+/[a-z_]+/(?:add/)?)"')
METERED_SECONDS = 40.0
STATED_MS = {r"w:\{p:.+\}:out:[0-9a-f-]{36}": QueueBounds().log_ttl_ms, r"w:\{t:.+\}:refused": KEPT_MS}
BROKEN, FAULT = "broken", "a fault that only tests have"  # a gateway, and what it says (`broken.py`)


@dataclass(frozen=True, slots=True)
class Canaries:
    """`key`, `management`, `rotated` and `webhook` are real and were shown once, `unknown` is well formed only.

    `prompt` is of a tenant without evaluation logs, `password` a wrong one.
    """

    key: str
    key_id: str
    management: str
    rotated: str
    webhook: str
    unknown: str
    prompt: str
    password: str


class Console:
    """The operator's browser."""

    def __init__(self, platform: Platform) -> None:
        self.client = httpx.Client(follow_redirects=True, timeout=30, base_url=platform.api.root)
        self._demo = platform.demo

    def post(self, path: str, **fields: str) -> httpx.Response:
        token = TOKEN.search(self.client.get(path).text)
        assert token, path
        fields["csrfmiddlewaretoken"] = token[1]
        return self.client.post(path, data=fields, headers={"Referer": f"{self.client.base_url}{path}"})

    def sign_in(self) -> None:
        answer = self.post(
            "/admin/login/", username=self._demo["admin_user"], password=self._demo["admin_password"], next="/admin/"
        )
        assert answer.url.path == "/admin/"

    def make_key(self, name: str, kind: str) -> str:
        """A new key of the second tenant, as the page shows it once."""
        form = self.client.get("/admin/tenants/apikey/add/").text
        project = re.search(r'<option value="([^"]+)">Basic Bakery / ', form)
        assert project
        made = self.post("/admin/tenants/apikey/add/", project=project[1], name=name, kind=kind)
        key = re.search(r"weir_[0-9A-Za-z]{38}", made.text)
        assert key, made.text[:2_000]
        return key[0]

    def pages(self) -> Iterator[Piece]:
        """Every page that the console leads to: its lists, their forms, the first rows."""
        index = self.client.get("/admin/")
        paths = ["/admin/requests/", "/admin/usage/", "/admin/engines/", "/admin/refusals/", "/admin/limits/"]
        paths += sorted(set(LINK.findall(index.text)))
        yield "page /admin/", index.content
        for path in paths:
            page = self.client.get(path)
            yield f"page {path}", page.content
            for row in re.findall(rf'href="({re.escape(path)}[^"?]+/)', page.text)[:3]:
                yield f"page {row}", self.client.get(row).content


@pytest.fixture(scope="module")
def console(platform: Platform) -> Iterator[Console]:
    console = Console(platform)
    console.sign_in()
    yield console
    console.client.close()


@pytest.fixture(scope="module")
def canaries(platform: Platform, console: Console) -> Canaries:
    """Secrets of the second tenant, each shown once where it is made, and texts that nobody else uses."""
    management, key = console.make_key("canary-manager", "manage"), console.make_key("canary", "inference")
    listed = console.client.get("/admin/tenants/apikey/?q=canary").text
    key_ids = dict(re.findall(r"/admin/tenants/apikey/([0-9a-f-]{36})/change/[^>]*>\s*(canary[a-z-]*)", listed))
    (key_id,) = [found for found, name in key_ids.items() if name == "canary"]
    bearer = {"Authorization": f"Bearer {management}"}
    with httpx.Client(base_url=f"{platform.api.root}/api/v1", headers=bearer, timeout=30) as program:
        rotated = program.post(f"/keys/{key_id}/rotate", json={"overlap_seconds": 3600})
        webhook = program.post("/webhooks", json={"url": "https://hooks.example.com/in"})
    assert (rotated.status_code, webhook.status_code) == (201, 201), (rotated.text, webhook.text)
    word = secrets.token_hex(12)
    return Canaries(
        key=key,
        key_id=key_id,
        management=management,
        rotated=rotated.json()["key"],
        webhook=webhook.json()["secret"],
        unknown=mint(),
        prompt=f"canaryprompt{word}",
        password=f"canarypassword{word}",
    )


@dataclass(frozen=True, slots=True)
class Crash:
    """How a mistake of ours was answered: over HTTP, and in a session of a WebSocket."""

    answers: dict[str, httpx.Response]
    event: dict[str, Any]


@pytest.fixture(scope="module")
def crash(platform: Platform, canaries: Canaries) -> Crash:
    """What only a mistake of ours brings about, on the same stores, with every key."""
    body = {"model": platform.model, "messages": [{"role": "user", "content": canaries.prompt}]}
    with another_gateway(platform.instance, name=BROKEN, application="tests.e2e.broken:application") as url:
        api, program = Api(url, canaries.key), Api(url.replace("/v1", "/api/v1"), canaries.management)
        answers = {
            "whole": api.post("/chat/completions", body),
            "stream": Api(url, canaries.rotated).post("/chat/completions", {**body, "stream": True}),
            "management": program.get("/keys"),
        }
        with connect(url.replace("http", "ws", 1) + "/realtime", additional_headers=api.headers()) as socket:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": canaries.prompt}]}
            asked = {"type": "response.create", "response": {"model": platform.model, "input": [item]}}
            socket.send(json.dumps(asked))
            while (event := json.loads(socket.recv(timeout=30)))["type"] != "error":
                pass
    return Crash(answers, event)


@pytest.fixture(scope="module")
def kept(platform: Platform, console: Console, canaries: Canaries, crash: Crash) -> list[Piece]:
    """All that is kept, and all that the console shows, after the canaries went through every door."""
    api = Api(platform.base_url, canaries.key)
    served = _serve(api, platform.model, canaries.prompt)
    _refuse(api, platform.model, canaries)
    for key in (canaries.key, canaries.management, canaries.rotated):
        _misplace(platform, canaries, key)
    _fail(platform, canaries)
    with httpx.Client(base_url=api.root, timeout=30) as stranger:
        _guess(stranger, canaries)
    _wait_until_metered(console, served)
    pages = list(console.pages())
    for request_id in served:
        for path in (f"/admin/requests/{request_id}/", f"/admin/refusals/?request={request_id}"):
            pages.append((f"page {path}", console.client.get(path).content))
    return [*pages, *everything(platform.instance.home)]


def _serve(api: Api, model: str, prompt: str) -> list[str]:
    """One whole answer and one stream; their request ids."""
    body = {"model": model, "messages": [{"role": "user", "content": f"say: {prompt}"}], "max_tokens": 8}
    whole = api.post("/chat/completions", body)
    assert whole.status_code == 200, whole.text
    streamed = [event for event in api.events("/chat/completions", {**body, "stream": True}) if event != "[DONE]"]
    return [bare_id(whole.json()["id"]), bare_id(streamed[0]["id"])]


def _refuse(api: Api, model: str, canaries: Canaries) -> None:
    """Each kind of refusal, with the prompt where the mistake is."""
    prompt = canaries.prompt
    said = [{"role": "user", "content": prompt}]
    wrong: list[dict[str, object]] = [
        {"model": model, "messages": said, "temperature": 99},
        {"model": model, "messages": said, "temperature": prompt},
        {"model": prompt, "messages": said},
        {"model": model, "messages": [{"role": prompt, "content": prompt}]},
        {"model": model, "messages": prompt},
        {"model": model, "messages": said, prompt: 1},
        {"model": model, "messages": said, "max_tokens": 10**9},
        {"model": model, "messages": said, "response_format": {"type": "json_schema", "json_schema": {"name": prompt}}},
        {"model": model, "messages": said, "tools": [{"type": "function", "function": {"name": prompt * 9}}]},
        {
            "model": model,
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": prompt}}]}],
        },
        {"model": model, "messages": said, "chat_template": prompt},
    ]
    for document in wrong:
        assert 400 <= api.post("/chat/completions", document).status_code < 500
    for content in (f'{{"model": "{prompt}"', f'{{"messages": "\ud800{prompt}"}}'.encode(errors="surrogatepass")):
        answer = api.request("POST", "/chat/completions", headers={"Content-Type": "application/json"}, content=content)
        assert answer.status_code == 400
    for header in ("Idempotency-Key", "X-Request-Id", "Content-Type", "Accept-Encoding"):
        api.post("/chat/completions", wrong[0], headers={header: canaries.key})
    other_end = "1" if canaries.key.endswith("0") else "0"
    for key in (canaries.unknown, canaries.key[:-1] + other_end, canaries.key + canaries.key, canaries.key.upper()):
        assert Api(api.base_url, key).post("/chat/completions", wrong[0]).status_code == 401


def _misplace(platform: Platform, canaries: Canaries, key: str) -> None:
    """A key where keys do not belong: in addresses, in other headers, in the console, at the wrong API."""
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    with httpx.Client(base_url=platform.api.root, timeout=30) as client:
        for path in ("/v1/models", "/v1/usage", "/api/v1/keys", "/admin/login/", "/api/schema", "/nowhere"):
            client.get(path, params={"api_key": key, "token": key})
        for header in ({"authorization": f"Basic {basic}"}, {"x-api-key": key}, {"cookie": f"sessionid={key}"}):
            for path in ("/v1/models", "/api/v1/tenants", "/admin/"):
                client.get(path, headers=header)
        bearer = {"authorization": f"Bearer {key}"}
        client.post("/api/v1/keys", headers=bearer, json={"name": canaries.prompt})
        client.post("/api/v1/keys", headers=bearer, content=b"{")
        client.post("/admin/login/", data={"username": key, "password": key})
    host = urlsplit(platform.base_url).netloc
    for address in (f"ws://{host}/v1/realtime?token={key}", f"ws://{host}/elsewhere?token={key}"):
        with suppress(WebSocketException, OSError), connect(address, open_timeout=10) as socket:
            socket.recv(timeout=10)
    with suppress(WebSocketException, OSError), connect(f"ws://{host}/v1/realtime") as socket:
        socket.send(json.dumps({"type": "session.authenticate", "api_key": canaries.unknown}))
        socket.recv(timeout=10)


def _fail(platform: Platform, canaries: Canaries) -> None:
    """Errors of our own, while the limits' store stands still: of a plain request, a stream and a WebSocket."""
    body = {"model": platform.model, "messages": [{"role": "user", "content": f"say: {canaries.prompt}"}]}
    valkey, api = platform.instance.pid_of("valkey"), Api(platform.base_url, canaries.key)
    with httpx.Client(base_url=platform.api.root, timeout=60) as client:
        os.kill(valkey, signal.SIGSTOP)
        try:
            for key in (canaries.key, canaries.rotated):
                for stream in (False, True):
                    failed = Api(api.base_url, key).post("/chat/completions", {**body, "stream": stream})
                    assert failed.status_code == 503, failed.text
            for path in ("/api/v1/limits", "/api/v1/keys"):
                client.get(path, headers={"authorization": f"Bearer {canaries.management}"})
        finally:
            os.kill(valkey, signal.SIGCONT)
    until = time.monotonic() + METERED_SECONDS
    while (status := api.post("/chat/completions", {**body, "max_tokens": 1}).status_code) != 200:
        assert time.monotonic() < until, f"still {status} after the store went on"
        time.sleep(0.2)


def _guess(client: httpx.Client, canaries: Canaries) -> None:
    """A wrong password of the console."""
    page = client.get("/admin/login/")
    token = TOKEN.search(page.text)
    assert token
    form = {
        "csrfmiddlewaretoken": token[1],
        "username": f"nobody-{canaries.password[-8:]}",
        "password": canaries.password,
    }
    assert client.post("/admin/login/", data=form).status_code == 200


def _wait_until_metered(console: Console, request_ids: list[str]) -> None:
    until = time.monotonic() + METERED_SECONDS
    for request_id in request_ids:
        while console.client.get(f"/admin/requests/{request_id}/").status_code != 200:
            assert time.monotonic() < until, "the canary's request was never metered"
            time.sleep(0.2)


def places(kept: list[Piece], needle: str) -> list[str]:
    """Where a text is found, as it is or in base64."""
    raw = needle.encode()
    forms = [raw, base64.b64encode(raw), raw.hex().encode()]
    return sorted({place for place, content in kept if any(form in content for form in forms)})


class TestCanaries:
    def test_the_search_finds_what_is_there(self, kept: list[Piece], canaries: Canaries) -> None:
        kinds = {place.split()[0] for place, _ in kept}
        assert kinds == {"page", "file", "PostgreSQL", "Redis", "ClickHouse", "S3"}
        assert any(place.startswith("PostgreSQL tenants_apikey") for place in places(kept, canaries.key_id))
        assert any(place.startswith("ClickHouse") for place in places(kept, canaries.key_id))
        assert any(place.startswith("Redis") for place in places(kept, canaries.key_id))
        assert any(place.startswith("file logs") for place in places(kept, "gateway"))
        assert {"file run.json", "file ports.json"} <= set(places(kept, "gateway"))

    @pytest.mark.parametrize("which", ["key", "management", "rotated", "unknown"])
    def test_t03_a_key_is_nowhere_in_clear(self, kept: list[Piece], canaries: Canaries, which: str) -> None:
        assert places(kept, getattr(canaries, which)) == []

    @pytest.mark.parametrize("door", ["whole", "stream", "management"])
    def test_t21_a_mistake_of_ours_is_told_as_nothing_but_an_error(self, crash: Crash, door: str) -> None:
        answer = crash.answers[door]
        assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
        document = answer.json()
        assert (set(document), set(document["error"])) == ({"error"}, ERROR_KEYS)
        assert (document["error"]["type"], document["error"]["code"]) == ("api_error", "internal_error")
        assert FAULT not in answer.text
        assert "weir_" not in answer.text + str(answer.headers)

    def test_t21_so_it_is_in_a_session(self, crash: Crash) -> None:
        assert (set(crash.event["error"]), crash.event["error"]["code"]) == (
            ERROR_KEYS,
            "internal_error",
        )
        assert FAULT not in str(crash.event)
        assert "weir_" not in str(crash.event)

    def test_its_traceback_is_in_the_log_without_the_key(self, kept: list[Piece]) -> None:
        (log,) = [content.decode() for place, content in kept if place == f"file logs/{BROKEN}.log"]
        for place, times in (("admission", 3), ("management", 1)):
            told = f"RuntimeError: {FAULT}, in {place}: {{'authorization': 'Bearer weir_…'}}"
            assert log.count(told) == times, log
        assert log.count("invalid literal for int() with base 10: 'weir_…'") == 4
        assert log.count("in _break") >= 4

    def test_t33_a_webhook_s_secret_is_nowhere_in_clear(self, kept: list[Piece], canaries: Canaries) -> None:
        assert places(kept, canaries.webhook) == []
        raw = base64.b64decode(canaries.webhook.removeprefix("whsec_"))
        assert [place for place, content in kept if raw in content or raw.hex().encode() in content] == []

    def test_t25_a_key_in_an_address_is_not_logged(self, kept: list[Piece], canaries: Canaries) -> None:
        logs = [piece for piece in kept if piece[0].startswith("file logs")]
        assert places(logs, canaries.key) == []
        assert not [place for place, content in logs if b"token=weir_" in content or b"api_key=weir_" in content]

    def test_t31_a_prompt_is_in_no_log_no_report_and_no_page(self, kept: list[Piece], canaries: Canaries) -> None:
        found = [place for place in places(kept, canaries.prompt) if not place.startswith("Redis")]
        assert found == []

    def test_t31_redis_keeps_of_it_what_is_stated_and_no_longer(
        self, platform: Platform, kept: list[Piece], canaries: Canaries
    ) -> None:
        """What a refusal named by its words; and frames, while a stream may be resumed: the answer was the prompt."""
        url = settings_of(platform.instance.home)["REDIS_URL"]
        until = time.monotonic() + METERED_SECONDS
        while True:  # what was cut off by the store that stood still is settled in its own time
            held = [place.split(" ", 2)[2] for place in places(list(of_redis(url)), canaries.prompt)]
            others = [key for key in held if not any(re.fullmatch(pattern, key) for pattern in STATED_MS)]
            if not others:
                break
            assert time.monotonic() < until, others
            time.sleep(0.2)
        with Redis.from_url(url) as redis:
            assert held  # a field was named by it
            for key in held:
                life, (most_ms,) = redis.pttl(key), [ms for name, ms in STATED_MS.items() if re.fullmatch(name, key)]
                assert life != -1, key
                assert life <= most_ms, key

    def test_t33_a_wrong_password_is_not_kept(self, kept: list[Piece], canaries: Canaries) -> None:
        assert places(kept, canaries.password) == []

    def test_t33_no_secret_of_the_platform_is_kept_or_shown(self, platform: Platform, kept: list[Piece]) -> None:
        settings = settings_of(platform.instance.home)
        root = settings["WEIR_SECRET"]
        derived = {
            name: purposes.derive(root, label).hex()
            for name, label in vars(purposes).items()
            if name.isupper() and isinstance(label, str)
        }
        passwords = {name: urlsplit(settings[name]).password or "" for name in ("DATABASE_URL", "REDIS_URL", "S3_URL")}
        known = {"root": root, "admin": platform.demo["admin_password"], **derived, **passwords}
        assert len(derived) >= 4
        found = {name: places(kept, secret) for name, secret in known.items() if secret}
        assert {name: where for name, where in found.items() if where} == {}

    def test_t33_files_that_hand_secrets_over_are_for_their_owner_alone(self, platform: Platform) -> None:
        for name in ("demo.json", "secrets.json", "env"):
            assert (platform.instance.home / name).stat().st_mode & 0o077 == 0, name
