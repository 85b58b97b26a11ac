"""Heuristics: what people write to make a model drop its instructions, and what a model writes that recites them.

Read in the SKELETON form (no case, accents, look-alikes, invisible characters; every white space a space). They find
known wordings in a few languages, not intent: a new wording passes, and a text *about* such attacks is found. Hence
`flag` or shadow before `block`. Called by `safety.policy`.
"""

from functools import cache

from contracts.text import shown
from safety.rules.port import Form, RuleError
from safety.rules.regex import RegexAutomaton, compile_regex

_S = " "  # as a run of white space is read


def _one(words: str) -> str:
    """One of `words`, which `|` divides."""
    return f"(?:{words})"


def _some(low: int, high: int, words: str) -> str:
    """`low` to `high` of `words`, each with the space after it."""
    return f"(?:{_one(words)}{_S}){{{low},{high}}}"


_WHICH = (
    "all|any|every|each|the|of|my|your|our|these|those|this|that|previous|prior|above|earlier|preceding|former|initial|"
    "original|system|developer|safety|security|existing|current|other"
)
_ORDERS = _one(
    "instructions?|directions?|prompts?|rules?|guidelines?|commands?|guardrails?|constraints?|restrictions?|orders?"
)
_SECRET_TEXT = _one(
    "system prompt|system message|hidden prompt|hidden instructions?|secret instructions?|initial instructions?|"
    "original instructions?|initial prompt|developer message|instructions above|prompt above"
)
_MARKUP = (
    r"<\|(?:im_start|im_end|system|assistant|endoftext|eot_id|start_header_id|end_header_id)\|>",
    r"\[/?inst\]|<</?sys>>|</?system(?:_prompt|_message)?>",
    "#{2,4} {0,3}(?:system|new instructions?|instructions? override) {0,3}:",
)
PROMPT_FAMILIES: dict[str, tuple[str, ...]] = {
    "drop_instructions": (
        r"\b"
        + _one("ignore|disregard|forget|override|bypass|overrule|skip|neglect|drop")
        + _S
        + _some(1, 6, _WHICH)
        + _ORDERS
        + r"\b",
        r"\b"
        + _one("do not|don.?t|never|stop|no longer")
        + _S
        + _one("follow|obey|comply with|listen to|following")
        + _S
        + _some(1, 6, _WHICH)
        + _ORDERS
        + r"\b",
        r"\b(?:ignoriere?|vergiss|missachte)"
        + _S
        + _some(1, 4, "alle|die|deine|vorherigen|bisherigen|obigen|vorigen|fruheren")
        + r"(?:anweisung(?:en)?|regeln?|instruktionen|vorgaben)\b",
        r"\b(?:ignore[zr]?|oublie[zr]?)"
        + _S
        + _some(1, 3, "toutes?|tous|les|tes|vos")
        + r"(?:instructions?|consignes?|regles?)\b",
        r"\b(?:ignora|olvida|omite)"
        + _S
        + _some(1, 4, "todas?|todos?|las|los|tus|sus|anteriores|previas?")
        + r"(?:instrucciones|reglas|ordenes)\b",
    ),
    "change_role": (
        r"\b"
        + _one("you are|you.re|act|behave|respond|pretend to be")
        + _S
        + _some(0, 4, "now|as|like|if you were|from now on|an?|in")
        + _one("dan|jailbroken|unrestricted|unfiltered|uncensored|developer mode|god mode|amoral")
        + r"\b",
        r"\b" + _one("do anything now|developer mode enabled|jailbreak mode|sudo mode|god mode enabled") + r"\b",
        r"\bwithout"
        + _S
        + _some(1, 3, "any|ethical|moral|safety|content")
        + _one("restrictions?|guidelines?|filters?|limits?|limitations?|constraints?")
        + r"\b",
    ),
    "ask_instructions": (
        r"\b"
        + _one("reveal|show|print|repeat|output|tell me|give me|display|reproduce|leak|write out|what is|what are")
        + _S
        + _some(0, 6, "me|us|all|the|your|exact|full|entire|complete|of|verbatim|hidden|secret|initial|original|above")
        + _SECRET_TEXT
        + r"\b",
        r"\brepeat" + _S + _some(1, 4, "all|everything|the|of|words|text") + _one("above|before this") + r"\b",
    ),
    "chat_markup": _MARKUP,
    "hide_from_user": (
        r"\b"
        + _one("do not|don.?t|never|without")
        + _S
        + _one("tell|telling|inform|informing|mention|mentioning|reveal|revealing|show|showing")
        + _S
        + _some(0, 3, "this|it|anything|that|to")
        + _one("the user|user")
        + r"\b",
    ),
}
OUTPUT_FAMILIES: dict[str, tuple[str, ...]] = {
    "recites_instructions": (
        r"\b"
        + _one("my|the|here is my|here is the|here are my|here are the")
        + _S
        + _some(0, 2, "full|exact|entire|complete|hidden|secret|initial|original")
        + _one("system prompt|system message|system instructions|hidden instructions|initial instructions")
        + f"(?:{_S})?"
        + "(?:is|are|was|were|says?|reads?|states?|:)",
        r"\bi (?:was|am|have been)"
        + _S
        + _one("instructed|configured|given instructions|programmed")
        + _S
        + _some(0, 3, "by|my|system prompt|developers?|operators?|not")
        + r"to\b",
    ),
    "chat_markup": _MARKUP,
}


def compile_injection(*, families: tuple[str, ...] = ()) -> tuple[RegexAutomaton, ...]:
    """Automata for what is written to a model. Raises RuleError for an unknown family."""
    return _chosen(PROMPT_FAMILIES, families)


def compile_leak(*, families: tuple[str, ...] = ()) -> tuple[RegexAutomaton, ...]:
    """Automata for what a model writes when it recites its instructions. Raises RuleError for an unknown family."""
    return _chosen(OUTPUT_FAMILIES, families)


def _chosen(known: dict[str, tuple[str, ...]], families: tuple[str, ...]) -> tuple[RegexAutomaton, ...]:
    unknown = sorted(set(families) - set(known))
    if unknown:
        raise RuleError(f"unknown family {shown(unknown[0])}; there are {', '.join(known)}")
    return tuple(
        automaton for name in families or tuple(known) for pattern in known[name] for automaton in _compiled(pattern)
    )


@cache
def _compiled(pattern: str) -> tuple[RegexAutomaton, ...]:
    return compile_regex(pattern=pattern, match_chars_max=256, form=Form.SKELETON)
