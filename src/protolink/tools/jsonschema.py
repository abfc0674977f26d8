"""Checks arguments against a JSON schema that somebody wrote by hand or that came from a server.

A part of the 2020-12 vocabulary is understood, and everything else is refused while the tool is registered:
a keyword that is ignored would be a promise to the model that nobody keeps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeGuard
from urllib.parse import unquote

from protolink._json import is_list
from protolink.errors import ToolDefinitionError
from protolink.tools.arguments import (
    MAX_PROBLEMS,
    MAX_SCHEMA_DEPTH,
    ArgumentsError,
    Problem,
    check_schema_size,
    location,
    require_finite,
)

__all__ = ["JsonSchemaArguments"]

_ANNOTATIONS = frozenset(
    {
        "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "default", "definitions",
        "deprecated", "description", "examples", "format", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_A = {"array": "an array", "integer": "an integer", "object": "an object", "null": "null"}

# A schema can ask for more work than its size suggests: alternatives within alternatives multiply. So the
# steps are counted, and there are always enough for a schema that looks at each value a few times.
_STEPS = 100_000
_STEPS_PER_CHARACTER = 50


class JsonSchemaArguments:
    """Checks the arguments of a call against a JSON schema.

    Understood are `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `minProperties`,
    `maxProperties`, `items`, `prefixItems`, `minItems`, `maxItems`, `uniqueItems`, `minLength`, `maxLength`,
    `pattern`, `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`, `anyOf`, `oneOf`,
    `allOf`, `not`, and `$ref` to `#`, `#/$defs/...` or `#/definitions/...`. Annotations such as `description`
    are kept for the model; `format` and `default` are among them, so neither is checked or filled in.

    Patterns are evaluated in linear time by the engine that pydantic uses, which knows neither look-around nor
    back-references. The schema is copied; later changes to the original have no effect.

    Raises `ToolDefinitionError` that names the place, as a JSON pointer, for anything else.
    """

    __slots__ = ("_check", "_schema")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        copied = _copied(schema, "#", 1)
        if not _is_object(copied):
            raise ToolDefinitionError(f"an input schema is a dict, not {type(schema).__name__!r}")
        if copied.setdefault("type", "object") != "object":
            raise ToolDefinitionError("input schema, at '#/type': the arguments of a call are an object; use 'object'")
        check_schema_size(copied, "input schema")
        self._schema = copied
        self._check = _Compiler(copied).compiled()

    def __repr__(self) -> str:
        return f"<arguments: {', '.join(self._schema.get('properties', {}))}>"

    @property
    def schema(self) -> dict[str, Any]:
        """The schema as it was given. It is shared: whoever wants to change it takes a copy."""
        return self._schema

    def validate(self, text: str) -> dict[str, Any]:
        """Check a JSON object and give its members as they are; `1.0` is an integer and stays a float.

        Raises `ArgumentsError`.
        """
        from pydantic_core import from_json

        require_finite(text)
        try:
            # It refuses what is nested more than 200 deep, so the checks below are not deeper either. A text that
            # UTF-8 cannot carry would be a TypeError for it, so it is encoded here.
            values = from_json(text.encode(), allow_inf_nan=False, cache_strings="keys")
        except ValueError:
            problem = "Input should be valid JSON, with finite numbers and not nested more than 200 deep"
            raise ArgumentsError([Problem("", problem)]) from None
        if not _is_object(values):
            raise ArgumentsError([Problem("", "Input should be an object")])
        check = _Check(_STEPS + _STEPS_PER_CHARACTER * len(text))
        try:
            self._check(values, (), check)
        except (_TooMuchWorkError, RecursionError):
            check.problems = [Problem("", "Input is too complex to be checked against the schema")]
        if check.problems:
            shown = check.problems[:MAX_PROBLEMS]
            if more := len(check.problems) - len(shown):
                shown.append(Problem("", f"and {more} more"))
            raise ArgumentsError(shown)
        return values


class _TooMuchWorkError(Exception):
    """The steps of a check are used up."""


_Path = tuple["str | int", ...]


class _Check:
    """The progress of one check."""

    __slots__ = ("problems", "steps")

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.problems: list[Problem] = []

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise _TooMuchWorkError

    def wrong(self, path: _Path, message: str) -> None:
        self.problems.append(Problem(location(path), message))

    def passes(self, rule: _Rule, value: Any) -> bool:
        """Try a rule without reporting what is wrong."""
        kept, self.problems = self.problems, []
        rule(value, (), self)
        passed, self.problems = not self.problems, kept
        return passed


_Rule = Callable[[Any, _Path, _Check], None]


def _copied(value: Any, at: str, depth: int) -> Any:
    """A deep copy that holds nothing but JSON."""
    if depth > MAX_SCHEMA_DEPTH + 1:
        raise ToolDefinitionError(f"input schema: it is nested more than {MAX_SCHEMA_DEPTH} deep")
    if _is_mapping(value):
        for key in value:
            if not isinstance(key, str):
                raise ToolDefinitionError(f"input schema, at {at!r}: {type(key).__name__} is no key in JSON; use texts")
        return {key: _copied(inner, f"{at}/{_escaped(key)}", depth + 1) for key, inner in value.items()}
    if is_list(value) or _is_tuple(value):
        return [_copied(inner, f"{at}/{index}", depth + 1) for index, inner in enumerate(value)]
    if value is None or isinstance(value, (bool, str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ToolDefinitionError(f"input schema, at {at!r}: JSON cannot carry a {type(value).__name__} here")


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _is_tuple(value: Any) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _has_type(value: Any, name: str) -> bool:
    match name:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            return _is_number(value) and (isinstance(value, int) or value.is_integer())
        case _:
            return _is_number(value)


def _identity(value: Any) -> Any:
    """A hashable stand-in: equal for what JSON calls equal, where 1 is 1.0 and not true."""
    if _is_object(value):
        return "object", frozenset((key, _identity(inner)) for key, inner in value.items())
    if is_list(value):
        return "array", tuple(map(_identity, value))
    return "boolean" if isinstance(value, bool) else "", value


class _Compiler:
    """Turns a schema into the rules that check a value, once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._targets: dict[str, _Rule] = {}
        self._same_value: dict[str, list[str]] = {}
        """From each place to those that look at the same value: a loop there would never come to an end."""

    def compiled(self) -> _Rule:
        for container in ("$defs", "definitions"):
            definitions = self._root.get(container, {})
            if not _is_object(definitions):
                raise _refusal(f"#/{container}", "it holds schemas by name")
            for name in definitions:
                self._target(f"#/{container}/{_escaped(name)}")
        rule = self._target("#")
        self._refuse_loops()
        return rule

    def _target(self, at: str) -> _Rule:
        """The rule of a place that is referred to. It may be in the making, so it is looked up when used."""
        if at not in self._targets:
            self._targets[at] = _nothing
            self._targets[at] = self._rule(self._found(at), at)
        return self._targets[at]

    def _found(self, at: str) -> Any:
        return self._root if at == "#" else self._root[at.split("/")[1]][_unescaped(at.split("/", 2)[2])]

    def _rule(self, schema: Any, at: str) -> _Rule:
        if schema is True:
            return _nothing
        if schema is False:
            return _never
        if not _is_object(schema):
            raise _refusal(at, "a schema is an object or a boolean")
        rules: list[_Rule] = []
        for keyword, value in schema.items():
            if keyword in _ANNOTATIONS:
                _check_annotation(keyword, value, at)
                if keyword in ("$defs", "definitions") and at != "#":
                    raise _refusal(f"{at}/{keyword}", "definitions belong to the top of the schema")
                continue
            make = _KEYWORDS.get(keyword)
            if make is None:
                raise _refusal(f"{at}/{_escaped(keyword)}", "this keyword is not supported; remove or rephrase it")
            rule = make(self, value, f"{at}/{_escaped(keyword)}", schema)
            if rule is not None:
                rules.append(rule)
        return _all(tuple(rules))

    def inner(self, schema: Any, at: str) -> _Rule:
        """The rule of a schema for a part of the value."""
        return self._rule(schema, at)

    def alternative(self, schema: Any, at: str, keyword_at: str) -> _Rule:
        """The rule of a schema for the same value."""
        self._same_value.setdefault(_parent(keyword_at), []).append(at)
        return self._rule(schema, at)

    def reference(self, value: Any, at: str) -> _Rule:
        target = self._resolved(value, at)
        self._same_value.setdefault(_parent(at), []).append(target)
        self._target(target)
        targets = self._targets

        def rule(value: Any, path: _Path, check: _Check) -> None:
            targets[target](value, path, check)

        return rule

    def _resolved(self, value: Any, at: str) -> str:
        if not isinstance(value, str):
            raise _refusal(at, "a reference is a text")
        if value in ("#", "#/"):
            return "#"
        match = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", unquote(value))
        if match is None:
            raise _refusal(at, "only references to '#', '#/$defs/...' and '#/definitions/...' can be followed")
        definitions = self._root.get(match[1])
        name = _unescaped(match[2])
        if not _is_object(definitions) or name not in definitions:
            raise _refusal(at, "there is no such definition")
        return f"#/{match[1]}/{_escaped(name)}"

    def _refuse_loops(self) -> None:
        finished: set[str] = set()
        for start in list(self._same_value):
            trail: dict[str, None] = {}
            todo: list[tuple[str, bool]] = [(start, False)]
            while todo:
                at, leaving = todo.pop()
                if leaving:
                    trail.pop(at)
                    finished.add(at)
                elif at in trail:
                    raise _refusal(at, "it refers to itself for the same value, which never ends")
                elif at not in finished:
                    trail[at] = None
                    todo.append((at, True))
                    todo.extend((other, False) for other in self._same_value.get(at, ()))


