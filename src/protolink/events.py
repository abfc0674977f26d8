"""What an application may see of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from protolink._record import new_dict
from protolink._values import Reader, new_id, now_text

__all__ = ["RunEvent"]


@dataclass(slots=True)
class RunEvent:
    """One public observation of a run or of one of its children.

    Each reader gets values of its own: changing one changes nobody else's.
    """

    type: str
    """`task.status`, `llm.call.started`, `action.completed`, ...; the documentation lists them all."""

    run_id: str
    task_id: str
    agent_name: str
    sequence: int = 0
    """The event's place in the list of the whole tree, from 1; what `events(after=)` and a reconnect refer to."""

    step: int | None = None
    """The model turn that it belongs to, from 1; None outside a turn."""

    span_id: str | None = None
    parent_span_id: str | None = None
    action_id: str | None = None
    parent_action_id: str | None = None
    """The parent's action that delegated this work; None in a root."""

    delegation_id: str | None = None
    severity: str = "info"
    """`info`, `warning` or `error`."""

    summary: str = ""
    """One line for people; machines read the payload."""

    payload: dict[str, Any] = field(default_factory=new_dict)
    final: bool = False
    """Whether this ends something of the reader's own run: its attempt (`task.status`) or its answer (`llm_final`)."""

    metadata: dict[str, Any] = field(default_factory=new_dict)
    event_id: str = field(default_factory=new_id)
    """The same for every reader and every replay."""

    version: str = "1.0"
    timestamp: str = field(default_factory=now_text)

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"{self.sequence} {self.agent_name} {self.type}: {self.summary}"
            if self.summary
            else (f"{self.sequence} {self.agent_name} {self.type}")
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        return {
            "type": self.type,
            "run_id": self.run_id,
            "task_id": self.task_id,
            "agent_name": self.agent_name,
            "sequence": self.sequence,
            "step": self.step,
            "span_id": self.span_id,
            "parent_span_id": self.parent_span_id,
            "action_id": self.action_id,
            "parent_action_id": self.parent_action_id,
            "delegation_id": self.delegation_id,
            "severity": self.severity,
            "summary": self.summary,
            "payload": dict(self.payload),
            "final": self.final,
            "metadata": dict(self.metadata),
            "event_id": self.event_id,
            "version": self.version,
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read an event back; unknown keys are ignored."""
        read = Reader(data, "RunEvent")
        return cls(
            type=read.text("type"),
            run_id=read.text("run_id"),
            task_id=read.text("task_id"),
            agent_name=read.text("agent_name"),
            sequence=read.integer("sequence", 0),
            step=read.optional_integer("step"),
            span_id=read.optional_text("span_id"),
            parent_span_id=read.optional_text("parent_span_id"),
            action_id=read.optional_text("action_id"),
            parent_action_id=read.optional_text("parent_action_id"),
            delegation_id=read.optional_text("delegation_id"),
            severity=read.text("severity", "info"),
            summary=read.text("summary", ""),
            payload=read.mapping("payload"),
            final=read.boolean("final", False),
            metadata=read.mapping("metadata"),
            event_id=read.text("event_id"),
            version=read.text("version", "1.0"),
            timestamp=read.text("timestamp"),
        )
