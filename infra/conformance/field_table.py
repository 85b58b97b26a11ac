"""Every field of a chat and a completion request: what it takes, and what is out of its range. Data.

From it `cases/types.py` makes one case for each wrong JSON type, `cases/ranges.py` one for each bad value, and
`cases/accepted.py` one for each good value. Sources: OpenAI's API reference; vLLM's OpenAI-compatible server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPENAI = "OpenAI API reference"
VLLM = "vLLM OpenAI-compatible server"
HUGE = 18446744073686646784  # wraps to a small negative number in 64 bits (GHSA-8r8v-xf7q-rcpr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. `takes`: JSON types; `good`: values to take; `bad`: right type, wrong value; `beside`: what it
    needs to make sense. `required`: null is wrong too. Extensions are vLLM's: a server need not know them.
    """

    name: str
    takes: str
    good: tuple[Any, ...] = ()
    bad: tuple[Any, ...] = ()
    beside: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False
    extension: bool = False
    items: str = ""  # JSON types of an array's items, where items of another type are wrong

    @property
    def source(self) -> str:
        return VLLM if self.extension else OPENAI


TOOL = {"type": "function", "function": {"name": "river", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"river": {"type": "string"}}, "required": ["river"]}
_BIG = (2**63, 10**400, HUGE)

SHARED = (
    Field(name="model", takes="string", required=True),
    Field(name="frequency_penalty", takes="number", good=(0, 0.5, -2, 2), bad=(-2.5, 2.01, 1e308, 10**400)),
    Field(name="presence_penalty", takes="number", good=(0, 0.5, -2, 2), bad=(-2.5, 2.01, -1e308)),
    Field(
        name="logit_bias",
        takes="object",
        good=({}, {"1": 1}),
        bad=(
            {"1": 101},
            {"1": -101},
            {"word": 1},
            {"-1": 1},
            {"1.5": 1},
            {"99999999": 1},
            {"": 1},
            {"1": "1"},
            {"1": None},
            {"1": [1]},
            {"1": True},
            {str(10**30): 1},
        ),
    ),
    Field(name="max_tokens", takes="integer", good=(1,), bad=(0, -1, -(2**31), 10_000_000_000, *_BIG)),
    Field(name="n", takes="integer", good=(1,), bad=(0, -1, 100_000, *_BIG)),
    Field(name="seed", takes="integer", good=(0, 7, -1, 2**63 - 1), bad=(2**63, -(2**63) - 1, 10**400)),
    Field(
        name="stop",
        takes="string array",
        items="string",
        good=("\u2603", ["\u2603"], ["\u2603", "\u2604"]),
        bad=("", [""], [str(number) for number in range(300)], ["x" * 100_000]),
    ),
    Field(name="stream", takes="boolean", good=(False, True)),
    Field(
        name="stream_options",
        takes="object",
        good=({"include_usage": True}, {"include_usage": False}, {}),
        bad=({"no_such_option": 1}, {"include_usage": "yes"}, {"include_usage": 1}),
        beside={"stream": True},
    ),
    Field(name="temperature", takes="number", good=(0, 1, 2, 1e-9, 1e-300), bad=(-0.01, -1, 2.01, 1e300, 10**400)),
    Field(name="top_p", takes="number", good=(1, 0.5), bad=(-0.1, 1.01, 2, 1e300)),
    Field(name="user", takes="string", good=("someone",)),
)

CHAT = (
    *SHARED,
    Field(name="messages", takes="array", items="object", required=True, bad=([],)),
    Field(name="audio", takes="object"),
    Field(name="function_call", takes="string object"),
    Field(name="functions", takes="array", items="object"),
    Field(name="logprobs", takes="boolean", good=(True, False)),
    Field(name="max_completion_tokens", takes="integer", good=(4,), bad=(0, -1, 10_000_000_000, *_BIG)),
    Field(name="metadata", takes="object", good=({"a": "b"},)),
    Field(name="modalities", takes="array", items="string", good=(["text"],), bad=(["smell"], ["audio"])),
    Field(name="parallel_tool_calls", takes="boolean", good=(False,), beside={"tools": [TOOL]}),
    Field(name="prediction", takes="object"),
    Field(name="prompt_cache_key", takes="string", good=("a",)),
    Field(name="reasoning_effort", takes="string", good=("low",), bad=("enormous", "")),
    Field(
        name="response_format",
        takes="object",
        good=(
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "river", "schema": SCHEMA}},
        ),
        bad=(
            {},
            {"type": "xml"},
            {"type": None},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {}},
            {"type": "json_schema", "json_schema": {"name": "", "schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": []}},
            {"type": "text", "no_such_option": 1},
        ),
    ),
    Field(name="safety_identifier", takes="string", good=("someone",)),
    Field(name="service_tier", takes="string", good=("auto", "default"), bad=("gold", "")),
    Field(name="store", takes="boolean", good=(False,)),
    Field(
        name="tool_choice",
        takes="string object",
        good=("none", "auto"),
        bad=("always", "", {"type": "function"}, {"type": "function", "function": {"name": "no_such_tool"}}, {}),
        beside={"tools": [TOOL]},
    ),
    Field(
        name="tools",
        takes="array",
        items="object",
        good=([TOOL],),
        bad=(
            [{}],
            [{"type": "function"}],
            [{"type": "machine", "function": {"name": "x"}}],
            [{"type": "function", "function": {"name": ""}}],
            [{"type": "function", "function": {"name": "a b"}}],
            [{"type": "function", "function": {"name": "x" * 1000}}],
            [{"type": "function", "function": {"name": "x", "parameters": []}}],
        ),
    ),
    Field(name="top_logprobs", takes="integer", good=(0, 2), bad=(-1, 21, 10_000, *_BIG), beside={"logprobs": True}),
    Field(name="verbosity", takes="string", good=("low",), bad=("shouting",)),
    Field(name="web_search_options", takes="object"),
)

