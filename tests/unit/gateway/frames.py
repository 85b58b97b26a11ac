"""Frames as a worker writes them, and final frames, for tests of the stream side."""

from typing import Any

import orjson

from contracts.jobs import Timings
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import Final

REQUEST = "0199-request"


def frame(*choices: dict[str, Any], **fields: Any) -> bytes:
    head = {"id": f"chatcmpl-{REQUEST}", "object": "chat.completion.chunk", "created": 1_800_000_000, "model": "m"}
    return orjson.dumps({**head, "choices": list(choices), **fields})


def content(text: str, *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}


def final(**fields: Any) -> Final:
    values: dict[str, Any] = {
        "request_id": REQUEST,
        "outcome": Outcome.OK,
        "finish_reason": "stop",
        "error_code": "",
        "error_message": "",
        "status": 200,
        "counts": TokenCounts(prompt=10, cached=4, completion=5, reasoning=2),
        "cost_nano": 16_500,
        "currency": "USD",
        "attempt": 1,
        "timings": Timings(queue_us=1500, ttft_us=20_000),
        "verdicts": (),
    }
    return Final(**(values | fields))
