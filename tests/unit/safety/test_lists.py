"""Ban lists, secrets, personal numbers: what is found, where, and what is left alone."""

from __future__ import annotations

import pytest

from safety.rules.ban_list import compile_ban_list
from safety.rules.lookalikes import LOOKALIKES
from safety.rules.normalise import Reading, fold
from safety.rules.pii import INTERNATIONAL, NATIONAL, compile_pii
from safety.rules.port import Automaton, Form, RuleError, Span
from safety.rules.secrets import FORMATS, compile_secrets
from safety.rules.tracker import Plan, Reader, Tracker


def found(automata: tuple[Automaton, ...], text: str) -> list[str]:
    """The longest matched text at each place where one begins, outermost only."""
    tracker = Tracker(Plan(Reader(rule=0, holds=True, automaton=one) for one in automata))
    hits = [hit.span for char in text for hit in tracker.step(char)]
    hits += [hit.span for hit in tracker.finish()]
    outer = [
        span for span in set(hits) if not any(o != span and o.start <= span.start and span.end <= o.end for o in hits)
    ]
    return [text[span.start : span.end] for span in sorted(outer)]


def read(text: str, form: Form) -> tuple[str, list[int]]:
    reading = Reading(text, form)
    return reading.formed, list(reading.offsets)


class TestFold:
    @pytest.mark.parametrize(
        ("text", "folded"),
        [
            ("ÉVIL", "evil"),
            ("e\u0301vil", "evil"),
            ("ev\u200bil", "evil"),
            ("\uff25\uff36\uff29\uff2c", "evil"),
            ("Straße", "strasse"),
            ("ﬁn", "fin"),
            ("one\u00a0\u2003two\r\n\tthree", "one two three"),
            ("soft\u00adhyphen", "softhyphen"),
        ],
    )
    def test_reads_what_is_meant(self, text: str, folded: str) -> None:
        assert fold(text) == folded

    @pytest.mark.parametrize(
        ("text", "skeleton"),
        [
            ("p\u0430ypal", "paypal"),
            ("\u0420\u0410\u0423PAL", "paypal"),
            ("\u0411\u041e\u041c\u0411\u0410", "\u0431om\u0431a"),
            ("\u0431\u043e\u043c\u0431\u0430", "\u0431om\u0431a"),
            ("b\u00f8mb", "bomb"),
            ("\ud55c\uad6d", "\ud55c\uad6d"),
        ],
    )
    def test_reads_a_look_alike_as_the_letter(self, text: str, skeleton: str) -> None:
        assert fold(text, form=Form.SKELETON) == skeleton

    def test_reads_both_cases_of_a_look_alike_alike(self) -> None:
        letters = {chr(code): letter for code, letter in LOOKALIKES.items()}
        assert {char: fold(char, form=Form.SKELETON) for char in letters} == letters
        assert all(
            fold(char.upper(), form=Form.SKELETON) == fold(char, form=Form.SKELETON)
            for char in letters
            if char.upper().casefold() == char
        )

    def test_counts_a_run_of_spaces_once(self) -> None:
        assert read("a  b \tc", Form.FOLDED) == ("a b c", [0, 1, 3, 4, 6])
        assert read("a  b", Form.COMPAT) == ("a  b", [0, 1, 2, 3])

    def test_keeps_the_offset_of_the_original(self) -> None:
        assert read("aﬁ\u200bß", Form.FOLDED) == ("afiss", [0, 1, 1, 3, 3])


class TestBanList:
    @pytest.mark.parametrize(
        ("text", "spans"),
        [
            ("a bad word", ["bad"]),
            ("BÁD, b\u200bad; ＢＡＤ", ["BÁD", "b\u200bad", "ＢＡＤ"]),  # noqa: RUF001
            ("badly embadded", []),
            ("bad_", []),
            ("这是坏词吗", ["坏词"]),
            ("$cam!", ["$cam!"]),
            ("an old\u2003 \n trick", ["old\u2003 \n trick"]),
            ("\u0432\u0430\u0501", ["\u0432\u0430\u0501"]),
        ],
    )
    def test_finds_whole_words_as_a_reader_would(self, text: str, spans: list[str]) -> None:
        assert found((compile_ban_list(words=["Bad", "坏词", "$CAM!", "old  trick"]),), text) == spans

    def test_leaves_other_scripts_alone_where_the_list_says_so(self) -> None:
        banned = compile_ban_list(words=["bad"], look_alikes=False)
        assert found((banned,), "\u0432\u0430\u0501 bad") == ["bad"]

    def test_holds_a_phrase_back_over_a_run_of_spaces(self) -> None:
        banned = compile_ban_list(words=["a b"])
        tracker = Tracker(Plan([Reader(rule=0, holds=True, automaton=banned)]))
        floors = []
        for char in "x a \n  c":
            tracker.step(char)
            floors.append(tracker.floor)
        assert floors == [1, 2, 2, 2, 2, 2, 2, 8]

    def test_holds_back_only_what_can_still_become_a_word(self) -> None:
        banned = compile_ban_list(words=["abcd", "bx"], whole_words=False)
        scanner = banned.scanner()
        held = []
        for position, char in enumerate("abcabx"):
            scanner.step(position, "abcabx"[position - 1] if position else "", char)
            held.append(scanner.held_from())
        assert held == [0, 0, 0, 3, 3, None]

    def test_tells_of_words_that_end_together_the_longest(self) -> None:
        banned = compile_ban_list(words=["a" * length for length in range(1, 201)], whole_words=False)
        scanner = banned.scanner()
        text = "a" * 500
        steps = [scanner.step(place, text[place - 1 : place], "a") for place in range(500)]
        assert steps == [[(max(0, place - 199), place + 1)] for place in range(500)]

    @pytest.mark.parametrize("words", [[], ["\u200b"], ["a" * 201], [f"w{n}" for n in range(10_001)]])
    def test_refuses_lists_out_of_bounds(self, words: list[str]) -> None:
        with pytest.raises(RuleError):
            compile_ban_list(words=words)


