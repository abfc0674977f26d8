"""The list of a tree: records in their places, with the fragments of replies between them."""

from __future__ import annotations

from typing import Any, Final, get_args

from protolink._core.records import ModelAsked, PrivateRecord, Record, Usage
from protolink._core.state import ActionState
from protolink._record import state

__all__ = ["Entry", "Fragment", "is_public"]


@state
class Entry:
    """A record in its place. What stands beside the record is derived from the records before it."""

    number: int
    """Its place among the records, from 1 and without gaps: what a store is keyed by."""

    run_id: str
    at: float
    """When it was appended, in epoch seconds. Data only; the order is `number`."""

    record: Record
    sequence: int
    """Its place among what can be seen, fragments included; the last such place where it is private."""

    source_sequence: int
    """The same, counted over its own run alone."""

    public: bool
    step: int
    """Model turns of its run so far."""

    action: ActionState | None = None
    """The action that it is about, where it is about one."""

    asked: ModelAsked | None = None
    """The turn that a reply answers, or whose call was lost."""

    usage: Usage | None = None
    """The tree's counters right after a model reply."""


@state
class Fragment:
    """A piece of a reply that is being streamed. Live only: the complete reply is a record."""

    run_id: str
    at: float
    text: str
    number: int
    """The record that it follows."""

    sequence: int
    source_sequence: int
    step: int


_PRIVATE: Final[frozenset[type[Any]]] = frozenset(get_args(PrivateRecord))


def is_public(record: Record) -> bool:
    """Whether an application sees an event for this record."""
    return type(record) not in _PRIVATE
