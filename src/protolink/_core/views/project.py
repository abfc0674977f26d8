"""What becomes public: the one function that turns the list into events.

Nothing else builds events of a run, so what must not come through is decided here: results that are not
exposed, prompts, request values and stored conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from protolink._core.entries import Entry, Fragment
from protolink._core.observations import rejection_feedback
from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionDenied,
    ActionFailed,
    ActionJudged,
    ActionObserved,
    ActionPrepared,
    ActionReconciled,
    ActionRejected,
    ActionRepeated,
    ActionStarted,
    ActionUncertain,
    AnswerGiven,
    ApprovalAnswered,
    ApprovalAsked,
    AttemptEnded,
    AttemptStarted,
    BackgroundProposed,
    BudgetExceeded,
    BudgetWarned,
    CancelRequested,
    CompletionChecked,
    ConversationLoaded,
    DelegationSuspended,
    ErrorInfo,
    HistoryCompacted,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    ModelRetried,
    PeerReported,
    ProgressReported,
    QuestionAnswered,
    QuestionAsked,
    ReplyRefused,
    RunFailed,
    RunFinished,
    RunPaused,
    RunStarted,
    Yielded,
)
from protolink._environment import iso
from protolink._json import thaw
from protolink._record import command
from protolink._text import visible
from protolink.events import RunEvent

__all__ = ["Identity", "project"]

Details = dict[str, Any]


@command
class Identity:
    """Who the events of one run come from."""

    run_id: str
    task_id: str
    agent_name: str
    parent_run_id: str | None = None
    parent_action_id: str | None = None
    delegation_id: str | None = None


def project(item: Entry | Fragment, who: Mapping[str, Identity], viewpoint: str) -> RunEvent | None:
    """The event that a reader of the run `viewpoint` sees for one item of the list, or None."""
    if isinstance(item, Fragment):
        event = _event(item, "llm.stream", who[item.run_id])
        event.payload["llm_event_type"] = "llm_chunk"
        event.payload["content"] = item.text
    elif not item.public:
        return None
    else:
        event = _from_record(item, who[item.run_id])
        event.summary = visible(event.summary, limit=500)
    if item.run_id != viewpoint and not _is_report(item):
        event.metadata["source_sequence"] = item.source_sequence
        event.metadata["source_final"] = event.final
        event.metadata["parent_run_id"] = who[item.run_id].parent_run_id
        event.final = False
    return event


def _event(item: Entry | Fragment, kind: str, who: Identity) -> RunEvent:
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


def _from_record(entry: Entry, who: Identity) -> RunEvent:
    record = entry.record
    match record:
        case ModelAsked():
            return _model_asked(entry, record, who)
        case ModelReplied():
            return _model_replied(entry, record, who)
        case HistoryCompacted():
            event = _event(entry, "llm.context.compacted", who)
            event.summary = "the oldest messages are not sent any more"
            event.payload["metadata"].update(messages_before=record.before, summarized=record.summary is not None)
            return event
        case ModelRetried():
            return _model_retried(entry, record, who)
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
            details = {"error": _error(record.error), "duration_seconds": record.seconds, "observed": record.observed}
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
                entry, who, "action.repeated", {"repeat_of": record.repeat_of, "args": _own(record.arguments)}
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
            event.payload.update(
                (key, _own(value)) for key, value in record.payload.items() if key not in event.payload
            )
            return event
        case PeerReported():
            return _reported(entry, record, who)
        case AnswerGiven():
            event = _event(entry, "llm.stream", who)
            event.payload["llm_event_type"] = "llm_final"
            event.payload["content"] = _own(record.content)
            event.final = True
            return event
        case ReplyRefused():
            event = _event(entry, "llm.stream", who)
            event.payload["llm_event_type"] = "llm_parse_error"
            event.payload["content"] = record.message
            event.severity = "warning"
            return event
        case ModelFailed(error=error):
            return _task_error(entry, error, who, recoverable=True)
        case RunFailed(error=error):
            return _task_error(entry, error, who, recoverable=False)
        case BudgetWarned():
            return _budget(entry, record, who, "budget.warning", "warning", "is nearly reached")
        case BudgetExceeded():
            return _budget(entry, record, who, "budget.exceeded", "error", "is reached")
        case Yielded():
            event = _event(entry, "llm.stream", who)
            event.payload["llm_event_type"] = "run_yielded"
            event.payload["metadata"]["handoff"] = _own(record.handoff)
            return event
        case AttemptStarted():
            return _status(entry, who, "input-required", "working", {"attempt": record.attempt})
        case RunPaused():
            event = _status(
                entry, who, "working", "input-required", {"interruptions": _own(list(record.interruptions))}
            )
            event.final = True
            return event
        case AttemptEnded(error=error):
            event = _status(entry, who, "working", "failed", {"error": _error(error), "resumable": True})
            event.severity = "error"
            event.final = True
            return event
        case RunStarted():
            return _status(entry, who, "submitted", "working", {"session_id": record.context.get("session_id")})
        case RunFinished():
            event = _status(entry, who, "working", record.status, {"reason": record.reason})
            if record.error is not None:
                event.payload["metadata"]["error"] = _error(record.error)
                event.severity = "error"
            event.final = True
            return event
        case (
            ActionObserved()
            | BackgroundProposed()
            | CancelRequested()
            | CompletionChecked()
            | ConversationLoaded()
            | DelegationSuspended()
        ):
            raise TypeError(f"{type(record).__name__} is private")
        case unknown:
            assert_never(unknown)


def _is_report(item: Entry | Fragment) -> bool:
    return isinstance(item, Entry) and isinstance(item.record, PeerReported)


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


def _own(value: Any) -> Any:
    """A copy that the reader may change."""
    return thaw(value) if isinstance(value, dict | list) else value


def _error(error: ErrorInfo) -> Details:
    return {"code": error.code, "message": error.message, "type": error.type}


def _model_asked(entry: Entry, record: ModelAsked, who: Identity) -> RunEvent:
    event = _event(entry, "llm.call.started", who)
    event.span_id = f"{who.run_id}.turn{record.step}"
    event.parent_span_id = who.run_id
    event.payload["llm_event_type"] = "llm_call_started"
    event.summary = f"asked {record.model or 'the model'}"
    event.payload["metadata"].update(
        provider=record.provider,
        model=record.model,
        streaming=record.streaming,
        native=record.native,
        attempts=1,
    )
    return event


def _model_replied(entry: Entry, record: ModelReplied, who: Identity) -> RunEvent:
    event = _event(entry, "llm.call.completed", who)
    event.span_id = f"{who.run_id}.turn{entry.step}"
    event.parent_span_id = who.run_id
    event.payload["llm_event_type"] = "llm_call_completed"
    usage = record.usage
    known = usage.input_tokens is not None and usage.output_tokens is not None
    details: Details = event.payload["metadata"]
    if entry.asked is not None:
        details.update(
            provider=entry.asked.provider,
            model=entry.asked.model,
            streaming=entry.asked.streaming,
            native=entry.asked.native,
        )
    details["attempts"] = record.attempts
    details["finish_reason"] = record.finish_reason
    details["request_id"] = record.request_id
    details["latency_ms"] = None if record.seconds is None else round(record.seconds * 1000, 3)
    details["metrics"] = {
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": (usage.input_tokens or 0) + (usage.output_tokens or 0) if known else None,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "estimated": usage.estimated,
            "source": usage.source,
        },
        "cost": usage.cost,
    }
    event.summary = f"{details.get('model') or 'the model'} replied"
    _add_usage(entry, details)
    return event


def _model_retried(entry: Entry, record: ModelRetried, who: Identity) -> RunEvent:
    event = _event(entry, "llm.call.retried", who)
    event.span_id = f"{who.run_id}.turn{record.asked.step}"
    event.parent_span_id = who.run_id
    event.severity = "warning"
    event.summary = f"a model call failed and is made again: {record.error.message}"
    event.payload["llm_event_type"] = "llm_call_retried"
    details: Details = event.payload["metadata"]
    if entry.asked is not None:
        details.update(provider=entry.asked.provider, model=entry.asked.model)
    details.update(
        next_provider=record.asked.provider,
        next_model=record.asked.model,
        attempts=record.attempt,
        error=_error(record.error),
        status=record.status,
        request_id=record.request_id,
        delay_seconds=record.delay_seconds,
        streamed=record.streamed,
    )
    return event


def _add_usage(entry: Entry, details: Details) -> None:
    """The counters of the whole tree at this moment."""
    if entry.usage is not None:
        names = ("steps", "llm_calls", "tool_calls", "input_tokens", "output_tokens", "cost")
        details["budget"] = dict(zip(names, entry.usage, strict=True))


def _action(
    entry: Entry, who: Identity, kind: str, details: Details, *, severity: str = "info", summary: str = ""
) -> RunEvent:
    event = _event(entry, kind, who)
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
    metadata["args"] = None if prepared is None else _own(prepared.arguments)
    metadata.update(details)
    return event


def _result(entry: Entry, record: ActionCompleted) -> Details:
    prepared = None if entry.action is None else entry.action.prepared
    details: Details = {"duration_seconds": record.seconds, "rendered": record.rendered}
    if prepared is not None and prepared.public:
        details["result"] = _own(record.result)
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
            "details": _own(record.details),
            "suggestion": record.suggestion,
        },
        "rejection": _own(rejection),
        "correction_count": correction,
        "max_tool_corrections": allowed,
        "duration_seconds": record.seconds,
    }
    event = _action(entry, who, "action.rejected", details, severity="warning", summary=record.message)
    event.payload["metadata"]["args"] = _own(record.arguments)
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
            payload=_own(prepared.payload),
            capabilities=list(prepared.capabilities),
            fingerprint=prepared.fingerprint,
        )
    event = _action(entry, who, "approval.required", {"request": request}, severity="warning")
    event.payload["request"] = _own(request)
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
        "choices": _own(asked.get("choices")),
        "fingerprint": None if prepared is None else prepared.fingerprint,
    }
    event = _action(entry, who, "input.required", {"request": request}, severity="warning")
    event.payload["request"] = _own(request)
    return event


def _question_answered(entry: Entry, record: QuestionAnswered, who: Identity) -> RunEvent:
    prepared = None if entry.action is None else entry.action.prepared
    answer: Details = {"request_id": record.request_id, "answered_by": record.answered_by}
    if prepared is not None and prepared.public:
        answer["answer"] = _own(record.answer)
    else:
        answer["answer_omitted"] = True
    event = _action(entry, who, "input.answered", {"answer": answer})
    event.payload["answer"] = _own(answer)
    return event


def _task_error(entry: Entry, error: ErrorInfo, who: Identity, *, recoverable: bool) -> RunEvent:
    event = _event(entry, "task.error", who)
    event.severity = "error"
    event.summary = error.message
    event.payload.update(error_code=error.code, error_message=error.message, recoverable=recoverable)
    event.payload["metadata"]["error"] = _error(error)
    return event


def _budget(
    entry: Entry, record: BudgetWarned | BudgetExceeded, who: Identity, kind: str, severity: str, what: str
) -> RunEvent:
    event = _event(entry, kind, who)
    event.severity = severity
    decision: Details = {"limit": record.limit, "allowed": record.allowed, "used": record.used}
    event.payload["decision"] = decision
    event.payload["metadata"]["decision"] = dict(decision)
    event.summary = f"{record.limit} {what}"
    return event


def _status(entry: Entry, who: Identity, before: str, after: str, details: Details) -> RunEvent:
    event = _event(entry, "task.status", who)
    event.summary = f"{who.agent_name} is {after}"
    event.payload.update(previous_state=before, new_state=after)
    event.payload["metadata"].update(details)
    _add_usage(entry, event.payload["metadata"])
    return event
