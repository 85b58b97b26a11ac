"""Reads requests and writes answers as vLLM's OpenAI server does (0.32). Pure; called by `app`."""

import json
import uuid
from dataclasses import dataclass, replace
from typing import Any

from workers.engines.simulated.instance import ANY_OBJECT, NoInstance, instance_of
from workers.engines.simulated.model import LocalModel, PromptError
from workers.engines.simulated.scheduler import Sequence
from workers.engines.simulated.text import Answer, Wish, continue_answer, decide_answer

TOP_LOGPROBS_MAX = 20
CHOICES_MAX = 128


class BadRequest(ValueError):
    """Answered with 400, this message and the field that is meant."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, understood: its prompt, its decided answers, and how to write them."""

    chat: bool
    model: str
    prompt: tuple[int, ...]
    answers: tuple[Answer, ...]
    salt: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool
    logprobs: int | None
    tokenizer: Any
    created: int
    name: str

    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(
            Sequence(name=f"{self.name}-{index}", prompt=self.prompt, script=answer.tokens, salt=self.salt)
            for index, answer in enumerate(self.answers)
        )

    def usage(self, completion: int, cached: int | None) -> dict[str, Any]:
        """vLLM's usage object; `cached` only where it knows it (the last one)."""
        usage: dict[str, Any] = {
            "prompt_tokens": len(self.prompt),
            "total_tokens": len(self.prompt) + completion,
            "completion_tokens": completion,
        }
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    def role_chunk(self, index: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        chunk = self._chunk([{**choice, "finish_reason": None}])
        if self.token_ids:
            chunk["prompt_token_ids"] = list(self.prompt)
        if self.continuous_usage:
            chunk["usage"] = self.usage(0, None)
        return chunk

    def token_chunk(self, *, index: int, position: int) -> dict[str, Any]:
        """The chunk for one emitted token."""
        answer = self.answers[index]
        last = position == len(answer.tokens) - 1
        choice: dict[str, Any] = {"index": index}
        text = answer.pieces[position]
        choice |= {"delta": {"content": text}} if self.chat else {"text": text}
        choice["logprobs"] = self._logprobs(answer, slice(position, position + 1))
        choice["finish_reason"] = answer.finish_reason if last else None
        choice["stop_reason"] = answer.stop_reason if last else None
        if self.token_ids:
            choice["token_ids"] = [answer.tokens[position]]
        chunk = self._chunk([choice])
        if self.continuous_usage:
            chunk["usage"] = self.usage(position + 1, None)
        return chunk

    def usage_chunk(self, *, completion: int, cached: int) -> dict[str, Any]:
        return {**self._chunk([]), "usage": self.usage(completion, cached)}

    def whole(self, cached: int) -> dict[str, Any]:
        """The answer to a request without `stream`."""
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(self.answers)]
        completion = sum(len(answer.tokens) for answer in self.answers)
        body = self._chunk(choices)
        body["object"] = "chat.completion" if self.chat else "text_completion"
        return {**body, "usage": self.usage(completion, cached)}

    def _whole_choice(self, index: int, answer: Answer) -> dict[str, Any]:
        text = "".join(answer.pieces)
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice: dict[str, Any] = {"index": index, **said, "logprobs": self._logprobs(answer, slice(None))}
        choice |= {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
        return choice | ({"token_ids": list(answer.tokens)} if self.token_ids else {})

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {
            "id": f"{prefix}-{self.name}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _logprobs(self, answer: Answer, part: slice) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        texts = [self.tokenizer.decode([token], skip_special_tokens=False) for token in answer.tokens[part]]
        values = [-(token % 7) / 8 for token in answer.tokens[part]]
        if not self.chat:
            tops = [{text: value} if self.logprobs else None for text, value in zip(texts, values, strict=True)]
            return {"text_offset": [], "token_logprobs": values, "tokens": texts, "top_logprobs": tops}
        entries = [
            {"token": text, "logprob": value, "bytes": list(text.encode())}
            for text, value in zip(texts, values, strict=True)
        ]
        return {"content": [{**entry, "top_logprobs": [entry] if self.logprobs else []} for entry in entries]}


def read_call(
    *, body: dict[str, Any], chat: bool, model: LocalModel, served: str, created: int, bytewise: bool
) -> Call:
    """Check a request and decide its answers. Raises BadRequest."""
    if body.get("model", served) != served:
        raise BadRequest(f"The model `{body['model']}` does not exist.")
    try:
        prompt, text = (
            model.chat(messages=body["messages"], tools=body.get("tools"))
            if chat
            else model.complete(body.get("prompt"))
        )
    except (PromptError, KeyError, TypeError) as error:
        raise BadRequest(f"prompt cannot be read: {error}") from error
    _refuse_forced_call(body.get("tool_choice"))
    wishes = _wishes(body, room=model.context_tokens - len(prompt))
    options = body.get("stream_options") or {}
    stream = body.get("stream") is True
    return Call(
        chat=chat,
        model=served,
        prompt=tuple(prompt),
        answers=tuple(
            _answer(model, given=body.get("prompt"), prompt=prompt, text=text, wish=wish, bytewise=bytewise)
            for wish in wishes
        ),
        salt=str(body.get("cache_salt") or ""),
        stream=stream,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        token_ids=body.get("return_token_ids") is True,
        logprobs=_logprobs_wanted(body, chat=chat),
        tokenizer=model.tokenizer,
        created=created,
        name=str(body.get("request_id") or uuid.uuid4().hex),
    )


def _answer(model: LocalModel, *, given: object, prompt: list[int], text: str, wish: Wish, bytewise: bool) -> Answer:
    """A prompt of token ids may be an answer of this engine that broke off: then its rest is the answer."""
    rest = None
    if isinstance(given, list) and given and isinstance(given[0], int):
        rest = continue_answer(tokenizer=model.tokenizer, eos=model.eos, prompt=prompt, wish=wish, bytewise=bytewise)
    return rest or decide_answer(
        tokenizer=model.tokenizer, eos=model.eos, prompt_text=text, wish=wish, bytewise=bytewise
    )


def read_tokens(*, body: dict[str, Any], model: LocalModel) -> dict[str, Any]:
    """What /tokenize answers. Raises BadRequest."""
    try:
        messages = body.get("messages")
        ids, _ = model.complete(body.get("prompt")) if messages is None else model.chat(messages=messages, tools=None)
    except (PromptError, KeyError, TypeError) as error:
        raise BadRequest(f"prompt cannot be read: {error}") from error
    return {"tokens": ids, "count": len(ids), "max_model_len": model.context_tokens}


def read_text(*, body: dict[str, Any], model: LocalModel) -> dict[str, Any]:
    """What /detokenize answers. Raises BadRequest."""
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise BadRequest("`tokens` must be a list of token ids", param="tokens")
    return {"prompt": model.tokenizer.decode(tokens, skip_special_tokens=False)}


def _wishes(body: dict[str, Any], *, room: int) -> list[Wish]:
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    max_tokens = room if asked is None else _whole_number(asked, "max_tokens")
    if not 1 <= max_tokens <= room:
        raise BadRequest(f"max_tokens={max_tokens} is too large: the maximum context length leaves {room} tokens")
    choices = _whole_number(body.get("n") or 1, "n")
    if not 1 <= choices <= CHOICES_MAX:
        raise BadRequest("n is out of range")
    stop = body.get("stop") or []
    wish = Wish(
        max_tokens=max_tokens,
        min_tokens=min(_whole_number(body.get("min_tokens") or 0, "min_tokens"), max_tokens),
        ignore_eos=body.get("ignore_eos") is True,
        seed=_whole_number(body.get("seed") or 0, "seed"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        json=_json_wanted(body.get("response_format")),
    )
    return [replace(wish, choice=choice) for choice in range(choices)]


def _refuse_forced_call(choice: object) -> None:
    """No tool is ever called here: that is an answer to `auto`, and not to a call that must be."""
    if choice not in (None, "none", "auto"):
        raise BadRequest("`tool_choice` can be none or auto: this engine calls no tool", param="tool_choice")


def _json_wanted(response_format: object) -> str:
    """The JSON text that a response_format asks for, or nothing where it asks for text."""
    match response_format:
        case None | {"type": "text"}:
            return ""
        case {"type": "json_object"}:
            return json.dumps(ANY_OBJECT)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            try:
                return json.dumps(instance_of(schema), ensure_ascii=False)
            except NoInstance as error:
                raise BadRequest(str(error), param="response_format") from error
    raise BadRequest("`response_format` is of no known type", param="response_format")


def _logprobs_wanted(body: dict[str, Any], *, chat: bool) -> int | None:
    wanted = body.get("logprobs")
    if chat:
        wanted = (body.get("top_logprobs") or 0) if wanted else None
    if wanted is None:
        return None
    if not 0 <= _whole_number(wanted, "logprobs") <= TOP_LOGPROBS_MAX:
        raise BadRequest("logprobs is out of range")
    return int(wanted)


def _whole_number(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"{name} must be a whole number")
    return value
