"""OpenAI's own SDKs as clients: Python 2.x and 3.x and JavaScript, on the simulated engine and on real vLLM.

Each client runs its whole journey once in a process of its own and prints facts (clients/journey.py,
javascript/journey.mjs); what must be true of them is said here once, for all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from decimal import Decimal
from typing import Any

import pytest

from infra.setup.sdk import JAVASCRIPT, Clients
from tests.e2e.api import bare_id
from tests.e2e.conftest import HERE, Platform

SAID = "Water 🌊 finds 👩‍🔬 its way: 水は低い方へ流れます。 Ünïcödé."
MAJOR = {"python2": "2.", "python3": "3.", "javascript": "7."}
JOURNEY_SECONDS = 400
_facts: dict[tuple[str, bool], dict[str, Any]] = {}

SIMULATED = [pytest.param((name, False), id=f"{name}-simulated") for name in MAJOR]
REAL = [pytest.param((name, True), id=f"{name}-vllm", marks=pytest.mark.engine) for name in MAJOR]
each_client = pytest.mark.parametrize("facts", [*SIMULATED, *REAL], indirect=True)


@pytest.fixture
def facts(request: pytest.FixtureRequest, clients: Clients) -> dict[str, Any]:
    """The facts of one client on one platform; the journey is made when they are first asked for."""
    name, real = request.param
    if (name, real) not in _facts:
        platform: Platform = request.getfixturevalue("real_platform" if real else "platform")
        _facts[name, real] = {"model": platform.model, "real": real, "client": name, **_travel(name, clients, platform)}
    return _facts[name, real]


def _travel(name: str, clients: Clients, platform: Platform) -> dict[str, Any]:
    commands = {
        "python2": [sys.executable, str(HERE / "clients" / "journey.py")],
        "python3": [str(clients.python), str(HERE / "clients" / "journey.py")],
        "javascript": [str(clients.node), str(JAVASCRIPT / "journey.mjs")],
    }
    nonce = uuid.uuid4().hex
    settings = {
        **{key: platform.demo[key] for key in ("base_url", "api_key", "other_api_key")},
        "model": platform.model,
        "said": SAID,
        "long_text": f"{nonce} " + "The keeper counts what passes and writes it down once. " * 40,
        "started_at": platform.started_at,
    }
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "PYTHON"))}
    done = subprocess.run(
        commands[name],
        input=json.dumps(settings).encode(),
        env={**kept, "WEIR_NODE_MODULES": str(clients.node_modules), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        timeout=JOURNEY_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of(facts: dict[str, Any], scenario: str) -> Any:
    """The facts of one scenario that went through."""
    found = facts[scenario]
    assert not (isinstance(found, dict) and "raised" in found), found["raised"]
    return found


def assert_usage_is_whole(usage: dict[str, Any]) -> None:
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    assert isinstance(usage["cost"], str)
    assert Decimal(usage["cost"]) > 0
    assert "e" not in usage["cost"].lower()


@each_client
class TestClient:
    def test_is_of_the_major_version_it_is_named_after(self, facts: dict[str, Any]) -> None:
        assert of(facts, "versions")["sdk"].startswith(MAJOR[facts["client"]])

    def test_lists_and_retrieves_the_model(self, facts: dict[str, Any]) -> None:
        models = of(facts, "models")
        assert facts["model"] in models["listed"]
        card = models["retrieved"]
        assert (card["id"], card["object"]) == (facts["model"], "model")
        assert card["owned_by"]
        assert card["created"] > 1_700_000_000

    def test_gets_a_plain_answer(self, facts: dict[str, Any]) -> None:
        answer = of(facts, "chat")
        assert answer["id"].startswith("chatcmpl-")
        assert (answer["object"], answer["model"]) == ("chat.completion", facts["model"])
        assert (answer["role"], answer["finish_reason"]) in (("assistant", "stop"), ("assistant", "length"))
        assert answer["text"]
        assert answer["request_id"]
        assert_usage_is_whole(answer["usage"])

    def test_is_told_its_rate_limits(self, facts: dict[str, Any]) -> None:
        names = set(of(facts, "chat")["rate_headers"])
        assert {f"x-ratelimit-{part}-requests" for part in ("limit", "remaining", "reset")} <= names

    def test_gets_the_same_text_streamed(self, facts: dict[str, Any]) -> None:
        plain, stream = of(facts, "chat"), of(facts, "chat_stream")
        assert stream["text"] == plain["text"]
        assert stream["finish_reasons"] == [plain["finish_reason"]]
        assert stream["chunks_with_text"] > 1
        assert len(stream["ids"]) == 1
        assert stream["ids"] != [plain["id"]]
        assert (stream["objects"], stream["models"]) == (["chat.completion.chunk"], [facts["model"]])

    def test_gets_usage_in_a_stream_only_when_asked(self, facts: dict[str, Any]) -> None:
        assert of(facts, "chat_stream")["usages"] == []
        assert of(facts, "chat_stream")["last_has_choices"]

    def test_gets_usage_in_the_last_chunk_when_asked(self, facts: dict[str, Any]) -> None:
        stream = of(facts, "chat_stream_usage")
        assert len(stream["usages"]) == 1
        assert not stream["last_has_choices"]
        assert_usage_is_whole(stream["usages"][0])
        counts = ("prompt_tokens", "completion_tokens")
        plain = of(facts, "chat")["usage"]
        assert [stream["usages"][0][name] for name in counts] == [plain[name] for name in counts]

    def test_gets_completions_plain_and_streamed(self, facts: dict[str, Any]) -> None:
        plain, stream = of(facts, "completion"), of(facts, "completion_stream")
        assert plain["id"].startswith("cmpl-")
        assert plain["object"] == "text_completion"
        assert plain["text"] == stream["text"] != ""
        assert stream["objects"] == ["text_completion"]
        assert_usage_is_whole(plain["usage"])
        assert_usage_is_whole(stream["usages"][0])

    def test_gets_each_choice_under_its_own_index(self, facts: dict[str, Any]) -> None:
        answer = of(facts, "choices")
        assert answer["indexes"] == [0, 1]
        assert all(answer["texts"])
        assert answer["usage"]["completion_tokens"] == 2 * 8

    def test_pays_less_for_the_prefix_of_a_second_turn(self, facts: dict[str, Any]) -> None:
        turns = of(facts, "second_turn")
        usages = {turn: turns[turn]["usage"] for turn in ("first", "second", "other")}
        cached = {turn: usage["prompt_tokens_details"]["cached_tokens"] for turn, usage in usages.items()}
        assert cached["first"] == 0
        assert cached["second"] >= 256
        assert cached["other"] == 0, "another tenant must never be served from this tenant's cache"
        assert usages["second"]["prompt_tokens"] == usages["other"]["prompt_tokens"]
        assert Decimal(usages["second"]["cost"]) < Decimal(usages["other"]["cost"])

    def test_cancels_the_request_by_leaving_the_stream(self, facts: dict[str, Any]) -> None:
        found = of(facts, "cancel_stream")
        assert found["seen"] == 3
        assert found["request"]["outcome"] == "cancelled"
        assert found["request"]["usage"]["completion_tokens"] < 2_000

    def test_cancels_the_request_by_its_id(self, facts: dict[str, Any]) -> None:
        found = of(facts, "cancel_route")
        assert found["reply"]["id"] == found["request"]["id"]
        assert found["request"]["outcome"] == "cancelled"
        assert found["ended"]["code"] == "request_cancelled"

    def test_sees_its_usage_by_model(self, facts: dict[str, Any]) -> None:
        page = of(facts, "usage")
        assert page["object"] == "page"
        results = [result for bucket in page["data"] for result in bucket["results"]]
        assert results
        assert {result["object"] for result in results} == {"organization.usage.completions.result"}
        assert {result["model"] for result in results} == {facts["model"]}
        assert sum(result["num_model_requests"] for result in results) > 0


# scenario -> class of the SDK's exception, status, code, param
ERRORS = {
    "unknown_key": ("AuthenticationError", 401, "invalid_api_key", None),
    "unknown_model": ("NotFoundError", 404, "model_not_found", "model"),
    "unknown_model_retrieved": ("NotFoundError", 404, "model_not_found", None),
    "bad_temperature": ("BadRequestError", 400, "invalid_value", "temperature"),
    "bad_stream": ("BadRequestError", 400, "invalid_value", "temperature"),
    "unknown_field": ("BadRequestError", 400, "unknown_parameter", "no_such_field"),
    "too_long": ("BadRequestError", 400, "context_length_exceeded", "max_tokens"),
    "request_of_another": ("NotFoundError", 404, "request_not_found", None),
}


@each_client
class TestErrors:
    @pytest.mark.parametrize("scenario", ERRORS)
    def test_is_the_sdks_own_exception(self, facts: dict[str, Any], scenario: str) -> None:
        kind, status, code, param = ERRORS[scenario]
        error = of(facts, "errors")[scenario]
        assert (error["class"], error["status"], error["code"]) == (kind, status, code), error
        if param is not None:
            assert error["param"] == param
        assert error["request_id"]


@pytest.mark.parametrize("facts", SIMULATED, indirect=True)
class TestText:
    def test_arrives_unbroken_though_its_characters_span_tokens(self, facts: dict[str, Any]) -> None:
        assert of(facts, "chat")["finish_reason"] == "stop"
        for scenario in ("chat", "chat_stream", "chat_stream_usage"):
            assert of(facts, scenario)["text"] == SAID


class TestIds:
    def test_lose_their_prefix(self) -> None:
        assert bare_id("chatcmpl-1") == bare_id("cmpl-1") == bare_id("1") == "1"
