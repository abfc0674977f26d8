"""Reading public values back from dictionaries, field by field.

Keys that a reader does not know are ignored: a value written by a newer release can be read by an
older one, which then simply knows less. What is known is checked, and every complaint names the
value and the field, never its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from protolink._environment import current_environment, iso
from protolink._json import is_mapping

__all__ = ["REQUIRED", "Reader", "new_id", "now_text"]


class _Required:
    """The default of a field that has none."""


REQUIRED: Final[Any] = _Required()


def new_id() -> str:
    """A fresh identifier from the current environment."""
    return current_environment().new_id()


def now_text() -> str:
    """The current time as ISO-8601 text in UTC."""
    return iso(current_environment().now())


class Reader:
    """One dictionary that claims to be a `what`. Raises `ValueError` for anything it cannot be."""

    def __init__(self, data: object, what: str) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(f"{what} is read from a dictionary, not from {type(data).__name__}")
        self._data: Mapping[Any, Any] = data
        self._what = what

    def _complain(self, key: str, expected: str) -> ValueError:
        return ValueError(f"{self._what}.{key} must be {expected}, not {type(self._data[key]).__name__}")

    def _get(self, key: str, default: Any) -> Any:
        if key in self._data:
            return self._data[key]
        if default is REQUIRED:
            raise ValueError(f"{self._what} has no {key!r}")
        return default() if callable(default) else default

    def any(self, key: str, default: Any = REQUIRED) -> Any:
        """The field as it is."""
        return self._get(key, default)

    def text(self, key: str, default: Any = REQUIRED) -> str:
        """A text."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._complain(key, "a text")
        return value

    def optional_text(self, key: str) -> str | None:
        """A text, or None when it is absent or null."""
        value = self._data.get(key)
        if value is not None and not isinstance(value, str):
            raise self._complain(key, "a text or null")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._complain(key, "true or false")
        return value

    def integer(self, key: str, default: Any = REQUIRED) -> int:
        """A whole number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._complain(key, "a whole number")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A whole number, or None when it is absent or null."""
        return None if self._data.get(key) is None else self.integer(key)

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """A number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._complain(key, "a number")
        return value

    def optional_number(self, key: str) -> float | None:
        """A number, or None when it is absent or null."""
        return None if self._data.get(key) is None else self.number(key)

    def mapping(self, key: str) -> dict[str, Any]:
        """A dictionary with text keys, copied; empty when absent."""
        value = self._data.get(key)
        if value is None:
            return {}
        if not is_mapping(value) or not all(isinstance(name, str) for name in value):
            raise self._complain(key, "a dictionary with text keys")
        return dict(value)

    def optional_mapping(self, key: str) -> dict[str, Any] | None:
        """A dictionary with text keys, copied, or None when it is absent or null."""
        return None if self._data.get(key) is None else self.mapping(key)

    def items(self, key: str) -> list[Any]:
        """A list, copied; empty when absent."""
        value = self._data.get(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise self._complain(key, "a list")
        return list(cast("list[Any]", value))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty when absent."""
        value = self.items(key)
        if not all(isinstance(item, str) for item in value):
            raise ValueError(f"{self._what}.{key} must be a list of texts")
        return tuple(value)
