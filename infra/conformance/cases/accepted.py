"""Every field with values that must be taken, and with null, which means its default. Kind `fields`.

A server that does not know a field may say so by name (skipped); one that fails on it, or names another, is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.conformance.build import CHAT, case
from infra.conformance.case import Case, Check, Kind
from infra.conformance.cases.ranges import shown
from infra.conformance.cases.types import request_with
from infra.conformance.checks import answered, supported
from infra.conformance.field_table import ON_CHAT, ON_COMPLETIONS, Field

# Every server of these conventions has them.
_CORE = frozenset(
    {"temperature", "top_p", "max_tokens", "stream", "stop", "n", "user", "frequency_penalty", "presence_penalty"}
)


def _check(field: Field) -> Check:
    return answered() if field.name in _CORE else supported(params=(field.name, *field.beside))


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
                request_with(field, None, endpoint=endpoint),
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
