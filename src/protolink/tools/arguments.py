"""What every check of a call's arguments has in common, whether it was made from a signature or written by hand.

A checker has a JSON schema for the model and answers a text with keyword arguments or an `ArgumentsError`.
The bounds here hold for all of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from protolink._json import JSONError, is_mapping, parse
from protolink.errors import ToolDefinitionError

__all__ = [
    "MAX_PROBLEMS",
    "MAX_SCHEMA_BYTES",
    "MAX_SCHEMA_DEPTH",
    "Arguments",
    "ArgumentsError",
    "Problem",
    "check_schema_size",
    "location",
    "parse_object",
    "require_finite",
]

MAX_SCHEMA_BYTES: Final = 256 * 1024
"""The longest JSON text a schema may have; it is sent to the model with every request."""

MAX_SCHEMA_DEPTH: Final = 64
"""How deeply the objects and arrays of a schema may be nested."""

MAX_PROBLEMS: Final = 20
"""How many problems an `ArgumentsError` lists; a model corrects a few and then gets the next ones."""

_LONGEST_KEY = 64

# Infinity is what a number becomes that is too large for a float, and it is accepted wherever any value is.
_UNUSUAL_NUMBER = re.compile(r"NaN|Infinity|\d[eE]\+?\d{3}|(?<!\d)\d{300}")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the arguments of a call."""

    path: str
    """Where: keys and indices joined by dots, or empty for the arguments as a whole."""

    message: str
    """What, for the model and for people. It does not repeat the value."""


class ArgumentsError(Exception):
    """The arguments of a call do not fit the schema; the callable has not been entered.

    Neither the text nor `problems` repeats the value of an argument. Keys are named, cut to a sane length.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in self.problems))

    def __reduce__(self) -> tuple[type[ArgumentsError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class Arguments(Protocol):
    """What checks the arguments of a call."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object. It is shared: whoever wants to change it takes a copy."""
        ...

    def validate(self, text: str) -> dict[str, Any]:
        """Check a JSON object and give the keyword arguments it stands for.

        Raises `ArgumentsError`, also for a text that is not JSON or not an object.
        """
        ...


def parse_object(text: str) -> Mapping[str, Any]:
    """A JSON object. Raises `ArgumentsError` for any other text."""
    try:
        arguments = parse(text)
    except JSONError as error:
        raise ArgumentsError([Problem("", error.reason)]) from None
    if not is_mapping(arguments):
        raise ArgumentsError([Problem("", "The arguments must be an object")])
    return arguments


def location(keys: Iterable[int | str]) -> str:
    """Where a problem is, as `Problem.path` says it: keys and indices joined by dots, each cut to a sane length."""
    return ".".join(text if len(text := str(key)) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}…" for key in keys)


def check_schema_size(schema: dict[str, Any], subject: str) -> None:
    """Raise `ToolDefinitionError` for a schema that is not JSON, too long or nested too deeply."""
    level: list[Any] = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise ToolDefinitionError(f"{subject}: its JSON schema is nested more than {MAX_SCHEMA_DEPTH} deep")
        level = [inner for outer in level for inner in _containers(outer)]
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"{subject}: its JSON schema is not JSON: {error}") from error
    if len(text) > MAX_SCHEMA_BYTES:
        raise ToolDefinitionError(
            f"{subject}: its JSON schema has {len(text)} bytes and {MAX_SCHEMA_BYTES} are allowed; "
            "take fewer alternatives or shorter descriptions"
        )


def _containers(value: Any) -> list[Any]:
    inner: Iterable[Any] = value.values() if is_mapping(value) else value
    return [item for item in inner if isinstance(item, (dict, list))]


def require_finite(text: str) -> None:
    """Raise `ArgumentsError` when a JSON text holds a number that is not finite, or becomes so."""
    if _UNUSUAL_NUMBER.search(text) is None:
        return

    def refuse(_: str) -> float:
        raise ArgumentsError([Problem("", "Input should hold finite numbers only")])

    def finite(number: str) -> float:
        return value if math.isfinite(value := float(number)) else refuse(number)

    try:
        json.loads(text, parse_constant=refuse, parse_float=finite, parse_int=len)
    except (ValueError, RecursionError):  # not JSON or too deep: the validator says so, with the place
        return
