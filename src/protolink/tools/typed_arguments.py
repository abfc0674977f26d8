"""Arguments and results described by types: their JSON schemas, and the strict check of a call.

The types are pydantic's to understand. What pydantic calls strict leaves a few gaps for a tool, and what it
says about a wrong value quotes the value; both are mended here.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import functools
import inspect
import json
import operator
import re
import sys
import types
import typing
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard, cast

from protolink._json import is_list, is_mapping
from protolink._record import command
from protolink.errors import ToolDefinitionError
from protolink.tools.arguments import (
    MAX_PROBLEMS,
    ArgumentsError,
    Problem,
    check_schema_size,
    location,
    require_finite,
)
from protolink.tools.surface import Parameter, is_mutable, typed_dict_members

# Importing pydantic takes longer than importing everything else here, and a program that only reads
# records or serves pages never needs it. So the functions below that do need it import it themselves.
if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema, SchemaValidator

__all__ = ["ResultSchema", "TypedArguments"]

_MOST_LEAVES = 1000
_MAX_DETAILS = 10_000
"""Of how many problems pydantic is asked what they are: it says all or none, and takes hundreds of bytes for each."""

_MOST_PLAIN_PARAMETERS = 100
_LONGEST_PLAIN_DESCRIPTIONS = 32 * 1024
_DEEPEST_PLAIN_TYPE = 8
_PLAIN_TYPES = frozenset(
    {
        Any, object, None, types.NoneType, str, int, float, bool, list, dict,
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID,
    }
)  # fmt: skip


class TypedArguments:
    """Checks arguments against the annotations of a signature."""

    __slots__ = ("_built", "_extras", "_label", "_parameters", "_taken")

    def __init__(
        self, label: str, parameters: tuple[Parameter, ...], extras: Parameter | None, taken: frozenset[str]
    ) -> None:
        self._label = label
        self._parameters = parameters
        self._extras = extras
        self._taken = taken
        self._built: _Built | None = None

    def __repr__(self) -> str:
        return f"<arguments of {self._label}: {', '.join(p.name for p in self._parameters)}>"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object. It is shared: whoever wants to change it takes a copy."""
        return (self._built or self.build()).schema

    def validate(self, text: str) -> dict[str, Any]:
        """Check a JSON object strictly and give the keyword arguments it stands for.

        Keys that were not given are not in the result, so that the callable's own defaults apply, except for
        mutable defaults, which are copied, and for those of a pydantic `Field`.

        Raises `ArgumentsError`. Whatever else a validator of an annotated type raises passes through.
        """
        built = self._built or self.build()
        require_finite(text)
        try:
            values: dict[str, Any] = built.check(text, strict=True)
        except ValueError as error:
            problems = _problems(error)
        else:
            for name, fresh in built.defaults:
                if name not in values:
                    values[name] = fresh(values)
            if self._extras is not None and not self._taken.isdisjoint(values):
                problems = [
                    Problem(name, "This argument is set already and cannot be given")
                    for name in sorted(self._taken.intersection(values))
                ]
            else:
                return values
        # Raised outside of the handler: pydantic's error holds the values, and would be kept as the context.
        raise ArgumentsError(problems)

    def cannot_fail(self) -> bool:
        """Whether building may wait for the first use, because all the types are known to work."""
        everything = (*self._parameters, self._extras) if self._extras else self._parameters
        return (
            len(everything) <= _MOST_PLAIN_PARAMETERS
            and all(_is_plain(p.annotation) and _is_plain_default(p.default) for p in everything)
            and sum(len(p.description or "") for p in everything) <= _LONGEST_PLAIN_DESCRIPTIONS
        )

    def build(self) -> _Built:
        """Make the validator and the schema. Two threads may do so at once: they make the same.

        Raises `ToolDefinitionError` for a type that JSON cannot carry, unless the types `cannot_fail`.
        """
        self._built = built = _build(self._label, self._parameters, self._extras)
        return built


