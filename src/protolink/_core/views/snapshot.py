"""The task of a run, as the list says it stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protolink._core.entries import Entry, Fragment
from protolink._core.records import (
    ActionCompleted,
    ActionReconciled,
    ActionRejected,
    ActionRepeated,
    ActionUncertain,
    AnswerGiven,
    AttemptEnded,
    AttemptStarted,
    CheckOutcome,
    CompletionChecked,
    RunFinished,
    RunPaused,
    RunStarted,
    ToolRequest,
)
from protolink._core.state import ActionState
from protolink._environment import iso
from protolink._json import thaw
from protolink.message import Artifact, Message, Part
from protolink.task import Task, TaskState

__all__ = ["task_snapshot"]


def task_snapshot(items: Iterable[Entry | Fragment], run_id: str) -> Task:
    """Fold the list into the task of one run: outputs become messages, endings become receipts."""
    folded: _Folded | None = None
    for entry in items:
        if isinstance(entry, Fragment) or entry.run_id != run_id:
            continue
        if folded is not None:
            folded.add(entry)
        elif isinstance(entry.record, RunStarted):
            folded = _Folded(entry.record, run_id)
    if folded is None:
        raise ValueError(f"the list holds no run {run_id!r}")
    return folded.task


class _Folded:
    """A task as far as its list was read."""

    def __init__(self, started: RunStarted, run_id: str) -> None:
        self.task = _opened(started)
        self._run_id = run_id
        self._work = started.work
        self._done = 0

    def add(self, entry: Entry) -> None:
        task, record = self.task, entry.record
        match record:
            case ActionCompleted():
                task.artifacts.append(_result_receipt(entry, record))
                self._output(entry, record.result)
            case ActionRepeated():
                if entry.action is not None:
                    self._output(entry, entry.action.observed)
            case ActionReconciled():
                self._reconciled(entry, record)
            case ActionRejected():
                task.artifacts.append(_rejection_receipt(entry, record))
            case ActionUncertain():
                task.metadata.setdefault("uncertain_actions", []).append(record.action_id)
            case CompletionChecked():
                task.metadata["validations"] = [_validation(entry, check) for check in record.checks]
            case AnswerGiven():
                self._say(entry, Part("infer_output", thaw(record.content)))
            case RunFinished():
                _finish(task, record)
            case AttemptStarted():
                task.state = TaskState.WORKING
                for key in ("interruption", "interruptions", "error", "resumable"):
                    task.metadata.pop(key, None)
            case RunPaused():
                task.state = TaskState.INPUT_REQUIRED
                task.metadata["interruptions"] = thaw(list(record.interruptions))
                task.metadata["interruption"] = task.metadata["interruptions"][0]
            case AttemptEnded(error=error):
                task.state = TaskState.FAILED
                task.metadata["error"] = {"code": error.code, "message": error.message, "type": error.type}
                task.metadata["resumable"] = True
            case _:
                pass

    def _output(self, entry: Entry, result: Any) -> None:
        """The result of an action that the application asked for itself."""
        work = self._work[self._done] if self._done < len(self._work) else None
        if isinstance(work, ToolRequest):
            content = {"call_id": work.call_id, "result": thaw(result), "error": None}
            self._say(entry, Part("tool_output", content))

    def _say(self, entry: Entry, part: Part) -> None:
        message_id = f"{self._run_id}:{entry.source_sequence}"
        self.task.messages.append(Message(id=message_id, role="agent", parts=[part], timestamp=iso(entry.at)))
        self._done += 1

    def _reconciled(self, entry: Entry, record: ActionReconciled) -> None:
        uncertain: list[str] = self.task.metadata.get("uncertain_actions", [])
        self.task.metadata["uncertain_actions"] = [one for one in uncertain if one != record.action_id]
        if record.happened:
            completed = ActionCompleted(action_id=record.action_id, result=record.result)
            self.task.artifacts.append(_result_receipt(entry, completed))
            self._output(entry, record.result)


def _opened(record: RunStarted) -> Task:
    task = Task.from_dict(record.task)
    task.state = TaskState.WORKING
    task.metadata.pop("validations", None)  # only this run's own checks say what they have found
    task.metadata["run_context"] = thaw(record.context)
    task.metadata["agent_name"] = record.agent_name
    return task


def _validation(entry: Entry, check: CheckOutcome) -> dict[str, Any]:
    return {"name": check.name, "passed": check.passed, "message": check.message, "checked_at": iso(entry.at)}


def _finish(task: Task, record: RunFinished) -> None:
    task.state = TaskState(record.status)
    if record.error is not None:
        error = record.error
        task.metadata["error"] = {"code": error.code, "message": error.message, "type": error.type}
    if record.status == "canceled":
        task.metadata["cancel_reason"] = record.reason
        task.metadata["run_context"].update(canceled=True, cancel_reason=record.reason)


def _result_receipt(entry: Entry, record: ActionCompleted) -> Artifact:
    action = entry.action
    content = _receipt_head(record.action_id, action, "completed")
    public = action is not None and action.prepared is not None and action.prepared.public
    content["result_omitted"] = not public
    content["rendered"] = record.rendered
    if public:
        content["result"] = thaw(record.result)
    return _receipt(entry, "action_result", record.action_id, content)


def _rejection_receipt(entry: Entry, record: ActionRejected) -> Artifact:
    content = _receipt_head(record.action_id, entry.action, "rejected")
    content.update(
        result_omitted=False,
        phase=record.phase,
        code=record.code,
        message=record.message,
        details=None if record.details is None else thaw(record.details),
        suggestion=record.suggestion,
        changes_made=False,
    )
    return _receipt(entry, "action_rejection", record.action_id, content)


def _receipt_head(action_id: str, action: ActionState | None, status: str) -> dict[str, Any]:
    return {
        "status": status,
        "action_id": action_id,
        "action_kind": None if action is None else action.proposal.kind,
        "name": None if action is None else action.proposal.name,
    }


def _receipt(entry: Entry, kind: str, action_id: str, content: dict[str, Any]) -> Artifact:
    return Artifact(
        id=f"{action_id}.receipt",
        parts=[Part("json", content)],
        timestamp=iso(entry.at),
        kind=kind,
        name=content["name"],
        media_type="application/json",
        action_id=action_id,
    )
