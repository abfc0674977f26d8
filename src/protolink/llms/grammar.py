"""A schema as llama.cpp can make a grammar of it. What is left out here is validated all the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from protolink._json import is_list, is_mapping

__all__ = ["grammar_schema"]

Schema = dict[str, Any]

LONGEST_REPETITION: Final = 1_000
"""Beyond this the engine refuses the whole grammar."""

_LARGEST_NUMBER: Final = 2**53

_NAMED: Final = frozenset({"$defs", "definitions", "properties"})
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
_LENGTHS: Final = frozenset({"maxItems", "minItems", "minLength", "maxLength"})
_BOUNDS: Final = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"})

# Literals, classes in brackets, groups without options, and small repetitions: what the engine's own converter reads.
# Not `|`, for in `^a|b$` the ends belong to one alternative each, which the converter does not see.
_PLAIN_PATTERN: Final = re.compile(r"\^(?:[^\\{}?|]|\\[.\-/]|\?(?!:|=|!|<|i)|\{\d{1,3}(?:,\d{0,3})?\})*\$", re.DOTALL)


def grammar_schema(schema: Mapping[str, Any]) -> Schema:
    """A copy without what the engine refuses, or would complain of on the terminal: it allows more, never less."""
    return {key: _item(key, value) for key, value in schema.items() if _is_understood(key, value)}


def _is_understood(key: str, value: Any) -> bool:
    if key == "pattern":
        return isinstance(value, str) and _PLAIN_PATTERN.fullmatch(value) is not None
    if key in _LENGTHS:
        return isinstance(value, int) and value <= LONGEST_REPETITION
    if key in _BOUNDS:
        return isinstance(value, int | float) and abs(value) <= _LARGEST_NUMBER
    return True


def _item(key: str, value: Any) -> Any:
    if key in _DATA:
        return value
    if key in _NAMED and is_mapping(value):
        return {name: _schema(inner) for name, inner in value.items()}
    if is_list(value):
        return [_schema(inner) for inner in value]
    return _schema(value) if is_mapping(value) else value


def _schema(value: Any) -> Any:
    if value is True:
        return {}
    return grammar_schema(value) if is_mapping(value) else value
