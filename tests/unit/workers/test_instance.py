"""Instances of clients' schemas, as the simulated engine makes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workers.engines.simulated.dialect import BadRequest, read_call
from workers.engines.simulated.instance import NoInstance, instance_of
from workers.engines.simulated.model import LocalModel
from workers.engines.simulated.toy import write_toy_model

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["name", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


class TestInstanceOf:
    @pytest.mark.parametrize(
        ("schema", "value"),
        [
            ({}, "river"),
            ({"const": {"a": 1}}, {"a": 1}),
            ({"enum": ["x", 2], "type": "integer"}, 2),
            ({"type": ["null", "string"]}, None),
            ({"type": "boolean", "title": "t", "description": "d", "default": False}, True),
            ({"type": "string", "minLength": 7}, "riverri"),
            ({"type": "string", "maxLength": 2}, "ri"),
            ({"type": "integer"}, 1),
            ({"type": "integer", "minimum": 4.5, "multipleOf": 4}, 8),
            ({"type": "integer", "exclusiveMaximum": 0}, -1),
            ({"type": "integer", "exclusiveMinimum": 1, "maximum": 2}, 2),
            ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
            ({"minimum": 3}, 3),
            ({"type": "array", "items": {"type": "null"}, "minItems": 2}, [None, None]),
            ({"items": {"type": "integer"}, "maxItems": 0}, []),
            ({"properties": {"a": {"items": {"enum": ["x"]}}}, "required": ["b"]}, {"a": ["x"], "b": "river"}),
            ({"properties": {"a": True, "b": True}, "required": ["b"], "maxProperties": 1}, {"b": "river"}),
            ({"anyOf": [False, {"type": "integer"}, {"type": "null"}]}, 1),
            ({"type": "object", "properties": {"a": {"type": "null"}}, "oneOf": [{"required": ["a"]}]}, {"a": None}),
            ({"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]}, {"a": 1, "b": 2}),
            ({"definitions": {"a/b": {"const": 7}}, "$ref": "#/definitions/a~1b"}, 7),
        ],
    )
    def test_is_small_and_the_same(self, schema: dict[str, Any], value: Any) -> None:
        assert instance_of(schema) == value
        assert type(instance_of(schema)) is type(value)

    def test_of_a_schema_that_leads_back_to_itself_ends(self) -> None:
        node = instance_of(TREE)
        while node["next"] is not None:
            assert set(node) == {"name", "next"}
            node = node["next"]

    @pytest.mark.parametrize(
        ("schema", "named"),
        [
            ({"type": "string", "pattern": "a+"}, "pattern"),
            ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
            ({"not": {}}, "not"),
            ({"items": [{}]}, "items"),
            ({"type": "number", "multipleOf": 0.1}, "multipleOf"),
            ({"enum": ["a"], "type": "integer"}, "enum"),
            ({"type": "string", "minLength": 3, "maxLength": 2}, "maxLength"),
            ({"type": "array", "minItems": 3, "maxItems": 2}, "maxItems"),
            ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "minimum"),
            ({"type": "object", "minProperties": 1}, "minProperties"),
            ({"minLength": 1, "allOf": [{"minLength": 2}]}, "minLength"),
            ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no end"),
            ({"type": "array", "minItems": 100, "items": {"type": "array", "minItems": 200}}, "too large"),
        ],
    )
    def test_is_refused_by_the_keyword_that_it_cannot_meet(self, schema: dict[str, Any], named: str) -> None:
        with pytest.raises(NoInstance, match=named):
            instance_of(schema)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    return LocalModel.load(write_toy_model(tmp_path_factory.mktemp("toy")))


def said(model: LocalModel, **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": "say: no JSON"}], "max_tokens": 100, **fields}
    call = read_call(body=body, chat=True, model=model, served="m", created=0, bytewise=False)
    return "".join(call.answers[0].pieces)


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


class TestResponseFormat:
    def test_of_text_changes_nothing(self, model: LocalModel) -> None:
        assert said(model, response_format={"type": "text"}) == said(model, response_format=None) == "no JSON"

    def test_of_an_object_gives_one(self, model: LocalModel) -> None:
        assert json.loads(said(model, response_format={"type": "json_object"})) == {"answer": "river"}

    def test_stays_json_where_more_tokens_are_asked_for(self, model: LocalModel) -> None:
        text = said(model, response_format=schema_format({"enum": [[1]]}), min_tokens=50)
        assert (json.loads(text), text.strip() == text) == ([1], False)

    @pytest.mark.parametrize("wanted", [schema_format({"pattern": "a"}), {"type": "json_schema"}, {"type": "xml"}, []])
    def test_that_cannot_be_met_is_refused_by_its_name(self, model: LocalModel, wanted: Any) -> None:
        with pytest.raises(BadRequest) as caught:
            said(model, response_format=wanted)
        assert caught.value.param == "response_format"


class TestTools:
    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
    def test_that_must_be_called_are_refused(self, model: LocalModel, choice: Any) -> None:
        with pytest.raises(BadRequest) as caught:
            said(model, tool_choice=choice)
        assert caught.value.param == "tool_choice"
        assert said(model, tool_choice="auto") == "no JSON"

    def test_that_were_called_are_history_without_content(self, model: LocalModel) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": "say: yes"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "Rhine"}]},
        ]
        assert said(model, messages=turns) == said(model, messages=[turns[0], {**turns[1], "content": None}, turns[2]])
        assert said(model, messages=turns) == "yes"