class ResultSchema:
    """The schema of a result, made when somebody asks for it."""

    __slots__ = ("_annotation", "_schema")

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self._schema: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema, or None when nothing was annotated or JSON cannot express it."""
        annotation = self._annotation
        if annotation is not inspect.Parameter.empty:
            self._schema = _output_schema(annotation)
            self._annotation = inspect.Parameter.empty
        return self._schema


def _is_plain(hint: Any, depth: int = 0) -> bool:
    """Whether pydantic is known to accept a type and to make a small schema of it."""
    if depth > _DEEPEST_PLAIN_TYPE:
        return False
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return not is_mutable(hint) and hint in _PLAIN_TYPES
    if origin is Annotated:
        return all(isinstance(note, str) for note in hint.__metadata__) and _is_plain(hint.__origin__, depth + 1)
    if origin is typing.Literal:
        return len(inside) <= _MOST_PLAIN_PARAMETERS and all(_is_plain_value(v) for v in inside)
    if origin is dict:
        return inside[0] is str and _is_plain(inside[1], depth + 1)
    if origin in (list, typing.Union, types.UnionType):
        return all(_is_plain(inner, depth + 1) for inner in inside)
    return False


def _is_plain_default(value: object) -> bool:
    return _is_plain_value(value) or (type(value) in (list, dict) and not value)


def _is_plain_value(value: object) -> bool:
    if value is None or value is inspect.Parameter.empty or type(value) in (bool, int, float):
        return True
    return type(value) is str and len(value) <= 1024


@command
class _Built:
    """What a call needs, and nothing of what was needed to make it."""

    check: Callable[..., dict[str, Any]]
    schema: dict[str, Any]
    defaults: tuple[tuple[str, Callable[[dict[str, Any]], Any]], ...]
    """What fills in a missing argument whose default the callable itself would share or does not have."""


def _build(label: str, parameters: tuple[Parameter, ...], extras: Parameter | None) -> _Built:
    fields = [_field(parameter, label) for parameter in parameters]
    _require_distinct_keys(fields, extras, label)
    validator, schema = _compile(fields, extras, label)
    properties: dict[str, Any] = schema.get("properties", {})
    for each in fields:
        if each.shown is not inspect.Parameter.empty:
            properties[each.key]["default"] = each.shown
    whole: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": schema.get("additionalProperties", False),
    }
    if "$defs" in schema:
        whole["$defs"] = schema["$defs"]
    check_schema_size(whole, label)
    fresh = tuple((each.name, each.fresh) for each in fields if each.fresh is not None)
    return _Built(validator.validate_json, whole, fresh)


@command
class _Field:
    """A parameter in pydantic's terms."""

    name: str
    key: str
    annotation: Any
    required: bool
    shown: Any
    fresh: Callable[[dict[str, Any]], Any] | None


def _field(parameter: Parameter, label: str) -> _Field:
    """Sort out what the annotation, a `Field` as the default and the docstring say about a parameter."""
    from pydantic import AliasChoices, AliasPath, Field
    from pydantic.fields import FieldInfo
    from pydantic_core import PydanticUndefined

    base, notes = parameter.annotation, list[Any]()
    if typing.get_origin(base) is Annotated:
        base, notes = base.__origin__, list(base.__metadata__)
    default, required = parameter.default, parameter.required
    if isinstance(default, FieldInfo):
        notes.append(default)
        default, required = inspect.Parameter.empty, True
    key, described, factory = parameter.name, False, None
    kept: list[Any] = []
    for note in notes:
        if not isinstance(note, FieldInfo):
            kept.append(note)
            continue
        # Alias and default are this module's to apply: outside of a model pydantic would warn and ignore them.
        alias = note.validation_alias if note.validation_alias is not None else note.alias
        if isinstance(alias, (AliasChoices, AliasPath)):
            raise ToolDefinitionError(
                f"{label}: parameter {parameter.name!r} has several aliases, and a schema has one name; keep one"
            )
        key = alias or key
        described = described or note.description is not None
        if required and note.default_factory is not None:
            factory = note.default_factory
        elif required and note.default is not PydanticUndefined and note.default is not ...:
            default = note.default
        kept.extend(note.metadata)
        kept.append(
            Field(
                title=note.title,
                description=note.description,
                examples=note.examples,
                discriminator=note.discriminator,
                deprecated=note.deprecated,
                json_schema_extra=note.json_schema_extra,
            )
        )
    if not described:
        texts = (note if isinstance(note, str) else getattr(note, "documentation", None) for note in notes)
        description = next((text for text in texts if isinstance(text, str)), None) or parameter.description
        if description:
            kept.append(Field(description=inspect.cleandoc(description)))
    fills = factory is not None or default is not parameter.default or is_mutable(default)
    return _Field(
        name=parameter.name,
        key=key,
        annotation=cast("Any", Annotated)[(base, *kept)] if kept else base,
        required=required and factory is None and default is inspect.Parameter.empty,
        shown=inspect.Parameter.empty if factory is not None else _as_json(default),
        fresh=_filler(factory, default) if fills and (factory or default is not inspect.Parameter.empty) else None,
    )


