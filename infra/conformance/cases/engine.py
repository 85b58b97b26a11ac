"""Fields that reach into the engine, and content that makes it fetch or run something. Kind `engine`.

From vLLM's advisories: what a client may not set on a server that many share is refused by name, before the queue.
"""

from __future__ import annotations

from typing import Any

from infra.conformance.build import USER, case, chat, completion
from infra.conformance.case import Case, Kind, Seen, Skipped, Step
from infra.conformance.checks import any_of, refused

_YES = True
_TEXT_ONLY = "400: text only, said in the error; nothing is fetched"
_SERVERS = "400 naming it: it is the server's to set"


def _own(name: str, value: Any, *, source: str, title: str = "", **beside: Any) -> Case:
    """A field that belongs to the server."""
    step = chat(**beside, **{name: value})
    return case(title or f"`{name}`", step, refused(name), must=_SERVERS, source=source)


_OWN = (
    _own("cache_salt", "mine", source="CVE-2025-46570, CVE-2026-105756"),
    _own("cache_salt", "s" * 100_000, source="CVE-2026-105756", title="`cache_salt` of 100,000 letters"),
    _own(
        "kv_transfer_params",
        {"do_remote_prefill": True, "remote_host": "169.254.169.254"},
        source="CVE-2025-32444 (class)",
    ),
    _own("priority", -1_000_000, source="vLLM scheduler: priority"),
    _own("request_id", "chatcmpl-of-another", source="CVE-2026-116176, CVE-2026-105755"),
    _own("chat_template", "{% for x in range(10**9) %}a{% endfor %}", source="GHSA-69j4-grxj-j64p, CVE-2026-115911"),
    _own(
        "chat_template",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        source="CVE-2026-115911",
        title="`chat_template` that runs a command",
    ),
    _own("chat_template_kwargs", {"chat_template": "{{ 1 }}"}, source="GHSA-69j4-grxj-j64p"),
    _own(
        "chat_template_kwargs",
        {"tokenize": True, "add_generation_prompt": False},
        source="GHSA-69j4-grxj-j64p",
        title="`chat_template_kwargs` of the tokenizer",
    ),
    _own("mm_processor_kwargs", {"num_crops": 10**9}, source="CVE-2026-105760 (class)"),
    _own("media_io_kwargs", {"video": {"fps": 10**9}}, source="CVE-2026-105760"),
    _own("logits_processors", ["os.system"], source="vLLM logits_processors: code by name"),
    _own("vllm_xargs", {"a": "b"}, source="vLLM vllm_xargs: arguments of plugins"),
    _own("prompt_logprobs", 10**6, source="vLLM advisories: unbounded work"),
    _own("truncate_prompt_tokens", -1, source="litellm#35695: never cut silently"),
    _own("use_beam_search", _YES, source="vLLM advisories: unbounded work", title="`use_beam_search`"),
    _own("prompt_embeds", "AAAA", source="PYSEC-2026-2303", title="chat with `prompt_embeds`"),
    _own("lora_request", {"path": "/etc"}, source="vLLM LoRA: a path of the server"),
    _own("hf_overrides", {"auto_map": {"AutoConfig": "evil--x"}}, source="CVE-2026-22807"),
    _own("trust_remote_code", _YES, source="CVE-2026-22807, CVE-2026-27893"),
    _own("api_key", "sk-other", source="litellm: clientside credentials"),
    _own("api_base", "http://169.254.169.254/", source="litellm: clientside credentials"),
    _own("base_url", "http://127.0.0.1:1/", source="litellm: clientside credentials"),
    _own("extra_headers", {"Authorization": "Bearer x"}, source="litellm: clientside credentials"),
    _own("extra_body", {"priority": 1}, source="OpenAI SDK: extra_body is the client's own"),
    case(
        "completions with `prompt_embeds`",
        completion(prompt_embeds="gASVAAAAAA=="),
        refused("prompt_embeds"),
        must=_SERVERS,
        source="PYSEC-2026-2303; CVE-2025-32444 (pickle)",
    ),
    case(
        "completions with `cache_salt`",
        completion(cache_salt="mine"),
        refused("cache_salt"),
        must=_SERVERS,
        source="CVE-2025-46570",
    ),
    case(
        "completions with `kv_transfer_params`",
        completion(kv_transfer_params={"a": 1}),
        refused("kv_transfer_params"),
        must=_SERVERS,
        source="CVE-2025-32444 (class)",
    ),
    case(
        "completions with `priority`",
        completion(priority=-1),
        refused("priority"),
        must=_SERVERS,
        source="vLLM scheduler: priority",
    ),
)


