"""A run's report: its events and the views of them, as one value that can be stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from protolink._json import is_list, is_mapping
from protolink._record import new_dict
from protolink._values import Reader, now_text
from protolink.context import RunContext
from protolink.events import RunEvent
from protolink.evidence import ToolEvidence, collect_tool_evidence
from protolink.message import Artifact
from protolink.task import Task

if TYPE_CHECKING:
    from protolink.redaction import RedactionPolicy

__all__ = ["RunReport"]

_APPROVALS = ("approval.required", "approval.decided")


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did, as a snapshot. `actions`, `approvals` and `metrics` are read off the events."""

    context: RunContext
    context_manifests: tuple[dict[str, Any], ...] = ()
    events: tuple[RunEvent, ...] = ()
    actions: tuple[dict[str, Any], ...] = ()
    """One entry per action: `action_id`, `kind`, `name`, `status`, `run_id`, `agent_name`."""

    approvals: tuple[dict[str, Any], ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    metrics: dict[str, Any] = field(default_factory=new_dict)
    final_task: Task | None = None
    metadata: dict[str, Any] = field(default_factory=new_dict)
    created_at: str = field(default_factory=now_text)
    validations: tuple[dict[str, Any], ...] = ()
    """What the agent's completion checks said about the answer: `name`, `passed`, `message`, `checked_at`."""

    @classmethod
    def from_events(
        cls, events: Iterable[RunEvent], *, context: RunContext | None = None, task: Task | None = None
    ) -> Self:
        """Build the report of the run that `events` belong to."""
        seen = tuple(events)
        if context is None:
            context = RunContext.from_task(task) if task is not None else RunContext(run_id=_root_run_id(seen))
        return cls(
            context=context,
            events=seen,
            actions=_actions(seen),
            approvals=tuple(_details(event) for event in seen if event.type in _APPROVALS),
            artifacts=tuple(task.artifacts) if task is not None else (),
            metrics=_metrics(seen),
            final_task=task,
            validations=() if task is None else _validations(task),
        )

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """The report of a task whose events are not at hand: its context, artifacts and outcome."""
        return cls.from_events((), task=task)

    @property
    def tool_evidence(self) -> tuple[ToolEvidence, ...]:
        """One record per tool action."""
        return collect_tool_evidence(self.events)

    def redacted(self, policy: RedactionPolicy) -> Self:
        """The same report without what `policy` withholds."""
        return type(self).from_dict(cast("dict[str, Any]", policy.value(cast("Any", self.to_dict()))))

    def to_dict(self, redaction_policy: RedactionPolicy | None = None) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        if redaction_policy is not None:
            return self.redacted(redaction_policy).to_dict()
        return {
            "context": self.context.to_dict(),
            "context_manifests": list(self.context_manifests),
            "events": [event.to_dict() for event in self.events],
            "actions": list(self.actions),
            "approvals": list(self.approvals),
            "artifacts": [artifact.to_dict() for artifact in self.artifacts],
            "metrics": dict(self.metrics),
            "final_task": None if self.final_task is None else self.final_task.to_dict(),
            "metadata": dict(self.metadata),
            "created_at": self.created_at,
            "validations": list(self.validations),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a report back; unknown keys are ignored."""
        read = Reader(data, "RunReport")
        final_task = read.optional_mapping("final_task")
        return cls(
            context=RunContext.from_dict(read.mapping("context")),
            context_manifests=tuple(read.items("context_manifests")),
            events=tuple(RunEvent.from_dict(event) for event in read.items("events")),
            actions=tuple(read.items("actions")),
            approvals=tuple(read.items("approvals")),
            artifacts=tuple(Artifact.from_dict(item) for item in read.items("artifacts")),
            metrics=read.mapping("metrics"),
            final_task=None if final_task is None else Task.from_dict(final_task),
            metadata=read.mapping("metadata"),
            created_at=read.text("created_at", now_text),
            validations=tuple(read.items("validations")),
        )


def _validations(task: Task) -> tuple[dict[str, Any], ...]:
    """What completion checks left in the task; anything else of that name is somebody else's."""
    found: Any = task.metadata.get("validations")
    return tuple(dict(entry) for entry in found if is_mapping(entry)) if is_list(found) else ()


def _root_run_id(events: tuple[RunEvent, ...]) -> str:
    """The run that is nobody's child; without events there is none to name."""
    for event in events:
        if event.parent_action_id is None:
            return event.run_id
    raise ValueError("a report needs events, a task or a context to know its run")


def _details(event: RunEvent) -> dict[str, Any]:
    return dict(event.payload.get("metadata") or {})


def _actions(events: Iterable[RunEvent]) -> tuple[dict[str, Any], ...]:
    """The latest known state of every action, in the order of their first appearance."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.action_id is None or not event.type.startswith("action."):
            continue
        details = _details(event)
        entry = found.setdefault(
            event.action_id,
            {
                "action_id": event.action_id,
                "kind": details.get("action_kind"),
                "name": details.get("tool"),
                "run_id": event.run_id,
                "agent_name": event.agent_name,
            },
        )
        entry["status"] = event.type.removeprefix("action.")
    return tuple(found.values())


def _metrics(events: Iterable[RunEvent]) -> dict[str, Any]:
    """Counts over the events, and the usage of the tree as the last model call reported it."""
    metrics: dict[str, Any] = {"llm_calls": 0, "actions_completed": 0, "actions_failed": 0, "actions_rejected": 0}
    for event in events:
        if "peer" in event.metadata:
            continue  # what a peer says of its own run counts nothing here
        budget = _details(event).get("budget")
        if budget is not None:
            metrics["budget"] = budget
        if event.type == "llm.call.completed":
            metrics["llm_calls"] += 1
        elif event.type in ("action.completed", "action.failed", "action.rejected"):
            metrics[f"actions_{event.type.removeprefix('action.')}"] += 1
    return metrics
