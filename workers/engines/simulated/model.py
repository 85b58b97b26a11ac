"""The model's own files as the simulated engine reads them: tokenizer, chat template, limits. Called by `app`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer


class PromptError(ValueError):
    """The prompt cannot be rendered or tokenized."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Tokenizer and template of one model directory. `context_tokens` bounds prompt and answer together."""

    tokenizer: Tokenizer
    template: Template | None
    context_tokens: int
    eos: int | None
    special: dict[str, str]

    @classmethod
    def load(cls, folder: Path) -> "LocalModel":
        """Read `tokenizer.json`, `tokenizer_config.json`, `config.json`. Raises FileNotFoundError, ValueError."""
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        special = {name: _text(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        eos = tokenizer.token_to_id(special["eos_token"]) if special["eos_token"] else None
        return cls(
            tokenizer=tokenizer,
            template=_template(folder, settings),
            context_tokens=int(config["max_position_embeddings"]),
            eos=eos,
            special=special,
        )

    def chat(self, *, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> tuple[list[int], str]:
        """Token ids and text of a conversation that asks for an answer. Raises PromptError."""
        if self.template is None:
            raise PromptError("this model has no chat template")
        try:
            text = self.template.render(
                messages=[_shown(message) for message in messages],
                tools=tools,
                add_generation_prompt=True,
                **self.special,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise PromptError(f"chat template: {error}") from error
        return self.tokenizer.encode(text, add_special_tokens=False).ids, text

    def complete(self, prompt: object) -> tuple[list[int], str]:
        """Token ids and text of a plain prompt: a string or a list of token ids. Raises PromptError."""
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt).ids, prompt
        if isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
            return list(prompt), self.tokenizer.decode(prompt, skip_special_tokens=False)
        raise PromptError("prompt must be one string or one list of token ids")


def _template(folder: Path, settings: dict[str, Any]) -> Template | None:
    beside = folder / "chat_template.jinja"
    source = beside.read_text(encoding="utf-8") if beside.exists() else settings.get("chat_template")
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    """As vLLM hands it to a template of strings: parts joined, no content as an empty one, arguments as an object."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
    shown = {**message, "content": content or ""}
    if message.get("tool_calls"):
        shown["tool_calls"] = [_call_shown(call) for call in message["tool_calls"]]
    return shown


def _call_shown(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function.get("arguments") or "{}")}}


def _text(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
