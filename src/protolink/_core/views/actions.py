"""The events of actions, from their request to their end."""

from __future__ import annotations

from typing import assert_never

from protolink._core.entries import Entry
from protolink._core.observations import rejection_feedback
from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionDenied,
    ActionFailed,
    ActionJudged,
    ActionPrepared,
    ActionReconciled,
    ActionRecord,
    ActionRejected,
    ActionRepeated,
    ActionStarted,
    ActionUncertain,
    ApprovalAnswered,
    ApprovalAsked,
    PeerReported,
    ProgressReported,
    QuestionAnswered,
    QuestionAsked,
)
from protolink._core.views.parts import Details, Identity, error_details, event_of, own
from protolink._json import thaw
from protolink.events import RunEvent

__all__ = ["event_of_action"]


def event_of_action(entry: Entry, record: ActionRecord, who: Identity) -> RunEvent:
    """The event of a record that is about an action."""
    match record:
        case ActionPrepared():
            return _action(entry, who, "action.requested", {"description": record.description})
        case ActionJudged():
            event = _action(entry, who, "action.policy", {"decision": _decision(record)})
            event.payload["decision"] = _decision(record)
            return event
        case ActionStarted():
            return _action(entry, who, "action.started", {})
        case ActionCompleted():
            return _action(entry, who, "action.completed", _result(entry, record))
        case ActionRejected():
            return _rejected(entry, record, who)
        case ActionDenied():
            details: Details = {"error": {"code": record.code, "message": record.reason}}
            return _action(entry, who, "action.denied", details, severity="warning", summary=record.reason)
        case ActionFailed():
            details = {
                "error": error_details(record.error),
                "duration_seconds": record.seconds,
                "observed": record.observed,
            }
            return _action(entry, who, "action.failed", details, severity="error", summary=record.error.message)
        case ActionCanceled():
            details = {"duration_seconds": record.seconds, "unsettled": record.unsettled}
            return _action(entry, who, "action.canceled", details, severity="warning")
        case ActionUncertain():
            details = {"error": {"code": "uncertain_execution", "message": record.reason}}
            return _action(entry, who, "action.uncertain", details, severity="error", summary=record.reason)
        case ActionReconciled():
            details = {"happened": record.happened, "principal": record.principal}
            return _action(entry, who, "action.reconciled", details)
        case ActionRepeated():
            return _action(
                entry, who, "action.repeated", {"repeat_of": record.repeat_of, "args": own(record.arguments)}
            )
        case ApprovalAsked():
            return _approval_asked(entry, record, who)
        case ApprovalAnswered():
            return _approval_answered(entry, record, who)
        case QuestionAsked():
            return _question_asked(entry, record, who)
        case QuestionAnswered():
            return _question_answered(entry, record, who)
        case ProgressReported():
            event = _action(entry, who, record.type, {})
            event.payload.update((key, own(value)) for key, value in record.payload.items() if key not in event.payload)
            return event
        case PeerReported():
            return _reported(entry, record, who)
        case unknown:
            assert_never(unknown)


def _action(
    entry: Entry, who: Identity, kind: str, details: Details, *, severity: str = "info", summary: str = ""
) -> RunEvent:
    event = event_of(entry, kind, who)
    action = entry.action
    if action is None:
        raise TypeError(f"{type(entry.record).__name__} belongs to an action")
    proposal, prepared = action.proposal, action.prepared
    event.action_id = proposal.action_id
    event.span_id = proposal.action_id
    event.parent_span_id = who.run_id
    if proposal.kind == "agent.call":
        event.delegation_id = proposal.action_id
    event.severity = severity
    event.summary = summary or f"{kind.removeprefix('action.')} {proposal.name}"
    event.payload["action_id"] = proposal.action_id
    metadata: Details = event.payload["metadata"]
    metadata["tool"] = proposal.name
    metadata["action_kind"] = proposal.kind
    metadata["args"] = None if prepared is None else own(prepared.arguments)
    metadata.update(details)
    return event