def _parent(at: str) -> str:
    return at.rpartition("/")[0]


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")


def _refusal(at: str, reason: str) -> ToolDefinitionError:
    return ToolDefinitionError(f"input schema, at {at!r}: {reason}")


def _check_annotation(keyword: str, value: Any, at: str) -> None:
    if keyword in ("deprecated", "readOnly", "writeOnly"):
        fits, wanted = isinstance(value, bool), "a boolean"
    elif keyword == "examples":
        fits, wanted = isinstance(value, list), "an array"
    elif keyword in ("$defs", "definitions"):
        fits, wanted = isinstance(value, dict), "an object"
    elif keyword == "default":
        fits, wanted = True, ""
    else:
        fits, wanted = isinstance(value, str), "a text"
    if not fits:
        raise _refusal(f"{at}/{_escaped(keyword)}", f"it is {wanted}")


def _nothing(value: Any, path: _Path, check: _Check) -> None:
    """Every value is fine."""


def _never(value: Any, path: _Path, check: _Check) -> None:
    check.wrong(path, "No value is permitted here")


def _all(rules: tuple[_Rule, ...]) -> _Rule:
    def rule(value: Any, path: _Path, check: _Check) -> None:
        check.step()
        for each in rules:
            each(value, path, check)

    return rule


def _type(compiler: _Compiler, names: Any, at: str, schema: dict[str, Any]) -> _Rule:
    allowed: list[Any] = names if is_list(names) else [names]
    if not allowed or any(name not in _TYPES for name in allowed):
        raise _refusal(at, f"it is one of {', '.join(_TYPES)}, or an array of them")
    wanted = " or ".join(_A.get(name, f"a {name}") for name in allowed)

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if not any(_has_type(value, name) for name in allowed):
            check.wrong(path, f"Input should be {wanted}")

    return rule