def _filler(factory: Any, default: Any) -> Callable[[dict[str, Any]], Any]:
    if factory is None:
        return lambda values: copy.deepcopy(default) if is_mutable(default) else default
    takes_values = bool(inspect.signature(factory).parameters) if not isinstance(factory, type) else False
    return (lambda values: factory(dict(values))) if takes_values else (lambda values: factory())


def _as_json(default: Any) -> Any:
    """A default as the schema shows it, or `inspect.Parameter.empty` for one that JSON cannot carry."""
    from pydantic_core import to_jsonable_python

    if default is inspect.Parameter.empty:
        return default
    try:
        shown = to_jsonable_python(default, bytes_mode="base64", inf_nan_mode="constants", serialize_unknown=False)
        json.dumps(shown, allow_nan=False)
    except Exception:  # what the default's type makes of itself is not ours; the schema does without
        return inspect.Parameter.empty
    return shown


def _require_distinct_keys(fields: list[_Field], extras: Parameter | None, label: str) -> None:
    seen: set[str] = set()
    for each in fields:
        if each.key in seen or (each.key != each.name and extras is not None):
            raise ToolDefinitionError(
                f"{label}: the alias {each.key!r} of parameter {each.name!r} can be mistaken for another argument; "
                "use the parameter's own name"
            )
        seen.add(each.key)


def _compile(fields: list[_Field], extras: Parameter | None, label: str) -> tuple[SchemaValidator, dict[str, Any]]:
    try:
        return _compiled(fields, extras)
    except Exception as error:  # pydantic's errors, and those of the types' own hooks
        _blame(fields, extras, label)
        raise ToolDefinitionError(
            f"{label}: its parameters cannot be described together: {_first_line(error)}"
        ) from error


def _blame(fields: list[_Field], extras: Parameter | None, label: str) -> None:
    """Say which parameter it is that cannot be described."""
    alone: list[tuple[str, list[_Field], Parameter | None]] = [(f"{each.name!r}", [each], None) for each in fields]
    if extras is not None:
        alone.append((f"'**{extras.name}'", [], extras))
    for name, only, rest in alone:
        try:
            _compiled(only, rest)
        except Exception as error:  # as above
            raise ToolDefinitionError(
                f"{label}: parameter {name} has a type that JSON cannot carry: {_first_line(error)}; use plain types, "
                "a dataclass, a TypedDict or a pydantic model, or bind the argument with functools.partial"
            ) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, _UnsupportedError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{lines[0]} ({type(error).__name__})" if lines else type(error).__name__


class _UnsupportedError(Exception):
    """A type that pydantic has a schema for, although no JSON value ever fits it."""


def _compiled(fields: list[_Field], extras: Parameter | None) -> tuple[SchemaValidator, dict[str, Any]]:
    from pydantic import ConfigDict, TypeAdapter
    from pydantic_core import SchemaValidator, core_schema

    # Without a configuration of its own a typed dict does not take the adapter's.
    core_config = core_schema.CoreConfig(
        strict=True,
        allow_inf_nan=False,
        val_json_bytes="base64",
        hide_input_in_errors=True,
        cache_strings="keys",  # pydantic's cache of strings is global, and values are private
    )
    config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        val_json_bytes="base64",
        ser_json_bytes="base64",
        hide_input_in_errors=True,
        cache_strings="keys",
    )

    def made(handler: GetCoreSchemaHandler) -> CoreSchema:
        known: dict[Any, Any] = {}
        return core_schema.typed_dict_schema(
            {
                each.name: core_schema.typed_dict_field(
                    handler.generate_schema(_portable(each.annotation, known)),
                    required=each.required,
                    validation_alias=None if each.key == each.name else each.key,
                )
                for each in fields
            },
            extra_behavior="forbid" if extras is None else "allow",
            extras_schema=None if extras is None else handler.generate_schema(_portable(extras.annotation, known)),
            config=core_config,
        )

    adapter = TypeAdapter[Any](Annotated[Any, _Made(made)], config=config)
    schema = adapter.json_schema(schema_generator=_untitled())
    for name, definition in schema.get("$defs", {}).items():
        if "title" in definition and name.endswith(definition["title"]):  # an enum's, which is added late
            del definition["title"]
    original = adapter.core_schema
    exact = _exact(original)
    if exact is original:
        return cast("SchemaValidator", adapter.validator), schema
    return SchemaValidator(exact, core_config), schema