def _result(entry: Entry, record: ActionCompleted) -> Details:
    prepared = None if entry.action is None else entry.action.prepared
    details: Details = {"duration_seconds": record.seconds, "rendered": record.rendered}
    if prepared is not None and prepared.public:
        details["result"] = own(record.result)
    else:
        details["result_omitted"] = True
    return details


def _rejected(entry: Entry, record: ActionRejected, who: Identity) -> RunEvent:
    action = entry.action
    correction = 0 if action is None else action.correction
    allowed = 0 if action is None else action.corrections_allowed
    rejection = rejection_feedback(record, correction, allowed)
    details: Details = {
        "phase": record.phase,
        "error": {
            "code": record.code,
            "message": record.message,
            "details": own(record.details),
            "suggestion": record.suggestion,
        },
        "rejection": own(rejection),
        "correction_count": correction,
        "max_tool_corrections": allowed,
        "duration_seconds": record.seconds,
    }
    event = _action(entry, who, "action.rejected", details, severity="warning", summary=record.message)
    event.payload["metadata"]["args"] = own(record.arguments)
    return event


def _decision(record: ActionJudged) -> Details:
    return {
        "effect": record.effect,
        "reason": record.reason,
        "policy_name": record.policy_name,
        "matched_capabilities": list(record.matched_capabilities),
    }


def _approval_asked(entry: Entry, record: ApprovalAsked, who: Identity) -> RunEvent:
    prepared = None if entry.action is None else entry.action.prepared
    request: Details = {"request_id": record.request_id, "action_id": record.action_id, "run_id": who.run_id}
    if prepared is not None:
        request.update(
            kind=prepared.kind,
            name=prepared.name,
            payload=own(prepared.payload),
            capabilities=list(prepared.capabilities),
            fingerprint=prepared.fingerprint,
        )
    event = _action(entry, who, "approval.required", {"request": request}, severity="warning")
    event.payload["request"] = own(request)
    return event


def _approval_answered(entry: Entry, record: ApprovalAnswered, who: Identity) -> RunEvent:
    decision: Details = {
        "request_id": record.request_id,
        "approved": record.approved,
        "reason": record.reason,
        "decided_by": record.decided_by,
    }
    event = _action(entry, who, "approval.decided", {"decision": decision})
    event.payload["decision"] = dict(decision)
    return event


def _question_asked(entry: Entry, record: QuestionAsked, who: Identity) -> RunEvent:
    prepared = None if entry.action is None else entry.action.prepared
    asked: Details = {} if prepared is None else prepared.arguments
    request: Details = {
        "request_id": record.request_id,
        "action_id": record.action_id,
        "run_id": who.run_id,
        "question": asked.get("question"),
        "choices": own(asked.get("choices")),
        "fingerprint": None if prepared is None else prepared.fingerprint,
    }
    event = _action(entry, who, "input.required", {"request": request}, severity="warning")
    event.payload["request"] = own(request)
    return event


def _question_answered(entry: Entry, record: QuestionAnswered, who: Identity) -> RunEvent:
    prepared = None if entry.action is None else entry.action.prepared
    answer: Details = {"request_id": record.request_id, "answered_by": record.answered_by}
    if prepared is not None and prepared.public:
        answer["answer"] = own(record.answer)
    else:
        answer["answer_omitted"] = True
    event = _action(entry, who, "input.answered", {"answer": answer})
    event.payload["answer"] = own(answer)
    return event


def _reported(entry: Entry, record: PeerReported, who: Identity) -> RunEvent:
    """A peer's event under its own identity, in its place of this list, with who said so."""
    event = RunEvent.from_dict(thaw(record.event))
    event.metadata = {
        "source_sequence": event.sequence,
        "source_final": event.final,
        "parent_run_id": event.metadata.get("parent_run_id") or who.run_id,
        "peer": record.peer,
    }
    event.sequence = entry.sequence
    event.final = False
    event.parent_action_id = event.parent_action_id or record.action_id
    event.delegation_id = event.delegation_id or record.action_id
    return event