COMPLETIONS = (
    *SHARED,
    Field(
        name="prompt",
        takes="string array",
        required=True,
        good=("A river", [1, 2, 3]),
        bad=([], [""] * 5_000, [-1], [2**31], [10**400], [1.5], [True], [None], [[1], "a"], [{}], [[[1]]], [1, "a"]),
    ),
    Field(name="best_of", takes="integer", good=(1,), bad=(0, -1, 100_000, *_BIG)),
    Field(name="echo", takes="boolean", good=(False,)),
    Field(name="logprobs", takes="integer", good=(0, 2), bad=(-1, 10_000, *_BIG)),
    Field(name="suffix", takes="string"),
)

EXTENSIONS = (
    Field(name="top_k", takes="integer", good=(-1, 5), bad=(-2, *_BIG), extension=True),
    Field(name="min_p", takes="number", good=(0, 0.1), bad=(-0.1, 1.1, 1e300), extension=True),
    Field(name="repetition_penalty", takes="number", good=(1, 1.2), bad=(0, -1, 1e300, 10**400), extension=True),
    Field(name="length_penalty", takes="number", extension=True),
    Field(name="min_tokens", takes="integer", good=(0, 2), bad=(-1, 5, *_BIG), extension=True),
    Field(name="stop_token_ids", takes="array", items="integer", bad=([-1], [10**400], [2**40]), extension=True),
    Field(name="include_stop_str_in_output", takes="boolean", good=(False,), extension=True),
    Field(name="ignore_eos", takes="boolean", good=(False,), extension=True),
    Field(name="skip_special_tokens", takes="boolean", good=(True,), extension=True),
    Field(name="spaces_between_special_tokens", takes="boolean", good=(True,), extension=True),
    Field(
        name="allowed_token_ids",
        takes="array",
        items="integer",
        bad=([], [-1], [2**40], [10**400]),
        extension=True,
    ),
    Field(name="bad_words", takes="array", items="string", bad=([""], ["x" * 100_000]), extension=True),
    Field(name="truncate_prompt_tokens", takes="integer", bad=(-2, *_BIG), extension=True),
    Field(name="prompt_logprobs", takes="integer", bad=(-2, 100_000, *_BIG), extension=True),
    Field(name="add_generation_prompt", takes="boolean", extension=True),
    Field(name="continue_final_message", takes="boolean", extension=True),
    Field(name="add_special_tokens", takes="boolean", extension=True),
    Field(name="documents", takes="array", items="object", extension=True),
    Field(name="chat_template", takes="string", extension=True),
    Field(name="chat_template_kwargs", takes="object", extension=True),
    Field(name="mm_processor_kwargs", takes="object", extension=True),
    Field(name="guided_json", takes="object string", extension=True),
    Field(name="guided_regex", takes="string", extension=True),
    Field(name="guided_choice", takes="array", items="string", extension=True),
    Field(name="guided_grammar", takes="string", extension=True),
    Field(name="structured_outputs", takes="object", extension=True),
    Field(name="priority", takes="integer", extension=True),
    Field(name="request_id", takes="string", extension=True),
    Field(name="cache_salt", takes="string", extension=True),
    Field(name="kv_transfer_params", takes="object", extension=True),
    Field(name="vllm_xargs", takes="object", extension=True),
    Field(name="use_beam_search", takes="boolean", extension=True),
    Field(name="logits_processors", takes="array", extension=True),
    Field(name="return_token_ids", takes="boolean", extension=True),
    Field(name="return_tokens_as_token_ids", takes="boolean", extension=True),
    Field(name="truncation_side", takes="string", bad=("middle",), extension=True),
    Field(name="media_io_kwargs", takes="object", extension=True),
    Field(name="prompt_logprobs_token_ids", takes="array", items="integer", extension=True),
    Field(name="logprob_token_ids", takes="array", items="integer", extension=True),
    Field(name="include_reasoning", takes="boolean", good=(True,), extension=True),
    Field(name="prompt_embeds", takes="string array", extension=True),
)
# Names that only the other endpoint has, and that a server may take on both.
BORROWED_BY_CHAT = tuple(field for field in COMPLETIONS if field.name in ("best_of", "suffix"))
BORROWED_BY_COMPLETIONS = tuple(
    field for field in CHAT if field.name in ("response_format", "service_tier", "store", "safety_identifier")
)
ON_CHAT = (*CHAT, *BORROWED_BY_CHAT, *EXTENSIONS)
ON_COMPLETIONS = (*COMPLETIONS, *BORROWED_BY_COMPLETIONS, *EXTENSIONS)

# A value of each JSON type. A whole number is also a number; null is a value of its own.
SAMPLES: dict[str, Any] = {
    "string": "1",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [1],
    "object": {"a": 1},
}


def wrong_types(field: Field) -> list[tuple[str, Any]]:
    """The values of every JSON type that the field does not take, named; null where it is required."""
    takes = set(field.takes.split())
    if "number" in takes:
        takes.add("integer")
    found = [(f"of type {kind}", value) for kind, value in SAMPLES.items() if kind not in takes]
    if field.required:
        found += [("null", None)]
    if field.items:
        inner = set(field.items.split())
        found += [(f"with an item of type {kind}", [value]) for kind, value in SAMPLES.items() if kind not in inner]
        found += [("with null as an item", [None])]
    return found
