"""The guardrails-ai validators that a policy may name, and how each is made. Imported only inside a pool's process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from guardrails.validator_base import FailResult, PassResult, ValidationResult, Validator, register_validator
from guardrails_ai.regex_match import RegexMatch
from guardrails_ai.secrets_present import SecretsPresent
from guardrails_ai.valid_length import ValidLength
from guardrails_ai.web_sanitization import WebSanitization

from safety.rules.json_schema import compile_schema


@dataclass(frozen=True, slots=True)
class Judgement:
    """`fixed` is the validator's own corrected text, None where it has none that means anything."""

    passed: bool
    fixed: str | None


@register_validator(name="weir/json_schema", data_type="string")  # type: ignore[misc,unused-ignore]
class JsonSchema(Validator):  # type: ignore[misc,unused-ignore]
    """A text passes when it is JSON of the schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        super().__init__(schema=schema)
        self._matches = compile_schema(schema)

    def _validate(self, value: Any, metadata: dict[str, Any]) -> ValidationResult:
        return PassResult() if self._matches(value) else FailResult(error_message="not JSON of the schema")


_MAKERS: dict[str, Callable[..., Any]] = {
    "json_schema": JsonSchema,
    "regex_match": RegexMatch,
    "secrets_present": SecretsPresent,
    "valid_length": ValidLength,
    "web_sanitization": WebSanitization,
}
# regex_match proposes a random text that matches: never shown to anyone.
_FIXES = frozenset({"secrets_present", "valid_length", "web_sanitization"})


def judge(*, validator: str, arguments: str, text: str) -> Judgement:
    """Run one validator on a whole text. Raises whatever the validator does."""
    result = _made(validator, arguments).validate(text, {})
    if not isinstance(result, FailResult):
        return Judgement(passed=True, fixed=None)
    fixed = result.fix_value if validator in _FIXES and isinstance(result.fix_value, str) else None
    if fixed is not None and validator == "secrets_present" and not text.endswith("\n"):
        fixed = fixed.removesuffix("\n")  # it adds one to a text of a single line
    return Judgement(passed=False, fixed=fixed)


@lru_cache(maxsize=64)
def _made(validator: str, arguments: str) -> Any:
    """Validators keep nothing of a text outside their streaming methods, which are not used here."""
    return _MAKERS[validator](**json.loads(arguments))