def _enum(compiler: _Compiler, values: Any, at: str, schema: dict[str, Any]) -> _Rule:
    if not is_list(values) or not values:
        raise _refusal(at, "it is an array with at least one value")
    allowed = frozenset(map(_identity, values))

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if _identity(value) not in allowed:
            check.wrong(path, "Input should be one of the values that the schema lists")

    return rule


def _const(compiler: _Compiler, constant: Any, at: str, schema: dict[str, Any]) -> _Rule:
    allowed = _identity(constant)

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if _identity(value) != allowed:
            check.wrong(path, "Input should be the value that the schema fixes")

    return rule


def _properties(compiler: _Compiler, properties: Any, at: str, schema: dict[str, Any]) -> _Rule:
    if not _is_object(properties):
        raise _refusal(at, "it holds schemas by name")
    rules = {name: compiler.inner(inner, f"{at}/{_escaped(name)}") for name, inner in properties.items()}

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if _is_object(value):
            for name, inner in value.items():
                if name in rules:
                    rules[name](inner, (*path, name), check)

    return rule


def _required(compiler: _Compiler, names: Any, at: str, schema: dict[str, Any]) -> _Rule:
    if not is_list(names) or not all(isinstance(name, str) for name in names):
        raise _refusal(at, "it is an array of property names")

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if _is_object(value):
            for name in names:
                if name not in value:
                    check.wrong((*path, name), "Field required")

    return rule


