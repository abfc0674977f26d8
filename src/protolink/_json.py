"""Values that JSON can carry, rendered once, the same way everywhere.

`render` turns whatever a tool returned into strict JSON and says whether it had to change anything;
`require_json` refuses instead. `canonical` and `digest` give a value one spelling and one name, and `parse`
reads text that somebody else wrote. `freeze` makes a value that nobody can change by accident.

Every walk is bounded in depth and size, and none of them runs a value's own `__str__` or `__repr__`, apart
from the message of an exception.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from pathlib import PurePath
from typing import Any, NoReturn, TypeAlias, TypeGuard, cast
from uuid import UUID

from protolink._text import describe_error, encodable, type_name

__all__ = [
    "JSON",
    "MAX_DEPTH",
    "MAX_INT_DIGITS",
    "MAX_RENDERED_BYTES",
    "MAX_TEXT_BYTES",
    "FrozenDict",
    "FrozenList",
    "JSONError",
    "canonical",
    "digest",
    "dumps",
    "freeze",
    "is_list",
    "is_mapping",
    "parse",
    "render",
    "require_json",
    "reread",
    "thaw",
]

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_DEPTH = 100
"""Lists and objects inside each other, the outermost included."""

MAX_RENDERED_BYTES = 16 * 1024 * 1024
MAX_TEXT_BYTES = 16 * 1024 * 1024
MAX_INT_DIGITS = 4300
"""Longer integers cannot be written or read by every JSON library, ours included."""

_PREVIEW_CHARACTERS = 64 * 1024
_MAX_FOREIGN_ITEMS = 1_000_000
# What a list or an object counts at least, so that a flood of empty ones is cut in a second, not in ten.
_CONTAINER = 16
_HUGE = 10**MAX_INT_DIGITS
_SMALL = 10**15
_SHORT = 4096

# The real class of a value; isinstance() would also believe the value's own `__class__`.
_class_of: Callable[[object], type[Any]] = type

# What the built-in classes themselves do, to be called on instances of subclasses that may override it.
_fill_dict: Any = dict[str, Any].__init__
_fill_list: Any = list[Any].__init__
_dict_items: Any = dict[Any, Any].items
_list_items: Any = list[Any].__iter__
_tuple_items: Any = tuple[Any, ...].__iter__
_set_items: Any = set[Any].__iter__
_frozenset_items: Any = frozenset[Any].__iter__
_deque_items: Any = deque[Any].__iter__


class JSONError(ValueError):
    """A text is not the strict JSON that was expected.

    `reason` says what is wrong and `position` where, in characters, if that is known. Neither repeats
    anything of the text.
    """

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason if position is None else f"{reason}, at character {position}")
        self.reason = reason
        self.position = position


def render(value: object) -> tuple[JSON, bool]:
    """A private copy of any value as strict JSON, and whether JSON alone could not have carried it.

    A tuple becomes a list and a subclass its plain type without counting as changed. Not-a-number and the
    infinities become text, lone surrogates visible escapes, dates, durations, decimals, UUIDs and paths
    their standard text, bytes base64, sets sorted lists, enumerations their value; dataclasses, named
    tuples and pydantic models become objects, and keys become text, kept apart where they collide. What is
    left, and what misbehaves, becomes its type name in angle brackets. A text above `MAX_RENDERED_BYTES`
    is replaced where it stands by a short object with a preview, a larger whole by such an object without.

    Raises nothing but `KeyboardInterrupt`. A value changed by another thread meanwhile is still rendered,
    as it was at some moment of the walk.
    """
    left = [MAX_RENDERED_BYTES]
    try:
        return _copy(value, MAX_DEPTH, left), False
    except _TooLargeError:
        return _truncated(value, MAX_RENDERED_BYTES - left[0]), True
    except Exception:  # not plain, or changed while it was read: the careful walk finds out
        return _render_foreign(value)


def canonical(value: object) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no escapes that UTF-8 can do without."""
    return _canonical(value)


def dumps(value: object) -> str:
    """Compact strict JSON text, keys in their order. Raises `ValueError` for a number that is not finite."""
    return _compact(value)


