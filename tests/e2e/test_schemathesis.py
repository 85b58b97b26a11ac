"""Requests made from the inference API's own OpenAPI document: no 500, every answer as the document says.

Good requests and bad ones, to every route; the management API's are in tests/functional/tenants/test_schema.py.
WEIR_FUZZ_EXAMPLES asks for more of each than the few that a whole run of the tests has time for.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.surface.openapi import document
from tests.e2e.conftest import Platform

EXAMPLES = int(os.environ.get("WEIR_FUZZ_EXAMPLES", "25"))
ANSWER_SECONDS = 60.0
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = sorted((path, method) for path, one in document()["paths"].items() for method in one)
PLAIN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
}
# Reports by time, and the width of their buckets.
WIDTHS = {"/v1/usage": "1h", "/v1/organization/usage/completions": "1h", "/v1/organization/costs": "1d"}
CHUNKS = {"/v1/chat/completions": "ChatCompletionChunk", "/v1/completions": "CompletionChunk"}
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


def validator(name: str) -> Draft202012Validator:
    components = document()["components"]
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components})


def check_events(content: bytes, chunk: str) -> None:
    """Every event is a chunk, and the last is `[DONE]` or an error."""
    blocks = [block for block in content.decode().split("\n\n") if block.strip()]
    data = [line[6:] for block in blocks for line in block.split("\n") if line.startswith("data: ")]
    for one in data[:-1]:
        validator(chunk).validate(json.loads(one))
    if data[-1] != "[DONE]":
        validator("Error").validate(json.loads(data[-1]))


@pytest.fixture(scope="session")
def described(platform: Platform) -> Any:
    """The document as a client loads it."""
    schema = schemathesis.openapi.from_url(f"{platform.base_url}/openapi.json")
    schema.config.generation.update(with_security_parameters=False, modes=MODES)
    return schema


@pytest.fixture(scope="session")
def answered_id(platform: Platform) -> str:
    """The id of a request that has been answered."""
    body = {"model": platform.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    return str(json.loads(platform.api.post("/chat/completions", body).text)["id"])


class TestInference:
    @pytest.mark.parametrize(("path", "method"), OPERATIONS)
    def test_answers_as_it_is_described(
        self, platform: Platform, described: Any, answered_id: str, path: str, method: str
    ) -> None:
        statuses: set[int] = set()
        streams = 0
        known_ids = {"model": platform.model, "request_id": answered_id}
        headers = {"Authorization": f"Bearer {platform.demo['api_key']}"}

        @settings(
            max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=described[path][method].as_strategy(), known=st.integers(0, 3), stream=st.booleans())
        def ask(case: schemathesis.Case, known: int, stream: bool) -> None:
            if known and isinstance(case.body, dict) and "model" in case.body:
                case.body |= {"model": platform.model, "max_tokens": 4, "stream": stream}
                for name in ("max_completion_tokens", "stream_options", "min_tokens"):
                    case.body.pop(name, None)
                if known == 1 and path in PLAIN:  # of fields made up, hardly one set makes a stream
                    case.body = {"model": platform.model, "max_tokens": 4, "stream": True} | PLAIN[path]
            for name in (case.path_parameters or {}) if known else ():
                case.path_parameters[name] = known_ids[name]
            nonlocal streams
            if path in WIDTHS and known == 1:  # of times made up, hardly one makes a window
                case.query = {"start_time": platform.started_at - 86_400, "bucket_width": WIDTHS[path]}
            answer = case.call(headers=headers, timeout=ANSWER_SECONDS)
            case.validate_response(answer, checks=CHECKS)
            statuses.add(answer.status_code)
            if path in CHUNKS and answer.headers["content-type"][0].startswith("text/event-stream"):
                check_events(answer.content, CHUNKS[path])
                streams += 1

        ask()
        assert 200 in statuses
        assert 401 not in statuses
        assert streams or path not in CHUNKS

    def test_is_described_to_everybody(self, platform: Platform) -> None:
        answer = platform.api.get("/openapi.json")
        assert answer.status_code == 200
        assert json.loads(answer.text) == document()
