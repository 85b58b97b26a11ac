"""Real vLLM behind the platform: nothing is lost, added or counted otherwise on the way through the nine steps.

The engine is asked directly on its Unix socket, past everything, and its answer is the truth.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.surface import limits
from infra.bench.engine_metrics import RUNNING, read_metrics
from tests.e2e.api import Api, bare_id
from tests.e2e.conftest import Platform
from tests.e2e.curl import curl, needs_curl
from tests.e2e.sockets import ask, send, session, text_of, until
from workers.engines import prometheus

pytestmark = pytest.mark.engine

PROMPTS = (
    "Name three rivers.",
    "Write one sentence about the sea.",
    "日本語で短く挨拶してください。",
    "Repeat exactly: 🌊👩‍🔬 naïve façade",
)
FREE_WITHIN_SECONDS = 3.0  # `manage.py bench cancel` measures it; here other tests have the cores too


@pytest.fixture(scope="module")
def engine(real_platform: Platform) -> Iterator[httpx.Client]:
    """The engine itself."""
    transport = httpx.HTTPTransport(uds=str(real_platform.instance.engine_socket()))
    with httpx.Client(transport=transport, base_url="http://engine", timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def inner_model(engine: httpx.Client) -> str:
    """The model's name inside the engine."""
    return str(engine.get("/v1/models").json()["data"][0]["id"])


def chat(prompt: str, model: str, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0, **changes}


def counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


@pytest.fixture(scope="module")
def truth(engine: httpx.Client, inner_model: str) -> tuple[str, tuple[int, int]]:
    """What the engine itself says to the second prompt, and its counts."""
    answer = engine.post("/v1/chat/completions", json=chat(PROMPTS[1], inner_model)).json()
    return answer["choices"][0]["message"]["content"], counts(answer["usage"])


class TestAnswer:
    @pytest.mark.parametrize("prompt", PROMPTS)
    def test_equals_the_engines_own_byte_for_byte(
        self, real_platform: Platform, engine: httpx.Client, inner_model: str, prompt: str
    ) -> None:
        truth = engine.post("/v1/chat/completions", json=chat(prompt, inner_model))
        assert truth.status_code == 200, truth.text
        ours = real_platform.api.post("/chat/completions", chat(prompt, real_platform.model))
        assert ours.status_code == 200, ours.text
        expected, found = truth.json(), ours.json()
        message = expected["choices"][0]["message"]["content"]
        assert found["choices"][0]["message"]["content"].encode() == message.encode()
        assert found["choices"][0]["finish_reason"] == expected["choices"][0]["finish_reason"]
        assert counts(found["usage"]) == counts(expected["usage"])

    def test_equals_the_engines_own_when_streamed(
        self, real_platform: Platform, engine: httpx.Client, inner_model: str
    ) -> None:
        truth = engine.post("/v1/chat/completions", json=chat(PROMPTS[0], inner_model)).json()
        request = chat(PROMPTS[0], real_platform.model, stream=True, stream_options={"include_usage": True})
        events = list(real_platform.api.events("/chat/completions", request))
        assert events[-1] == "[DONE]"
        pieces = [event["choices"][0]["delta"].get("content") or "" for event in events[:-2]]
        assert "".join(pieces) == truth["choices"][0]["message"]["content"]
        assert counts(events[-2]["usage"]) == counts(truth["usage"])

    def test_equals_the_engines_own_for_completions_and_logprobs(
        self, real_platform: Platform, engine: httpx.Client, inner_model: str
    ) -> None:
        request = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "logprobs": 2}
        truth = engine.post("/v1/completions", json={**request, "model": inner_model}).json()
        guarded = real_platform.api.post("/completions", {**request, "model": real_platform.model})
        # An output policy cannot look into logprobs: there they are refused, never dropped.
        assert (guarded.status_code, guarded.json()["error"]["param"]) == (400, "logprobs")
        bare = real_platform.instance.unguarded_target(model=real_platform.model)
        api = Api(real_platform.base_url, bare.api_key)
        ours = api.post("/completions", {**request, "model": real_platform.model})
        assert ours.status_code == 200, ours.text
        assert ours.json()["choices"][0]["text"] == truth["choices"][0]["text"]
        found, expected = (answer["choices"][0]["logprobs"] for answer in (ours.json(), truth))
        assert found["tokens"] == expected["tokens"]
        assert found["token_logprobs"] == pytest.approx(expected["token_logprobs"], abs=1e-4)

    def test_counts_the_prompt_as_the_engine_does_before_it_runs(
        self, real_platform: Platform, engine: httpx.Client, inner_model: str
    ) -> None:
        """A request that exactly fits the context is taken; one token more is refused before the queue."""
        card = real_platform.api.get(f"/models/{real_platform.model}").json()
        truth = engine.post("/v1/chat/completions", json=chat(PROMPTS[2], inner_model, max_tokens=1)).json()
        room = card["context_tokens"] - truth["usage"]["prompt_tokens"]
        too_long = real_platform.api.post(
            "/chat/completions", chat(PROMPTS[2], real_platform.model, max_tokens=room + 1)
        )
        assert too_long.status_code == 400
        assert too_long.json()["error"]["param"] == "max_tokens"
        fits = chat("say hi", real_platform.model, max_tokens=room - 200, stop=["e", " "])
        assert real_platform.api.post("/chat/completions", fits).status_code == 200


