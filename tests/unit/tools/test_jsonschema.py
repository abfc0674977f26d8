"""A hand-written schema promises exactly what is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolink.errors import ToolDefinitionError
from protolink.tools.arguments import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, ArgumentsError
from protolink.tools.jsonschema import JsonSchemaArguments


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value is permitted for the argument `x`."""
    arguments = JsonSchemaArguments({"type": "object", "properties": {"x": schema}})
    try:
        return arguments.validate(json.dumps({"x": value})) == {"x": value}
    except ArgumentsError:
        return False


RECURSIVE = {
    "$defs": {"tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}},
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/tree"}},
}


KEYWORDS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "integer"}, [1, 1.0, -3], [True, 1.5, "1", None]),
    ({"type": "number"}, [1, 1.5], [False, "1"]),
    ({"type": "boolean"}, [True], [1, "true"]),
    ({"type": ["string", "null"]}, ["", None], [0, []]),
    ({"enum": ["a", 1, [1]]}, ["a", 1, 1.0, [1]], [True, "1", [True], None]),
    ({"const": {"a": 0}}, [{"a": 0}], [{"a": False}, {}]),
    ({"minLength": 2, "maxLength": 3}, ["ab", "äöü", 7], ["a", "abcd"]),
    ({"pattern": "b+"}, ["abc", 7], ["ac"]),
    ({"minimum": 1, "exclusiveMaximum": 3}, [1, 2.9, "x"], [0.9, 3]),
    ({"exclusiveMinimum": 1, "maximum": 3}, [1.1, 3], [1, 3.1]),
    ({"multipleOf": 0.1}, [0.3, 7, 1e300], [0.35]),
    ({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], ["1"], [1, 2, 3]]),
    ({"prefixItems": [{"type": "integer"}], "items": False}, [[], [1]], [["1"], [1, 2]]),
    ({"uniqueItems": True}, [[1, True, "1"], [[1], [2]]], [[1, 1.0], [{"a": 1}, {"a": 1}]]),
    ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
    ({"required": ["a"]}, [{"a": None}, "no object"], [{}]),
    ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, [{"a": 1, "b": ""}], [{"b": 1}]),
    ({"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
    ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, ["a", 6], [4]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, [4, 5.5], [6, 4.5]),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1], [0, 3]),
    ({"not": {"type": "string"}}, [1], ["a"]),
]


@pytest.mark.parametrize(
    ("schema", "good", "bad"), KEYWORDS, ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else ""
)
def test_each_keyword_means_what_json_schema_says(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    """In JSON a boolean is no number, 1.0 is an integer, and a keyword only speaks about its own type."""
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "array"}, "#/type"),
    ({"type": ["object", "null"]}, "#/type"),
    ({"patternProperties": {}}, "#/patternProperties"),
    ({"properties": {"a/b": {"typo": 1}}}, "#/properties/a~1b/typo"),
    ({"properties": {"a": {"type": "int"}}}, "#/properties/a/type"),
    ({"properties": {"a": 1}}, "#/properties/a"),
    ({"properties": {"a": {"minLength": True}}}, "#/properties/a/minLength"),
    ({"properties": {"a": {"minimum": "1"}}}, "#/properties/a/minimum"),
    ({"properties": {"a": {"multipleOf": 0}}}, "#/properties/a/multipleOf"),
    ({"properties": {"a": {"pattern": "("}}}, "#/properties/a/pattern"),
    ({"properties": {"a": {"pattern": "(?=a)"}}}, "#/properties/a/pattern"),
    ({"properties": {"a": {"enum": []}}}, "#/properties/a/enum"),
    ({"properties": {"a": {"description": 1}}}, "#/properties/a/description"),
    ({"properties": {"a": {"default": {1, 2}}}}, "#/properties/a/default"),
    ({"properties": {"a": {"const": float("nan")}}}, "#/properties/a/const"),
    ({"properties": {"a": {"anyOf": [{}, {"if": {}}]}}}, "#/properties/a/anyOf/1/if"),
    ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "#/properties/a/$ref"),
    ({"properties": {"a": {"$ref": "https://example.org/a"}}}, "#/properties/a/$ref"),
    ({"required": "a"}, "#/required"),
    ({"$defs": {"unused": {"items": 7}}}, "#/$defs/unused/items"),
]


@pytest.mark.parametrize(("schema", "place"), REFUSED)
def test_what_would_not_be_checked_is_refused(schema: dict[str, Any], place: str) -> None:
    """A keyword that is ignored is a promise that nobody keeps; the message says where it is."""
    with pytest.raises(ToolDefinitionError) as caught:
        JsonSchemaArguments(schema)

    assert f"'{place}'" in str(caught.value)