def _additional(compiler: _Compiler, allowed: Any, at: str, schema: dict[str, Any]) -> _Rule:
    declared = schema.get("properties", {})
    inner = compiler.inner(allowed, at)

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if not _is_object(value):
            return
        for name, member in value.items():
            if name in declared:
                continue
            if allowed is False:
                check.wrong((*path, name), "Extra inputs are not permitted")
            else:
                inner(member, (*path, name), check)

    return rule


def _items(compiler: _Compiler, items: Any, at: str, schema: dict[str, Any]) -> _Rule:
    prefix = schema.get("prefixItems", [])
    skipped = len(prefix) if is_list(prefix) else 0
    inner = compiler.inner(items, at)

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if is_list(value):
            for index in range(skipped, len(value)):
                inner(value[index], (*path, index), check)

    return rule


def _prefix_items(compiler: _Compiler, prefix: Any, at: str, schema: dict[str, Any]) -> _Rule:
    if not is_list(prefix) or not prefix:
        raise _refusal(at, "it is an array with at least one schema")
    rules = [compiler.inner(inner, f"{at}/{index}") for index, inner in enumerate(prefix)]

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if is_list(value):
            for index, (each, item) in enumerate(zip(rules, value, strict=False)):
                each(item, (*path, index), check)

    return rule


def _unique_items(compiler: _Compiler, unique: Any, at: str, schema: dict[str, Any]) -> _Rule:
    if not isinstance(unique, bool):
        raise _refusal(at, "it is a boolean")

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if unique and is_list(value) and len(set(map(_identity, value))) < len(value):
            check.wrong(path, "Items should be different from each other")

    return rule


def _size(kind: type, fits: Callable[[int, int], bool], message: str) -> _Maker:
    def make(compiler: _Compiler, limit: Any, at: str, schema: dict[str, Any]) -> _Rule:
        if not _has_type(limit, "integer") or limit < 0:
            raise _refusal(at, "it is an integer that is not negative")
        text = message.format(int(limit))

        def rule(value: Any, path: _Path, check: _Check) -> None:
            if isinstance(value, kind) and not fits(len(value), limit):  # type: ignore[arg-type]
                check.wrong(path, text)

        return rule

    return make


def _bound(fits: Callable[[float, float], bool], message: str) -> _Maker:
    def make(compiler: _Compiler, limit: Any, at: str, schema: dict[str, Any]) -> _Rule:
        if not _is_number(limit):
            raise _refusal(at, "it is a number")
        text = message.format(limit)

        def rule(value: Any, path: _Path, check: _Check) -> None:
            if _is_number(value) and not fits(value, limit):
                check.wrong(path, text)

        return rule

    return make


