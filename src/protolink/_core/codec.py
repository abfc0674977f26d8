"""Records as JSON, and back. The only place that knows how a record is stored.

What a field may hold is read off the record's own annotations, once; loading builds known classes from a
table and nothing else. A record that cannot be restored is an error that names the field. Keys that this
release does not know are ignored, so an older release can read a newer record of the same version.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from protolink._core import records
from protolink._core.records import Inference, Record, ToolRequest
from protolink._json import dumps, is_list, is_mapping

__all__ = ["BODY_CHARACTERS", "CodecError", "decode", "encode", "kind_of"]

VERSION: Final = 1
"""The version of every shape so far. A shape that changes gets a number of its own and an upgrade here."""

BODY_CHARACTERS: Final = 16_384
"""From this length on, the text of a large field is stored apart from its record, once for all that share it."""

_BODY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "ActionCompleted": ("result",),
    "ActionObserved": ("result",),
    "ModelReplied": ("text",),
    "QuestionAnswered": ("answer",),
}
_UNAVAILABLE: Final = "(no longer available)"
"""What stands for a body that was deleted to save room or to forget its content."""

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Record)}
_WORK: Final[dict[str, type[Any]]] = {"inference": Inference, "tool_request": ToolRequest}
_WORK_NAMES: Final = {kind: name for name, kind in _WORK.items()}

# `type` itself, which the checkers take to give a class of something unknown; `cast` would be a call for each field.
_class_of: Callable[[object], type[Any]] = type

F = TypeVar("F", bound=Callable[..., Any])


def _remembered(function: F) -> F:
    """`functools.cache`, keeping the signature: the checkers take a class for something unhashable."""
    return cast("F", cache(function))


class CodecError(ValueError):
    """A stored record is not what its kind says; the message names the field and repeats no content."""


def kind_of(record: Record) -> str:
    """The stored name of a record's class."""
    return type(record).__name__


def encode(record: Record) -> tuple[str, int, dict[str, Any], dict[str, str]]:
    """Kind, version, fields as JSON, and the texts of fields that are large enough to be stored apart."""
    kind = kind_of(record)
    plain = _plain(record)
    _leave_out(kind, plain)
    bodies: dict[str, str] = {}
    for name in _BODY_FIELDS.get(kind, ()):
        value = plain.get(name)
        if (
            value is None
            or isinstance(value, bool | int | float)
            or (isinstance(value, str) and len(value) < BODY_CHARACTERS)
        ):
            continue
        text = dumps(value)
        if len(text) >= BODY_CHARACTERS:
            bodies[name] = text
            del plain[name]
    return kind, VERSION, plain, bodies


def _leave_out(kind: str, plain: dict[str, Any]) -> None:
    """Drop what `_put_back` knows: a call's id that is its action's, and a payload that is the arguments."""
    if kind == "ModelReplied":
        for proposal in plain.get("proposals", ()):
            if proposal["call_id"] == proposal["action_id"]:
                del proposal["call_id"]
    elif kind == "ActionPrepared":
        payload = plain["payload"]
        # The very same object: 1 and True are equal, and are not the same JSON.
        if len(payload) == 1 and payload.get("arguments") is plain["arguments"]:
            del plain["payload"]


def _put_back(kind: str, data: dict[str, Any]) -> None:
    if kind == "ModelReplied" and is_list(data.get("proposals")):
        data["proposals"] = [
            {**proposal, "call_id": proposal.get("action_id")}
            if is_mapping(proposal) and "call_id" not in proposal
            else proposal
            for proposal in data["proposals"]
        ]
    elif kind == "ActionPrepared" and "payload" not in data and "arguments" in data:
        data["payload"] = {"arguments": data["arguments"]}


def _plain(value: Any) -> Any:
    """The fields of a record, without those that hold their default."""
    kind = _class_of(value)
    if kind in _AS_IT_IS:
        return value
    if kind is tuple:
        return [_plain(item) for item in value]
    plain: dict[str, Any] = {}
    if kind in _WORK_NAMES:
        plain["type"] = _WORK_NAMES[kind]
    get, shape = _layout(kind)
    for (name, default, default_type, plain_default), held in zip(shape, get(value), strict=True):
        if held is default:
            continue
        held_type = _class_of(held)
        if held_type not in _AS_IT_IS:
            held = _plain(held)
        if default_type is held_type and held == plain_default:
            continue
        plain[name] = held
    return plain


_AS_IT_IS: Final[frozenset[type[Any]]] = frozenset({str, int, float, bool, types.NoneType, dict, list})
"""What a record holds as JSON already."""


@_remembered
def _layout(kind: type[Any]) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[tuple[str, Any, type[Any], Any], ...]]:
    """What reads all fields at once, and their names with their defaults, the types of those, and those as JSON."""
    shape = tuple(
        (name, default, cast("type[Any]", type(default)), default if default is _NEVER else _plain(default))
        for name, default in _defaults(kind)
    )
    names = [name for name, *_ in shape]
    if len(names) > 1:
        return attrgetter(*names), shape
    return lambda value: tuple(getattr(value, name) for name in names), shape