def _text_only(seen: Seen) -> None:
    if seen.answer.status == 200:
        raise Skipped("the server serves more than text")
    refused("messages[0].content")(seen)


def _part(name: str, part: dict[str, Any], *, source: str) -> Case:
    step = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
    return case(f"content: {name}", step, _text_only, must=_TEXT_ONLY, source=source)


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


_SSRF = "CVE-2026-24779, -25960, -34753"
_MEDIA = (
    _part("an image by URL", _image("http://127.0.0.1:1/a.png"), source=_SSRF),
    _part("an image of a metadata address", _image("http://169.254.169.254/latest/meta-data/"), source=_SSRF),
    _part("an image of a decimal address", _image("http://2130706433/"), source=_SSRF),
    _part("an image of an IPv6 address", _image("http://[::ffff:7f00:1]/"), source=_SSRF),
    _part("an image of a file", _image("file:///etc/passwd"), source=_SSRF),
    _part("an image with a user name", _image("http://example.com@127.0.0.1/"), source=_SSRF),
    _part("an image with a backslash", _image("http://example.com\\@127.0.0.1/"), source="CVE-2026-25960"),
    _part("an image as data", _image("data:image/png;base64,iVBORw0KGgo="), source="CVE-2026-22778"),
    _part("an image as broken data", _image("data:image/png;base64,%%%%"), source="CVE-2026-22778"),
    _part("an image as a bomb's data", _image("data:image/png;base64," + "A" * 100_000), source="vLLM PR #47010"),
    _part("an image without a URL", {"type": "image_url"}, source=_SSRF),
    _part("an image by its old name", {"type": "image", "image": "http://127.0.0.1/"}, source=_SSRF),
    _part("an image of embeddings", {"type": "image_embeds", "image_embeds": "gASVAAAAAA=="}, source="PYSEC-2026-2303"),
    _part("a video", {"type": "video_url", "video_url": {"url": "http://127.0.0.1:1/a.mp4"}}, source="CVE-2026-105760"),
    _part("an audio URL", {"type": "audio_url", "audio_url": {"url": "http://127.0.0.1:1/a.wav"}}, source=_SSRF),
    _part("audio as data", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, source=_SSRF),
    _part("a file by id", {"type": "file", "file": {"file_id": "file-1"}}, source="OpenAI API reference"),
    _part(
        "a file as data",
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
        source="OpenAI API reference",
    ),
    _part("an input of the Responses API", {"type": "input_text", "text": "a"}, source="OpenAI API reference"),
    _part("a refusal in a user's message", {"type": "refusal", "refusal": "a"}, source="OpenAI API reference"),
    _part("of a type nobody knows", {"type": "smell", "smell": "rose"}, source="OpenAI API reference"),
    _part("without a type", {"text": "a"}, source="OpenAI API reference"),
    _part("text with a field nobody knows", {"type": "text", "text": "a", "x": 1}, source="never dropped silently"),
    _part("text without text", {"type": "text"}, source="OpenAI API reference"),
)


def _schema(name: str, schema: Any, *, source: str = "CVE-2026-105757; CVE-2025-29770", strict: bool = True) -> Case:
    step = chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    check = refused("response_format") if strict else any_of(200, 400, 422)
    must = "400 before a grammar is made of it" if strict else "an answer or 400, in time"
    return case(f"schema: {name}", step, check, must=must, source=source)


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}


