"""An engine's refusal, in our words: what the client is told of a 400. Pure; called by `attempt`.

Invariant: no text of the engine reaches a client. It may name paths, classes and versions, and changes with each
release; the operator finds it in the worker's log. The field is the engine's own `param`, or the one that its text
names, and only ever a field which the client sent.
"""

import re
from collections.abc import Mapping
from typing import Any

from contracts.outcomes import Outcome
from workers.engines.base import EngineRefused
from workers.verdict import Verdict

_TOO_LONG = re.compile(
    r"context length|maximum model length|max_model_len|longer than the maximum|too many tokens", re.IGNORECASE
)
_GRAMMAR = re.compile(r"grammar|json ?schema|structured.output|regex|xgrammar|outlines|guidance", re.IGNORECASE)
_TEMPLATE = re.compile(r"chat template|jinja|template ?error|roles must alternate", re.IGNORECASE)
_GRAMMAR_FIELDS = ("response_format", "structured_outputs", "tools")
_INPUT_FIELDS = ("messages", "prompt")
_PROMPT_TOO_LONG = ("input_tokens", "input_text")  # as vLLM calls a prompt that leaves no room for output
_PLAIN_WORDS = frozenset(
    {"model", "messages", "prompt", "stop", "user", "n", "seed", "stream", "tools", "echo", "suffix"}
)


def explain(refused: EngineRefused, body: Mapping[str, Any]) -> Verdict:
    """The verdict on a request with this body."""
    text = str(refused)
    if _TOO_LONG.search(text):
        if refused.param in _PROMPT_TOO_LONG:
            return _verdict(
                "The prompt does not fit into the model's context.",
                _first(_INPUT_FIELDS, body),
                "context_length_exceeded",
            )
        given = next((name for name in ("max_completion_tokens", "max_tokens") if name in body), "max_tokens")
        return _verdict(
            f"The prompt and `{given}` do not fit into the model's context together.", given, "context_length_exceeded"
        )
    param = _field(refused.param, text, body)
    if _GRAMMAR.search(text) and (not param or param in _GRAMMAR_FIELDS):
        return no_grammar(param or _first(_GRAMMAR_FIELDS, body))
    if _TEMPLATE.search(text):
        param = _first(_INPUT_FIELDS, body)
        return _verdict("The model's chat template does not take these messages.", param)
    if param:
        return _verdict(f"The engine does not take this value of `{param}`.", param)
    return _verdict("The engine does not take this request as it is.", "")


def no_grammar(param: str) -> Verdict:
    """The verdict on a schema that no grammar can be made from."""
    return _verdict("The engine cannot generate under this schema, pattern or grammar.", param)


def _verdict(message: str, param: str, code: str = "invalid_value") -> Verdict:
    return Verdict(outcome=Outcome.FAILED, error_code=code, message=message, status=400, param=param)


def _field(param: str, text: str, body: Mapping[str, Any]) -> str:
    """The engine's own `param` by its root, or the field that its text names first; ordinary words only if quoted."""
    root = re.split(r"[.\[]", param, maxsplit=1)[0]
    if root in body:
        return root
    found: list[tuple[int, str]] = []
    for name in body:
        word = re.escape(name)
        pattern = rf"[`'\"]{word}[`'\"]" if name in _PLAIN_WORDS else rf"(?<![\w.]){word}(?!\w)"
        match = re.search(pattern, text)
        if match:
            found.append((match.start(), name))
    return min(found)[1] if found else ""


def _first(names: tuple[str, ...], body: Mapping[str, Any]) -> str:
    return next((name for name in names if name in body), "")
