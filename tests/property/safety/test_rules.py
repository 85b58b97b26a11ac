"""Rules whose patterns are ours: one decision for a prompt, an output in one piece, and an output cut anywhere.

Where a rule can be said without an automaton (length, character set, links), what leaves is compared with that.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from safety.guard import check_prompt
from safety.policy import CompiledPolicy
from safety.rules.injection import OUTPUT_FAMILIES, PROMPT_FAMILIES
from safety.rules.pii import NATIONAL
from safety.rules.secrets import BY_NAME
from safety.window import OutputWindow

LINKS = [
    "https://", "HTTP:/", "//", "\\\\", "www.", "good.com", "evil.net", ".", "@", ":80", "/", "?q=", "#", " ", "\n",
    "(", ")", "a", "\u200b", "%2e", "user:pw", "ftp://", "[::1]", "localhost",
]  # fmt: skip
WORDS = [
    "ignore ", "all  ", "previous\n", "instructions", "you are now ", "dan", "reveal ", "your ", "system prompt", " is",
    "<|im_start|>", "do not ", "tell ", "the user", "i was ", "instructed to", "x", ". ",
]  # fmt: skip
SECRETS = [
    "password", "api_key", ": ", "=", '"', "8f3Kq9ZxLm2Vt7Wb4Np1", "your_", "aaaaaaaa", "https://u", ":hunter22", "@db",
    " ", "x", "/", "token is ", "1",
]  # fmt: skip
NUMBERS = ["390.533.447", "-05", "943 476 ", "5870", "AB 12 34", " 56 C", "44051401359", " ", "1", "a", "-", "\uff11"]
LETTERS = ["a", "é", "1", ", ", "я", "мир", "中", "\u202e", "\u200b", "\U000e0041", "\n", "\x1b", "\ud800"]
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "urls": ({"allow_domains": ["good.com"]}, LINKS),
    "length": ({"chars_max": 9}, LETTERS),
    "charset": ({"scripts": ["Latin"], "deny": ["bidirectional", "tags"]}, LETTERS),
    "prompt_injection": ({"families": list(PROMPT_FAMILIES)}, WORDS),
    "prompt_leak": ({"families": list(OUTPUT_FAMILIES)}, WORDS),
    "secrets": ({"formats": list(BY_NAME)}, SECRETS),
    "pii": ({"kinds": list(NATIONAL)}, NUMBERS),
}
# What a browser would take for a link, and its host; of `//host` only with a dot, or an address.
BROWSER = re.compile(
    r"(?i)(?:(?:https?|ftps?|wss?):[/\\\\]{1,4}|(?<![:/\\\\])[/\\\\]{2}(?=[^\s/]*\.|\[)|www\.)([^\s/?#\\\\<>\"'`(){}|,;]+)"
)


def host_of(link: re.Match[str]) -> str:
    """Where a browser would go; empty for what it takes for no link: a comment's slashes, text after an address."""
    authority = link[1].rpartition("@")[2]
    if authority.startswith("["):
        return authority if re.fullmatch(r"\[[0-9A-Fa-f:.]+\](:[0-9]*)?", authority) else ""
    host = unquote(authority.partition(":")[0]).strip(".").lower()
    is_name = re.fullmatch("[a-z0-9._-]+", host) and ("." in host or link[0][0] not in "/\\")
    return host if is_name else ""


def policy(kind: str, action: str = "redact") -> CompiledPolicy:
    config = {**KINDS[kind][0], "replacement": "<>"}
    rule = {"name": "r", "kind": kind, "stage": ["prompt", "output"], "action": action, "config": config}
    return CompiledPolicy.compile({"id": "p", "version": 1, "rules": [rule]})


def still() -> float:
    return 0.0


def texts(kind: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(KINDS[kind][1]), max_size=12).map("".join)


def released(rules: CompiledPolicy, text: str, places: list[int]) -> tuple[str, bool, tuple[str, ...]]:
    window = OutputWindow(rules, monotonic=still)
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    left = "".join(window.feed("0:content", text[low:high]).text for low, high in pairwise(edges))
    return left + window.finish("0:content").text, window.blocked, window.verdicts


@pytest.mark.parametrize("kind", KINDS)
class TestEveryRule:
    @given(
        data=st.data(), places=st.lists(st.integers(0, 500), max_size=10), action=st.sampled_from(["redact", "block"])
    )
    def test_decides_alike_for_a_prompt_and_for_every_cut(
        self, kind: str, data: st.DataObject, places: list[int], action: str
    ) -> None:
        rules, text = policy(kind, action), data.draw(texts(kind))
        whole = released(rules, text, [])
        assert released(rules, text, places) == released(rules, text, list(range(len(text)))) == whole
        prompt = check_prompt(rules, [text], monotonic=still)
        assert prompt.blocked == whole[1]
        if not prompt.blocked:
            assert (prompt.redacted_texts or (text,)) == (whole[0],)


class TestAgainstPlainCode:
    @given(text=texts("length"))
    def test_length(self, text: str) -> None:
        assert released(policy("length"), text, [])[0] == (text if len(text) <= 9 else text[:9] + "<>")

    @given(text=texts("charset"))
    def test_charset(self, text: str) -> None:
        wanted = re.sub("[\u0430-\u044f\u4e2d\u202e\U000e0041\ud800]+", "<>", text)
        assert released(policy("charset"), text, [])[0] == wanted

    @given(text=texts("urls"))
    @example(text="//www.")
    @example(text="https://[::1]https://")
    @example(text="//[::1]")
    @example(text="https://good.com,x@evil.net/")
    def test_no_link_to_another_host_is_left(self, text: str) -> None:
        left = released(policy("urls"), text, [])[0].replace("\u200b", "")
        hosts = [host for found in BROWSER.finditer(left) if (host := host_of(found))]
        assert [host for host in hosts if host != "good.com" and not host.endswith(".good.com")] == []

    @pytest.mark.parametrize("hidden", ["good.com,x", "good.com;x", "[::1]", "[x", "a'b", 'a"b', "good.com)x"])
    def test_no_host_hides_behind_a_user_s_name(self, hidden: str) -> None:
        assert released(policy("urls"), f"see https://{hidden}@evil.net/p", [])[0] == "see <>evil.net/p"