EXAMPLES = {
    "aws_access_key": "AKIA" + "IOSFODNN7EXAMPLE"[:16].replace("9", "7"),
    "anthropic_key": "sk-ant-" + "a1B2" * 10,
    "openai_key": "sk-proj-" + "a1B2" * 12,
    "github_token": "ghp_" + "a1B2" * 9,
    "gitlab_token": "glpat-" + "a1B2" * 5,
    "google_api_key": "AIza" + "a1B2_" * 7,
    "huggingface_token": "hf_" + "a1" * 17,
    "npm_token": "npm_" + "a1B2" * 9,
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow==",
    "pypi_token": "pypi-AgEIcHlwaS5vcmc" + "a1B2" * 20,
    "sendgrid_key": "SG." + "a" * 22 + "." + "b" * 43,
    "slack_token": "xoxb-" + "123456-abcdef",
    "stripe_key": "sk_live_" + "a1B2" * 6,
    "telegram_bot": "123456789:AA" + "a1B" * 11,
    "json_web_token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + "a1B2" * 8,
    "weir_key": "weir_" + "a1" * 19,
    "azure_storage_key": "AccountKey=" + "aB" * 43 + "==",
    "digitalocean_token": "dop_v1_" + "a1" * 32,
    "discord_webhook": "discord.com/api/webhooks/" + "1" * 18 + "/" + "a1B2" * 16,
    "docker_token": "dckr_pat_" + "a1B" * 9,
    "databricks_token": "dapi" + "a1" * 16,
    "google_oauth_secret": "GOCSPX-" + "a1B2" * 7,
    "mailgun_key": "key-" + "a1" * 16,
    "shopify_token": "shpat_" + "a1" * 16,
    "slack_webhook": "hooks.slack.com/services/" + "T0A1/" * 9,
    "square_token": "sq0atp-" + "a1" * 11,
    "twilio_key": "SK" + "a1" * 16,
    "url_password": "postgres://app:hunter22@d",
    "assigned_secret": "api_key=8f3Kq9ZxLm2Vt7Wb4Np1",
}


class TestSecrets:
    @pytest.mark.parametrize("name", sorted(FORMATS))
    def test_finds_each_format_inside_a_sentence(self, name: str) -> None:
        secret = EXAMPLES[name]
        assert found(compile_secrets(formats=(name,)), f"my key: {secret} !") in ([secret], [secret + " "])

    def test_leaves_ordinary_text_alone(self) -> None:
        text = "The task-force risk-assessment of 2024-01-01, commit 3f786850e387550fdab836ed7e6dc881de23001b; skip it."
        assert found(compile_secrets(), text) == []

    def test_names_what_there_is_when_a_format_is_unknown(self) -> None:
        with pytest.raises(RuleError, match="unknown format `aws`; there are aws_access_key"):
            compile_secrets(formats=("aws",))


class TestPii:
    @pytest.mark.parametrize(
        ("kind", "text", "spans"),
        [
            ("email", "write to Bob.Smith+x@mail.example.co.uk, or a@b.", ["Bob.Smith+x@mail.example.co.uk"]),
            ("card", "4111 1111 1111 1111 or 4111-1111-1111-1112", ["4111 1111 1111 1111"]),
            ("card", "order 12 4111111111111111 0000000000000000", ["4111111111111111"]),
            ("iban", "DE89 3704 0044 0532 0130 00 and GB82WEST12345698765433", ["DE89 3704 0044 0532 0130 00"]),
            ("us_ssn", "123-45-6789 000-12-3456 666-12-3456 123-45-67890", ["123-45-6789"]),
            ("ipv4", "10.0.0.256 and 192.168.1.17.", ["192.168.1.17"]),
            ("phone", "call +49 (30) 901820 or 12345", ["+49 (30) 901820"]),
        ],
    )
    def test_finds_what_is_valid_and_nothing_else(self, kind: str, text: str, spans: list[str]) -> None:
        assert found(compile_pii(kinds=(kind,)), text) == spans

    def test_names_what_there_is_when_a_kind_is_unknown(self) -> None:
        with pytest.raises(RuleError, match=f"there are {', '.join((*INTERNATIONAL, *NATIONAL))}"):
            compile_pii(kinds=("passport",))


class TestSpan:
    def test_is_half_open(self) -> None:
        (automaton,) = compile_secrets(formats=("gitlab_token",))
        tracker = Tracker(Plan([Reader(rule=0, holds=True, automaton=automaton)]))
        hits = [hit for char in "x " + EXAMPLES["gitlab_token"] for hit in tracker.step(char)]
        assert hits == [(0, Span(2, 28))]
