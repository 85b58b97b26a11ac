"""curl as a client: what a person types first."""

from __future__ import annotations

import json
import subprocess

from tests.e2e.conftest import Platform
from tests.e2e.curl import curl, needs_curl

pytestmark = needs_curl


def chat(platform: Platform, **changes: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "say: Hello 🌊 水"}]
    return {"model": platform.model, "messages": messages, "max_tokens": 32, **changes}


class TestCurl:
    def test_gets_a_plain_answer(self, platform: Platform) -> None:
        answer = json.loads(curl(platform, "/chat/completions", body=chat(platform)))
        assert answer["choices"][0]["message"]["content"] == "Hello 🌊 水"

    def test_gets_a_stream_line_by_line(self, platform: Platform) -> None:
        text = curl(platform, "/chat/completions", "-N", "-i", body=chat(platform, stream=True))
        head, _, body = text.partition("\n\n")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head.splitlines()[1:]}
        assert headers["content-type"].startswith("text/event-stream")
        assert "no-transform" in headers["cache-control"]
        assert headers.get("content-encoding", "identity") == "identity"
        assert headers["x-request-id"]
        lines = body.splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        pieces = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in data[:-1]]
        assert "".join(pieces) == "Hello 🌊 水"
        assert {json.loads(line)["id"] for line in data[:-1]} == {f"chatcmpl-{headers['x-request-id']}"}

    def test_gets_the_whole_stream_when_it_offers_compression(self, platform: Platform) -> None:
        """A compressor between us and the socket shows one event of forty to some clients."""
        text = curl(platform, "/chat/completions", "-N", "--compressed", body=chat(platform, stream=True))
        assert text.rstrip().endswith("data: [DONE]")

    def test_sees_health_without_a_key(self, platform: Platform) -> None:
        for path, word in (("live", "live"), ("ready", "ready")):
            done = subprocess.run(
                ["curl", "--silent", "--fail", f"{platform.api.root}/health/{path}"],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert done.returncode == 0
            assert json.loads(done.stdout)["status"] == word

    def test_sees_the_exact_configuration_of_the_model(self, platform: Platform) -> None:
        card = json.loads(curl(platform, f"/models/{platform.model}"))
        for name in ("layers", "heads", "kv_heads", "head_size", "context_tokens", "block_tokens", "vocabulary"):
            assert card[name] > 0
        assert card["engine"] == "simulated"
        for name in ("repository", "revision", "dtype", "kv_cache_dtype", "tokenizer_sha256", "weights_sha256"):
            assert card[name]
