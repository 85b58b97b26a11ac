"""After all the rest: the server still answers as it should. Kind `alive`."""

from __future__ import annotations

from infra.conformance.build import case, chat, get
from infra.conformance.case import Kind
from infra.conformance.checks import answered, is_json
from infra.conformance.stream_checks import on_chunks, one_finish

_SOURCE = "vLLM advisories: one request must not stop the engine for all"

KIND = Kind(
    name="alive",
    group="odd",
    about="the server lives on after all that",
    cases=(
        case("the models", get("/models"), answered(is_json), must="200", source=_SOURCE, alone=True),
        case("a chat", chat(), answered(is_json), must="200", source=_SOURCE, alone=True),
        case("a stream", chat(stream=True), answered(on_chunks(one_finish)), must="200", source=_SOURCE, alone=True),
    ),
)
