r"""Links to hosts that a policy does not allow: where an answer could carry a tenant's data away, or a reader to.

A link is what a renderer makes one of: `scheme://host…`, `//host.tld…` and `www.host.tld…` (with `\` for `/`, as
browsers read it). It is judged when its host has ended, never on the part of a host: `https://good.com` may still
become `https://good.com.evil.net`. A link that is refused is covered with its path and query.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from urllib.parse import unquote

import re2

from contracts.text import shown
from safety.rules import automaton
from safety.rules.port import Form, RuleError
from safety.rules.regex import RegexAutomaton, native
from safety.rules.scanner import HOST_STOPS, Language
from safety.rules.syntax import Edge, parse

DOMAINS_MAX = 1_000
DOMAIN_CHARS_MAX = 253  # RFC 1035, 2.3.4
LINK_CHARS_MAX = 1_024
USER_CHARS_MAX = 128  # of a user's name in a link, behind the first character that ends a host in a text
_HOST = "[^" + "".join(rf"\x{{{ord(char):X}}}" for char in sorted(HOST_STOPS | set("/?#\\"))) + "]"
_REST = r"""[^\s<>"'`)\]]"""
_ADDRESS = r"\[[0-9A-Fa-f:.]{2,45}\]"
_AUTHORITY = rf"(?:{_HOST}+|{_ADDRESS}(?::[0-9]{{1,5}})?)"
# A browser takes for a user's name what in a text goes on behind a host that has ended: `https://good.com,x@evil.net`.
_USER = rf"""{_HOST}*["'`(){{}}\[\]|,;][^\s<>/?#\\]{{0,{USER_CHARS_MAX}}}@"""
_STARTS = r"(?:(?:https?|ftps?|wss?):[/\\]{1,4}|[/\\]{2}|www\.)"
_DOTS = re.compile("[.\u3002\uff0e\uff61]")
_KEPT = frozenset("\u00df\u03c2")
_WWW = re.compile(r"(?i)www\.")


@dataclass(frozen=True, slots=True)
class Domains:
    """Which hosts may be linked to. A domain stands for its subdomains too; `denied` wins."""

    allowed: frozenset[str]
    denied: frozenset[str]

    def refuse(self, link: str) -> bool:
        """Does `link`, whose host is whole, lead where it must not?"""
        start = 0 if _WWW.match(link) else _after_slashes(link)
        authority = re.split(r"[/?#\\]", link[start:], maxsplit=1)[0]
        if len(authority) > DOMAIN_CHARS_MAX:
            return True
        host = _host(authority)
        if link[0] in "/\\" and "." not in host.strip(".") and "[" not in authority:
            return False  # a comment's or a path's slashes
        names = _parents(host)
        if any(name in self.denied for name in names):
            return True
        return bool(self.allowed) and not any(name in self.allowed for name in names)


def compile_urls(*, allow_domains: Iterable[str], deny_domains: Iterable[str]) -> tuple[RegexAutomaton, ...]:
    """Automata that find links to hosts outside `allow_domains` (when there are any) or in `deny_domains`.

    Raises RuleError for a name that is no domain.
    """
    allowed, denied = (frozenset(_domain(name) for name in names) for names in (allow_domains, deny_domains))
    if not allowed and not denied:
        raise RuleError("a rule of links allows or denies at least one domain")
    if len(allowed) + len(denied) > DOMAINS_MAX:
        raise RuleError(f"a rule of links names at most {DOMAINS_MAX} domains")
    domains = Domains(allowed, denied)
    return (
        _automaton(rf"(?i){_STARTS}{_AUTHORITY}[/?#\\]{_REST}*", domains),
        _automaton(rf"(?i){_STARTS}{_AUTHORITY}", domains, trail=(Edge.HOST_END,)),
        _automaton(rf"(?i){_STARTS}{_HOST}{{{DOMAIN_CHARS_MAX + 1}}}", None),
        _automaton(rf"(?i){_STARTS}{_ADDRESS}", domains),
        _automaton(rf"(?i){_STARTS}{_USER}", None),
    )


def _automaton(pattern: str, domains: Domains | None, *, trail: tuple[Edge, ...] = ()) -> RegexAutomaton:
    dfa, engine = _built(pattern)
    language = Language(
        dfa=dfa,
        lead=(),
        trail=trail,
        longest=LINK_CHARS_MAX if dfa.longest is None else dfa.longest,
        capped=dfa.longest is None,
        check=None if domains is None else partial(Domains.refuse, domains),
        final=domains is not None and not trail,
    )
    return RegexAutomaton(language, Form.COMPAT, engine)


@cache
def _built(pattern: str) -> tuple[automaton.Dfa, "re2._Regexp[str]"]:
    """The same for every list of domains."""
    return automaton.build(parse(pattern)), native(pattern)


def _domain(name: str) -> str:
    host = _host(name.strip().removeprefix("*."))
    if not host or len(host) > DOMAIN_CHARS_MAX or not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]+", host):
        raise RuleError(f"{shown(name)} is no domain name")
    return host


def _after_slashes(link: str) -> int:
    place = re.match(r"[A-Za-z]*:?[/\\]+", link)
    return 0 if place is None else place.end()


def _host(authority: str) -> str:
    """The host of an authority as browsers compare it: without user, port and last dot, decoded, in ASCII."""
    name = unquote(authority.rpartition("@")[2])
    name = name[1:].partition("]")[0] if name.startswith("[") else re.sub(r":[0-9]*$", "", name)
    labels = _DOTS.split("".join(char.lower() for char in name))  # one by one: a sigma is never a final one
    return ".".join(label if label.isascii() else _ascii_label(label) for label in labels).strip(".")


def _ascii_label(label: str) -> str:
    """A label as it is registered; as it stands where it is none. Python's codec makes ss of a sharp s and a sigma of a
    final one, which browsers leave (UTS 46, 4: nontransitional): another domain.
    """
    try:
        if _KEPT.isdisjoint(label):
            return label.encode("idna").decode("ascii")
        return "xn--" + unicodedata.normalize("NFKC", label).encode("punycode").decode("ascii")
    except UnicodeError:
        return label


def _parents(host: str) -> list[str]:
    labels = host.split(".")
    return [".".join(labels[index:]) for index in range(len(labels))]
