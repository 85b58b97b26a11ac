"""Short ways to write a case's request. Called by the tables of `cases/`; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from infra.conformance.case import ABSENT, WIRE_SECONDS, Case, Check, Http, Step, Wire
from infra.conformance.target import QUESTION

CHAT = "/chat/completions"
COMPLETIONS = "/completions"
USER = {"role": "user", "content": QUESTION}
JSON_POST = ("Host: <HOST>", "Authorization: Bearer <KEY>", "Content-Type: application/json")


def _changed(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (document | changes).items() if value is not ABSENT}


def chat(*, headers: tuple[tuple[str, str], ...] = (), key: str | None = "own", **changes: Any) -> Http:
    """A good chat request of a few tokens with these fields changed; ABSENT leaves a field out."""
    document = _changed({"messages": [USER], "max_tokens": 4, "temperature": 0}, changes)
    return Http(path=CHAT, document=document, headers=headers, key=key)


def with_fields(fields: Mapping[str, Any]) -> Http:
    """A good chat request with these fields beside, whatever their names."""
    good = chat()
    return replace(good, document={**(good.document or {}), **fields})


def completion(**changes: Any) -> Http:
    """A good completion request with these fields changed."""
    return Http(path=COMPLETIONS, document=_changed({"prompt": QUESTION, "max_tokens": 4, "temperature": 0}, changes))


def raw(content: bytes, *, path: str = CHAT, content_type: str | None = "application/json", **options: Any) -> Http:
    """A POST of these bytes, placeholders replaced."""
    return Http(path=path, content=content, content_type=content_type, **options)


def get(path: str, *, headers: tuple[tuple[str, str], ...] = (), key: str | None = "own", method: str = "GET") -> Http:
    return Http(method=method, path=path, headers=headers, key=key)


def message(
    line: str = "POST <V1>/chat/completions HTTP/1.1",
    *headers: str | bytes,
    base: tuple[str, ...] = JSON_POST,
    body: bytes = b"<CHAT>",
    end: str = "\r\n",
) -> bytes:
    """A message as bytes: the line, `base` headers, these headers, an empty line, the body."""
    lines = [part.encode("latin-1") if isinstance(part, str) else part for part in (line, *base, *headers)]
    return end.encode().join([*lines, b"", body])


def wire(
    *parts: bytes,
    pause: float = 0.0,
    drip: bytes = b"",
    answers: int = 1,
    half_close: bool = False,
    sip: int = 0,
    deadline: float = WIRE_SECONDS,
) -> Wire:
    return Wire(parts=parts, pause=pause, drip=drip, answers=answers, half_close=half_close, sip=sip, deadline=deadline)


def case(name: str, step: Step | tuple[Step, ...], check: Check, *, must: str, source: str, **options: Any) -> Case:
    """A case of one step or several."""
    steps = step if isinstance(step, tuple) else (step,)
    return Case(name=name, must=must, source=source, steps=steps, check=check, **options)
