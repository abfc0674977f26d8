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
    task: Task | None = None
    work: tuple[Any, ...] = ()
    done = 0
    for entry in items:
        if isinstance(entry, Fragment) or entry.run_id != run_id:
            continue
        record = entry.record
        if task is None:
            if isinstance(record, RunStarted):
                task = _opened(record)
                work = record.work
            continue
        match record:
            case ActionCompleted():
                task.artifacts.append(_result_receipt(entry, record))
                if done < len(work) and isinstance(work[done], ToolRequest):
                    content = {"call_id": work[done].call_id, "result": thaw(record.result), "error": None}
                    task.messages.append(_said(entry, run_id, Part("tool_output", content)))
                    done += 1
            case ActionRepeated():
                if done < len(work) and isinstance(work[done], ToolRequest) and entry.action is not None:
                    content = {"call_id": work[done].call_id, "result": thaw(entry.action.observed), "error": None}
                    task.messages.append(_said(entry, run_id, Part("tool_output", content)))
                    done += 1
            case ActionReconciled():
                task.metadata["uncertain_actions"] = [
                    action_id
                    for action_id in task.metadata.get("uncertain_actions", [])
                    if action_id != record.action_id
                ]
                if record.happened:
                    completed = ActionCompleted(action_id=record.action_id, result=record.result)
                    task.artifacts.append(_result_receipt(entry, completed))
                    if done < len(work) and isinstance(work[done], ToolRequest):
                        content = {"call_id": work[done].call_id, "result": thaw(record.result), "error": None}
                        task.messages.append(_said(entry, run_id, Part("tool_output", content)))
                        done += 1
            case ActionRejected():
                task.artifacts.append(_rejection_receipt(entry, record))
            case ActionUncertain():
                task.metadata.setdefault("uncertain_actions", []).append(record.action_id)
            case CompletionChecked():
                task.metadata["validations"] = [_validation(entry, check) for check in record.checks]
            case AnswerGiven():
                task.messages.append(_said(entry, run_id, Part("infer_output", thaw(record.content))))
                done += 1
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
    if task is None:
        raise ValueError(f"the list holds no run {run_id!r}")
    return task


def _opened(record: RunStarted) -> Task:
    task = Task.from_dict(record.task)
    task.state = TaskState.WORKING
    task.metadata.pop("validations", None)  # only this run's own checks say what they have found
    task.metadata["run_context"] = thaw(record.context)
    task.metadata["agent_name"] = record.agent_name
    return task


def _validation(entry: Entry, check: CheckOutcome) -> dict[str, Any]:
    return {"name": check.name, "passed": check.passed, "message": check.message, "checked_at": iso(entry.at)}


def _said(entry: Entry, run_id: str, part: Part) -> Message:
    return Message(id=f"{run_id}:{entry.source_sequence}", role="agent", parts=[part], timestamp=iso(entry.at))


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
