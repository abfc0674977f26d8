"""Who acts: every operation of the runtime has a principal, and a program on its own is `local`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote

__all__ = ["LOCAL", "acting_as", "current_principal", "session_of"]

LOCAL: Final = "local"

_principal: ContextVar[str] = ContextVar("protolink_principal", default=LOCAL)


def current_principal() -> str:
    """Whoever the current code acts for."""
    return _principal.get()


@contextmanager
def acting_as(principal: str) -> Generator[None]:
    """Act for `principal` inside the block. A server sets it per request, from its own authentication."""
    if not isinstance(principal, str) or not principal.strip():
        raise ValueError("a principal is a non-blank text")
    token = _principal.set(principal)
    try:
        yield
    finally:
        _principal.reset(token)


def session_of(principal: str, session_id: str) -> str:
    """The session that an agent's storage knows a principal's `session_id` by.

    Two principals that call their sessions the same have one each. For an application that reads or deletes a
    client's conversation, or adds to it by itself; what it starts itself, for nobody else, has the session that
    it names.
    """
    return session_id if principal == LOCAL else f"{quote(principal, safe='')}:{session_id}"
