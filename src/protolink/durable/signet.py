"""What the rows of a record log are sealed with: the store's identity and, where the application has one, its key."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

__all__ = ["MIN_KEY_BYTES", "Signet", "check_key"]

MIN_KEY_BYTES: Final = 16


class Signet:
    """Makes the checksums of one store.

    Without a key they are SHA-256, which shows accidents; whoever can write the file can compute them too. With
    one they are HMAC-SHA256, which nobody can make without it.
    """

    __slots__ = ("_key", "store_id")

    def __init__(self, store_id: str, key: bytes | None) -> None:
        self.store_id = store_id
        """What tells the store from every other, copies excepted."""
        self._key = key

    def digest(self, content: bytes) -> bytes:
        """The checksum of some bytes."""
        if self._key is None:
            return hashlib.sha256(content).digest()
        return hmac.digest(self._key, content, "sha256")

    def proof(self) -> str | None:
        """What the file remembers of the key, so that another one is told apart; None without a key."""
        if self._key is None:
            return None
        return self.digest(f"protolink durable store {self.store_id}".encode()).hex()


def check_key(key: object) -> bytes | None:
    """A key that can be one. Raises `TypeError` and `ValueError`."""
    if key is None:
        return None
    if not isinstance(key, bytes):
        raise TypeError(f"an integrity key is bytes, not {type(key).__name__}")
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"an integrity key has at least {MIN_KEY_BYTES} bytes, not {len(key)}")
    return key
