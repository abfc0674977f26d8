"""What the events of runs and of their actions have in common."""

from __future__ import annotations

from typing import Any

from protolink._core.entries import Entry, Fragment
from protolink._core.records import ErrorInfo
from protolink._environment import iso
from protolink._json import thaw
from protolink._record import command
from protolink.events import RunEvent

__all__ = ["Details", "Identity", "error_details", "event_of", "own"]

Details = dict[str, Any]
"""JSON of an event."""


@command
class Identity:
    """Who the events of one run come from."""

    run_id: str
    task_id: str
    agent_name: str
    parent_run_id: str | None = None
    parent_action_id: str | None = None
    delegation_id: str | None = None


def event_of(item: Entry | Fragment, kind: str, who: Identity) -> RunEvent:
    """An event in its place, with nothing in it that only its kind has."""
    timestamp = iso(item.at)
    event_id = f"{who.run_id}:{item.number}"
    if isinstance(item, Fragment):
        event_id = f"{event_id}.{item.sequence}"
    metadata: Details = {}
    return RunEvent(
        type=kind,
        run_id=who.run_id,
        task_id=who.task_id,
        agent_name=who.agent_name,
        sequence=item.sequence,
        step=item.step or None,
        span_id=who.run_id,
        parent_action_id=who.parent_action_id,
        delegation_id=who.delegation_id,
        parent_span_id=who.parent_action_id,
        payload={
            "event_id": event_id,
            "type": kind,
            "task_id": who.task_id,
            "timestamp": timestamp,
            "metadata": metadata,
        },
        event_id=event_id,
        timestamp=timestamp,
    )


def own(value: Any) -> Any:
    """A copy that the reader may change."""
    return thaw(value) if isinstance(value, dict | list) else value


def error_details(error: ErrorInfo) -> Details:
    """An error as JSON."""
    return {"code": error.code, "message": error.message, "type": error.type}
