"""The evaluation of the guardrail rules: labels from outside the rules, counts, intervals, lines."""

from __future__ import annotations

import json
import random
from io import StringIO

import pytest
from django.core.management import call_command

from infra.eval_safety import numbers, secrets
from infra.eval_safety.samples import UNSEEN_EVASIONS, Family, Sample, families
from infra.eval_safety.score import Score, by_kind, is_left, measures, score, shown, wilson
from safety.rules.pii import is_card_number, is_iban
from safety.rules.secrets import FORMATS


def still() -> float:
    return 0.0


class TestNumbers:
    def test_have_the_checksum_that_they_claim(self) -> None:
        source = random.Random(1)
        assert all(is_card_number(numbers.card(source)) for _ in range(50))
        assert not any(is_card_number(numbers.no_card(source)) for _ in range(50))
        assert all(is_iban(numbers.iban(source)) for _ in range(50))
        assert not any(is_iban(numbers.no_iban(source)) for _ in range(50))

    @pytest.mark.parametrize("kind", ["gb_nino", "us_itin", "nl_bsn"])
    def test_are_of_one_shape_right_or_wrong(self, kind: str) -> None:
        source = random.Random(2)
        right, wrong = numbers.national(kind, source), numbers.national(kind, source, valid=False)
        assert len(right) == len(wrong)

    def test_fill_a_shape(self) -> None:
        text = numbers.fill("x#A{12}{07-07}{ab|cd}", random.Random(3))
        assert text[0] == "x"
        assert text[1].isdigit()
        assert text[2].isupper()
        assert text[3] in "12"
        assert (text[4:6], text[6:] in ("ab", "cd")) == ("07", True)


class TestSamples:
    def test_are_the_same_for_a_seed(self) -> None:
        first, again, other = (list(families(seed=seed, examples=2)) for seed in (1, 1, 2))
        assert first == again != other

    def test_cover_every_kind_and_every_secret(self) -> None:
        made = list(families(seed=0, examples=1))
        kinds = {family.kind for family in made}
        assert kinds == {"secrets", "pii", "ban_list", "prompt_injection", "prompt_leak", "urls", "charset"}
        assert set(secrets.MADE) == set(FORMATS)
        assert {family.what for family in made if family.unseen} == {*UNSEEN_EVASIONS, "all"}

    def test_hold_the_value_that_is_to_go(self) -> None:
        for family in families(seed=0, examples=3):
            assert all(sample.value and sample.value in sample.text for sample in family.positives)
            assert not any(sample.value for sample in family.negatives)


class TestScore:
    def test_counts_what_was_found_and_what_was_not(self) -> None:
        family = Family(
            kind="ban_list",
            what="some",
            config={"words": ["pear"]},
            positives=[Sample("a pear", "pear"), Sample("two PEARS", "PEARS"), Sample("pear here", "pear")],
            negatives=[Sample("apples", ""), Sample("pear", "")],
            unseen=[Sample("p-e-a-r", "p-e-a-r")],
        )
        told = score(family, monotonic=still)
        assert (told.found, told.missed, told.alarms, told.quiet) == (2, 1, 1, 1)
        assert (told.unseen, told.unseen_found, told.beyond) == (1, 0, ["p-e-a-r"])
        assert (told.misses, told.false_alarms) == (["two PEARS"], ["pear"])
        shares = {line.metric: line.value for line in measures([told])}
        assert (shares["recall"], shares["precision"]) == (2 / 3, 2 / 3)
        assert told.spent == [0.0] * 6

    def test_finds_nothing_amiss_with_small_sets_of_what_has_a_checksum(self) -> None:
        chosen = [
            one for one in families(seed=7, examples=5) if one.what in ("card", "iban", "aws_access_key", "plain")
        ]
        for family in chosen:
            told = score(family, monotonic=still)
            assert (told.found, told.missed, told.alarms, told.quiet) == (5, 0, 0, 5), told

    def test_a_part_that_is_left_is_a_miss(self) -> None:
        assert is_left("abcdefghij", "xx cdefghij")
        assert not is_left("abcdefghij", "defghij")
        assert is_left("abc", "abc")

    @pytest.mark.parametrize(
        ("part", "whole", "low", "high"),
        [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
    )
    def test_wilson(self, part: int, whole: int, low: float, high: float) -> None:
        assert wilson(part, whole) == pytest.approx((low, high), abs=5e-5)
        with pytest.raises(ValueError, match="no samples"):
            wilson(0, 0)

    def test_lines(self) -> None:
        parts = [
            Score(kind="pii", what="card", found=4, missed=1, alarms=0, quiet=5, spent=[1.0, 3.0]),
            Score(kind="pii", what="iban", found=5, missed=0, alarms=5, quiet=0, spent=[2.0]),
        ]
        [kind] = by_kind(parts)
        assert (kind.found, kind.missed, kind.alarms, kind.what, kind.spent) == (9, 1, 5, "all", [1.0, 3.0, 2.0])
        lines = [json.loads(line.as_line()) for line in measures(parts)]
        values = {(line["case"], line["metric"]): line["value"] for line in lines}
        assert values["kind=pii", "recall"] == 0.9
        assert values["kind=pii", "recall_of"] == 10
        assert values["kind=pii,what=iban", "precision"] == 0.5
        assert values["kind=pii", "added_latency_p50_ms"] == 2.0
        assert ("kind=pii", "recall_unclaimed") not in values
        assert set(lines[0]) == {"bench", "case", "metric", "value", "unit", "peer", "peer_value", "ratio"}

    def test_shows_a_text_on_a_line(self) -> None:
        assert shown("a\u202e\nb") == "a\\u{202e}\\u{a}b"
        assert len(shown("x" * 500)) == 90


class TestCommand:
    def test_prints_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = StringIO()
        call_command("eval_safety", "--json", "--examples", "1", "--seed", "3", stdout=out)
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        assert {line["bench"] for line in lines} == {"eval_safety"}
        assert {line["case"] for line in lines} >= {"kind=secrets", "kind=ban_list,what=base64", "kind=urls"}
        told = capsys.readouterr().err
        assert "do not claim to" in told
        assert "regex: not scored" in told
