"""Exact prompt tokens from the model's own files, as the engine counts them. Step 3's input; called by `admission.py`.

The chat template renders in Jinja's immutable sandbox with the environment that `transformers` gives it
(`apply_chat_template`), text parts are flattened as vLLM's `chat_utils` does, and the same `tokenizer.json` counts.
Invariant: a client's text reaches a template as data only; the template is the model's own, never the client's.
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

# Longer text is tokenised in a thread (the tokenizer releases the interpreter), so that no stream waits for it.
OFF_LOOP_CHARACTERS = 16_384
MESSAGE_CHARACTERS = 64  # what a turn costs beside its text: a loop of the template, and the marks around it
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")


class TemplateRefused(ValueError):
    """The model's own template does not take these messages."""


class TokenizerFilesError(ValueError):
    """The model's folder lacks what a tokenizer needs."""


@dataclass(frozen=True)
class PromptTokenizer:
    """`parts_as_text`: the template wants `content` as one string (vLLM's content format "string")."""

    tokenizer: Tokenizer
    template: jinja2.Template | None
    special: dict[str, str]
    parts_as_text: bool
    knows_developer: bool
    shows_tools: bool
    sha256: str
    longest_token: int  # characters; a text of more than `context x longest_token` cannot fit, and is never tokenised

    @classmethod
    def load(cls, folder: Path) -> "PromptTokenizer":
        """Reads tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises TokenizerFilesError."""
        path = folder / "tokenizer.json"
        try:
            data = path.read_bytes()
            tokenizer = Tokenizer.from_str(data.decode("utf-8"))
            settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TokenizerFilesError(f"{folder.name}: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        source = _template_source(folder, settings)
        return cls(
            tokenizer=tokenizer,
            template=None if source is None else _ENVIRONMENT.from_string(source),
            special=_special_tokens(settings),
            parts_as_text=source is None or not _loops_over_content(source),
            knows_developer=source is None or '"developer"' in source or "'developer'" in source,
            shows_tools=source is not None and "tools" in meta.find_undeclared_variables(_ENVIRONMENT.parse(source)),
            sha256=hashlib.sha256(data).hexdigest(),
            longest_token=max(map(len, tokenizer.get_vocab(with_added_tokens=True))),
        )

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        *,
        reasoning_effort: str | None = None,
    ) -> str:
        """The prompt's text. Raises TemplateRefused."""
        if self.template is None:
            raise TemplateRefused("this model has no chat template; use /v1/completions")
        try:
            return self.template.render(
                messages=[_for_template(message) for message in self._with_roles(messages)],
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=True,
                **_reasoning(reasoning_effort),
                **self.special,
            )
        except SecurityError as error:
            raise TemplateRefused("the messages are not what the model's template takes") from error
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise TemplateRefused(str(error)[:200] or "the messages are not what the model's template takes") from error

    async def count_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        *,
        reasoning_effort: str | None = None,
    ) -> int:
        """Tokens of a chat as the engine will see it. Raises TemplateRefused."""

        def count() -> int:
            return self._count(self.render(messages, tools, reasoning_effort=reasoning_effort), special=False)

        if _work(messages, tools) <= OFF_LOOP_CHARACTERS:
            return count()
        return await asyncio.get_running_loop().run_in_executor(_THREADS, count)

    async def count_text(self, prompt: str) -> int:
        """Tokens of a completion prompt, with the special tokens that the model's own post-processor adds."""
        if len(prompt) <= OFF_LOOP_CHARACTERS:
            return self._count(prompt, special=True)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_THREADS, lambda: self._count(prompt, special=True))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a prompt given as token ids: what the guard reads."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def _with_roles(self, messages: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """A template that knows no `developer` gets it as `system`, all of them merged at the front, as vLLM does."""
        if self.knows_developer or all(message["role"] != "developer" for message in messages):
            return messages
        system = [_as_text(m.get("content")) for m in messages if m["role"] in ("system", "developer")]
        rest = [message for message in messages if message["role"] not in ("system", "developer")]
        first = messages[0]["role"] in ("system", "developer")
        if first and len(system) == 1:
            return [{**messages[0], "role": "system"}, *rest]
        return [{"role": "system", "content": "\n\n".join(filter(None, system))}, *rest]

    def _count(self, text: str, *, special: bool) -> int:
        return len(self.tokenizer.encode_batch_fast([text], add_special_tokens=special)[0])


def characters_of(messages: Sequence[dict[str, Any]]) -> int:
    """Characters of all contents, and of tool calls' arguments: a template reads each, whether it shows them or not."""
    called = (call for message in messages for call in message.get("tool_calls") or ())
    return sum(map(_characters, messages)) + sum(len(call["function"]["arguments"]) for call in called)


def _characters(message: dict[str, Any]) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    return sum(len(part["text"]) for part in content or ())


def _work(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None) -> int:
    """Characters that a template and a tokenizer go through, roughly: contents, calls, turns and tools."""
    told = len(msgspec.json.encode(tools)) if tools else 0
    return characters_of(messages) + MESSAGE_CHARACTERS * len(messages) + told


def _reasoning(effort: str | None) -> dict[str, Any]:
    """What vLLM hands the template for `reasoning_effort`."""
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _as_text(content: Any) -> str:
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    """As vLLM hands a message to the template: tool arguments as an object, no content as an empty string."""
    shown = dict(message)
    shown.setdefault("content", "")
    if shown["content"] is None:
        shown["content"] = ""
    calls = message.get("tool_calls")
    if calls:
        shown["tool_calls"] = [_call_for_template(call) for call in calls]
    return shown


def _call_for_template(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    try:
        function["arguments"] = json.loads(function["arguments"]) if function.get("arguments") else {}
    except ValueError as error:
        raise TemplateRefused("the arguments of a tool call are not JSON") from error
    return {**call, "function": function}


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """bos_token and the like; each may be a string or an object with `content`."""
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _loops_over_content(source: str) -> bool:
    """Whether a template walks through the parts of `content`, itself or in a macro that it hands it to (as vLLM)."""
    root = _ENVIRONMENT.parse(source)
    inside: set[int] = set()
    for macro in root.find_all(nodes.Macro):
        given = _content_parameters(root, macro)
        for loop in macro.find_all(nodes.For):
            inside.add(id(loop))
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in given:
                return True
    return any(
        _is_content(loop.iter)
        or (id(loop) not in inside and isinstance(loop.iter, nodes.Name) and loop.iter.name == "content")
        for loop in root.find_all(nodes.For)
    )


def _content_parameters(root: nodes.Template, macro: nodes.Macro) -> set[str]:
    """Parameters of a macro that get a message's content in some call."""
    given: set[str] = set()
    for call in root.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            names = zip(call.args, macro.args, strict=False)
            given |= {parameter.name for argument, parameter in names if _is_content(argument)}
            given |= {keyword.key for keyword in call.kwargs if _is_content(keyword.value)}
    return given


def _is_content(target: nodes.Node) -> bool:
    while isinstance(target, nodes.Filter | nodes.Test) and target.node is not None:
        target = target.node
    if isinstance(target, nodes.Getattr):
        return target.attr == "content"
    return isinstance(target, nodes.Getitem) and isinstance(target.arg, nodes.Const) and target.arg.value == "content"


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:  # noqa: FBT001, FBT002 - Jinja's
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


_ENVIRONMENT = _environment()