def digest(text: str) -> str:
    """The SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse(text: str, *, max_bytes: int = MAX_TEXT_BYTES, max_depth: int = MAX_DEPTH) -> JSON:
    """Read strict JSON that somebody else wrote.

    Raises `JSONError` for anything that two readers might understand differently or that costs more than
    it says: duplicate keys, NaN and the infinities (also as a number too large for a float), lone
    surrogates, integers above `MAX_INT_DIGITS`, nesting above `max_depth`, text above `max_bytes`.
    """
    size = len(text)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise JSONError("half of a character (a lone surrogate)", error.start) from None
    if size > max_bytes:
        raise JSONError(f"longer than {max_bytes} bytes")
    if text.count("[") + text.count("{") > max_depth:
        _refuse_depth(text, max_depth)
    decoder = _DECODER if size <= MAX_INT_DIGITS else _COUNTING_DECODER
    try:
        value: JSON = decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise _explained(error) from None
    if "\\u" in text and not _encodes(_compact(value)):
        raise JSONError("an escape that is half of a character (a lone surrogate)")
    return value


def _explained(error: ValueError | RecursionError) -> JSONError:
    """Why a text could not be decoded; without the cause, which holds the whole text."""
    if isinstance(error, JSONError):
        return error
    if isinstance(error, json.JSONDecodeError):  # some reasons quote a character after the colon
        return JSONError(error.msg.partition(":")[0].removesuffix(" at"), error.pos)
    if isinstance(error, RecursionError):
        return JSONError("nested too deeply for the stack that is left")
    return JSONError("an integer with too many digits")  # int() has a limit of its own, which may have been lowered


def reread(text: str, *, max_depth: int = MAX_DEPTH) -> JSON:
    """Read what `dumps` wrote and a store kept, of any length; that names stand once in an object needs no check.

    Raises `JSONError` where it is no such text.
    """
    if text.count("[") + text.count("{") > max_depth:
        _refuse_depth(text, max_depth)
    try:
        value, end = _scan(text, 0)
    except StopIteration as error:
        raise JSONError("Expecting value", error.value) from None
    except (ValueError, RecursionError) as error:
        raise _explained(error) from None
    if end != len(text):
        raise JSONError("Extra data", end)
    return cast("JSON", value)


def require_json(value: object, what: str) -> Any:
    """A private copy of a value that is plain JSON already; tuples count as lists, subclasses as their base.

    Raises `TypeError` that names the place inside `what` and the type found there, never the value.
    """
    try:
        return _copy(value, MAX_DEPTH, [MAX_RENDERED_BYTES])
    except _TooLargeError:
        raise TypeError(f"{what} must be plain JSON of at most {MAX_RENDERED_BYTES} bytes") from None
    except Exception:  # not plain: the second walk accepts subclasses and knows its path
        return _Requirement(what).copy(value, (), MAX_DEPTH)


def freeze(value: JSON) -> JSON:
    """The value with every list and object inside it replaced by one that refuses changes."""
    if isinstance(value, dict):
        if type(value) is FrozenDict:
            return value
        frozen_dict: FrozenDict = FrozenDict.__new__(FrozenDict)
        _fill_dict(frozen_dict, [(key, freeze(item)) for key, item in value.items()])
        return frozen_dict
    if isinstance(value, list):
        if type(value) is FrozenList:
            return value
        frozen_list: FrozenList = FrozenList.__new__(FrozenList)
        _fill_list(frozen_list, [freeze(item) for item in value])
        return frozen_list
    return value


def thaw(value: Any) -> Any:
    """A plain copy of a frozen or plain JSON value that can be changed freely."""
    if is_mapping(value):
        return {key: thaw(item) for key, item in value.items()}
    if is_list(value):
        return [thaw(item) for item in value]
    return value


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a JSON value is an object; narrows to what JSON objects are, which `isinstance` cannot say."""
    return type(value) is dict or isinstance(value, Mapping)  # the first is what nearly all are, and cheap


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a JSON value is a list."""
    return isinstance(value, list)


def _frozen(self: object, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError("this is part of a record and cannot be changed; take a copy with copy.deepcopy()")


class FrozenDict(dict[str, JSON]):
    """A JSON object that refuses changes; made by `freeze`, equal to the plain dict, copied as one.

    It keeps honest code from changing a record by accident. `dict.__setitem__(frozen, ...)` still works:
    that is not an accident.
    """

    __slots__ = ()

    # Also the constructor, so that nobody can fill an existing instance again.
    __init__ = _frozen
    __setitem__ = _frozen
    __delitem__ = _frozen
    __ior__ = _frozen
    clear = _frozen
    pop = _frozen
    popitem = _frozen
    setdefault = _frozen
    update = _frozen

    def __copy__(self) -> dict[str, JSON]:
        return dict(self)

    def __deepcopy__(self, memo: object) -> Any:
        return thaw(self)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return dict, (list(self.items()),)


class FrozenList(list[JSON]):
    """A JSON array that refuses changes; made by `freeze`, equal to the plain list, copied as one."""

    __slots__ = ()

    __init__ = _frozen
    __setitem__ = _frozen
    __delitem__ = _frozen
    __iadd__ = _frozen
    __imul__ = _frozen
    append = _frozen
    clear = _frozen
    extend = _frozen
    insert = _frozen
    pop = _frozen
    remove = _frozen
    reverse = _frozen
    sort = _frozen

    def __copy__(self) -> list[JSON]:
        return list(self)

    def __deepcopy__(self, memo: object) -> Any:
        return thaw(self)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return list, (list(self),)


class _NotPlainError(Exception):
    """The quick copy met something that it does not handle."""


class _TooLargeError(Exception):
    """A value needs more than its share of a record."""


class _Pairs(list[tuple[object, object]]):
    """The members of something that becomes an object; the keys need not be texts yet, nor hashable."""


class _Unordered(list[object]):
    """The members of a set, in no order that would be the same tomorrow."""


def _copy(value: Any, room: int, left: list[int]) -> JSON:
    """Copy what is JSON already. Raises for everything else, so that the common case stays quick.

    `left` bounds the whole walk: a few lists that contain each other twice would otherwise be copied
    forever.
    """
    kind = _class_of(value)
    if kind is str:
        if not value.isascii():
            value.encode()  # raises for half of a character
        left[0] -= _written_size(value)
        if left[0] < 0:
            # A text that is too large by itself is cut where it stands, which takes the careful walk.
            raise _NotPlainError if _written_size(value) > MAX_RENDERED_BYTES else _TooLargeError
        return cast(str, value)
    if kind is int:
        if -_SMALL < value < _SMALL:
            return cast(int, value)
        if -_HUGE < value < _HUGE:
            left[0] -= value.bit_length() // 3
            if left[0] < 0:
                raise _TooLargeError
            return cast(int, value)
        raise _NotPlainError
    if value is None or kind is bool:
        return cast("bool | None", value)
    if kind is dict or kind is FrozenDict:
        left[0] -= 4 * len(value) + _CONTAINER
        if left[0] < 0:
            raise _TooLargeError
        if not room:
            raise _NotPlainError
        room -= 1
        copied: dict[str, JSON] = {}
        for key, item in value.items():
            if type(key) is not str:
                raise _NotPlainError
            if not key.isascii():
                key.encode()
            left[0] -= len(key)
            copied[key] = _copy(item, room, left)
        if left[0] < 0:
            raise _TooLargeError
        return copied
    if kind is list or kind is tuple or kind is FrozenList:
        left[0] -= 2 * len(value) + _CONTAINER
        if left[0] < 0:
            raise _TooLargeError
        if not room:
            raise _NotPlainError
        room -= 1
        return [_copy(item, room, left) for item in value]
    if kind is float and math.isfinite(value):
        return cast(float, value)
    raise _NotPlainError


def _render_foreign(value: object) -> tuple[JSON, bool]:
    walk = _Rendering()
    try:
        rendered = walk.value(value, MAX_DEPTH)
    except _TooLargeError:
        return _truncated(value, MAX_RENDERED_BYTES - walk.left), True
    except RecursionError:  # the caller has used up the stack already
        return "<too deep>", True
    return rendered, walk.changed


class _Rendering:
    """One walk over a value that JSON alone may not be able to carry."""

    __slots__ = ("_open", "changed", "left")

    def __init__(self) -> None:
        self.changed = False
        self.left = MAX_RENDERED_BYTES
        self._open: set[int] = set()

    def value(self, value: Any, room: int) -> JSON:
        kind = _class_of(value)
        if kind in _SCALARS:
            return self._scalar(value, kind)
        members: Any = value
        if kind is dict:
            self._spend(2 * len(value))
            members = _Pairs(dict(value).items())
        elif kind is not list and kind is not tuple:
            members, changed = _simplify(value, kind)
            self.changed = self.changed or changed
            if _class_of(members) in _SCALARS:
                return self._scalar(members, _class_of(members))
        if not room:
            self.changed = True
            return "<too deep>"
        if id(value) in self._open:
            self.changed = True
            return "<cycle>"
        self._open.add(id(value))
        try:
            return self._members(members, room - 1)
        finally:
            self._open.discard(id(value))

    def _members(self, members: Any, room: int) -> JSON:
        kind = _class_of(members)
        if kind is _Pairs:
            return self._object(members, room)
        if kind in (list, tuple, _Unordered):
            self._spend(2 * len(members) + _CONTAINER)
            rendered: list[JSON] = []
            for item in tuple(members):
                rendered.append(self.value(item, room))  # noqa: PERF401 - a comprehension takes one more frame per level
            if kind is _Unordered:
                rendered.sort(key=canonical)
            return rendered
        return self.value(members, room)

    def _object(self, pairs: _Pairs, room: int) -> JSON:
        self._spend(2 * len(pairs) + _CONTAINER)
        rendered: dict[str, JSON] = {}
        # A key that is a text keeps its spelling, also against an earlier key that merely looks like it.
        taken = {key for key, _ in pairs if type(key) is str and key.isascii()}
        suffixes: dict[str, int] = {}
        for key, item in pairs:
            if type(key) is str and key.isascii():
                name = key
                self._spend(len(name))
            else:
                name = self._free_name(self._key(key, room), taken, suffixes)
                taken.add(name)
            rendered[name] = self.value(item, room)
        return rendered

    def _key(self, key: object, room: int) -> str:
        if not issubclass(type(key), str):
            self.changed = True
        rendered = self.value(key, room)
        return rendered if isinstance(rendered, str) else canonical(rendered)

    def _free_name(self, name: str, taken: set[str], suffixes: dict[str, int]) -> str:
        if name not in taken:
            return name
        self.changed = True
        number = suffixes.get(name, 1) + 1
        while f"{name} ({number})" in taken:
            number += 1
        suffixes[name] = number
        return f"{name} ({number})"

    def _scalar(self, value: Any, kind: type[Any]) -> JSON:
        if kind is str:
            return self._text(value)
        if kind is int and not -_HUGE < value < _HUGE:
            self.changed = True
            return f"<int of {value.bit_length()} bits>"
        if kind is int:
            self._spend(value.bit_length() // 3)
        if kind is float and not math.isfinite(value):
            self.changed = True
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        return cast("bool | int | float | None", value)

    def _text(self, text: str) -> JSON:
        if len(text) > MAX_RENDERED_BYTES or _written_size(encodable(text)) > MAX_RENDERED_BYTES:
            self.changed = True
            self._spend(_PREVIEW_CHARACTERS)
            return _truncated(text, len(text))
        clean = encodable(text)
        self._spend(_written_size(clean))
        if clean != text:
            self.changed = True
        return clean

    def _spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _TooLargeError


def _written_size(text: str) -> int:
    """About how many bytes a text takes as JSON; exact where an escape could make a difference that counts."""
    if len(text) < _SHORT:
        return len(text)
    return len(json.encoder.encode_basestring(text).encode())


def _truncated(value: object, size: int) -> JSON:
    summary: dict[str, JSON] = {"truncated": True, "type": type_name(value), "bytes": size}
    if type(value) is str:
        summary["preview"] = encodable(value[:_PREVIEW_CHARACTERS])
    return summary


def _simplify(value: object, kind: type[Any]) -> tuple[object, bool]:
    """One step towards JSON, and whether it loses something. All foreign code runs in here."""
    try:
        return _step(value, kind)
    except KeyboardInterrupt:
        raise
    except BaseException:  # the value's own code; an effect has happened already and must still be recorded
        return f"<{type_name(value)}>", True


def _step(value: Any, kind: Any) -> tuple[object, bool]:
    # The methods are the base classes' own, so that what a subclass overrides is not believed.
    if issubclass(kind, str):
        return str.__str__(value), False
    if issubclass(kind, int):
        return int.__int__(value), False
    if issubclass(kind, float):
        return float.__float__(value), False
    if issubclass(kind, dict):
        return _Pairs(_dict_items(value)), False
    if issubclass(kind, list):
        return list(_list_items(value)), False
    if issubclass(kind, tuple):
        items = list(_tuple_items(value))
        fields = getattr(_class_of(value), "_fields", None)
        if type(fields) is tuple:
            return _Pairs(zip(cast("tuple[object, ...]", fields), items, strict=True)), True
        return items, False
    if issubclass(kind, Enum):
        return value.value, True
    standard = _standard_text(value, kind)
    if standard is not None:
        return standard, True
    return _contents(value, kind), True


def _standard_text(value: Any, kind: type[Any]) -> object | None:
    if issubclass(kind, datetime):
        return datetime.isoformat(value)
    if issubclass(kind, date):
        return date.isoformat(value)
    if issubclass(kind, time):
        return time.isoformat(value)
    if issubclass(kind, timedelta):
        return _duration(value)
    if issubclass(kind, Decimal):
        return Decimal.__str__(value)
    if issubclass(kind, UUID):
        return UUID.__str__(value)
    if issubclass(kind, PurePath):
        return PurePath.__str__(value)
    if issubclass(kind, (bytes, bytearray, memoryview)):
        view = memoryview(value)
        size = view.nbytes * 4 // 3
        if size > MAX_RENDERED_BYTES:
            return _Pairs(cast("dict[object, object]", _truncated(value, size)).items())
        return base64.b64encode(view.tobytes()).decode("ascii")
    if issubclass(kind, BaseException):
        return describe_error(value)
    return None


def _contents(value: Any, kind: type[Any]) -> object:
    if issubclass(kind, (set, frozenset)):
        return _Unordered(_set_items(value) if issubclass(kind, set) else _frozenset_items(value))
    if issubclass(kind, deque):
        return list(_deque_items(value))
    if hasattr(kind, "model_fields") and hasattr(kind, "model_dump"):
        return value.model_dump(mode="python", warnings=False)
    if dataclasses.is_dataclass(kind):
        return _Pairs((field.name, getattr(value, field.name)) for field in dataclasses.fields(kind))
    if issubclass(kind, Mapping):
        return _Pairs([(key, value[key]) for key in _counted(value)])
    if issubclass(kind, AbstractSet):
        return _Unordered(_counted(value))
    if issubclass(kind, (Sequence, ValuesView)):
        return _counted(value)
    return f"<{type_name(value)}>"


def _counted(value: Any) -> list[object]:
    """The items of a foreign collection that keeps its word about their number, which ends every walk."""
    size = len(value)
    if size > _MAX_FOREIGN_ITEMS:
        raise ValueError("too many items to ask foreign code for")
    items = list(islice(cast("Iterator[object]", iter(value)), size + 1))
    if len(items) != size:
        raise ValueError("more or fewer items than announced")
    return items


def _duration(value: timedelta) -> str:
    """ISO 8601, with the sign in front as RFC 5545 and most readers have it."""
    sign = ""
    if value < timedelta(0):
        sign, value = "-", -value
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}H" if hours else ""
    if minutes:
        text += f"{minutes}M"
    if value.microseconds:
        text += f"{seconds}.{value.microseconds:06d}".rstrip("0") + "S"
    elif seconds or not (text or value.days):
        text += f"{seconds}S"
    days = f"{value.days}D" if value.days else ""
    return f"{sign}P{days}T{text}" if text else f"{sign}P{days}"


class _Requirement:
    """A walk that refuses, and can say where."""

    __slots__ = ("_left", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._left = MAX_RENDERED_BYTES

    def copy(self, value: Any, path: tuple[str | int, ...], room: int) -> JSON:
        kind = _class_of(value)
        if kind is bool or value is None:
            return cast("bool | None", value)
        if not issubclass(kind, (str, int, float, dict, list, tuple)):
            self._refuse(path, f"a {type_name(value)}")
        if issubclass(kind, str):
            return self._text(str.__str__(value), path)
        if issubclass(kind, int):
            number = int.__int__(value)
            return number if -_HUGE < number < _HUGE else self._refuse(path, "an integer with too many digits")
        if issubclass(kind, float):
            real = float.__float__(value)
            return real if math.isfinite(real) else self._refuse(path, "a number that JSON has no text for")
        if not room:
            self._refuse(path, "nested too deeply, or inside itself")
        if issubclass(kind, dict):
            pairs = [(self._key(key, path), item) for key, item in _dict_items(value)]
            self._spend(4 * len(pairs) + _CONTAINER, path)
            return {key: self.copy(item, (*path, key), room - 1) for key, item in pairs}
        items: list[object] = list(_list_items(value) if issubclass(kind, list) else _tuple_items(value))
        self._spend(2 * len(items) + _CONTAINER, path)
        return [self.copy(item, (*path, index), room - 1) for index, item in enumerate(items)]

    def _key(self, key: object, path: tuple[str | int, ...]) -> str:
        if not issubclass(type(key), str):
            self._refuse(path, f"an object with a key of type {type_name(key)}")
        return self._text(str.__str__(cast(str, key)), path)

    def _text(self, text: str, path: tuple[str | int, ...]) -> str:
        if not _encodes(text):
            self._refuse(path, "a text with half of a character (a lone surrogate)")
        self._spend(len(text), path)
        return text

    def _spend(self, size: int, path: tuple[str | int, ...]) -> None:
        self._left -= size
        if self._left < 0:
            self._refuse(path, f"too much: at most {MAX_RENDERED_BYTES} bytes are stored in all")

    def _refuse(self, path: tuple[str | int, ...], found: str) -> NoReturn:
        steps = [f"[{step if isinstance(step, int) else ascii(step[:60])}]" for step in path]
        if len(steps) > 10:
            steps[5:-5] = ["[…]"]
        raise TypeError(f"{self._what} must be plain JSON; {self._what}{''.join(steps)} is {found}")


def _encodes(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# A string or a bracket. An unfinished string matches up to the end, so that every character is read once.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def _refuse_depth(text: str, max_depth: int) -> None:
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        mark = text[token.start()]
        if mark in "[{":
            depth += 1
            if depth > max_depth:
                raise JSONError(f"nested more than {max_depth} levels deep", token.start())
        elif mark in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise JSONError("an object with a duplicate key")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise JSONError("a number that JSON has no text for")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise JSONError("a number too large for a float")
    return number


def _counted_int(text: str) -> int:
    if len(text) > MAX_INT_DIGITS:
        raise JSONError("an integer with too many digits")
    return int(text)


_SCALARS: frozenset[type[Any]] = frozenset({str, int, float, bool, type(None)})


def _encoder(*, sort_keys: bool) -> Callable[[Any], str]:
    """What writes JSON text with these settings.

    `JSONEncoder.encode` builds its C encoder anew for every value, which costs more than a small value
    itself, so it is built once here. The check for cycles is off because values are rendered or parsed
    before they come here; it costs a third.
    """
    encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, sort_keys=sort_keys, separators=(",", ":"), check_circular=False
    )
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the C accelerator
        return encoder.encode
    write = make(None, encoder.default, json.encoder.encode_basestring, None, ":", ",", sort_keys, False, False)
    join = "".join
    return lambda value: join(write(value, 0))


_canonical = _encoder(sort_keys=True)
_compact = _encoder(sort_keys=False)

_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
_own_decoder: Any = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_scan: Callable[[str, int], tuple[Any, int]] = _own_decoder.scan_once
# A hook for integers is slow; a text shorter than the limit cannot hold an integer longer than it.
_COUNTING_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_counted_int
)
