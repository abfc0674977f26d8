"""A stored run, record by record, with what was decided after each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from protolink._core.codec import encode, kind_of
from protolink._core.entries import Entry
from protolink._core.machine import Command, decide
from protolink._core.records import Record
from protolink._environment import current_environment, iso
from protolink._json import dumps
from protolink._runtime.journal import Journal
from protolink._text import visible
from protolink.durable.port import Row

__all__ = ["Moment", "history"]

_VALUE: Final = 60
_LINE: Final = 120

_TELLING: Final[Mapping[str, tuple[str, ...]]] = {
    "RunStarted": ("agent_name", "work", "principal", "slice_steps"),
    "ActionPrepared": ("action_id", "tool", "arguments", "capabilities"),
    "AttemptStarted": ("attempt", "principal"),
    "ConversationLoaded": (),
    "HistoryCompacted": ("before",),
    "ModelRetried": ("attempt", "error", "delay_seconds"),
    "ModelAsked": ("step", "provider", "model"),
    "ModelReplied": ("text",),
    "RunPaused": ("kind",),
    "Yielded": (),
}
"""The fields that say what happened, of records that hold much else; of all other records, every field does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One record, and what was to happen next."""

    number: int
    run_id: str
    at: str
    kind: str
    record: dict[str, Any]
    """The fields, as they are stored; those that are stored apart are left out."""

    facts: str
    """The telling fields as one line that is fit for a terminal."""

    decision: str
    """The next command of the record's run; empty where nothing was to be done."""


def history(root_id: str, rows: Sequence[Row]) -> Iterator[Moment]:
    """Fold the rows one by one. Raises `StoreDamagedError` for a row that cannot follow."""
    journal = Journal(root_id, current_environment())
    for row in rows:
        journal.restore([row])
        entry = journal.entries[-1]
        if not isinstance(entry, Entry):
            continue
        plain = encode(entry.record)[2]
        yield Moment(
            number=entry.number,
            run_id=entry.run_id,
            at=iso(entry.at),
            kind=kind_of(entry.record),
            record=plain,
            facts=_facts(entry.record, plain),
            decision=_decision(decide(journal.tree, journal.tree.runs[entry.run_id])),
        )


def _facts(record: Record, plain: Mapping[str, Any]) -> str:
    names = _TELLING.get(kind_of(record), tuple(plain))
    return visible(" ".join(f"{name}={_short(plain[name])}" for name in names if name in plain), limit=_LINE)


def _short(value: object) -> str:
    text = value if isinstance(value, str) and value.isprintable() and " " not in value else dumps(value)
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}…"


def _decision(command: Command | None) -> str:
    if command is None:
        return ""
    told = (_told(getattr(command, field.name)) for field in fields(command))
    return visible(" ".join([type(command).__name__, *filter(None, told)]), limit=_LINE)


def _told(value: Any) -> str:
    """A command's field: an id, several of them, a word, or why a run ends."""
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, tuple):
        return " ".join(map(str, cast("tuple[object, ...]", value)))
    for name in ("status", "limit", "code"):
        word = getattr(value, name, None)
        if word is not None:
            return str(word)
    return ""
