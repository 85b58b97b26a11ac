"""Parses the regular subset of RE2's syntax that a policy may use into a small tree.

Greedy and lazy quantifiers mean the same here: the window looks for everything that matches, not for one choice among
matches. What needs more than a finite automaton (look-around, back-references) is not in RE2 either.
"""

from dataclasses import dataclass
from enum import StrEnum

from safety.rules import charsets
from safety.rules.charsets import Ranges
from safety.rules.port import RuleError

NESTING_MAX = 30
REPEAT_MAX = 1000


class Edge(StrEnum):
    """Assertions about the place, without width."""

    BEGIN = "^"
    END = "$"
    BOUNDARY = r"\b"
    INSIDE = r"\B"
    HOST_END = "(end of a host)"  # of our own rules alone: no pattern that a tenant writes names it


@dataclass(frozen=True, slots=True)
class Chars:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Place:
    edge: Edge


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    body: "Node"
    low: int
    high: int | None


Node = Chars | Place | Sequence | Choice | Repeat

_CLASSES = {"d": charsets.DIGIT, "w": charsets.WORD, "s": charsets.SPACE}  # in capitals: all others
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_PLACES = {"b": Edge.BOUNDARY, "B": Edge.INSIDE, "A": Edge.BEGIN, "z": Edge.END}


def parse(pattern: str) -> Node:
    """The tree of `pattern`. Raises RuleError with the offset of what is not understood."""
    return _Parser(pattern).parse()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._fold = False
        self._dot_all = False

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._error("a `)` without its `(`")
        return node

    def _error(self, what: str) -> RuleError:
        return RuleError(f"{what} at character {self._at + 1} of the pattern")

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._error("the pattern ends too early")
        self._at += 1
        return char

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            atom = self._atom()
            if atom is not None:
                atom = self._quantified(atom)
                parts.extend(atom.parts if isinstance(atom, Sequence) else (atom,))
            elif self._quantifier() is not None:
                raise self._error("a quantifier of flags")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self) -> Node | None:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._bracket()
        if char == "\\":
            return self._escape()
        if char == ".":
            return Chars(charsets.EVERY if self._dot_all else charsets.NOT_NEWLINE)
        if char in "^$":
            return Place(Edge.BEGIN if char == "^" else Edge.END)
        if char in "*+?":
            self._at -= 1
            raise self._error(f"a `{char}` with nothing to repeat")
        return self._chars(((ord(char), ord(char)),))

    def _chars(self, ranges: Ranges) -> Chars:
        return Chars(self._folded(ranges))

    def _folded(self, ranges: Ranges) -> Ranges:
        return charsets.fold_case(ranges) if self._fold else ranges

    def _class(self, letter: str) -> Ranges:
        """`\\w` and its like. Case is folded first: what `(?i)\\w` takes, the Kelvin sign too, `(?i)\\W` does not."""
        ranges = self._folded(_CLASSES[letter.lower()])
        return ranges if letter.islower() else charsets.complement(ranges)

    def _group(self) -> Node | None:
        outer = (self._fold, self._dot_all)
        if self._peek() == "?" and not self._group_head():
            return None
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"groups nested deeper than {NESTING_MAX}")
        node = self._choice()
        if self._peek() != ")":
            raise self._error("a `(` without its `)`")
        self._at += 1
        self._depth -= 1
        self._fold, self._dot_all = outer
        return node

    def _group_head(self) -> bool:
        """Read `?:`, `?P<name>`, `?<name>` or flags. False for `(?i)`, which has no body and holds on to its end."""
        self._at += 1
        if self._peek() in ("P", "<"):
            return self._group_name()
        on = True
        while True:
            flag = self._take()
            if flag in ":)":
                return flag == ":"
            if flag == "-" and on:
                on = False
            elif flag == "i":
                self._fold = on
            elif flag == "s":
                self._dot_all = on
            elif flag != "U":
                self._at -= 1
                raise self._error(f"`(?{flag}` is not supported (look-around and (?m) cannot be held back exactly)")

    def _group_name(self) -> bool:
        if self._peek() == "P":
            self._at += 1
        end = self._text.find(">", self._at)
        name = self._text[self._at + 1 : end] if end > 0 and self._peek() == "<" else ""
        if not name.isidentifier():
            raise self._error("a group with a bad name")
        self._at = end + 1
        return True

    def _escape(self) -> Node:
        char = self._take()
        if char.lower() in _CLASSES:
            return Chars(self._class(char))
        if char in _PLACES:
            return Place(_PLACES[char])
        code = self._escaped_code(char)
        return self._chars(((code, code),))

    def _escaped_code(self, char: str) -> int:
        if char in _CONTROLS:
            return ord(_CONTROLS[char])
        if char == "x":
            return self._hexadecimal()
        if char.isascii() and not char.isalnum():
            return ord(char)
        self._at -= 1
        raise self._error(f"`\\{char}` is not supported")

    def _hexadecimal(self) -> int:
        if self._peek() == "{":
            end = self._text.find("}", self._at)
            digits = self._text[self._at + 1 : end] if end > 0 else ""
            width = len(digits) + 2
        else:
            digits = self._text[self._at : self._at + 2]
            width = 2
        if not digits or len(digits) > 6 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise self._error(r"a bad \x escape")
        code = int(digits, 16)
        if (len(digits) < 2 and width == 2) or code > charsets.LAST:
            raise self._error(r"a bad \x escape")
        self._at += width
        return code

    def _bracket(self) -> Chars:
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            ranges.extend(self._bracket_item())
        self._at += 1
        merged = charsets.merge(ranges)
        result = charsets.complement(merged) if negated else merged
        if not result:
            raise self._error("a class that no character is in")
        return Chars(result)

    def _bracket_item(self) -> Ranges:
        char = self._take()
        if char == "[" and self._peek() == ":":
            raise self._error("`[[:name:]]` is not supported; write the ranges")
        if char == "\\" and self._peek().lower() in _CLASSES:
            return self._class(self._take())
        low = self._bracket_code(char)
        if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
            self._at += 1
            high = self._bracket_code(self._take())
            if high < low:
                raise self._error("a range that runs backwards")
            return self._folded(((low, high),))
        return self._folded(((low, low),))

    def _bracket_code(self, char: str) -> int:
        return self._escaped_code(self._take()) if char == "\\" else ord(char)

    def _quantified(self, atom: Node) -> Node:
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Place):
            raise self._error("a repeated assertion")
        low, high = bounds
        if self._peek() == "?":
            self._at += 1
        if self._quantifier() is not None:
            raise self._error("a quantifier after a quantifier")
        return Repeat(atom, low, high)

    def _quantifier(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        char = self._peek()
        if char in simple:
            self._at += 1
            return simple[char]
        if char != "{":
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        if not low.isdecimal() or not low.isascii() or (high and not (high.isdecimal() and high.isascii())):
            return None  # a plain brace, as in RE2
        self._at = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise self._error(f"a repetition outside 0..{REPEAT_MAX}")
        return least, most
