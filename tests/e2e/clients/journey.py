"""What a user of the OpenAI Python SDK sees: run by both its major versions, prints one JSON object of facts.

Started by tests/e2e/test_sdk.py as `python journey.py`, with its settings as JSON on standard input. It asserts
nothing: the tests do, in one place for this client and for javascript/journey.mjs, which gives the same facts. Imports
nothing but the SDK and the standard library, because it runs in other environments.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import openai

DEADLINE_SECONDS = 60.0


class Journey:
    """One client of each tenant, and the scenarios."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.model: str = settings["model"]
        self.client = self._client(settings["api_key"])
        self.other = self._client(settings["other_api_key"])

    def _client(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(api_key=key, base_url=self.settings["base_url"], timeout=DEADLINE_SECONDS, max_retries=0)

    def run(self) -> dict[str, Any]:
        """Facts by scenario. One that raises leaves what it raised, and the others go on."""
        scenarios: tuple[Callable[[], Any], ...] = (
            *(self.versions, self.models, self.chat, self.chat_stream, self.chat_stream_usage),
            *(self.completion, self.completion_stream, self.choices, self.second_turn),
            *(self.cancel_stream, self.cancel_route, self.errors, self.usage),
        )
        facts: dict[str, Any] = {}
        for scenario in scenarios:
            name = scenario.__name__
            try:
                facts[name] = scenario()
            except Exception as error:  # noqa: BLE001 - what one scenario raised is a fact for its own test
                facts[name] = {"raised": f"{type(error).__name__}: {error}"}
        return facts

    def versions(self) -> Any:
        return {"sdk": openai.__version__}

    def models(self) -> Any:
        return {
            "listed": [model.id for model in self.client.models.list()],
            "retrieved": self.client.models.retrieve(self.model).model_dump(),
        }

    def chat(self) -> Any:
        raw = self.client.chat.completions.with_raw_response.create(**self._chat())
        answer = raw.parse()
        return {
            "id": answer.id,
            "object": answer.object,
            "model": answer.model,
            "created": answer.created,
            "role": answer.choices[0].message.role,
            "text": answer.choices[0].message.content,
            "finish_reason": answer.choices[0].finish_reason,
            "usage": answer.usage.model_dump() if answer.usage else None,
            "request_id": raw.headers.get("x-request-id"),
            "rate_headers": sorted(name for name in raw.headers if name.startswith("x-ratelimit-")),
        }

    def chat_stream(self) -> Any:
        return self._streamed(self.client.chat.completions.create(**self._chat(), stream=True), _delta_text)

    def chat_stream_usage(self) -> Any:
        options = {"include_usage": True}
        stream = self.client.chat.completions.create(**self._chat(), stream=True, stream_options=options)
        return self._streamed(stream, _delta_text)

    def completion(self) -> Any:
        answer = self.client.completions.create(**self._completion())
        return {
            "id": answer.id,
            "object": answer.object,
            "text": answer.choices[0].text,
            "finish_reason": answer.choices[0].finish_reason,
            "usage": answer.usage.model_dump() if answer.usage else None,
        }

    def completion_stream(self) -> Any:
        stream = self.client.completions.create(
            **self._completion(), stream=True, stream_options={"include_usage": True}
        )
        return self._streamed(stream, _plain_text)

    def choices(self) -> Any:
        answer = self.client.chat.completions.create(**{**self._endless(), "temperature": 0.7, "max_tokens": 8}, n=2)
        return {
            "indexes": [choice.index for choice in answer.choices],
            "texts": [choice.message.content for choice in answer.choices],
            "usage": answer.usage.model_dump() if answer.usage else None,
        }

    def second_turn(self) -> Any:
        messages = [
            {"role": "system", "content": self.settings["long_text"]},
            {"role": "user", "content": "Name one thing."},
        ]
        first = self._turn(self.client, messages)
        messages += [
            {"role": "assistant", "content": first["text"]},
            {"role": "user", "content": "And another?"},
        ]
        return {"first": first, "second": self._turn(self.client, messages), "other": self._turn(self.other, messages)}

    def _turn(self, client: openai.OpenAI, messages: list[dict[str, str]]) -> Any:
        request: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": 8, "temperature": 0}
        answer = client.chat.completions.create(**request)
        return {
            "text": answer.choices[0].message.content,
            "usage": answer.usage.model_dump() if answer.usage else None,
        }

    def cancel_stream(self) -> Any:
        stream = self.client.chat.completions.create(**self._endless(), stream=True)
        seen = 0
        for chunk in stream:
            request_id = chunk.id.rpartition("chatcmpl-")[2]
            seen += 1
            if seen == 3:
                break
        stream.close()
        closed = time.monotonic()
        last = self._settled(request_id)
        return {"seen": seen, "request": last, "seconds": time.monotonic() - closed}

    def cancel_route(self) -> Any:
        stream = self.client.chat.completions.create(**self._endless(), stream=True)
        reply: Any = None
        request_id, ended = "", {"class": "none"}
        try:
            for chunk in stream:
                if reply is None:
                    request_id = chunk.id.rpartition("chatcmpl-")[2]
                    reply = self.client.post(f"/requests/{request_id}/cancel", cast_to=object)
        except openai.APIError as error:
            ended = _error(error)
        return {"reply": reply, "ended": ended, "request": self._settled(request_id)}

    def errors(self) -> Any:
        good = self._chat()
        return {
            "unknown_key": _raised(lambda: self._client("weir_thiskeyhasneverbeenmade0000000000000000").models.list()),
            "unknown_model": _raised(lambda: self.client.chat.completions.create(**{**good, "model": "no-such-model"})),
            "unknown_model_retrieved": _raised(lambda: self.client.models.retrieve("no-such-model")),
            "bad_temperature": _raised(lambda: self.client.chat.completions.create(**{**good, "temperature": 9})),
            "unknown_field": _raised(
                lambda: self.client.chat.completions.create(**good, extra_body={"no_such_field": 1})
            ),
            "too_long": _raised(lambda: self.client.chat.completions.create(**{**good, "max_tokens": 10_000_000})),
            "bad_stream": _raised(
                lambda: list(self.client.chat.completions.create(**{**good, "temperature": 9}, stream=True))
            ),
            "request_of_another": _raised(self._foreign_request),
        }

    def _foreign_request(self) -> Any:
        answer = self.client.chat.completions.create(**self._chat())
        request_id = answer.id.rpartition("chatcmpl-")[2]
        return self.other.get(f"/requests/{request_id}", cast_to=object)

    def usage(self) -> Any:
        query = {"start_time": self.settings["started_at"], "bucket_width": "1h", "group_by": ["model"]}
        return self.client.get("/usage", cast_to=object, options={"params": query})

    def _settled(self, request_id: str) -> Any:
        """The request once it has ended, or as it is when the deadline is over."""
        deadline = time.monotonic() + 15
        while True:
            found: Any = self.client.get(f"/requests/{request_id}", cast_to=object)
            if (found["status"] == "ended" and found["usage"]) or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def _streamed(self, stream: Any, text_of: Callable[[Any], str]) -> Any:
        chunks = list(stream)
        with_choices = [chunk for chunk in chunks if chunk.choices]
        return {
            "ids": sorted({chunk.id for chunk in chunks}),
            "objects": sorted({chunk.object for chunk in chunks}),
            "models": sorted({chunk.model for chunk in chunks}),
            "text": "".join(text_of(chunk.choices[0]) for chunk in with_choices),
            "finish_reasons": [
                chunk.choices[0].finish_reason for chunk in with_choices if chunk.choices[0].finish_reason
            ],
            "chunks_with_text": sum(bool(text_of(chunk.choices[0])) for chunk in with_choices),
            "usages": [chunk.usage.model_dump() for chunk in chunks if chunk.usage is not None],
            "last_has_choices": bool(chunks[-1].choices),
        }

    def _chat(self) -> dict[str, Any]:
        content = f"Answer in one line. say: {self.settings['said']}"
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 48,
            "temperature": 0,
        }

    def _completion(self) -> dict[str, Any]:
        return {"model": self.model, "prompt": f"say: {self.settings['said']}", "max_tokens": 16, "temperature": 0}

    def _endless(self) -> dict[str, Any]:
        return {**self._chat(), "max_tokens": 2_000, "extra_body": {"ignore_eos": True}}


def _delta_text(choice: Any) -> str:
    return choice.delta.content or ""


def _plain_text(choice: Any) -> str:
    return choice.text or ""


def _raised(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        call()
    except openai.APIError as error:
        return _error(error)
    return {"class": "none"}


def _error(error: openai.APIError) -> dict[str, Any]:
    return {
        "class": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "code": error.code,
        "param": error.param,
        "type": error.type,
        "request_id": getattr(error, "request_id", None),
        "message": error.message,
    }


if __name__ == "__main__":
    json.dump(Journey(json.load(sys.stdin)).run(), sys.stdout, ensure_ascii=False)
