"""The shape of a policy document: strict, bounded, with the field's name in every complaint.

{"id": "pol_demo", "version": 3, "rules": [
  {"name": "card", "kind": "pii", "stage": ["prompt", "output"], "action": "redact", "fail": "closed",
   "config": {"kinds": ["card"], "replacement": "[card]"}}]}
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from contracts.text import shown
from safety.rules.ban_list import WORDS_MAX
from safety.rules.charset import SCRIPTS_MAX
from safety.rules.length import LENGTH_MAX
from safety.rules.regex import MATCH_CHARS_MAX, PATTERN_CHARS_MAX
from safety.rules.urls import DOMAINS_MAX
from safety.verdicts import Action, Stage

RULES_MAX = 50
REPLACEMENT_CHARS_MAX = 200
NAME_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,63}$"

Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class PolicyError(ValueError):
    """The document is not a policy. `errors` are (field path, what is wrong with it)."""

    def __init__(self, errors: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {message}" for field, message in errors))
        self.errors = errors


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Config(_Strict):
    replacement: str = Field(default="[redacted]", max_length=REPLACEMENT_CHARS_MAX)


class RegexConfig(_Config):
    pattern: str = Field(min_length=1, max_length=PATTERN_CHARS_MAX)
    match_chars_max: int | None = Field(default=None, ge=1, le=MATCH_CHARS_MAX)
    normalise: bool = True


class BanListConfig(_Config):
    words: list[str] = Field(min_length=1, max_length=WORDS_MAX)
    whole_words: bool = True
    look_alikes: bool = True


class SecretsConfig(_Config):
    formats: list[str] = Field(default_factory=list, max_length=100)


class PiiConfig(_Config):
    kinds: list[str] = Field(default_factory=list, max_length=100)


class UrlsConfig(_Config):
    """Links to other hosts than these are matches; with `deny_domains` alone, links to those."""

    allow_domains: list[str] = Field(default_factory=list, max_length=DOMAINS_MAX)
    deny_domains: list[str] = Field(default_factory=list, max_length=DOMAINS_MAX)


class LengthConfig(_Config):
    """What is beyond `chars_max` characters of one text is a match."""

    chars_max: int = Field(ge=1, le=LENGTH_MAX)


class CharsetConfig(_Config):
    """`scripts` that may pass (none named: all); classes of characters that may not."""

    scripts: list[str] = Field(default_factory=list, max_length=SCRIPTS_MAX)
    deny: list[str] = Field(default_factory=list, max_length=10)


class InjectionConfig(_Config):
    families: list[str] = Field(default_factory=list, max_length=20)


class JsonSchemaConfig(_Config):
    """An answer that is no JSON of this schema (draft 2020-12) is a match. It waits for its end: buffer mode."""

    json_schema: dict[str, Any] = Field(alias="schema")
    deadline_ms: int = Field(default=1_000, ge=10, le=10_000)


class NoArguments(_Strict):
    pass


class RegexMatchArguments(_Strict):
    """A text passes when it matches. Python's `re`, not RE2: a pattern that takes too long meets the deadline."""

    regex: str = Field(min_length=1, max_length=PATTERN_CHARS_MAX)
    match_type: Literal["fullmatch", "search"] = "fullmatch"

    @field_validator("regex")
    @classmethod
    def _compiles(cls, regex: str) -> str:
        try:
            re.compile(regex)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return regex


class ValidLengthArguments(_Strict):
    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=1)


_ARGUMENTS: dict[str, type[_Strict]] = {
    "regex_match": RegexMatchArguments,
    "secrets_present": NoArguments,
    "valid_length": ValidLengthArguments,
    "web_sanitization": NoArguments,
}


class GuardrailsConfig(_Config):
    """`deadline_ms` bounds one validation."""

    validator: Literal["regex_match", "secrets_present", "valid_length", "web_sanitization"]
    arguments: dict[str, Any] = Field(default_factory=dict, max_length=10)
    deadline_ms: int = Field(default=1_000, ge=10, le=10_000)

    @model_validator(mode="after")
    def _arguments_fit(self) -> "GuardrailsConfig":
        try:
            _ARGUMENTS[self.validator].model_validate(self.arguments)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"arguments.{where}: {first['msg'].removeprefix('Value error, ')}") from error
        return self


class _Rule(_Strict):
    name: Name
    stage: list[Stage] = Field(min_length=1, max_length=2)
    action: Action
    fail: Literal["open", "closed"] = "closed"
    shadow: bool = False  # counts what it finds, and does nothing

    @field_validator("stage")
    @classmethod
    def _once(cls, stages: list[Stage]) -> list[Stage]:
        if len(set(stages)) != len(stages):
            raise ValueError("each stage once")
        return stages


class RegexRule(_Rule):
    kind: Literal["regex"]
    config: RegexConfig


class BanListRule(_Rule):
    kind: Literal["ban_list"]
    config: BanListConfig


class SecretsRule(_Rule):
    kind: Literal["secrets"]
    config: SecretsConfig = SecretsConfig()


class PiiRule(_Rule):
    kind: Literal["pii"]
    config: PiiConfig = PiiConfig()


class UrlsRule(_Rule):
    kind: Literal["urls"]
    config: UrlsConfig


class LengthRule(_Rule):
    kind: Literal["length"]
    config: LengthConfig


class CharsetRule(_Rule):
    kind: Literal["charset"]
    config: CharsetConfig


class InjectionRule(_Rule):
    """What is written to a model to make it drop its instructions."""

    kind: Literal["prompt_injection"]
    config: InjectionConfig = InjectionConfig()


class LeakRule(_Rule):
    """What a model writes when it recites its instructions."""

    kind: Literal["prompt_leak"]
    config: InjectionConfig = InjectionConfig()


class JsonSchemaRule(_Rule):
    kind: Literal["json_schema"]
    stage: list[Literal[Stage.OUTPUT]] = Field(min_length=1, max_length=1)  # type: ignore[assignment]
    config: JsonSchemaConfig


class GuardrailsRule(_Rule):
    kind: Literal["guardrails_ai"]
    config: GuardrailsConfig


Rule = Annotated[
    RegexRule
    | BanListRule
    | SecretsRule
    | PiiRule
    | UrlsRule
    | LengthRule
    | CharsetRule
    | InjectionRule
    | LeakRule
    | JsonSchemaRule
    | GuardrailsRule,
    Field(discriminator="kind"),
]


class PolicyDocument(_Strict):
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    version: int = Field(ge=1, le=2**31 - 1)
    rules: list[Rule] = Field(max_length=RULES_MAX)

    @model_validator(mode="after")
    def _names_differ(self) -> "PolicyDocument":
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two rules are named {shown(twice[0])}")
        return self


def parse_document(document: dict[str, Any]) -> PolicyDocument:
    """The validated document. Raises PolicyError."""
    try:
        return PolicyDocument.model_validate(document)
    except ValidationError as error:
        raise PolicyError([_complaint(document, item["loc"], item["msg"]) for item in error.errors()]) from error


def _complaint(document: dict[str, Any], location: tuple[int | str, ...], message: str) -> tuple[str, str]:
    """`rules[0](card).config.pattern`, without the discriminator that pydantic puts on the path."""
    parts = [part for index, part in enumerate(location) if not (index == 2 and location[0] == "rules")]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    return path or "document", message.removeprefix("Value error, ")
