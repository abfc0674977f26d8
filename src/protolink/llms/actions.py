"""The JSON schema of exactly the actions that a turn allows, for models whose decoding can be constrained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from protolink._json import is_list, is_mapping
from protolink.llms.choice import AUTO, NONE, REQUIRED
from protolink.llms.port import ToolDeclaration
from protolink.llms.prompt import WorkerDescription

__all__ = ["action_schema"]

Schema = dict[str, Any]

_NAMED: Final = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"})
"""Keywords whose value is schemas by name, so that a name that looks like a keyword is none."""

_DATA: Final = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose value is data and no schema."""


def action_schema(
    tools: Sequence[ToolDeclaration],
    workers: Sequence[WorkerDescription],
    choice: str,
    *,
    answer: Mapping[str, Any] | None = None,
    max_answer_characters: int | None = None,
    max_task_characters: int | None = None,
) -> Schema:
    """A schema that fits the allowed actions and nothing else.

    `choice` is `"auto"`, `"required"`, `"none"`, the name of a tool, or `"agent_call"`. `answer` is the schema of
    a typed answer; without one the answer is a text of at most `max_answer_characters`. What a worker is asked
    has at most `max_task_characters`. A tool's schema that refers to itself or to its definitions is kept whole under
    `$defs`, with its references turned there.
    """
    definitions: Schema = {}
    allowed: list[Schema] = []
    if choice != NONE:
        allowed += [_tool_call(tool, definitions) for tool in tools if choice in (AUTO, REQUIRED, tool.name)]
        if choice in (AUTO, REQUIRED, "agent_call"):
            for worker in workers:
                allowed += _agent_calls(worker, max_task_characters, definitions)
    if choice in (AUTO, NONE):
        allowed.append(_final(answer, max_answer_characters, definitions))
    schema: Schema = dict(allowed[0]) if len(allowed) == 1 else {"anyOf": allowed}
    if definitions:
        schema["$defs"] = definitions
    return schema


def _object(**properties: Schema) -> Schema:
    """An object of exactly these members, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _tool_call(tool: ToolDeclaration, definitions: Schema) -> Schema:
    args = _placed(tool.input_schema, tool.name, definitions)
    return _object(type={"const": "tool_call"}, tool={"const": tool.name}, args=args)


def _agent_calls(worker: WorkerDescription, max_characters: int | None, definitions: Schema) -> list[Schema]:
    agent: Schema = {"const": worker.name}
    calls: list[Schema] = []
    if worker.infers:
        prompt: Schema = {**_text(max_characters), "minLength": 1}
        calls.append(_object(type={"const": "agent_call"}, agent=agent, action={"const": "infer"}, prompt=prompt))
    for tool in worker.tools:
        args = _placed(tool.input_schema, f"{worker.name}.{tool.name}", definitions)
        calls.append(
            _object(
                type={"const": "agent_call"},
                agent=agent,
                action={"const": "tool_call"},
                tool={"const": tool.name},
                args=args,
            )
        )
    return calls


def _text(max_characters: int | None) -> Schema:
    return {"type": "string"} if max_characters is None else {"type": "string", "maxLength": max_characters}


def _final(answer: Mapping[str, Any] | None, max_characters: int | None, definitions: Schema) -> Schema:
    content = _text(max_characters) if answer is None else _placed(answer, "answer", definitions)
    return _object(type={"const": "final"}, content=content)


def _placed(schema: Mapping[str, Any], name: str, definitions: Schema) -> Schema:
    """The schema where it is used; one with references is put aside whole, so that they can be kept."""
    if not _refers(schema):
        return dict(schema)
    pointer = "#/$defs/" + _escaped(name)
    definitions[name] = _turned(schema, pointer)
    return {"$ref": pointer}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _refers(value: Any, *, names: bool = False) -> bool:
    if is_list(value):
        return any(_refers(item) for item in value)
    if not is_mapping(value):
        return False
    if not names and isinstance(value.get("$ref"), str):
        return True
    return any(
        _refers(item, names=not names and key in _NAMED) for key, item in value.items() if names or key not in _DATA
    )


def _turned(value: Any, pointer: str, *, names: bool = False) -> Any:
    """A copy whose references to its own root lead to `pointer`."""
    if is_list(value):
        return [_turned(item, pointer) for item in value]
    if not is_mapping(value):
        return value
    turned: Schema = {}
    for key, item in value.items():
        if names:
            turned[key] = _turned(item, pointer)
        elif key in _DATA:
            turned[key] = item
        elif key == "$ref" and isinstance(item, str) and item.startswith("#"):
            turned[key] = pointer + item[1:]
        else:
            turned[key] = _turned(item, pointer, names=key in _NAMED)
    return turned
