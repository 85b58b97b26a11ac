"""Step 4, GUARDRAIL: a policy document becomes a CompiledPolicy. Called by `published` (gateway, worker) and the admin.

Invariant: pure, bounded and immutable; a compiled policy carries everything a request needs, so no store is asked
while text flows.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, assert_never

from safety.document import (
    GuardrailsRule,
    InjectionRule,
    JsonSchemaRule,
    LeakRule,
    PiiRule,
    PolicyDocument,
    PolicyError,
    Rule,
    SecretsRule,
    parse_document,
)
from safety.rules.ban_list import compile_ban_list
from safety.rules.charset import compile_charset
from safety.rules.injection import compile_injection, compile_leak
from safety.rules.json_schema import compile_schema
from safety.rules.length import Length
from safety.rules.normalise import SPACED
from safety.rules.pii import compile_pii
from safety.rules.port import Automaton, Form, RuleError
from safety.rules.regex import compile_regex
from safety.rules.secrets import compile_secrets
from safety.rules.tracker import Plan, Reader
from safety.rules.urls import compile_urls
from safety.verdicts import Action, Stage

__all__ = ["CompiledPolicy", "CompiledRule", "PolicyError", "ValidatorCall"]

CACHED_POLICIES_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorCall:
    """What a guardrails-ai rule asks of the pool; `arguments` is canonical JSON, fit to key a cache."""

    validator: str
    arguments: str
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRule:
    """A rule ready to run: pure by its automata, or through the pool by its `call`."""

    name: str
    kind: str
    stages: frozenset[Stage]
    action: Action
    fails_open: bool
    replacement: str
    automata: tuple[Automaton, ...]
    call: ValidatorCall | None
    intended: Action | None = None  # in shadow mode: what it would do
    answers_only: bool = False  # looks at an answer's content, not at reasoning or tool arguments

    @property
    def reads_phrases(self) -> bool:
        """A ban list: what it looks for may be cut over the texts of a prompt."""
        return any(automaton.form in SPACED for automaton in self.automata)

    @property
    def longest(self) -> int | None:
        """Length of the longest match in characters; None for a rule that must see the whole text."""
        return max(automaton.longest for automaton in self.automata) if self.automata else None


@dataclass(frozen=True)
class CompiledPolicy:
    """Rules in the order of the document. A rule's index in `rules` is its number in plans and hits."""

    policy_id: str
    version: int
    rules: tuple[CompiledRule, ...]

    @classmethod
    def compile(cls, document: dict[str, Any]) -> "CompiledPolicy":
        """The policy of `document`, cached by (id, version) and equal content. Raises PolicyError."""
        key = (str(document.get("id")), str(document.get("version")), json.dumps(document, sort_keys=True, default=str))
        with _CACHE_LOCK:
            cached = _CACHE.get(key)
        if cached is None:
            cached = cls._from(parse_document(document))
            with _CACHE_LOCK:
                _CACHE[key] = cached
                while len(_CACHE) > CACHED_POLICIES_MAX:
                    _CACHE.popitem(last=False)
        return cached

    @classmethod
    def _from(cls, document: PolicyDocument) -> "CompiledPolicy":
        rules, errors = [], []
        for index, rule in enumerate(document.rules):
            try:
                rules.append(_compile_rule(rule))
            except RuleError as error:
                errors.append((f"rules[{index}].config{_FIELDS[rule.kind]}", str(error)))
        if errors:
            raise PolicyError(errors)
        return cls(document.id, document.version, tuple(rules))

    @cached_property
    def prompt_plan(self) -> Plan:
        return self._plan(Stage.PROMPT)

    @cached_property
    def output_plan(self) -> Plan:
        return self._plan(Stage.OUTPUT)

    @cached_property
    def replacements(self) -> tuple[str, ...]:
        return tuple(rule.replacement for rule in self.rules)

    def pure(self, stage: Stage) -> tuple[int, ...]:
        """Numbers of the rules that run as automata at `stage`."""
        return tuple(i for i, rule in enumerate(self.rules) if stage in rule.stages and rule.automata)

    def judges(self, stage: Stage) -> bool:
        """Does any rule look at `stage`?"""
        return any(stage in rule.stages for rule in self.rules)

    def buffered(self, stage: Stage) -> tuple[CompiledRule, ...]:
        """Rules of `stage` that judge a whole text by a validator: output waits for its end (buffer mode)."""
        return tuple(rule for rule in self.rules if stage in rule.stages and rule.call is not None)

    def _plan(self, stage: Stage) -> Plan:
        return Plan(
            Reader(number, self.rules[number].action is not Action.FLAG, automaton)
            for number in self.pure(stage)
            for automaton in self.rules[number].automata
        )