def _multiple_of(compiler: _Compiler, step: Any, at: str, schema: dict[str, Any]) -> _Rule:
    if not _is_number(step) or step <= 0:
        raise _refusal(at, "it is a number above 0")
    exact = Fraction(repr(step))

    def rule(value: Any, path: _Path, check: _Check) -> None:
        # What counts is the decimal number that was written: 0.3 is a multiple of 0.1.
        if _is_number(value) and Fraction(repr(value)) % exact != 0:
            check.wrong(path, f"Input should be a multiple of {step}")

    return rule


def _pattern(compiler: _Compiler, pattern: Any, at: str, schema: dict[str, Any]) -> _Rule:
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    if not isinstance(pattern, str):
        raise _refusal(at, "it is a regular expression")
    try:
        matches = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError as error:
        raise _refusal(at, "this regular expression cannot be evaluated in linear time, or is wrong") from error

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if isinstance(value, str) and not matches(value):
            check.wrong(path, f"String should match pattern '{pattern}'")

    return rule


def _alternatives(compiler: _Compiler, schemas: Any, at: str) -> list[_Rule]:
    if not is_list(schemas) or not schemas:
        raise _refusal(at, "it is an array with at least one schema")
    return [compiler.alternative(inner, f"{at}/{index}", at) for index, inner in enumerate(schemas)]


def _any_of(compiler: _Compiler, schemas: Any, at: str, schema: dict[str, Any]) -> _Rule:
    rules = _alternatives(compiler, schemas, at)

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if not any(check.passes(each, value) for each in rules):
            check.wrong(path, "Input should fit one of the alternatives in the schema")

    return rule


def _one_of(compiler: _Compiler, schemas: Any, at: str, schema: dict[str, Any]) -> _Rule:
    rules = _alternatives(compiler, schemas, at)

    def rule(value: Any, path: _Path, check: _Check) -> None:
        fitting = sum(check.passes(each, value) for each in rules)
        if fitting != 1:
            check.wrong(path, f"Input should fit exactly one of the alternatives in the schema, and fits {fitting}")

    return rule


def _all_of(compiler: _Compiler, schemas: Any, at: str, schema: dict[str, Any]) -> _Rule:
    return _all(tuple(_alternatives(compiler, schemas, at)))


def _not(compiler: _Compiler, excluded: Any, at: str, schema: dict[str, Any]) -> _Rule:
    inner = compiler.alternative(excluded, at, at)

    def rule(value: Any, path: _Path, check: _Check) -> None:
        if check.passes(inner, value):
            check.wrong(path, "Input should not fit what the schema excludes")

    return rule


def _ref(compiler: _Compiler, target: Any, at: str, schema: dict[str, Any]) -> _Rule:
    return compiler.reference(target, at)


_Maker = Callable[[_Compiler, Any, str, dict[str, Any]], _Rule]


def _at_least(actual: float, limit: float) -> bool:
    return actual >= limit


def _at_most(actual: float, limit: float) -> bool:
    return actual <= limit


def _above(actual: float, limit: float) -> bool:
    return actual > limit


def _below(actual: float, limit: float) -> bool:
    return actual < limit


_KEYWORDS: dict[str, _Maker] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "minProperties": _size(dict, _at_least, "Object should have at least {} members"),
    "maxProperties": _size(dict, _at_most, "Object should have at most {} members"),
    "items": _items,
    "prefixItems": _prefix_items,
    "uniqueItems": _unique_items,
    "minItems": _size(list, _at_least, "Array should have at least {} items"),
    "maxItems": _size(list, _at_most, "Array should have at most {} items"),
    "minLength": _size(str, _at_least, "String should have at least {} characters"),
    "maxLength": _size(str, _at_most, "String should have at most {} characters"),
    "pattern": _pattern,
    "minimum": _bound(_at_least, "Input should be greater than or equal to {}"),
    "maximum": _bound(_at_most, "Input should be less than or equal to {}"),
    "exclusiveMinimum": _bound(_above, "Input should be greater than {}"),
    "exclusiveMaximum": _bound(_below, "Input should be less than {}"),
    "multipleOf": _multiple_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "not": _not,
    "$ref": _ref,
}
