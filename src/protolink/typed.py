"""Answers as values: the schema that the model is asked for, and the check of what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protolink._json import JSONError, dumps, parse
from protolink.errors import ConfigurationError, ToolDefinitionError
from protolink.tools.arguments import ArgumentsError
from protolink.tools.jsonschema import JsonSchemaArguments

__all__ = ["AnswerValidator", "answer_validator", "schema_validator"]

AnswerValidator = Callable[[Any], tuple[Any, Any]]
"""Takes a reply's content; gives the answer as JSON and as a Python value, or raises `ValueError`."""


def answer_validator(response_model: Any) -> tuple[dict[str, Any], AnswerValidator]:
    """The JSON schema of a type, and the strict check of an answer against it.

    Raises `ConfigurationError` for a type that pydantic cannot describe as JSON.
    """
    # Typed answers are the only use of pydantic on this path; an agent without them never loads it.
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

    try:
        adapter = TypeAdapter(response_model)
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ConfigurationError(f"{response_model!r} cannot be described as JSON: {error}") from error

    def validate(content: Any) -> tuple[Any, Any]:
        answer = _as_json(content)
        try:
            value = adapter.validate_json(dumps(answer), strict=True)
        except ValidationError as error:
            raise ValueError(
                "; ".join(
                    f"{'.'.join(str(part) for part in item['loc']) or 'answer'}: {item['msg']}"
                    for item in error.errors(include_url=False, include_context=False, include_input=False)
                )
            ) from None
        return answer, value

    return schema, validate


def schema_validator(schema: Mapping[str, Any]) -> AnswerValidator:
    """The check of an answer against a hand-written JSON schema. Raises `ConfigurationError` for no schema."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    wrapped = {"type": "object", "properties": {"answer": inner}, "required": ["answer"]}
    if "$defs" in schema:
        wrapped["$defs"] = schema["$defs"]
    try:
        arguments = JsonSchemaArguments(wrapped)
    except ToolDefinitionError as error:
        raise ConfigurationError(f"output_schema cannot be used: {error}") from error

    def validate(content: Any) -> tuple[Any, Any]:
        answer = _as_json(content)
        try:
            arguments.validate(dumps({"answer": answer}))
        except ArgumentsError as error:
            raise ValueError(str(error)) from None
        return answer, answer

    return validate


def _as_json(content: Any) -> Any:
    """The JSON that a reply consists of, bare or in one fence."""
    if not isinstance(content, str):
        return content
    text = content.strip()
    if text.startswith("```") and text.endswith("```"):
        _, _, text = text[3:-3].partition("\n")
    try:
        return parse(text.strip())
    except JSONError as error:
        raise ValueError(f"the answer is not JSON: {error.reason}") from None
