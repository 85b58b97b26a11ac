"""Regular expressions of a policy: RE2 says quickly whether a whole text holds one, the automaton says where, and
what of an unfinished text can still become one. Both must accept the pattern, or it is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

import re2

from safety.rules import automaton
from safety.rules.port import Form, RuleError, search_on
from safety.rules.scanner import Language, RegexScanner
from safety.rules.syntax import Choice, Edge, Node, Place, Sequence, parse

PATTERN_CHARS_MAX = 2_000
MATCH_CHARS_MAX = 1_024
MATCH_CHARS_DEFAULT = 256
_RE2_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class RegexAutomaton:
    """One `safety.rules.port.Automaton`; a pattern with different assertions per alternative makes several."""

    language: Language
    form: Form
    native: "re2._Regexp[str]"

    @property
    def longest(self) -> int:
        return self.language.longest

    def scanner(self) -> RegexScanner:
        return RegexScanner(self.language)

    def can_start(self, previous: str, char: str, /) -> bool:
        dfa = self.language.dfa
        return dfa.table[0][dfa.class_of(char)] != automaton.DEAD and self.language.can_start(previous, char)

    def first(self, text: str, start: int = 0, /) -> int | None:
        return search_on(self._search, text, start, self.longest) if start else self._search(text, 0)

    def _search(self, text: str, start: int) -> int | None:
        try:
            match = self.native.search(text, start)
        except UnicodeEncodeError:  # a lone surrogate: RE2 reads UTF-8 only, the automaton reads everything
            return start
        return None if match is None else match.start()


def compile_regex(
    *,
    pattern: str,
    match_chars_max: int | None = None,
    form: Form = Form.COMPAT,
    check: Callable[[str], bool] | None = None,
) -> tuple[RegexAutomaton, ...]:
    """Automata for `pattern`. Raises RuleError.

    A match longer than `match_chars_max` is not looked for: 256 by default for a pattern without a bound of its own
    (`+`, `*`), 1,024 for one with a bound. `check` decides on the text of a match (a checksum).
    """
    if not pattern or len(pattern) > PATTERN_CHARS_MAX:
        raise RuleError(f"a pattern has 1 to {PATTERN_CHARS_MAX} characters")
    engine = native(pattern)
    cases: dict[tuple[tuple[Edge, ...], tuple[Edge, ...]], list[Node]] = {}
    tree = parse(pattern)
    for option in tree.options if isinstance(tree, Choice) else (tree,):
        lead, core, trail = _edges(option)
        cases.setdefault((lead, trail), []).append(core)
    automata = []
    for (lead, trail), cores in cases.items():
        dfa = automaton.build(cores[0] if len(cores) == 1 else Choice(tuple(cores)))
        cap = match_chars_max or (MATCH_CHARS_DEFAULT if dfa.longest is None else MATCH_CHARS_MAX)
        capped = dfa.longest is None or dfa.longest > cap
        longest = cap if dfa.longest is None else min(dfa.longest, cap)
        language = Language(dfa=dfa, lead=lead, trail=trail, longest=longest, capped=capped, check=check)
        automata.append(RegexAutomaton(language, form, engine))
    return tuple(automata)


def native(pattern: str) -> "re2._Regexp[str]":
    """RE2's own form of `pattern`. Raises RuleError."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _RE2_BYTES_MAX
    try:
        return re2.compile(pattern, options=options)
    except UnicodeEncodeError as error:
        raise RuleError("a pattern is valid Unicode, without lone surrogates") from error
    except re2.error as error:
        detail = error.args[0] if error.args else "not accepted"
        detail = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else detail
        raise RuleError(f"RE2 does not take the pattern: {detail}") from error


def _edges(node: Node) -> tuple[tuple[Edge, ...], Node, tuple[Edge, ...]]:
    """Assertions before, what is read, assertions after."""
    parts = node.parts if isinstance(node, Sequence) else (node,)
    begin, end = 0, len(parts)
    while begin < end and isinstance(parts[begin], Place):
        begin += 1
    while end > begin and isinstance(parts[end - 1], Place):
        end -= 1
    lead = tuple(part.edge for part in parts[:begin] if isinstance(part, Place))
    trail = tuple(part.edge for part in parts[end:] if isinstance(part, Place))
    return lead, Sequence(parts[begin:end]), trail
