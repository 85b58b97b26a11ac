"""Whole answers of chat and completions: their shape, their counts, and what the sampling fields do. Kind `answers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.conformance.build import USER, case, chat, completion
from infra.conformance.case import ABSENT, Answer, Http, Kind, Seen, Skipped, Wrong
from infra.conformance.checks import REFUSALS, answered, any_of, choices_of, content_of, refused, supported, usage_of
from infra.conformance.target import QUESTION

_CHAT = "OpenAI API reference: the chat completion object"
_TEXT = "OpenAI API reference: the completion object"
_ASK = "OpenAI API reference: create chat completion"
_FINISHED = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_LONG = 24  # tokens: enough for a stop string to be found in them


def shape(answer: Answer) -> None:
    document = answer.json()
    if document.get("object") != "chat.completion":
        raise Wrong(f"object is {document.get('object')!r}")
    _common(document)
    for index, choice in enumerate(choices_of(answer)):
        message = choice.get("message")
        if choice.get("index") != index or choice.get("finish_reason") not in _FINISHED:
            raise Wrong(f"choice {index}: index {choice.get('index')!r}, finish_reason {choice.get('finish_reason')!r}")
        if not isinstance(message, dict) or message.get("role") != "assistant" or "content" not in message:
            raise Wrong(f"choice {index} has the message {str(message)[:80]}")
        if "logprobs" in choice and choice["logprobs"] is not None:
            raise Wrong("logprobs that nobody asked for")


def _common(document: dict[str, Any]) -> None:
    if not isinstance(document.get("id"), str) or not document["id"]:
        raise Wrong(f"id is {document.get('id')!r}")
    if type(document.get("created")) is not int or not 10**9 < document["created"] < 10**11:
        raise Wrong(f"created is {document.get('created')!r}, not Unix seconds")
    if not isinstance(document.get("model"), str) or not document["model"]:
        raise Wrong(f"model is {document.get('model')!r}")
    fingerprint = document.get("system_fingerprint")
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise Wrong(f"system_fingerprint is {fingerprint!r}")


def _text_shape(answer: Answer) -> None:
    document = answer.json()
    if document.get("object") != "text_completion":
        raise Wrong(f"object is {document.get('object')!r}")
    _common(document)
    for index, choice in enumerate(choices_of(answer)):
        if choice.get("index") != index or choice.get("finish_reason") not in _FINISHED:
            raise Wrong(f"choice {index}: index {choice.get('index')!r}, finish_reason {choice.get('finish_reason')!r}")
        if not isinstance(choice.get("text"), str) or "message" in choice:
            raise Wrong(f"choice {index} has the text {choice.get('text')!r}")
        if "logprobs" not in choice or choice["logprobs"] is not None:
            raise Wrong(f"logprobs is {choice.get('logprobs', 'missing')!r} where nobody asked for them")


def _ids_differ(seen: Seen) -> None:
    ids = [seen.answer_to(index).json()["id"] for index in range(len(seen.replies))]
    if len(set(ids)) != len(ids):
        raise Wrong(f"the id {ids[0]} twice")


def _counted(tokens: int) -> Callable[[Answer], None]:
    """So many tokens, and `length` because of it; fewer only where the model ended by itself."""

    def check(answer: Answer) -> None:
        made, reason = usage_of(answer)["completion_tokens"], choices_of(answer)[0]["finish_reason"]
        if made > tokens or (reason == "length" and made != tokens) or (reason == "stop" and made > tokens):
            raise Wrong(f"{made} tokens with finish_reason {reason}, at most {tokens} asked for")

    return check


def _choices(count: int) -> Callable[[Answer], None]:
    def check(answer: Answer) -> None:
        found = choices_of(answer)
        if [choice.get("index") for choice in found] != list(range(count)):
            raise Wrong(f"{len(found)} choices with the indexes {[choice.get('index') for choice in found]}")
        usage_of(answer)

    return check


def _all_tokens_counted(seen: Seen) -> None:
    """The tokens of all choices are in the usage, the prompt once."""
    if seen.answer.status in REFUSALS:
        refused("n")(seen)
        raise Skipped(f"not supported, and said so: {seen.summary()}")
    one, three = (usage_of(seen.answer_to(index)) for index in range(2))
    if three["prompt_tokens"] != one["prompt_tokens"]:
        raise Wrong(f"{three['prompt_tokens']} prompt tokens for n=3, {one['prompt_tokens']} for n=1")
    if three["completion_tokens"] > 12 or three["completion_tokens"] < 3:
        raise Wrong(f"{three['completion_tokens']} completion tokens for three choices of at most 4")


def _equal_texts(seen: Seen) -> None:
    texts = [content_of(seen.answer_to(index)) for index in range(len(seen.replies))]
    if len(set(texts)) != 1:
        raise Wrong(f"greedy answers differ: {texts[0][:50]!r} and {texts[1][:50]!r}")


def _equal_seeds(seen: Seen) -> None:
    texts = [content_of(seen.answer_to(index)) for index in range(2)]
    if texts[0] != texts[1]:
        raise Skipped("a seed is a best effort, and the answers differ")


def equal_prompts(seen: Seen) -> None:
    counts = [usage_of(seen.answer_to(index))["prompt_tokens"] for index in range(len(seen.replies))]
    if len(set(counts)) != 1:
        raise Wrong(f"one prompt has {counts} tokens")


def _longer_prompt(seen: Seen) -> None:
    short, long = (usage_of(seen.answer_to(index))["prompt_tokens"] for index in range(2))
    if long <= short:
        raise Wrong(f"{short} tokens for a short prompt, {long} for a long one")


def _stop_of(seen: Seen) -> str:
    """A piece of the text that the model made without a stop. Raises Skipped when it is too short to have one."""
    text = content_of(seen.answer_to(0))
    words = [word for word in text.split()[2:] if len(word) > 2]
    if not words:
        raise Skipped(f"the model said too little: {text!r}")
    return words[0]


def _stopped(*, as_list: bool) -> tuple[Http, Callable[[Seen], Http]]:
    def again(seen: Seen) -> Http:
        stop = _stop_of(seen)
        return chat(max_tokens=_LONG, stop=["\u2603\u2603", stop] if as_list else stop)

    return chat(max_tokens=_LONG), again


def _stops(seen: Seen) -> None:
    stop, text = _stop_of(seen), content_of(seen.answer)
    if stop in text:
        raise Wrong(f"the stop string {stop!r} is in the text")
    reason = choices_of(seen.answer)[0]["finish_reason"]
    if reason != "stop":
        raise Wrong(f"finish_reason {reason} after a stop string")
    if not content_of(seen.answer_to(0)).startswith(text):
        raise Wrong("the text before the stop string is another one")


def _logprobs(most: int) -> Callable[[Answer], None]:
    def check(answer: Answer) -> None:
        choice = choices_of(answer)[0]
        entries = (choice.get("logprobs") or {}).get("content")
        if not isinstance(entries, list) or not entries:
            raise Wrong(f"logprobs is {str(choice.get('logprobs'))[:80]}")
        for entry in entries:
            _logprob(entry)
            if not isinstance(entry.get("top_logprobs"), list) or len(entry["top_logprobs"]) > most:
                raise Wrong(f"top_logprobs is {str(entry.get('top_logprobs'))[:80]}")
            for top in entry["top_logprobs"]:
                _logprob(top)
        if len(entries) != usage_of(answer)["completion_tokens"] and choice["finish_reason"] == "length":
            raise Wrong(f"{len(entries)} logprobs for {usage_of(answer)['completion_tokens']} tokens")

    return check


def _logprob(entry: Any) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        raise Wrong(f"a logprob without its token: {str(entry)[:80]}")
    if not isinstance(entry.get("logprob"), int | float) or entry["logprob"] > 0.01:
        raise Wrong(f"a logprob of {entry.get('logprob')!r}")
    if "bytes" not in entry:
        raise Wrong("a logprob without bytes")


def _text_logprobs(answer: Answer) -> None:
    found = choices_of(answer)[0].get("logprobs")
    lists = [(found or {}).get(name) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")]
    if not all(isinstance(one, list) for one in lists) or len({len(one or []) for one in lists}) != 1:
        raise Wrong(f"logprobs is {str(found)[:80]}")


def _json_object(answer: Answer) -> None:
    choice = choices_of(answer)[0]
    if choice["finish_reason"] == "length":
        raise Skipped("the model did not end within its tokens")
    inner = Answer(status=200, headers=(), body=content_of(answer).encode())
    if not isinstance(inner.json(), dict):
        raise Wrong(f"no JSON object: {content_of(answer)[:60]}")


_SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


def _ask(name: str, step: Any, check: Any, *, must: str, source: str = _ASK, **options: Any) -> Any:
    return case(name, step, check, must=must, source=source, **options)


_OBJECTS = (
    _ask(
        "the shape of a chat",
        chat(),
        answered(shape),
        must="id, object, created, model, choices with message and finish_reason",
        source=_CHAT,
    ),
    _ask(
        "the shape of a completion",
        completion(),
        answered(_text_shape),
        must="id, object text_completion, created, choices with text, logprobs null",
        source=_TEXT,
    ),
    _ask(
        "ids are new each time", (chat(), chat(), completion()), _ids_differ, must="three different ids", source=_CHAT
    ),
    _ask(
        "the model is named",
        chat(),
        lambda seen: _names_model(seen),
        must="the model that was asked for (or its version)",
        source=_CHAT,
    ),
    _ask(
        "usage adds up",
        chat(),
        answered(lambda answer: _has(usage_of(answer))),
        must="prompt + completion = total",
        source=_CHAT,
    ),
    _ask(
        "usage of a completion adds up",
        completion(),
        answered(lambda answer: _has(usage_of(answer))),
        must="prompt + completion = total",
        source=_TEXT,
    ),
    _ask(
        "one prompt counts the same each time",
        (chat(), chat(), chat(max_tokens=2)),
        equal_prompts,
        must="equal prompt_tokens",
        source=_CHAT,
    ),
    _ask(
        "a longer prompt counts more",
        (chat(), chat(messages=[USER, {"role": "assistant", "content": "Rhine."}, USER])),
        _longer_prompt,
        must="more prompt_tokens",
        source=_CHAT,
    ),
)

_LENGTHS = (
    _ask("max_tokens 1", chat(max_tokens=1), answered(_counted(1)), must="one token, finish_reason length"),
    _ask("max_tokens 5", chat(max_tokens=5), answered(_counted(5)), must="at most five tokens"),
    _ask(
        "max_completion_tokens 3",
        chat(max_tokens=ABSENT, max_completion_tokens=3),
        supported(_counted(3), params=("max_completion_tokens",)),
        must="at most three tokens",
    ),
    _ask(
        "max_tokens of a completion",
        completion(max_tokens=3),
        answered(_counted(3)),
        must="at most three tokens",
        source=_TEXT,
    ),
    _ask(
        "no max_tokens on a completion",
        completion(max_tokens=ABSENT),
        answered(_counted(16)),
        must="the default is 16",
        source="OpenAI API reference: create completion",
    ),
)

_SAMPLING = (
    _ask(
        "temperature 0 repeats",
        (chat(max_tokens=12), chat(max_tokens=12)),
        _equal_texts,
        must="the same text twice",
        alone=True,
    ),
    _ask(
        "temperature 0 of a completion repeats",
        (completion(max_tokens=12), completion(max_tokens=12)),
        _equal_texts,
        must="the same text twice",
        alone=True,
        source=_TEXT,
    ),
    _ask(
        "top_p nearly 0 repeats",
        (chat(max_tokens=8, temperature=1, top_p=1e-6), chat(max_tokens=8, temperature=1, top_p=1e-6)),
        _equal_texts,
        must="the likeliest tokens",
        alone=True,
    ),
    _ask(
        "a seed repeats",
        (chat(max_tokens=12, temperature=1, seed=7), chat(max_tokens=12, temperature=1, seed=7)),
        _equal_seeds,
        must="the same text twice, as a best effort",
        alone=True,
    ),
    _ask("a stop string", _stopped(as_list=False), _stops, must="not in the text; finish_reason stop", alone=True),
    _ask(
        "a list of stop strings", _stopped(as_list=True), _stops, must="not in the text; finish_reason stop", alone=True
    ),
    _ask(
        "n = 2", chat(n=2, temperature=1), supported(_choices(2), params=("n",)), must="two choices with index 0 and 1"
    ),
    _ask(
        "n = 3 counts all tokens",
        (chat(temperature=1), chat(n=3, temperature=1)),
        _all_tokens_counted,
        must="completion tokens of all choices, the prompt once",
    ),
    _ask(
        "n = 2 of a completion",
        completion(n=2, temperature=1),
        supported(_choices(2), params=("n",)),
        must="two choices with index 0 and 1",
        source=_TEXT,
    ),
    _ask(
        "logprobs",
        chat(logprobs=True),
        supported(_logprobs(0), params=("logprobs",)),
        must="token, logprob, bytes for each token",
    ),
    _ask(
        "top_logprobs 2",
        chat(logprobs=True, top_logprobs=2),
        supported(_logprobs(2), params=("logprobs", "top_logprobs")),
        must="at most two alternatives for each token",
    ),
    _ask(
        "logprobs of a completion",
        completion(logprobs=2),
        supported(_text_logprobs, params=("logprobs",)),
        must="tokens, token_logprobs, top_logprobs, text_offset of one length",
        source=_TEXT,
    ),
    _ask(
        "a JSON object",
        chat(
            messages=[{"role": "user", "content": 'Answer in JSON: {"river": "Rhine"}'}],
            response_format={"type": "json_object"},
            max_tokens=64,
        ),
        supported(_json_object, params=("response_format",)),
        must="the content is a JSON object",
    ),
    _ask(
        "a JSON schema",
        chat(
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}},
            max_tokens=64,
        ),
        supported(_json_object, params=("response_format",)),
        must="the content is a JSON object",
    ),
)


def _names_model(seen: Seen) -> None:
    answered()(seen)
    found = seen.answer.json().get("model")
    if not isinstance(found, str) or not (found == seen.target.model or found.startswith(seen.target.model)):
        raise Wrong(f"model is {found!r}")


def _has(usage: dict[str, Any]) -> None:
    if usage["prompt_tokens"] < 1 or usage["completion_tokens"] < 1:
        raise Wrong(f"usage is {usage}")


def _two_prompts(answer: Answer) -> None:
    if [choice.get("index") for choice in choices_of(answer)] != [0, 1]:
        raise Wrong(f"{len(choices_of(answer))} choices for two prompts")


def _echoed(answer: Answer) -> None:
    if not content_of(answer).startswith(QUESTION):
        raise Wrong(f"echo without the prompt: {content_of(answer)[:50]!r}")


_OF_TEXT = "OpenAI API reference: create completion"
_PROMPTS = (
    _ask("an empty prompt", completion(prompt=""), any_of(200, 400), must="200, or 400", source=_OF_TEXT),
    _ask(
        "a prompt of token ids",
        completion(prompt=[1, 2, 3]),
        supported(_text_shape, params=("prompt",)),
        must="200",
        source=_OF_TEXT,
    ),
    _ask(
        "a list of one prompt",
        completion(prompt=[QUESTION]),
        supported(_text_shape, params=("prompt",)),
        must="200",
        source=_OF_TEXT,
    ),
    _ask(
        "a list of one list of token ids",
        completion(prompt=[[1, 2, 3]]),
        supported(_text_shape, params=("prompt",)),
        must="200",
        source=_OF_TEXT,
    ),
    _ask(
        "a list of two prompts",
        completion(prompt=["a", "b"]),
        supported(_two_prompts, params=("prompt",)),
        must="two choices, in their order",
        source=_OF_TEXT,
    ),
    _ask(
        "one prompt in a list counts as its text",
        (completion(), completion(prompt=[QUESTION])),
        equal_prompts,
        must="equal prompt_tokens",
        source=_OF_TEXT,
    ),
    _ask(
        "echo",
        completion(echo=True),
        supported(_echoed, params=("echo",)),
        must="the text begins with the prompt",
        source=_OF_TEXT,
    ),
    _ask(
        "best_of over n",
        completion(n=1, best_of=2, temperature=1),
        supported(_choices(1), params=("best_of",)),
        must="one choice",
        source=_OF_TEXT,
    ),
    _ask(
        "a suffix",
        completion(suffix=" end"),
        supported(_text_shape, params=("suffix",)),
        must="200, or 400 naming it",
        source=_OF_TEXT,
    ),
    _ask("no tools in the list", chat(tools=[]), any_of(200, 400), must="200, or 400"),
    _ask("no stop strings in the list", chat(stop=[]), any_of(200, 400), must="200, or 400"),
    _ask("max_tokens as 4.0", chat(max_tokens=4.0), any_of(200, 400), must="200, or 400"),
    _ask("an empty user", chat(user=""), any_of(200, 400), must="200, or 400"),
    _ask(
        "a message of the role function",
        chat(messages=[USER, {"role": "function", "name": "river", "content": "Rhine"}]),
        supported(params=("messages[1].role",)),
        must="200, or 400 naming it",
    ),
)

KIND = Kind(
    name="answers",
    group="openai",
    about="whole answers: shape, counts, sampling",
    cases=(*_OBJECTS, *_LENGTHS, *_SAMPLING, *_PROMPTS),
)