_CACHE: OrderedDict[tuple[str, str, str], CompiledPolicy] = OrderedDict()
_CACHE_LOCK = Lock()
_FIELDS = {
    "regex": ".pattern",
    "ban_list": ".words",
    "secrets": ".formats",
    "pii": ".kinds",
    "urls": "",
    "length": ".chars_max",
    "charset": "",
    "prompt_injection": ".families",
    "prompt_leak": ".families",
    "json_schema": ".schema",
    "guardrails_ai": ".arguments",
}


def _compile_rule(rule: Rule) -> CompiledRule:
    """In shadow mode a rule flags, and when it cannot run nothing comes of it."""
    return CompiledRule(
        name=rule.name,
        kind=rule.kind,
        stages=frozenset(rule.stage),
        action=Action.FLAG if rule.shadow else rule.action,
        fails_open=rule.shadow or rule.fail == "open",
        replacement=rule.config.replacement,
        automata=_automata(rule),
        call=_call(rule),
        intended=rule.action if rule.shadow else None,
        answers_only=isinstance(rule, JsonSchemaRule),
    )


def _call(rule: Rule) -> ValidatorCall | None:
    if isinstance(rule, GuardrailsRule):
        name, arguments = str(rule.config.validator), rule.config.arguments
    elif isinstance(rule, JsonSchemaRule):
        compile_schema(rule.config.json_schema)
        name, arguments = "json_schema", {"schema": rule.config.json_schema}
    else:
        return None
    text = json.dumps(arguments, sort_keys=True)
    return ValidatorCall(validator=name, arguments=text, deadline_ms=rule.config.deadline_ms)


def _automata(rule: Rule) -> tuple[Automaton, ...]:
    match rule.kind:
        case "regex":
            form = Form.COMPAT if rule.config.normalise else Form.RAW
            return compile_regex(pattern=rule.config.pattern, match_chars_max=rule.config.match_chars_max, form=form)
        case "ban_list":
            config = rule.config
            return (
                compile_ban_list(words=config.words, whole_words=config.whole_words, look_alikes=config.look_alikes),
            )
        case "urls":
            return compile_urls(allow_domains=rule.config.allow_domains, deny_domains=rule.config.deny_domains)
        case "length":
            return (Length(rule.config.chars_max),)
        case "charset":
            return (compile_charset(scripts=rule.config.scripts, deny=rule.config.deny),)
        case "guardrails_ai" | "json_schema":
            return ()
        case _:
            return _known_shapes(rule)


def _known_shapes(rule: SecretsRule | PiiRule | InjectionRule | LeakRule) -> tuple[Automaton, ...]:
    """Rules whose patterns are ours, of which a policy chooses by name."""
    match rule.kind:
        case "secrets":
            return compile_secrets(formats=tuple(rule.config.formats))
        case "pii":
            return compile_pii(kinds=tuple(rule.config.kinds))
        case "prompt_injection":
            return compile_injection(families=tuple(rule.config.families))
        case "prompt_leak":
            return compile_leak(families=tuple(rule.config.families))
        case _:
            assert_never(rule.kind)
