"""Every field with values that must be taken, and with null, which means its default. Kind `fields`.

A server that does not know a field may say so by name (skipped); one that fails on it, or names another, is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from infra.conformance.build import CHAT, case
from infra.conformance.case import Case, Check, Http, Kind
from infra.conformance.cases.ranges import shown
from infra.conformance.cases.types import request_with
from infra.conformance.checks import answered, supported
from infra.conformance.field_table import ON_CHAT, ON_COMPLETIONS, Field

# Every server of these conventions has them.
_CORE = frozenset(
    {"temperature", "top_p", "max_tokens", "stream", "stop", "n", "user", "frequency_penalty", "presence_penalty"}
)

_BOUNDS = frozenset({"max_tokens", "max_completion_tokens"})
_COMMON = ["e", "a", "o", "t"]


def _check(field: Field) -> Check:
    return answered() if field.name in _CORE else supported(params=(field.name, *field.beside))


def _null(field: Field, *, endpoint: str) -> Http:
    """Where null takes the answer's bound away, common letters end it: a small model may talk for minutes."""
    request = request_with(field, None, endpoint=endpoint)
    if field.name not in _BOUNDS:
        return request
    return replace(request, document={**(request.document or {}), "stop": _COMMON})


def _of(fields: tuple[Field, ...], *, endpoint: str) -> Iterator[Case]:
    label = "chat" if endpoint == CHAT else "completions"
    for field in fields:
        if field.required and not field.good:
            continue
        for value in field.good:
            yield case(
                f"{label} `{field.name}` = {shown(value)}",
                request_with(field, value, endpoint=endpoint),
                _check(field),
                must="200" if field.name in _CORE else "200, or 400 naming the field",
                source=field.source,
            )
        if not field.required:
            yield case(
                f"{label} `{field.name}` = null",
                _null(field, endpoint=endpoint),
                _check(field),
                must="null is the default" if field.name in _CORE else "null is the default, or 400 naming the field",
                source="OpenAI API reference (nullable fields); vllm-project/vllm#19862",
            )


KIND = Kind(
    name="fields",
    group="openai",
    about="every field with values that must be taken, and with null",
    cases=(
        *_of(ON_CHAT, endpoint=CHAT),
        *_of(ON_COMPLETIONS, endpoint="/completions"),
    ),
)
