"""What is kept for a while: the latest values of each owner, and of all."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Kept"]

V = TypeVar("V")


class Kept(Generic[V]):
    """Values by owner and key. Where there are too many, the oldest go: an owner's own first."""

    def __init__(self, most: int, most_per_owner: int) -> None:
        self._most = most
        self._most_per_owner = most_per_owner
        self._values: OrderedDict[tuple[str, str], V] = OrderedDict()
        self._keys: dict[str, OrderedDict[str, None]] = {}

    def get(self, owner: str, key: str) -> V | None:
        """The value, or None."""
        return self._values.get((owner, key))

    def put(self, owner: str, key: str, value: V) -> None:
        """Keep a value as the latest one."""
        self.drop(owner, key)
        self._values[owner, key] = value
        keys = self._keys.setdefault(owner, OrderedDict())
        keys[key] = None
        if len(keys) > self._most_per_owner:
            self.drop(owner, next(iter(keys)))
        elif len(self._values) > self._most:
            self.drop(*next(iter(self._values)))

    def drop(self, owner: str, key: str) -> None:
        """Forget a value."""
        if self._values.pop((owner, key), None) is None:
            return
        keys = self._keys[owner]
        del keys[key]
        if not keys:
            del self._keys[owner]

    def __len__(self) -> int:
        return len(self._values)
