"""The document says what the checks do: compared to their tables, to the conformance suite's, and by values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from contracts.errors import InvalidRequest
from contracts.jobs import Endpoint
from gateway.surface.fields import Check
from gateway.surface.openapi import document
from gateway.surface.schema import fields_of
from infra.conformance.field_table import ON_CHAT, ON_COMPLETIONS, Field, wrong_types

NAMES = {Endpoint.CHAT: "ChatCompletionRequest", Endpoint.COMPLETIONS: "CompletionRequest"}
KNOWN = {Endpoint.CHAT: ON_CHAT, Endpoint.COMPLETIONS: ON_COMPLETIONS}
OWN = {"on_disconnect", "background"}
FIELDS = [(endpoint, field) for endpoint, fields in KNOWN.items() for field in fields]
# Each rule once: those that both endpoints share are the same object.
EVERY = [(Endpoint.CHAT, name) for name in fields_of(Endpoint.CHAT)] + [
    (Endpoint.COMPLETIONS, name)
    for name, check in fields_of(Endpoint.COMPLETIONS).items()
    if fields_of(Endpoint.CHAT).get(name) is not check
]
# What a schema cannot say: that a string is JSON, that another string is a good JSON schema, sums and uniqueness.
BEYOND = {"response_format", "tools", "messages"}
SCHEMAS = document()["components"]["schemas"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 200_000)
    | st.floats(allow_nan=False).filter(lambda real: not real.is_integer())
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def stated(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMAS[NAMES[endpoint]]
    return found


def allows(endpoint: Endpoint, name: str, value: Any) -> bool:
    return bool(Draft202012Validator(stated(endpoint)["properties"][name]).is_valid(value))


def takes(check: Check, value: Any) -> bool:
    try:
        check(value, "field")
    except InvalidRequest:
        return False
    return True


class TestDocument:
    @pytest.mark.parametrize("endpoint", NAMES)
    def test_has_every_field_of_the_tables_and_no_other(self, endpoint: Endpoint) -> None:
        request = stated(endpoint)
        assert set(request["properties"]) == set(fields_of(endpoint))
        assert request["additionalProperties"] is False

    @pytest.mark.parametrize("endpoint", NAMES)
    def test_has_every_field_that_the_conformance_suite_tries(self, endpoint: Endpoint) -> None:
        tried = {field.name for field in KNOWN[endpoint]}
        taken = {name for name, schema in stated(endpoint)["properties"].items() if schema.get("type") != "null"}
        assert taken - tried == OWN
        assert tried - set(stated(endpoint)["properties"]) <= {"include_reasoning"}  # of chats alone

    @pytest.mark.parametrize(("endpoint", "field"), FIELDS, ids=lambda one: getattr(one, "name", one))
    def test_allows_what_is_good_and_no_wrong_type(self, endpoint: Endpoint, field: Field) -> None:
        check = fields_of(endpoint).get(field.name)
        if check is None:
            assert field.name not in stated(endpoint)["properties"]
            return
        for value in field.good:
            assert allows(endpoint, field.name, value) == takes(check, value), value
        for kind, value in wrong_types(field):
            assert not allows(endpoint, field.name, value), kind
        for value in field.bad if field.name not in BEYOND else ():
            assert not takes(check, value) or allows(endpoint, field.name, value), value

    @pytest.mark.parametrize(("endpoint", "name"), EVERY)
    def test_allows_all_that_is_taken(self, endpoint: Endpoint, name: str) -> None:
        check, validator = fields_of(endpoint)[name], Draft202012Validator(stated(endpoint)["properties"][name])

        @settings(max_examples=30)
        @given(JSON)
        def holds(value: Any) -> None:
            taken = value is not None and takes(check, value)
            assert not taken or validator.is_valid(value)
            if name not in BEYOND and value is not None:
                assert validator.is_valid(value) == taken

        holds()

    def test_says_why_a_field_is_refused(self) -> None:
        assert stated(Endpoint.CHAT)["properties"]["functions"] == {
            "type": "null",
            "description": "Not accepted: use tools.",
            "deprecated": True,
        }
