"""Small internal classes: slotted, compared by value and, but for states, frozen for the type checkers.

The standard decorator writes and compiles five methods per class. The package has a hundred classes, and an
application pays for each of them when it starts, so these share their comparison and their `repr`. They are
not frozen at run time, because a frozen class sets each field by a call of its own and a tool step makes a
dozen of them. Only a store's rows leave the package, and both checkers refuse to change one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, dataclass_transform

__all__ = ["command", "new_dict", "new_list", "new_set", "record", "state"]

T = TypeVar("T")

# As default factories. Calling `dict[str, Any]` makes the same dictionary in ten times the time, because an alias
# tries to leave its mark on what it has made; a bare `dict` is of unknown type to a strict checker.
new_dict: Final[Callable[[], dict[Any, Any]]] = dict
new_list: Final[Callable[[], list[Any]]] = list
new_set: Final[Callable[[], set[Any]]] = set


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a value with keyword arguments only."""
    return _shared(dataclass(slots=True, kw_only=True, eq=False, repr=False, match_args=False)(cls))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def command(cls: type[T]) -> type[T]:
    """Make a class a value."""
    return _shared(dataclass(slots=True, eq=False, repr=False, match_args=False)(cls))


@dataclass_transform(field_specifiers=(field,))
def state(cls: type[T]) -> type[T]:
    """Make a class a slotted thing that its owner changes, compared by what it holds."""
    return _shared(dataclass(slots=True, eq=False, repr=False, match_args=False)(cls))


def _shared(cls: type[T]) -> type[T]:
    made: Any = cls
    made.__eq__ = _equal
    made.__repr__ = _shown
    made.__hash__ = None  # equal values are not one value: they hold lists and dictionaries
    return cls


def _fields(value: Any) -> tuple[str, ...]:
    return tuple(value.__dataclass_fields__)


def _equal(self: Any, other: object) -> bool:
    if type(self) is not type(other):
        return False
    return all(bool(getattr(self, name) == getattr(other, name)) for name in _fields(self))


def _shown(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _fields(self))
    return f"{type(self).__name__}({shown})"
