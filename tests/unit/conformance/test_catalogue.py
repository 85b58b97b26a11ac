"""The list of cases: whole, unique, within its promises, and printed in docs/ as it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from contracts.jobs import Endpoint
from gateway.surface import schema
from infra.conformance.case import ANSWER_SECONDS, SLOW_SECONDS, Http, Seen, Wire
from infra.conformance.catalogue import GROUPS, KINDS, NoSuchGroup, all_cases, chosen_cases
from infra.conformance.field_table import CHAT, COMPLETIONS, EXTENSIONS, ON_CHAT, ON_COMPLETIONS, Field, wrong_types
from infra.conformance.output import render_list
from infra.conformance.target import parse_base_url

PAGE = Path(__file__).resolve().parents[3] / "docs" / "conformance.md"
BYTES_MAX = 20 * 1024 * 1024
TARGET = parse_base_url("http://127.0.0.1:1/v1", key="k" * 40, other_key=None, model="a-model")


class TestCatalogue:
    def test_has_a_title_of_its_own_for_every_case(self) -> None:
        twice = [title for title, count in Counter(case.title for case in all_cases()).items() if count > 1]
        assert twice == []

    def test_says_of_every_case_what_must_hold_and_where_that_is_written(self) -> None:
        assert [case.title for case in all_cases() if not (case.must and case.source and case.steps)] == []

    def test_holds_both_groups_and_names_no_other(self) -> None:
        assert {kind.group for kind in KINDS} == set(GROUPS)

    def test_sends_nothing_larger_than_promised(self) -> None:
        large = []
        for case in all_cases():
            for step in case.steps:
                if isinstance(step, Wire):
                    size = sum(len(TARGET.fill(part)) for part in step.parts)
                elif isinstance(step, Http):
                    content = step.content if step.document is None else TARGET.document(step.document)
                    size = len(content or b"")
                else:
                    continue
                if size > BYTES_MAX:
                    large.append((case.title, size))
        assert large == []

    def test_waits_for_no_case_longer_than_for_slow_clients(self) -> None:
        """But for the one that reads whole long answers of a model, byte by byte."""
        steps = [(case, step) for case in all_cases() for step in case.steps if isinstance(step, Wire)]
        assert {step.deadline for case, step in steps if case.title == "streams: in pieces"} == {ANSWER_SECONDS}
        assert max(step.deadline for case, step in steps if case.title != "streams: in pieces") == SLOW_SECONDS

    def test_is_printed_in_docs_as_it_is(self) -> None:
        assert PAGE.read_text(encoding="utf-8") == render_list(), "run `manage.py conformance --list --write`"


class TestChoice:
    def test_takes_groups_and_kinds(self) -> None:
        assert {case.group for case in chosen_cases(["odd"])} == {"odd"}
        assert {case.kind for case in chosen_cases(["framing"])} == {"framing"}
        assert len(chosen_cases([])) == len(all_cases())

    def test_refuses_a_name_that_is_none_and_says_which_there_are(self) -> None:
        with pytest.raises(NoSuchGroup, match=r"framing.*openai"):
            chosen_cases(["framing", "no-such-kind"])


class TestFieldTable:
    @pytest.mark.parametrize("field", [*CHAT, *EXTENSIONS, *COMPLETIONS], ids=lambda field: field.name)
    def test_gives_every_field_a_value_of_each_type_that_it_does_not_take(self, field: Field) -> None:
        takes = set(field.takes.split()) | ({"integer"} if field.takes == "number" else set())
        named = {what.removeprefix("of type ") for what, _ in wrong_types(field) if what.startswith("of type ")}
        assert named == {"string", "integer", "number", "boolean", "array", "object"} - takes

    def test_makes_null_wrong_for_required_fields_alone(self) -> None:
        required = {field.name for field in (*CHAT, *COMPLETIONS) if ("null", None) in wrong_types(field)}
        assert required == {"model", "messages", "prompt"}

    @pytest.mark.parametrize(("endpoint", "table"), [(Endpoint.CHAT, ON_CHAT), (Endpoint.COMPLETIONS, ON_COMPLETIONS)])
    def test_holds_every_field_that_our_own_edge_knows(self, endpoint: Endpoint, table: tuple[Field, ...]) -> None:
        known = {*schema._READERS[endpoint], *schema._PASSED[endpoint], *schema._REFUSED}
        ours_alone = {"on_disconnect", "background"}
        of_the_other = {"audio", "functions", "function_call", "prediction", "web_search_options", "metadata"}
        of_the_other |= {"verbosity", "prompt_cache_key", "suffix"}
        missing = known - ours_alone - {field.name for field in table}
        assert missing <= (of_the_other if endpoint is Endpoint.COMPLETIONS else set())


class TestPlaceholders:
    def test_count_the_body_that_follows_the_head(self) -> None:
        filled = TARGET.fill(b"POST <V1>/x HTTP/1.1\r\nHost: <HOST>\r\nContent-Length: <LENGTH>\r\n\r\n<CHAT>")
        head, _, body = filled.partition(b"\r\n\r\n")
        assert head == b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: %d" % len(body)
        assert b'"model":"a-model"' in body

    def test_leave_none_behind_in_any_case(self) -> None:
        left = [
            case.title
            for case in all_cases()
            for step in case.steps
            if isinstance(step, Wire) and any(name in TARGET.fill(b"".join(step.parts)) for name in (b"<V1>", b"<KEY>"))
        ]
        assert left == []

    def test_keep_the_state_of_a_case_out_of_it(self) -> None:
        assert Seen(target=TARGET, replies=()).summary() == "nothing was sent"
