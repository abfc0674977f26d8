"""What a peer reports of its run: claims, each of which is checked before it is kept.

A report keeps its own identity, and can take nobody else's: not that of a run here, not that of another peer's
work, not that of an action of either. It is of a kind that decides nothing, and it is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from protolink._core.state import TreeState
from protolink._json import dumps, is_mapping
from protolink._text import visible
from protolink.events import RunEvent
from protolink.message import Artifact
from protolink.task import Task

__all__ = ["MAX_REPORTS", "receipts_of", "report_of"]

MAX_REPORTS: Final = 2_000
"""Reports that are kept of one delegation."""

MAX_REPORT_CHARACTERS: Final = 64 * 1024
"""The payload of one report as JSON; a larger one is left out, and says so."""

_MAX_ID_CHARACTERS: Final = 300
_KINDS: Final = frozenset(
    {
        "action.canceled",
        "action.completed",
        "action.denied",
        "action.failed",
        "action.rejected",
        "action.repeated",
        "action.requested",
        "action.started",
        "action.uncertain",
        "llm.call.completed",
        "llm.call.started",
        "llm.stream",
        "task.artifact",
        "task.error",
        "task.status",
    }
)
"""No approvals and questions, which are not asked here, and no budgets, which are not those of here."""

_ENDINGS: Final = {"action_result": "action.completed", "action_rejection": "action.rejected"}
_DETAILS: Final[dict[str, tuple[type, ...]]] = {
    "tool": (str,),
    "action_kind": (str,),
    "args": (dict, type(None)),
    "error": (dict, type(None)),
    "result_omitted": (bool,),
    "duration_seconds": (int, float, type(None)),
}


def report_of(event: RunEvent, *, run_id: str, peer: str, tree: TreeState) -> dict[str, Any] | None:
    """What is kept of a peer's event; None where nothing is. `run_id` is the run that the peer was asked for."""
    own = event.run_id == run_id
    if event.type not in _KINDS or event.payload.get("llm_event_type") == "llm_chunk":
        return None
    if not own and _belongs_here(event.run_id, tree):
        return None
    if not event.event_id.startswith(f"{event.run_id}:"):
        return None
    if event.action_id is not None and not event.action_id.startswith(f"{event.run_id}."):
        return None
    ids = (event.run_id, event.event_id, event.task_id, event.action_id, event.parent_action_id, event.delegation_id)
    if not all(map(_is_id, ids)) or not _is_moment(event.timestamp):
        return None
    parent = event.metadata.get("parent_run_id")
    kept = RunEvent(
        type=event.type,
        run_id=event.run_id,
        task_id=event.task_id,
        agent_name=peer if own else visible(event.agent_name, limit=100),
        sequence=event.sequence,
        step=event.step,
        span_id=event.action_id or event.run_id,
        parent_span_id=event.run_id if event.action_id else event.parent_action_id,
        action_id=event.action_id,
        # Its root was delegated from here, whatever it says.
        parent_action_id=None if own else event.parent_action_id,
        delegation_id=event.delegation_id,
        severity=event.severity if event.severity in ("info", "warning", "error") else "info",
        summary=visible(event.summary, limit=500),
        payload=_payload(event),
        final=event.final,
        metadata={"parent_run_id": parent} if isinstance(parent, str) and not own and _is_id(parent) else {},
        event_id=event.event_id,
        timestamp=event.timestamp,
    )
    return kept.to_dict()


def _belongs_here(run_id: str, tree: TreeState) -> bool:
    """Whether a run is one of this tree, or one that a peer of this tree was asked for."""
    return run_id in tree.runs or run_id.rpartition(".")[0] in tree.runs


def _is_id(value: str | None) -> bool:
    return value is None or (0 < len(value) <= _MAX_ID_CHARACTERS and value.isprintable())


def _is_moment(text: str) -> bool:
    with suppress(ValueError):
        return len(text) <= _MAX_ID_CHARACTERS and datetime.fromisoformat(text).tzinfo is not None
    return False


def _payload(event: RunEvent) -> dict[str, Any]:
    details = _details(event.payload.get("metadata"))
    payload: dict[str, Any] = {**event.payload, "metadata": details}
    if len(dumps(payload)) > MAX_REPORT_CHARACTERS:
        known = {name: value for name, value in details.items() if name in ("tool", "action_kind") and len(value) < 200}
        payload = {"metadata": {**known, "result_omitted": True, "omitted": True}}
    payload.update({"event_id": event.event_id, "type": event.type, "task_id": event.task_id})
    payload["timestamp"] = event.timestamp
    if event.action_id is not None:
        payload["action_id"] = event.action_id
    return payload


def _details(told: Any) -> dict[str, Any]:
    """What is said about an action, where evidence could be made of it: with the types that evidence has."""
    details: dict[str, Any] = dict(told) if is_mapping(told) else {}
    details.pop("budget", None)
    for name, expected in _DETAILS.items():
        value = details.get(name)
        if name in details and (not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected)):
            del details[name]
    return details


def receipts_of(task: Task, *, run_id: str, peer: str) -> Iterator[RunEvent]:
    """The receipts of a peer's task as the events that they stand for, for a peer whose run could not be watched."""
    for artifact in task.artifacts:
        kind = _ENDINGS.get(artifact.kind)
        content = artifact.parts[0].content if len(artifact.parts) == 1 else None
        if kind is not None and artifact.action_id is not None and is_mapping(content):
            yield _receipt(kind, artifact, artifact.action_id, content, task=task, run_id=run_id, peer=peer)


def _receipt(
    kind: str, artifact: Artifact, action_id: str, content: Any, *, task: Task, run_id: str, peer: str
) -> RunEvent:
    name = content.get("name")
    details: dict[str, Any] = {"tool": name, "action_kind": content.get("action_kind"), "args": None}
    if kind == "action.completed":
        details["result_omitted"] = "result" not in content
        details.update({"result": content["result"]} if "result" in content else {})
    else:
        details["error"] = {key: content.get(key) for key in ("code", "message", "details", "suggestion")}
    return RunEvent(
        type=kind,
        run_id=run_id,
        task_id=task.id,
        agent_name=peer,
        action_id=action_id,
        summary=f"{kind.removeprefix('action.')} {name}",
        payload={"metadata": details},
        event_id=f"{run_id}:receipt.{action_id}",
        timestamp=artifact.timestamp,
    )
