"""Sessions: one name of a client's is one conversation of that client's, and nobody else's."""

from __future__ import annotations

from urllib.parse import quote

__all__ = ["own_session", "session_of"]


def session_of(principal: str, session_id: str) -> str:
    """The session that an agent's storage knows a client's `session_id` by.

    For an application that reads or deletes a client's conversation, or adds to it by itself.
    """
    return f"{quote(principal, safe='')}:{session_id}"


def own_session(stored: str | None) -> str | None:
    """What the client calls a session."""
    return None if stored is None else stored.partition(":")[2]