def _output_schema(annotation: Any) -> dict[str, Any] | None:
    if annotation in (typing.NoReturn, typing.Never):
        return None
    from pydantic import ConfigDict, TypeAdapter

    def described(handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(_portable(annotation))

    try:
        adapter = TypeAdapter[Any](Annotated[Any, _Made(described)], config=ConfigDict(ser_json_bytes="base64"))
        schema = adapter.json_schema(mode="serialization", schema_generator=_untitled())
        check_schema_size(schema, "the result")
    except Exception:  # a result that neither pydantic nor a type's own hooks can describe has no schema
        return None
    return schema


@command
class _Made:
    """Says in an annotation that the core schema is made by a function."""

    make: Callable[[GetCoreSchemaHandler], CoreSchema]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return self.make(handler)


def _portable(hint: Any, known: dict[Any, Any] | None = None) -> Any:
    """The same type in words that pydantic understands: before Python 3.12 it refuses `typing.TypedDict`."""
    if sys.version_info >= (3, 12):
        return hint
    known = {} if known is None else known
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        if hint not in known:
            from typing_extensions import TypedDict

            known[hint] = twin = cast("Any", TypedDict)(hint.__name__, {})
            twin.__doc__, twin.__module__, twin.__qualname__ = hint.__doc__, hint.__module__, hint.__qualname__
            members = list(typed_dict_members(hint))
            # Filled in afterwards, so that a type may contain itself.
            twin.__annotations__ = {
                name: cast("Any", typing.Required if required else typing.NotRequired)[_portable(inner, known)]
                for name, inner, required in members
            }
            twin.__required_keys__ = frozenset(name for name, _, required in members if required)
            twin.__optional_keys__ = frozenset(name for name, _, required in members if not required)
        return known[hint]
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return cast("Any", Annotated)[(_portable(hint.__origin__, known), *hint.__metadata__)]
    if not inside or origin is typing.Literal:
        return hint
    translated = tuple(_portable(inner, known) for inner in inside)
    if all(map(operator.is_, translated, inside)):
        return hint
    if origin in (typing.Union, types.UnionType):
        return cast("Any", typing.Union)[translated]
    return hint.copy_with(translated) if hasattr(hint, "copy_with") else origin[translated]


_NOT_A_SCHEMA = frozenset({"cls", "config", "default", "metadata", "serialization"})


def _exact(schema: Any) -> Any:
    """Close three gaps between what pydantic calls strict and what a tool may rely on.

    An iterable is checked while it is consumed, which would be inside of the tool: it is read at once. The
    members of an enum and a Literal are compared as Python does, where true equals 1: they are compared with
    their types. And a class is described in JSON although nothing in JSON is one: it is refused.

    The models of the application stay as they are. They were compiled when their class was made.
    """
    if is_list(schema) or _is_tuple(schema):
        items = [_exact(item) for item in schema]
        return schema if all(map(operator.is_, items, schema)) else type(schema)(items)
    if not is_mapping(schema) or schema.get("type") == "model":
        return schema
    made = {key: value if key in _NOT_A_SCHEMA else _exact(value) for key, value in schema.items()}
    match schema.get("type"):
        case "json-or-python":  # what may be done with Python objects does not matter
            made["python_schema"] = schema["python_schema"]
        case "lax-or-strict":
            made["lax_schema"] = schema["lax_schema"]
        case "is-subclass":
            raise _UnsupportedError("it wants a class")
        case "generator":
            made["type"] = "list"
            made.setdefault("items_schema", {"type": "any"})
        case "literal":
            made = _with_types(made, schema["expected"])
        case "enum":
            made = _with_types(made, [member.value for member in schema["members"]])
        case _:
            pass
    return schema if made.keys() == schema.keys() and all(made[key] is schema[key] for key in made) else made


def _is_tuple(value: Any) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _with_types(schema: dict[str, Any], expected: list[Any]) -> dict[str, Any]:
    """The schema of one out of several values, for which true is not 1 and 1.0 is not either."""
    if not any(isinstance(value, (bool, int, float)) for value in expected):
        return schema
    from pydantic_core import PydanticKnownError, core_schema

    words = ", ".join(repr(value) for value in expected)

    def check(value: Any) -> Any:
        if isinstance(value, (bool, int, float)):
            kinds = {bool: (bool,), int: (int, float), float: (float,)}[type(value)]
            if not any(type(_bare(each)) in kinds and each == value for each in expected):
                raise PydanticKnownError("literal_error", {"expected": words})
        return value

    inner = {key: value for key, value in schema.items() if key != "ref"}
    wrapped: Any = core_schema.no_info_before_validator_function(check, cast("Any", inner), ref=schema.get("ref"))
    return cast("dict[str, Any]", wrapped)


def _bare(value: Any) -> Any:
    """The plain value of a member of an `IntEnum`, which is a number itself."""
    return value.value if isinstance(value, enum.Enum) else value


@functools.cache
def _untitled() -> Any:
    """A generator of JSON schemas without titles that only repeat a name, and with one word for bytes.

    Releases of pydantic have words of their own for them, and a stored run is bound to its tools' schemas.
    """
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def model_schema(self, schema: Any) -> dict[str, Any]:
            return _without_title(super().model_schema(schema), schema)

        def dataclass_schema(self, schema: Any) -> dict[str, Any]:
            return _without_title(super().dataclass_schema(schema), schema)

        def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
            return _without_title(super().typed_dict_schema(schema), schema)

        def enum_schema(self, schema: Any) -> dict[str, Any]:
            return _without_title(super().enum_schema(schema), schema)

        def bytes_schema(self, schema: Any) -> dict[str, Any]:
            made = super().bytes_schema(schema)
            del made["format"]
            return {**made, "contentEncoding": "base64"}

    return Untitled


def _without_title(made: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    cls = schema.get("cls")
    if cls is not None and made.get("title") == cls.__name__:
        made = {key: value for key, value in made.items() if key != "title"}
    return made


def _problems(error: ValueError) -> list[Problem]:
    """Say what is wrong in pydantic's words, without the values it quotes."""
    from pydantic_core import ValidationError

    if not isinstance(error, ValidationError):
        raise error
    if error.error_count() > _MAX_DETAILS:
        return [Problem("", f"{error.error_count()} values are wrong; look at the schema")]
    details = error.errors(include_url=False)
    problems = [Problem(location(detail["loc"]), _message(detail)) for detail in details[:MAX_PROBLEMS]]
    if len(details) > MAX_PROBLEMS:
        problems.append(Problem("", f"and {len(details) - MAX_PROBLEMS} more"))
    return problems


def _message(detail: Any) -> str:
    match detail["type"]:
        case "dict_type" if not detail["loc"]:
            return "Input should be an object"
        case "union_tag_invalid":
            return "Input should have one of the tags {expected_tags} as {discriminator}".format(**detail["ctx"])
        case "uuid_parsing":
            return "Input should be a valid UUID"
        case "bytes_invalid_encoding":
            return "Input should be valid base64"
        case kind if kind in _quiet_kinds():
            return str(detail["msg"])
        case _:
            return _masked(detail["msg"], detail["input"])


@functools.cache
def _quiet_kinds() -> frozenset[str]:
    """The errors whose text is pydantic's own, and does not depend on the value."""
    from pydantic_core.core_schema import ErrorType

    return frozenset[str](typing.get_args(ErrorType)) - {"value_error", "assertion_error"}


def _masked(message: str, value: Any) -> str:
    """A message from someone's own validator, with the values it quotes blotted out."""
    for text in sorted(_leaves(value), key=len, reverse=True):
        message = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "…", message)
    return message


def _leaves(value: Any) -> set[str]:
    found: set[str] = set()
    todo: list[Any] = [value]
    while todo and len(found) < _MOST_LEAVES:
        item = todo.pop()
        if is_mapping(item):
            todo.extend(item.values())
        elif is_list(item):
            todo.extend(item)
        elif item is not None and item is not True and item is not False and str(item):
            found.add(str(item))
    return found
