"""Threats to the inference API, by their numbers (README.md): keys, names of models, contents, ids."""

import gzip
from dataclasses import replace
from typing import Any

import pytest

from tenants.auth.keys import mint
from tests.functional.gateway.cast import CONTEXT, MODEL
from tests.functional.gateway.conftest import Gateway, gateway, http_protocol, kept, receipts, settings, tokenizer

__all__ = ["gateway", "http_protocol", "kept", "receipts", "settings", "tokenizer"]

CHAT = "/v1/chat/completions"
SAID = [{"role": "user", "content": "hello"}]
BODY: dict[str, Any] = {"model": MODEL, "messages": SAID, "max_tokens": 4}
PER_ANSWER = {"x-request-id", "openai-processing-ms", "date"}
INJECTIONS = [
    "x' OR pg_sleep(8)--", "weir_' UNION SELECT 1--", "'; DROP TABLE tenants_apikey;--", "weir_" + "%" * 38,
    "weir_\\x00" + "a" * 34, "weir_" + "\u0661" * 38, "*", "weir_*", "{{7*7}}", "../../etc/passwd", "EVAL 'return 1' 0",
]  # fmt: skip


@pytest.fixture
def asked(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the resolver asked the database for."""
    seen: list[Any] = []
    load = gateway.services.resolver._load

    async def watched(digests: Any) -> Any:
        seen.append(digests)
        return await load(digests)

    monkeypatch.setattr(gateway.services.resolver, "_load", watched)
    return seen


class TestKeys:
    @pytest.mark.parametrize("text", INJECTIONS)
    async def test_t04_what_is_no_key_never_reaches_the_database(
        self, gateway: Gateway, asked: list[Any], text: str
    ) -> None:
        headers = {"authorization": f"Bearer {text}".encode()}
        answer = await gateway.http.post(CHAT, json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert asked == []
        assert text not in answer.text

    async def test_t08_unknown_mistyped_and_foreign_keys_are_answered_alike(self, gateway: Gateway) -> None:
        real = gateway.key
        wrong = [mint(), mint(), real[:-1] + ("a" if real[-1] != "a" else "b"), real.swapcase(), real[:-6]]
        answers = [await gateway.http.post(CHAT, json=BODY, headers=gateway.auth(key)) for key in wrong]
        bodies = {answer.text for answer in answers}
        heads = {tuple(sorted((k, v) for k, v in answer.headers.items() if k not in PER_ANSWER)) for answer in answers}
        assert {answer.status_code for answer in answers} == {401}
        assert (len(bodies), len(heads)) == (1, 1)


class TestModels:
    @pytest.mark.parametrize(
        "name", [MODEL.upper(), f" {MODEL}", f"{MODEL} ", f"{MODEL}\x00", f"./{MODEL}", f"x/{MODEL}", f"{MODEL}:latest"]
    )
    async def test_t07_no_other_spelling_names_a_model(self, gateway: Gateway, name: str) -> None:
        answer = await gateway.http.post(CHAT, json={**BODY, "model": name}, headers=gateway.auth())
        assert answer.status_code in (400, 404)

    async def test_t07_a_name_outside_the_key_s_list_is_refused_on_every_route(self, gateway: Gateway) -> None:
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="k7", allowed_models=frozenset({"other"})))
        asks = [
            await gateway.http.post(CHAT, json=BODY, headers=gateway.auth(key)),
            await gateway.http.post(CHAT, json={**BODY, "stream": True}, headers=gateway.auth(key)),
            await gateway.http.post("/v1/completions", json={"model": MODEL, "prompt": "x"}, headers=gateway.auth(key)),
            await gateway.http.get(f"/v1/models/{MODEL}", headers=gateway.auth(key)),
        ]
        refused = [(answer.status_code, answer.json()["error"]["code"]) for answer in asks]
        assert refused == [(403, "model_not_allowed")] * 3 + [(404, "model_not_found")]


class TestContents:
    @pytest.mark.parametrize(
        "part",
        [
            {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "video_url", "video_url": {"url": "http://[::ffff:7f00:1]/x"}},
            {"type": "file", "file": {"file_id": "x"}},
        ],
    )
    async def test_t19_media_is_refused_and_nothing_is_fetched(
        self, gateway: Gateway, part: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """T20's pixel bombs and T21's decoders need a decoder: there is none."""
        import socket

        looked_up: list[Any] = []
        known = socket.getaddrinfo

        def watched(host: Any, *rest: Any, **options: Any) -> Any:
            looked_up.append(host)
            return known(host, *rest, **options)

        monkeypatch.setattr(socket, "getaddrinfo", watched)
        messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]
        answer = await gateway.http.post(CHAT, json={**BODY, "messages": messages}, headers=gateway.auth())
        assert answer.status_code == 400
        assert "text" in answer.json()["error"]["message"]
        assert [host for host in looked_up if host != "127.0.0.1"] == []

    async def test_t20_a_small_body_that_swells_is_too_large(self, gateway: Gateway) -> None:
        bomb = gzip.compress(b"[" * 2**28, compresslevel=9)
        assert len(bomb) < 2**19
        headers = {**gateway.auth(), "content-encoding": "gzip", "content-type": "application/json"}
        answer = await gateway.http.post(CHAT, content=bomb, headers=headers)
        assert answer.status_code == 413

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("chat_template", "{% for x in range(10**9) %}{% endfor %}"),
            ("chat_template_kwargs", {"x": 1}),
            ("add_generation_prompt", False),
            ("continue_final_message", True),
            ("documents", [{"text": "x"}]),
            ("mm_processor_kwargs", {"x": 1}),
        ],
    )
    async def test_t27_a_client_changes_no_template(self, gateway: Gateway, name: str, value: Any) -> None:
        answer = await gateway.http.post(CHAT, json={**BODY, name: value}, headers=gateway.auth())
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == name


class TestIds:
    @pytest.mark.parametrize("given", ["0" * 36, "../../x", "a" * 300, "weir", "1"])
    async def test_t26_a_client_s_request_id_is_never_ours(self, gateway: Gateway, given: str) -> None:
        headers = {**gateway.auth(), "x-request-id": given, "x-client-request-id": given}
        answers = [await gateway.http.post(CHAT, json={**BODY, "n": 0}, headers=headers) for _ in range(2)]
        ours = [answer.headers["x-request-id"] for answer in answers]
        assert {answer.status_code for answer in answers} == {400}
        assert len({given, *ours}) == 3