def _bomb(levels: int) -> dict[str, Any]:
    """References that double at each level: small to read, exponential to unfold."""
    definitions: dict[str, Any] = {
        f"d{level}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in "ab"}}
        for level in range(levels)
    }
    return {"$defs": definitions | {f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


_SCHEMAS = (
    _schema("nested 400 levels", _nested(400)),
    _schema(
        "with 20,000 properties", {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}
    ),
    _schema("with an enum of 50,000", {"enum": [f"v{number}" for number in range(50_000)]}),
    _schema("with 5,000 alternatives", {"anyOf": [{"const": number} for number in range(5_000)]}),
    _schema("that repeats a billion times", {"type": "array", "items": {"type": "string"}, "minItems": 10**9}),
    _schema("of a string of a billion letters", {"type": "string", "minLength": 10**9}),
    _schema("with a negative count", {"type": "array", "minItems": -1}),
    _schema("with a count of 400 digits", {"type": "array", "maxItems": 10**400}),
    _schema("of a type nobody knows", {"type": "cow"}),
    _schema("whose type is a number", {"type": 7}),
    _schema("whose properties are a list", {"type": "object", "properties": []}),
    _schema("whose required is a string", {"type": "object", "required": "a"}),
    _schema("whose enum is empty", {"enum": []}),
    _schema("that refers to a URL", {"$ref": "http://169.254.169.254/schema.json"}, source=_SSRF),
    _schema("that refers to a file", {"$ref": "file:///etc/passwd"}, source=_SSRF),
    _schema("that refers to nothing", {"$ref": "#/$defs/none"}),
    _schema("that refers to itself", {"$ref": "#"}, strict=False),
    _schema("whose references double 24 times", _bomb(24), strict=False),
    _schema("with a pattern that does not compile", _text("(")),
    _schema("with a pattern of 100,000 letters", _text("a" * 100_000)),
    _schema("with a pattern that repeats a billion times", _text("a{1000000000}")),
    _schema("with nested repeats", _text("((((a{1,100}){1,100}){1,100}){1,100}){1,100}")),
    _schema("with a pattern that backtracks", _text("^(a+)+$"), strict=False),
    _schema("with a pattern of many groups", _text("(" * 5_000 + ")" * 5_000)),
    _schema("with a look-behind", _text("(?<=a)b"), strict=False),
    _schema("with a back reference", _text("(a)\\1"), strict=False),
)


def _guided(name: str, changes: dict[str, Any], *, source: str) -> Case:
    return case(
        f"guided: {name}", chat(**changes), refused(*changes), must="400 in time, naming the field", source=source
    )


_REGEX = "CVE-2025-29770, CVE-2026-105757"
_GUIDED = (
    _guided("a regex that does not compile", {"guided_regex": "("}, source=_REGEX),
    _guided("a regex that repeats a billion times", {"guided_regex": "a{1000000000}"}, source=_REGEX),
    _guided("a regex of nested repeats", {"guided_regex": "(((a{1,999}){1,999}){1,999})"}, source=_REGEX),
    _guided("a grammar of itself", {"guided_grammar": "root ::= root root"}, source=_REGEX),
    _guided("a grammar that does not parse", {"guided_grammar": "root ::= ::="}, source=_REGEX),
    _guided("50,000 choices", {"guided_choice": [f"c{number}" for number in range(50_000)]}, source=_REGEX),
    _guided("two kinds at once", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, source=_REGEX),
    _guided("a backend by name", {"guided_json": {}, "guided_decoding_backend": "../../x"}, source=_REGEX),
)


def _asked(name: str, step: Step, *params: str, source: str) -> Case:
    return case(name, step, refused(*params), must="400, and `param` names the field", source=source)


_TOOLS = (
    _asked(
        "a tool's parameters nested 400 levels",
        chat(tools=[{"type": "function", "function": {"name": "a", "parameters": _nested(400)}}]),
        "tools",
        source="CVE-2026-105757",
    ),
    _asked(
        "a tool's parameters with a bad pattern",
        chat(tools=[{"type": "function", "function": {"name": "a", "parameters": _text("(")}}]),
        "tools",
        source="CVE-2026-105757",
    ),
    _asked(
        "a tool's parameters that refer to a URL",
        chat(tools=[{"type": "function", "function": {"name": "a", "parameters": {"$ref": "http://127.0.0.1/"}}}]),
        "tools",
        source=_SSRF,
    ),
    _asked(
        "a tool of another type", chat(tools=[{"type": "code_interpreter"}]), "tools", source="OpenAI API reference"
    ),
    _asked(
        "a tool served elsewhere",
        chat(tools=[{"type": "mcp", "server_url": "http://169.254.169.254/"}]),
        "tools",
        source=_SSRF,
    ),
    _asked(
        "arguments of a tool call that are no JSON",
        chat(
            messages=[
                USER,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "a", "arguments": "{"}}],
                },
            ]
        ),
        "messages[1]",
        source="vLLM: templates parse them",
    ),
    _asked(
        "`logit_bias` on a token out of the vocabulary",
        chat(logit_bias={"99999999": 1}),
        "logit_bias",
        source="vLLM PR #16529",
    ),
    _asked("`n` that wraps around", chat(n=18446744073686646784), "n", source="GHSA-8r8v-xf7q-rcpr"),
    _asked(
        "a token id below zero",
        completion(prompt=[1, -1]),
        "prompt",
        source="vLLM advisories: a request stops the engine",
    ),
    _asked(
        "a token id of another type",
        completion(prompt=[1, 2.5]),
        "prompt",
        source="vLLM advisories: a request stops the engine",
    ),
    _asked("`min_tokens` beside a stop at once", chat(min_tokens=10**9), "min_tokens", source="CVE-2026-114051"),
)

KIND = Kind(
    name="engine",
    group="odd",
    about="what reaches into the engine: its own fields, media, schemas, grammars, tools",
    cases=(*_OWN, *_MEDIA, *_SCHEMAS, *_GUIDED, *_TOOLS),
)
