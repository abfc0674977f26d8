"""What becomes public: the one function that turns the list into events.

Nothing else builds events of a run, so what must not come through is decided here: results that are not
exposed, prompts, request values and stored conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from protolink._core.entries import Entry, Fragment
from protolink._core.records import (
    ActionRecord,
    AnswerGiven,
    AttemptEnded,
    AttemptStarted,
    BudgetExceeded,
    BudgetWarned,
    ErrorInfo,
    HistoryCompacted,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    ModelRetried,
    PeerReported,
    PrivateRecord,
    ReplyRefused,
    RunFailed,
    RunFinished,
    RunPaused,
    RunRecord,
    RunStarted,
    TurnRecord,
    Yielded,
)
from protolink._core.views.actions import event_of_action
from protolink._core.views.parts import Details, Identity, error_details, event_of, own
from protolink._text import visible
from protolink.events import RunEvent

__all__ = ["project"]


def project(item: Entry | Fragment, who: Mapping[str, Identity], viewpoint: str) -> RunEvent | None:
    """The event that a reader of the run `viewpoint` sees for one item of the list, or None."""
    if isinstance(item, Fragment):
        event = event_of(item, "llm.stream", who[item.run_id])
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


def _from_record(entry: Entry, who: Identity) -> RunEvent:
    record = entry.record
    if isinstance(record, ActionRecord):
        return event_of_action(entry, record, who)
    if isinstance(record, TurnRecord):
        return _of_turn(entry, record, who)
    if isinstance(record, PrivateRecord):
        raise TypeError(f"{type(record).__name__} is private")
    return _of_run(entry, record, who)


def _of_turn(entry: Entry, record: TurnRecord, who: Identity) -> RunEvent:
    match record:
        case ModelAsked():
            return _model_asked(entry, record, who)
        case ModelReplied():
            return _model_replied(entry, record, who)
        case HistoryCompacted():
            event = event_of(entry, "llm.context.compacted", who)
            event.summary = "the oldest messages are not sent any more"
            event.payload["metadata"].update(messages_before=record.before, summarized=record.summary is not None)
            return event
        case ModelRetried():
            return _model_retried(entry, record, who)
        case AnswerGiven():
            event = event_of(entry, "llm.stream", who)
            event.payload["llm_event_type"] = "llm_final"
            event.payload["content"] = own(record.content)
            event.final = True
            return event
        case ReplyRefused():
            event = event_of(entry, "llm.stream", who)
            event.payload["llm_event_type"] = "llm_parse_error"
            event.payload["content"] = record.message
            event.severity = "warning"
            return event
        case ModelFailed(error=error):
            return _task_error(entry, error, who, recoverable=True)
        case unknown:
            assert_never(unknown)


def _of_run(entry: Entry, record: RunRecord, who: Identity) -> RunEvent:
    match record:
        case RunFailed(error=error):
            return _task_error(entry, error, who, recoverable=False)
        case BudgetWarned():
            return _budget(entry, record, who, "budget.warning", "warning", "is nearly reached")
        case BudgetExceeded():
            return _budget(entry, record, who, "budget.exceeded", "error", "is reached")
        case Yielded():
            event = event_of(entry, "llm.stream", who)
            event.payload["llm_event_type"] = "run_yielded"
            event.payload["metadata"]["handoff"] = own(record.handoff)
            return event
        case AttemptStarted():
            return _status(entry, who, "input-required", "working", {"attempt": record.attempt})
        case RunPaused():
            event = _status(entry, who, "working", "input-required", {"interruptions": own(list(record.interruptions))})
            event.final = True
            return event
        case AttemptEnded(error=error):
            event = _status(entry, who, "working", "failed", {"error": error_details(error), "resumable": True})
            event.severity = "error"
            event.final = True
            return event
        case RunStarted():
            return _status(entry, who, "submitted", "working", {"session_id": record.context.get("session_id")})
        case RunFinished():
            event = _status(entry, who, "working", record.status, {"reason": record.reason})
            if record.error is not None:
                event.payload["metadata"]["error"] = error_details(record.error)
                event.severity = "error"
            event.final = True
            return event
        case unknown:
            assert_never(unknown)


def _is_report(item: Entry | Fragment) -> bool:
    return isinstance(item, Entry) and isinstance(item.record, PeerReported)


def _add_usage(entry: Entry, details: Details) -> None:
    """The counters of the whole tree at this moment."""
    if entry.usage is not None:
        names = ("steps", "llm_calls", "tool_calls", "input_tokens", "output_tokens", "cost")
        details["budget"] = dict(zip(names, entry.usage, strict=True))


def _model_asked(entry: Entry, record: ModelAsked, who: Identity) -> RunEvent:
    event = event_of(entry, "llm.call.started", who)
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
    event = event_of(entry, "llm.call.completed", who)
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
    event = event_of(entry, "llm.call.retried", who)
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
        error=error_details(record.error),
        status=record.status,
        request_id=record.request_id,
        delay_seconds=record.delay_seconds,
        streamed=record.streamed,
    )
    return event


def _task_error(entry: Entry, error: ErrorInfo, who: Identity, *, recoverable: bool) -> RunEvent:
    event = event_of(entry, "task.error", who)
    event.severity = "error"
    event.summary = error.message
    event.payload.update(error_code=error.code, error_message=error.message, recoverable=recoverable)
    event.payload["metadata"]["error"] = error_details(error)
    return event


def _budget(
    entry: Entry, record: BudgetWarned | BudgetExceeded, who: Identity, kind: str, severity: str, what: str
) -> RunEvent:
    event = event_of(entry, kind, who)
    event.severity = severity
    decision: Details = {"limit": record.limit, "allowed": record.allowed, "used": record.used}
    event.payload["decision"] = decision
    event.payload["metadata"]["decision"] = dict(decision)
    event.summary = f"{record.limit} {what}"
    return event


def _status(entry: Entry, who: Identity, before: str, after: str, details: Details) -> RunEvent:
    event = event_of(entry, "task.status", who)
    event.summary = f"{who.agent_name} is {after}"
    event.payload.update(previous_state=before, new_state=after)
    event.payload["metadata"].update(details)
    _add_usage(entry, event.payload["metadata"])
    return event
