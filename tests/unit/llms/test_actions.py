"""The schema of the actions of one turn."""

from __future__ import annotations

from typing import Any

import pytest

from protolink._json import dumps
from protolink.llms import ToolDeclaration
from protolink.llms.actions import action_schema
from protolink.llms.prompt import WorkerDescription
from protolink.tools.arguments import ArgumentsError
from protolink.tools.jsonschema import JsonSchemaArguments


def _tool(name: str, schema: dict[str, Any] | None = None) -> ToolDeclaration:
    empty: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    return ToolDeclaration(name=name, description="", input_schema=schema or empty)


NUMBER = {
    "type": "object",
    "properties": {"value": {"type": "integer"}},
    "required": ["value"],
    "additionalProperties": False,
}
TOOLS = [_tool("double", NUMBER), _tool("now")]
WORKERS = [WorkerDescription("scout", "", True, (_tool("survey"),)), WorkerDescription("clerk", "", False, ())]
DOUBLE = {"type": "tool_call", "tool": "double", "args": {"value": 1}}
NOW: dict[str, Any] = {"type": "tool_call", "tool": "now", "args": {}}
ASK = {"type": "agent_call", "agent": "scout", "action": "infer", "prompt": "Look."}
SURVEY: dict[str, Any] = {
    "type": "agent_call",
    "agent": "scout",
    "action": "tool_call",
    "tool": "survey",
    "args": {},
}
FINAL = {"type": "final", "content": "Two."}


def _fits(schema: dict[str, Any], action: Any) -> bool:
    """Whether an action fits; the schema is put where a tool's argument would be."""
    definitions = schema.get("$defs", {})
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    whole = {"type": "object", "properties": {"action": inner}, "required": ["action"], "$defs": definitions}
    try:
        JsonSchemaArguments(whole).validate(dumps({"action": action}))
    except ArgumentsError:
        return False
    return True


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        ("auto", [DOUBLE, NOW, ASK, SURVEY, FINAL]),
        ("required", [DOUBLE, NOW, ASK, SURVEY]),
        ("none", [FINAL]),
        ("double", [DOUBLE]),
        ("agent_call", [ASK, SURVEY]),
    ],
)
def test_exactly_the_actions_of_the_choice_fit(choice: str, allowed: list[Any]) -> None:
    """A model that is held to the schema cannot say what the turn does not allow."""
    schema = action_schema(TOOLS, WORKERS, choice)

    assert [action for action in (DOUBLE, NOW, ASK, SURVEY, FINAL) if _fits(schema, action)] == allowed


@pytest.mark.parametrize(
    "action",
    [
        {"type": "tool_call", "tool": "triple", "args": {"value": 1}},
        {"type": "tool_call", "tool": "double", "args": {}},
        {"type": "tool_call", "tool": "now", "args": {"value": 1}},
        {**ASK, "agent": "clerk"},
        {**ASK, "agent": "nobody"},
        {**SURVEY, "tool": "double"},
        {"type": "final"},
        "Two.",
    ],
)
def test_what_the_agent_does_not_have_does_not_fit(action: Any) -> None:
    """No tool, worker or argument can be made up; a worker without a model is not asked to infer."""
    assert not _fits(action_schema(TOOLS, WORKERS, "auto"), action)


def test_an_answer_has_its_bound() -> None:
    """A small model that finds no end is given one."""
    schema = action_schema(TOOLS, (), "auto", max_answer_characters=4)

    assert _fits(schema, FINAL)
    assert not _fits(schema, {"type": "final", "content": "Three."})


def test_a_typed_answer_has_its_schema() -> None:
    """The answer of `invoke_typed` is data in the place of the text."""
    schema = action_schema(TOOLS, (), "none", answer=NUMBER, max_answer_characters=1)

    assert _fits(schema, {"type": "final", "content": {"value": 2}})
    assert not _fits(schema, FINAL)


def test_a_schema_that_refers_to_itself_keeps_its_meaning() -> None:
    """Two tools may use the same name for a definition, and a reference to the root means the tool's own."""
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "leaf": {"$ref": "#/$defs/Leaf"}},
        "additionalProperties": False,
        "$defs": {"Leaf": {"type": "integer"}},
    }
    word: dict[str, Any] = {
        "type": "object",
        "properties": {"leaf": {"$ref": "#/$defs/Leaf"}},
        "additionalProperties": False,
        "$defs": {"Leaf": {"type": "string"}},
    }
    schema = action_schema([_tool("tree", tree), _tool("word", word)], (), "auto")

    assert schema["$defs"]["tree"]["properties"]["child"] == {"$ref": "#/$defs/tree"}
    assert schema["$defs"]["tree"]["properties"]["leaf"] == {"$ref": "#/$defs/tree/$defs/Leaf"}
    assert schema["$defs"]["word"]["properties"]["leaf"] == {"$ref": "#/$defs/word/$defs/Leaf"}


def test_what_only_looks_like_a_reference_is_left_alone() -> None:
    """A parameter may be called `$ref`, and a constant may hold the word."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"$ref": {"type": "string"}, "kind": {"const": {"$ref": "#/x"}}, "self": {"$ref": "#"}},
    }

    placed = action_schema([_tool("t", schema)], (), "auto")["$defs"]["t"]

    assert placed["properties"]["$ref"] == {"type": "string"}
    assert placed["properties"]["kind"] == {"const": {"$ref": "#/x"}}