class TestOtherClients:
    """What the demo's other clients see is the engine's own answer too."""

    @needs_curl
    def test_curl(self, real_platform: Platform, truth: tuple[str, tuple[int, int]]) -> None:
        request = chat(PROMPTS[1], real_platform.model, stream=True, stream_options={"include_usage": True})
        lines = curl(real_platform, "/chat/completions", "-N", body=request).splitlines()
        assert [line for line in lines if line.startswith("data: ")][-1] == "data: [DONE]"
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        pieces = [event["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
        assert ("".join(pieces), counts(events[-1]["usage"])) == truth

    async def test_a_websocket(self, real_platform: Platform, truth: tuple[str, tuple[int, int]]) -> None:
        content = [{"type": "input_text", "text": PROMPTS[1]}]
        async with session(real_platform) as socket:
            await send(socket, "conversation.item.create", item={"type": "message", "role": "user", "content": content})
            await ask(socket, real_platform, max_tokens=24, temperature=0)
            seen = await until(socket, "response.done", "error")
        assert seen[-1]["type"] == "response.done", seen[-1]
        assert (text_of(seen), counts(seen[-1]["response"]["usage"])) == truth


class TestStatedLimits:
    """What the gateway lets through, the engine takes: no refusal comes from behind the queue."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"stop": [f"{number}never" for number in range(limits.STOP_MAX)]},
            {"stop": ["x" * limits.STOP_CHARS_MAX]},
            {"n": limits.CHOICES_MAX, "temperature": 1},
            {"temperature": 2, "top_p": 0.001, "min_p": 1, "top_k": -1},
            {"frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 10},
            {"seed": 2**63 - 1},
            {"seed": -(2**63)},
            {"logit_bias": {str(token): -100 for token in range(limits.LOGIT_BIAS_MAX)}},
            {"allowed_token_ids": list(range(100, 100 + limits.ALLOWED_TOKEN_IDS_MAX))},
            {"stop_token_ids": list(range(limits.STOP_TOKEN_IDS_MAX))},
            {"bad_words": ["word" * 16] * limits.BAD_WORDS_MAX},
            {"min_tokens": 4},
            {"response_format": {"type": "json_object"}},
        ],
        ids=lambda changes: ",".join(changes),
    )
    def test_are_within_the_engines_own(self, real_platform: Platform, changes: dict[str, Any]) -> None:
        document = {**chat("Say a word.", real_platform.model, max_tokens=4), **changes}
        answer = real_platform.api.post("/chat/completions", document)
        assert answer.status_code == 200, answer.text


class TestCache:
    def test_serves_the_second_turn_from_blocks_that_no_other_tenant_can_reach(self, real_platform: Platform) -> None:
        text = f"{time.monotonic_ns()} " + "Stone by stone the weir is built across the stream. " * 40
        document = chat(text, real_platform.model, max_tokens=2)
        cached = [
            api.post("/chat/completions", document).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            for api in (real_platform.api, real_platform.api, real_platform.other_api)
        ]
        assert cached[0] == 0
        assert cached[1] >= 256
        assert cached[1] % 128 == 0
        assert cached[2] == 0


class TestCancel:
    def test_frees_the_engine(self, real_platform: Platform, engine: httpx.Client) -> None:
        request = chat("Count to a thousand.", real_platform.model, max_tokens=2_000, stream=True, ignore_eos=True)
        stream = real_platform.api.events("/chat/completions", request)
        request_id = bare_id(next(stream)["id"])
        next(stream)
        assert running(engine) >= 1
        stream.close()
        left = time.monotonic()
        while running(engine) > 0 and time.monotonic() - left < FREE_WITHIN_SECONDS:
            time.sleep(0.05)
        assert running(engine) == 0, "the engine still works for a client that left"
        ended = real_platform.api.ended(request_id)
        assert ended["outcome"] == "cancelled"
        assert 0 < ended["usage"]["completion_tokens"] < 2_000


class TestCard:
    def test_is_that_of_the_running_engine(self, real_platform: Platform, engine: httpx.Client) -> None:
        card = real_platform.api.get(f"/models/{real_platform.model}").json()
        shape = [card[name] for name in ("layers", "heads", "kv_heads", "head_size", "vocabulary")]
        assert shape == [30, 9, 3, 64, 49_152]
        assert card["engine"] == "vllm"
        cache = prometheus.read_labels(engine.get("/metrics").text, "vllm:cache_config_info")
        assert (card["dtype"], card["kv_cache_dtype"]) == ("bfloat16", "bfloat16")
        assert (cache["cache_dtype"], card["block_tokens"]) == ("auto", int(cache["block_size"]))
        assert card["engine_version"] == engine.get("/version").json()["version"]
        assert card["context_tokens"] == engine.get("/v1/models").json()["data"][0]["max_model_len"]
        assert len(card["weights_sha256"]) == 64


def running(engine: httpx.Client) -> float:
    return read_metrics(engine.get("/metrics").text).get(RUNNING, 0.0)
