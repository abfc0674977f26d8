"""Tool evidence: one record per tool action, read off the events of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from protolink.events import RunEvent

__all__ = ["EvidenceFold", "ToolEvidence", "collect_tool_evidence"]

_OUTCOMES = {
    "action.completed": "completed",
    "action.rejected": "rejected",
    "action.denied": "rejected",
    "action.failed": "failed",
    "action.canceled": "canceled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEvidence:
    """What became of one requested tool call.

    An uncertain call has no record here: nobody knows its outcome, and the absence of evidence does
    not say that its effect failed.
    """

    tool_name: str
    arguments: dict[str, Any] | None
    """The validated arguments; None where validation refused them."""

    result: Any
    """What the tool returned, where it is public; see `result_omitted`."""

    outcome: str
    """`completed`, `rejected` (a policy denial included), `failed` or `canceled`."""

    run_id: str
    task_id: str
    agent_name: str
    action_id: str
    parent_action_id: str | None
    delegation_id: str | None
    started_at: str | None
    """ISO-8601 UTC; None when no start was observed."""

    finished_at: str
    duration_seconds: float | None
    """Seconds between start and end; None when no start was observed."""

    result_omitted: bool = False
    """Whether a completed call's result is private, as opposed to a result of None."""

    error: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        return {
            "tool_name": self.tool_name,
            "arguments": self.arguments,
            "result": self.result,
            "outcome": self.outcome,
            "run_id": self.run_id,
            "task_id": self.task_id,
            "agent_name": self.agent_name,
            "action_id": self.action_id,
            "parent_action_id": self.parent_action_id,
            "delegation_id": self.delegation_id,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "duration_seconds": self.duration_seconds,
            "result_omitted": self.result_omitted,
            "error": self.error,
        }


class EvidenceFold:
    """Reads events one after the other; each tool action gives one record, at its end."""

    def __init__(self) -> None:
        self._started: dict[str, str] = {}
        self._ended: set[str] = set()

    def add(self, event: RunEvent) -> ToolEvidence | None:
        """The record that `event` completes, or None. An event seen before adds nothing."""
        action_id = event.action_id
        if action_id is None or action_id in self._ended:
            return None
        if event.type == "action.started":
            self._started.setdefault(action_id, event.timestamp)
            return None
        outcome = _OUTCOMES.get(event.type)
        details: dict[str, Any] = event.payload.get("metadata") or {}
        if outcome is None or details.get("action_kind") != "tool.call":
            return None
        self._ended.add(action_id)
        started_at = self._started.pop(action_id, None)
        return ToolEvidence(
            tool_name=details.get("tool") or "",
            arguments=details.get("args"),
            result=details.get("result"),
            outcome=outcome,
            run_id=event.run_id,
            task_id=event.task_id,
            agent_name=event.agent_name,
            action_id=action_id,
            parent_action_id=event.parent_action_id,
            delegation_id=event.delegation_id,
            started_at=started_at,
            finished_at=event.timestamp,
            duration_seconds=_duration(details.get("duration_seconds"), started_at, event.timestamp),
            result_omitted=bool(details.get("result_omitted", False)),
            error=details.get("error"),
        )


def _duration(measured: float | None, started_at: str | None, finished_at: str) -> float | None:
    """The measured seconds, else the difference of the two times, else unknown."""
    if started_at is None:
        return None
    if measured is not None:
        return measured
    between = datetime.fromisoformat(finished_at) - datetime.fromisoformat(started_at)
    return max(0.0, between.total_seconds())


def collect_tool_evidence(events: Iterable[RunEvent | Mapping[str, Any]]) -> tuple[ToolEvidence, ...]:
    """One record per tool action, in the order of their ends. Executes nothing.

    Takes live events and stored ones alike; an event that appears twice counts once.
    """
    fold = EvidenceFold()
    records = (fold.add(event if isinstance(event, RunEvent) else RunEvent.from_dict(event)) for event in events)
    return tuple(record for record in records if record is not None)
