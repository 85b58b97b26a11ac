"""Ban lists: many words at once by Aho-Corasick (CACM 18(6), 1975), over a folded form of the text.

The library answers for whole texts; it does not say how far into a word a text ends, so the streaming automaton is
built here from the same words. With `whole_words` a match is no part of a longer word: its neighbours are no word
characters of a script that writes spaces. A run of white space is one space, in words and in texts, however long it is:
an unfinished phrase is held back over it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ahocorasick

from contracts.text import shown
from safety.rules.normalise import fold
from safety.rules.port import Form, RuleError, Span, search_on
from safety.rules.words import is_word

WORDS_MAX = 10_000
WORD_CHARS_MAX = 200
LIST_CHARS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class BanList:
    """The automaton of a word list. Node 0 is the root; `ends[node]` is the nearest node at which a word ends, of the
    node itself and those it fails to, or 0.
    """

    children: tuple[dict[str, int], ...]
    fail: tuple[int, ...]
    depth: tuple[int, ...]
    ends: tuple[int, ...]
    longest: int
    whole_words: bool
    native: Any
    form: Form

    def scanner(self) -> "BanScanner":
        return BanScanner(self)

    def can_start(self, previous: str, char: str, /) -> bool:
        return char in self.children[0] and not (self.whole_words and is_word(previous) and is_word(char))

    def first(self, text: str, start: int = 0, /) -> int | None:
        return search_on(self._search, text, start, self.longest) if start else self._search(text, 0)

    def _search(self, text: str, start: int) -> int | None:
        """Where the first word that ends may have begun, or a longer one that holds it."""
        for last, _ in self.native.iter(text, start):
            end = int(last) + 1
            node = 0
            for char in text[max(start, end - self.longest) : end]:
                node = self.follow(node, char)
            return end - self.depth[node]
        return None

    def follow(self, node: int, char: str) -> int:
        while node and char not in self.children[node]:
            node = self.fail[node]
        return self.children[node].get(char, 0)


def compile_ban_list(*, words: Iterable[str], whole_words: bool = True, look_alikes: bool = True) -> BanList:
    """The automaton of `words`. Raises RuleError for a word that folds to nothing and for a list out of bounds.

    `look_alikes`: letters of other scripts are read as the ASCII letters they look like, in words and in texts.
    """
    form = Form.SKELETON if look_alikes else Form.FOLDED
    folded = []
    for word in words:
        text = fold(word, form=form).strip()
        if not text:
            raise RuleError(f"the word {shown(word)} has nothing to see")
        folded.append(text)
    unique = sorted(set(folded))
    if not unique or len(unique) > WORDS_MAX:
        raise RuleError(f"a ban list has 1 to {WORDS_MAX} words")
    if max(map(len, unique)) > WORD_CHARS_MAX or sum(map(len, unique)) > LIST_CHARS_MAX:
        raise RuleError(f"a word has at most {WORD_CHARS_MAX} characters, a list {LIST_CHARS_MAX} in all")
    children, depth, last_nodes = _trie(unique)
    fail, ends = _links(children, last_nodes)
    native = ahocorasick.Automaton(ahocorasick.STORE_INTS)
    for word in unique:
        native.add_word(word, len(word))
    native.make_automaton()
    longest = max(map(len, unique))
    return BanList(tuple(children), tuple(fail), tuple(depth), tuple(ends), longest, whole_words, native, form)


def _trie(words: Sequence[str]) -> tuple[list[dict[str, int]], list[int], set[int]]:
    """Children and depth of each node, and the nodes at which a word ends."""
    children: list[dict[str, int]] = [{}]
    depth = [0]
    last_nodes = set()
    for word in words:
        node = 0
        for char in word:
            if char not in children[node]:
                children[node][char] = len(children)
                children.append({})
                depth.append(depth[node] + 1)
            node = children[node][char]
        last_nodes.add(node)
    return children, depth, last_nodes


def _links(children: list[dict[str, int]], last_nodes: set[int]) -> tuple[list[int], list[int]]:
    fail = [0] * len(children)
    ends = [0] * len(children)
    queue = deque(children[0].values())
    while queue:
        node = queue.popleft()
        ends[node] = node if node in last_nodes else ends[fail[node]]
        for char, child in children[node].items():
            queue.append(child)
            link = fail[node]
            while link and char not in children[link]:
                link = fail[link]
            fail[child] = children[link].get(char, 0)
    return fail, ends


class BanScanner:
    """`_chars` are the characters read since the scanner was idle, after one that came before (or "")."""

    __slots__ = ("_chars", "_list", "_node", "_pending", "_positions")

    def __init__(self, ban_list: BanList) -> None:
        self._list = ban_list
        self._node = 0
        self._pending: list[Span] = []
        self._chars: list[str] = []
        self._positions: list[int] = []

    def step(self, position: int, previous: str, char: str, /) -> Sequence[Span]:
        found: list[Span] = []
        if self._pending:
            found = [] if is_word(char) and is_word(previous) else self._pending
            self._pending = []
        if not self._chars:
            self._chars.append(previous)
            self._positions.append(position)
        self._chars.append(char)
        self._positions.append(position)
        self._node = self._list.follow(self._node, char)
        length = self._completed()
        completed = [Span(self._positions[-length], position + 1)] if length else []
        if self._list.whole_words and is_word(char):
            self._pending = completed  # the next character tells whether the word ends here
        else:
            found.extend(completed)
        self._let_go()
        return found

    def finish(self) -> Sequence[Span]:
        found, self._pending = self._pending, []
        self._node = 0
        self._let_go()
        return found

    def held_from(self) -> int | None:
        held = self._positions[-self._list.depth[self._node]] if self._node else None
        if self._pending:
            waiting = min(span.start for span in self._pending)
            return waiting if held is None else min(held, waiting)
        return held

    def _completed(self) -> int:
        """Length of the longest word that ends here, which covers the others; 0 when none does."""
        node = self._list.ends[self._node]
        while node and not self._starts_word(self._list.depth[node]):
            node = self._list.ends[self._list.fail[node]]
        return self._list.depth[node]

    def _starts_word(self, length: int) -> bool:
        """Do the last `length` characters begin where a word may begin?"""
        if not self._list.whole_words:
            return True
        return not (is_word(self._chars[-length - 1]) and is_word(self._chars[-length]))

    def _let_go(self) -> None:
        """Go down to the longest suffix that can still become a word where it stands; forget what is before it."""
        while self._node and not (self._list.children[self._node] and self._starts_word(self._list.depth[self._node])):
            self._node = self._list.fail[self._node]
        depth = self._list.depth[self._node]
        if not depth:
            self._chars.clear()
            self._positions.clear()
        elif len(self._chars) > 4 * self._list.longest:
            del self._chars[: -depth - 1]
            del self._positions[: -depth - 1]