@_remembered
def _defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Field names with their defaults; a field without one is paired with a value that nothing equals."""
    found: list[tuple[str, Any]] = []
    for item in fields(kind):
        if item.default is not MISSING:
            found.append((item.name, item.default))
        elif item.default_factory is not MISSING:
            found.append((item.name, item.default_factory()))
        else:
            found.append((item.name, _NEVER))
    return tuple(found)


class _Never:
    """Equal to nothing that a record can hold."""


_NEVER: Final = _Never()


def decode(kind: str, version: int, plain: object, bodies: Mapping[str, Any]) -> Record:
    """The record that was stored; `bodies` holds the parsed texts of fields that were stored apart.

    Raises `CodecError` for a kind or version this release does not know and for a field that does not fit.
    """
    cls = _KINDS.get(kind)
    if cls is None:
        raise CodecError(f"{kind[:100]!r} is no kind of record that this release knows")
    if version != VERSION:
        raise CodecError(f"{kind} of version {version} was written by a newer release; this one knows {VERSION}")
    if not is_mapping(plain):
        raise CodecError(f"{kind} is stored as {type(plain).__name__}, not as an object")
    return _build(cls, _whole(cls, kind, plain, bodies) if kind in _PARTED else plain, kind)  # type: ignore[no-any-return]


_PARTED: Final = frozenset({*_BODY_FIELDS, "ActionPrepared"})
"""The kinds of which something may be stored apart, or left out."""


def _whole(cls: type[Any], kind: str, plain: Mapping[str, Any], bodies: Mapping[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {**plain, **bodies}
    _put_back(kind, data)
    for name in _BODY_FIELDS.get(kind, ()):
        if name not in data and name in _required(cls):
            data[name] = _UNAVAILABLE
    return data


@_remembered
def _required(cls: type[Any]) -> tuple[str, ...]:
    return tuple(name for name, default in _defaults(cls) if default is _NEVER)


def _build(cls: type[Any], data: Mapping[str, Any], where: str) -> Any:
    readers = _readers(cls)
    arguments: dict[str, Any] = {}
    try:
        for name, value in data.items():
            found = readers.get(name)
            if found is not None:
                arguments[name] = value if type(value) in found[0] else found[1](value, name)
    except CodecError as error:  # it begins with the field's name, which is put together only where it is needed
        raise CodecError(f"{where}.{error}") from None
    for name in _required(cls):
        if name not in arguments:
            raise CodecError(f"{where} has no {name!r}")
    return cls(**arguments)


Read = Callable[[Any, str], Any]


@_remembered
def _readers(cls: type[Any]) -> dict[str, tuple[frozenset[type[Any]], Read]]:
    """For each field the types whose values are taken as they are, and what reads any other value."""
    hints = get_type_hints(cls, dict(vars(records)))
    return {item.name: (_plain_types(hints[item.name]), _reader(hints[item.name])) for item in fields(cls)}


def _plain_types(hint: Any) -> frozenset[type[Any]]:
    """The types whose values of this annotation are taken as they are."""
    if hint is Any:
        return _AS_IT_IS
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        found: set[type[Any]] = set()
        for option in get_args(hint):
            found |= _plain_types(option)
        return frozenset(found)
    if origin is dict or hint is dict:
        return frozenset({dict})
    if hint is float:
        return frozenset({int, float})
    return frozenset({hint}) if hint in _AS_IT_IS else frozenset()


def _reader(hint: Any) -> Read:
    """What reads a value of an annotation back."""
    if hint is Any:
        return lambda value, where: value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(get_args(hint))
    if origin is Literal:
        return _one_of(get_args(hint))
    if origin is tuple:
        return _many(_reader(get_args(hint)[0]))
    if origin is dict or hint is dict:
        return _object
    if isinstance(hint, type) and is_dataclass(hint):
        return _nested(hint)
    return _scalar(hint)


def _union(options: tuple[Any, ...]) -> Read:
    if set(options) == set(_WORK.values()):
        return _work
    readers = [_reader(option) for option in options if option is not types.NoneType]
    nullable = types.NoneType in options

    def read(value: Any, where: str) -> Any:
        if value is None and nullable:
            return None
        for attempt in readers[:-1]:
            try:
                return attempt(value, where)
            except CodecError:
                continue
        return readers[-1](value, where)

    return read


def _work(value: Any, where: str) -> Any:
    kind = _WORK.get(str(value.get("type"))) if is_mapping(value) else None
    if kind is None:
        raise CodecError(f"{where} is no work that this release knows")
    return _build(kind, value, where)


def _one_of(words: tuple[Any, ...]) -> Read:
    def read(value: Any, where: str) -> Any:
        if value not in words:
            raise CodecError(f"{where} is none of the words that this release knows")
        return value

    return read


def _many(read_one: Read) -> Read:
    def read(value: Any, where: str) -> Any:
        if not is_list(value):
            raise CodecError(f"{where} is not a list")
        items: list[Any] = []
        try:
            for item in value:
                items.append(read_one(item, where))  # noqa: PERF401 - how far it came is what the error says
        except CodecError:
            index = len(items)
            read_one(value[index], f"{where}[{index}]")
            raise
        return tuple(items)

    return read


def _object(value: Any, where: str) -> Any:
    if not is_mapping(value):
        raise CodecError(f"{where} is not an object")
    return value


def _nested(cls: type[Any]) -> Read:
    def read(value: Any, where: str) -> Any:
        if not is_mapping(value):
            raise CodecError(f"{where} is not an object")
        return _build(cls, value, where)

    return read


def _scalar(kind: Any) -> Read:
    accepted: tuple[type[Any], ...] = (int, float) if kind is float else (kind,)

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise CodecError(f"{where} is {type(value).__name__}, not {kind.__name__}")
        return value

    return read