@pytest.mark.parametrize("schema", [None, [], "object", 5, True])
def test_a_schema_is_a_dict(schema: Any) -> None:
    """Anything else is a mistake in the wiring, and is told at once."""
    with pytest.raises(ToolDefinitionError, match="is a dict"):
        JsonSchemaArguments(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}},
    ],
)
def test_a_reference_that_never_ends_is_refused(schema: dict[str, Any]) -> None:
    """Looking at the same value again and again would hang the run."""
    with pytest.raises(ToolDefinitionError, match="refers to itself"):
        JsonSchemaArguments(schema)


def test_a_recursive_schema_follows_the_value() -> None:
    """A tree is the usual reason for a reference, and it ends where the value ends."""
    arguments = JsonSchemaArguments(RECURSIVE)

    assert arguments.validate('{"x": {"kids": [{"kids": []}]}}') == {"x": {"kids": [{"kids": []}]}}
    with pytest.raises(ArgumentsError, match=r"x\.kids\.0\.kids\.0: Input should be an object"):
        arguments.validate('{"x": {"kids": [{"kids": [7]}]}}')


@pytest.mark.parametrize(
    "text",
    [
        '{"x": ' + "[" * 10_000 + "]" * 10_000 + "}",
        '{"kids": [' * 10_000,
        "[]",
        "null",
        "{",
        '{"x": NaN}',
        '{"x": 1e999}',
        '{"x": "\\ud800"}',
        '{"x": "\ud800"}',
    ],
    ids=["deep", "deep objects", "array", "null", "cut", "nan", "infinity", "half a character", "surrogate"],
)
def test_hostile_texts_are_problems_of_the_arguments(text: str) -> None:
    """Whatever a model writes ends as a correction, never as a crash."""
    with pytest.raises(ArgumentsError):
        JsonSchemaArguments(RECURSIVE).validate(text)


@pytest.mark.parametrize("number", ["1e999", "-1e0999", "9" * 400 + ".0", "NaN", "-Infinity"])
def test_numbers_are_finite_where_anything_is_permitted(number: str) -> None:
    """An infinity would be no JSON any more when it is stored."""
    with pytest.raises(ArgumentsError):
        JsonSchemaArguments({}).validate(f'{{"x": [{number}]}}')


def test_alternatives_that_multiply_come_to_an_end() -> None:
    """Small schemas can ask for astronomic work; the work has a bound."""
    node: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}
    arguments = JsonSchemaArguments(
        {"$defs": {"n": {"anyOf": [node, {**node, "title": "again"}]}}, "properties": {"x": {"$ref": "#/$defs/n"}}}
    )

    with pytest.raises(ArgumentsError, match="too complex"):
        arguments.validate('{"x": ' + '{"a": ' * 60 + "1" + "}" * 61)


@pytest.mark.parametrize(
    "schema",
    [
        {"description": "x" * MAX_SCHEMA_BYTES},
        json.loads('{"not": ' * MAX_SCHEMA_DEPTH + "{}" + "}" * MAX_SCHEMA_DEPTH),
    ],
    ids=["long", "deep"],
)
def test_a_schema_is_bounded(schema: dict[str, Any]) -> None:
    """It travels with every request to the model."""
    with pytest.raises(ToolDefinitionError, match=r"allowed|deep"):
        JsonSchemaArguments(schema)


def test_the_schema_is_a_copy() -> None:
    """What was registered is what is shown and checked, whatever happens to the original."""
    original: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
    arguments = JsonSchemaArguments(original)
    original["properties"]["x"]["type"] = "string"

    assert arguments.schema["properties"]["x"] == {"type": "integer"}
    assert arguments.validate('{"x": 1}') == {"x": 1}


def test_problems_do_not_repeat_values() -> None:
    """Corrections are recorded where a value may be private."""
    schema = {"properties": {"x": {"type": "integer", "enum": [1]}}, "additionalProperties": {"pattern": "^a"}}

    with pytest.raises(ArgumentsError) as caught:
        JsonSchemaArguments(schema).validate('{"x": "hunter2", "y": "hunter2", "' + "k" * 1000 + '": "hunter2"}')

    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON))
def test_what_is_permitted_arrives_unchanged(values: dict[str, Any]) -> None:
    """Checking is not converting."""
    assert JsonSchemaArguments({}).validate(json.dumps(values)) == values


@given(JSON)
def test_a_value_equals_itself_and_nothing_is_two_types(value: Any) -> None:
    """`const` and `type` agree with JSON's own idea of a value."""
    names = ["array", "boolean", "null", "number", "object", "string"]

    assert accepts({"const": value}, value)
    assert sum(accepts({"type": name}, value) for name in names) == 1
