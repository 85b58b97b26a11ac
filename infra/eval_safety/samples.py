"""Labelled texts for each kind of rule, made from a seed. Pure: the same seed gives the same texts, on any machine.

A `Family` is what one rule is scored on. `unseen` texts are positives of which the rule claims nothing.
"""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from infra.eval_safety import numbers, secrets, wordings

Make = Callable[[random.Random], str]


@dataclass(frozen=True, slots=True)
class Sample:
    """A text. `value` is what must not stay in it, "" for a text in which nothing is to be found."""

    text: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One rule and its texts. `what` is a part of its kind: a format, a kind of number, a way of evasion."""

    kind: str
    what: str
    config: Mapping[str, Any]
    positives: Sequence[Sample]
    negatives: Sequence[Sample] = ()
    unseen: Sequence[Sample] = field(default=())


def families(*, seed: int, examples: int) -> Iterator[Family]:
    """All of them, with `examples` texts of each label in a family."""
    for make in (_secrets, _pii, _ban_lists, _prompts, _links, _characters):
        yield from make(seed, examples)


def _source(seed: int, *names: str) -> random.Random:
    """A generator for one family: none depends on how many others there are."""
    return random.Random("/".join((str(seed), *names)))  # noqa: S311 - repeatable texts, no secret


def _framed(source: random.Random, make: Make, examples: int, *, found: bool) -> tuple[Sample, ...]:
    samples = []
    for _ in range(examples):
        value = make(source)
        samples.append(Sample(source.choice(wordings.FRAMES).format(value), value if found else ""))
    return tuple(samples)


def _chosen(texts: Sequence[str]) -> Make:
    return lambda source: source.choice(texts)


def _secrets(seed: int, examples: int) -> Iterator[Family]:
    for name in secrets.MADE:
        source = _source(seed, "secrets", name)
        framed = _framed(source, partial(secrets.secret, name), examples, found=True)
        positives = tuple(Sample(one.text, secrets.hidden(name, one.value)) for one in framed)
        yield Family(
            kind="secrets",
            what=name,
            config={"formats": [name]},
            positives=positives,
            negatives=_framed(source, partial(secrets.no_secret, name), examples, found=False),
        )


def _pii(seed: int, examples: int) -> Iterator[Family]:
    made: dict[str, tuple[Make, Make]] = {
        "email": (_email, _chosen(("ada@localhost", "@ada", "a @ b.example", "user@-bad-.x", "3@4"))),
        "card": (numbers.card, numbers.no_card),
        "iban": (numbers.iban, numbers.no_iban),
        "us_ssn": (_of("{001-665}-{01-99}-{0001-9999}"), _of("{000|666|9##}-{01-99}-{0001-9999}", "###-##-#####")),
        "ipv4": (
            _of("{1-255}.{0-255}.{0-255}.{0-255}"),
            _of("{256-999}.{0-255}.{0-255}.{0-255}", "v{0-9}.{0-9}.{0-9}"),
        ),
        "phone": (
            _of("+{1-9}# ### ### ####", "+44 20 #### ####", "+49 (30) ######"),
            _of("+# %", "1+####", "0# ### ##"),
        ),
    }  # fmt: skip
    for name in numbers.NATIONAL:
        made[name] = (partial(numbers.national, name), partial(numbers.national, name, valid=False))
    for name, (right, wrong) in made.items():
        source = _source(seed, "pii", name)
        yield Family(
            kind="pii",
            what=name,
            config={"kinds": [name]},
            positives=_framed(source, right, examples, found=True),
            negatives=_framed(source, wrong, examples, found=False),
        )


def _of(*shapes: str) -> Make:
    return lambda source: numbers.fill(source.choice(shapes), source)


def _email(source: random.Random) -> str:
    name = "".join(source.choices(string.ascii_lowercase + string.digits, k=source.randint(2, 12)))
    host = "".join(source.choices(string.ascii_lowercase, k=source.randint(2, 10)))
    return f"{name}{source.choice(('', '+tag', '.x', '_y'))}@{host}.{source.choice(('com', 'co.uk', 'museum', 'io'))}"


def _ban_lists(seed: int, examples: int) -> Iterator[Family]:
    config = {"words": list(wordings.BANNED)}
    for name, evade in EVASIONS.items():
        source = _source(seed, "ban_list", name)
        samples = _framed(source, partial(_evaded, name, evade), examples, found=True)
        plain = _framed(source, _chosen(wordings.BAN_LOOKALIKES), examples, found=False) if name == "plain" else ()
        yield Family(
            kind="ban_list",
            what=name,
            config=config,
            positives=() if name in UNSEEN_EVASIONS else samples,
            negatives=plain,
            unseen=samples if name in UNSEEN_EVASIONS else (),
        )


def _evaded(name: str, evade: Callable[[str, random.Random], str], source: random.Random) -> str:
    """A word that this way of evasion changes."""
    words = [word for word in wordings.BANNED if name in ("plain", "case") or evade(word, source) != word]
    return evade(source.choice(words), source)


def _look_alikes(word: str, source: random.Random) -> str:
    """Cyrillic for Latin."""
    swaps = dict(zip("aceopxyi", "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0456", strict=True))
    return "".join(swaps.get(char, char) for char in word)


def _inserted(mark: str) -> Callable[[str, random.Random], str]:
    def evade(word: str, source: random.Random) -> str:
        at = source.randint(1, len(word) - 1)
        return word[:at] + mark + word[at:]

    return evade


def _full_width(word: str, source: random.Random) -> str:
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in word)


EVASIONS: dict[str, Callable[[str, random.Random], str]] = {
    "plain": lambda word, source: word,
    "case": lambda word, source: "".join(source.choice((char.lower(), char.upper())) for char in word),
    "full_width": _full_width,
    "look_alikes": _look_alikes,
    "zero_width": _inserted("\u200b"),
    "soft_hyphen": _inserted("\u00ad"),
    "combining": _inserted("\u0301"),
    "white_space": lambda word, source: word.replace(" ", source.choice(("  ", "\n", "\u00a0\t", "\u2003"))),
    "digits_for_letters": lambda word, source: word.translate(str.maketrans("oiea", "01€@")),
    "spaced_letters": lambda word, source: " ".join(word),
    "dashed_letters": lambda word, source: "-".join(word),
    "base64": lambda word, source: base64.b64encode(word.encode()).decode(),
    "reversed": lambda word, source: word[::-1],
}
UNSEEN_EVASIONS = ("digits_for_letters", "spaced_letters", "dashed_letters", "base64", "reversed")


def _prompts(seed: int, examples: int) -> Iterator[Family]:
    yield _worded(
        "prompt_injection", {}, (wordings.INJECTIONS, wordings.INJECTION_LOOKALIKES, wordings.INJECTIONS_UNSEEN),
        seed, examples,
    )  # fmt: skip
    yield _worded("prompt_leak", {}, (wordings.LEAKS, wordings.LEAK_LOOKALIKES, wordings.LEAKS_UNSEEN), seed, examples)


def _links(seed: int, examples: int) -> Iterator[Family]:
    config = {"allow_domains": list(wordings.ALLOWED_DOMAINS)}
    yield _worded("urls", config, (wordings.LINKS, wordings.LINK_LOOKALIKES, wordings.LINKS_UNSEEN), seed, examples)


def _characters(seed: int, examples: int) -> Iterator[Family]:
    config = {"scripts": ["Latin"], "deny": ["control", "bidirectional", "invisible", "tags", "private_use"]}
    yield _worded("charset", config, (wordings.STRANGE, wordings.ORDINARY, wordings.STRANGE_UNSEEN), seed, examples)


def _worded(
    kind: str, config: Mapping[str, Any], texts: tuple[Sequence[str], Sequence[str], Sequence[str]], seed: int,
    examples: int,
) -> Family:  # fmt: skip
    """Of texts that were written by hand; `value` is the whole, of which a match need be a part only."""
    source = _source(seed, kind)
    right, wrong, unseen = texts
    return Family(
        kind=kind,
        what="all",
        config=config,
        positives=_framed(source, _chosen(right), examples, found=True),
        negatives=_framed(source, _chosen(wrong), examples, found=False),
        unseen=_framed(source, _chosen(unseen), examples, found=True),
    )
