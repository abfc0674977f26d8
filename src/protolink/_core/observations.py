"""What the model is told of its own turns: replies, results, rejections, as messages of the conversation.

Results are JSON texts in messages of their own, whoever produced them: a result that looks like an
action stays a text, for only replies of the model are ever read as actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionDenied,
    ActionFailed,
    ActionReconciled,
    ActionRejected,
    ActionRepeated,
    ActionUncertain,
    Inference,
    ModelReplied,
    ReplyRefused,
)
from protolink._json import dumps

if TYPE_CHECKING:
    from protolink._core.state import ActionState, Message

__all__ = [
    "assistant_message",
    "question_message",
    "refusal_message",
    "rejection_feedback",
    "summary_message",
    "tool_message",
]

_REJECTED = "Nothing was changed. Correct the request, or answer without it."
_REFUSED = "Reply with exactly one action object, or with a final answer."
_ANSWER_REFUSED = "Reply with a final answer that fits the requested schema."


def question_message(work: Inference) -> Message:
    """The prompt, with the schema of the answer where one is asked for."""
    if work.output_schema is None:
        return {"role": "user", "content": work.prompt}
    schema = dumps(work.output_schema)
    return {"role": "user", "content": f"{work.prompt}\n\nAnswer with JSON that fits this schema: {schema}"}


def summary_message(summary: str) -> Message:
    """What stands in the place of messages that are not sent any more."""
    return {"role": "user", "content": f"Summary of the conversation so far: {summary}"}


def assistant_message(record: ModelReplied, *, native: bool) -> Message:
    """The model's own reply, as it will be sent back to it."""
    message: Message = {"role": "assistant", "content": record.text}
    if native and record.proposals:
        message["tool_calls"] = [
            {"id": proposal.call_id, "name": proposal.said, "arguments": proposal.args} for proposal in record.proposals
        ]
    if record.provider_state is not None:
        message["provider_state"] = record.provider_state
    return message


def refusal_message(record: ReplyRefused, corrections: int, allowed: int) -> Message:
    """Why a reply could not be used."""
    content: dict[str, Any] = {"type": "reply_rejected", "message": record.message}
    if record.of_answer:
        content["instruction"] = _ANSWER_REFUSED
    else:
        content["correction"] = _correction(corrections, allowed, _REFUSED)
    return {"role": "user", "content": dumps(content)}


def _correction(attempt: int, allowed: int, instruction: str) -> dict[str, Any]:
    return {"attempt": attempt, "remaining": max(0, allowed - attempt), "allowed": allowed, "instruction": instruction}


def rejection_feedback(record: ActionRejected, correction: int, allowed: int) -> dict[str, Any]:
    """A rejection as the model reads it."""
    return {
        "type": "tool_rejection",
        "status": "rejected",
        "changes_made": False,
        "code": record.code,
        "message": record.message,
        "details": record.details,
        "suggestion": record.suggestion,
        "correction": _correction(correction, allowed, _REJECTED),
    }


def tool_message(action: ActionState) -> Message:
    """The ending of one action, as the answer to its call."""
    content: dict[str, Any] = {"type": "tool_result", "tool": action.proposal.said}
    match action.ending:
        case ActionCompleted() if action.stage == "completed":
            # The run stopped before the hooks saw the result, and only they say what the model may see.
            content["result"] = {"type": "tool_unobserved", "status": "completed"}
        case ActionCompleted(result=result):
            content["result"] = result if action.observed_is_unset else action.observed
        case ActionRepeated(repeat_of=repeat_of):
            content["result"] = action.observed
            content["repeated"] = True
            content["note"] = f"This identical call had already succeeded as {repeat_of}; it was not executed again."
        case ActionRejected() as rejected:
            content["result"] = rejection_feedback(rejected, action.correction, action.corrections_allowed)
        case ActionFailed(error=error):
            content["result"] = {
                "type": "tool_error",
                "status": "failed",
                "code": error.code,
                "message": error.message,
            }
        case ActionDenied(reason=reason):
            content["result"] = {"type": "tool_denied", "status": "denied", "message": reason}
        case ActionCanceled():
            content["result"] = {"type": "tool_canceled", "status": "canceled"}
        case ActionReconciled(happened=True, result=result):
            content["result"] = result
        case ActionReconciled():
            content["result"] = {
                "type": "tool_not_executed",
                "status": "not_executed",
                "message": "It was verified that this operation did not happen. Decide again.",
            }
        case ActionUncertain():
            content["result"] = {"type": "tool_uncertain", "status": "uncertain"}
        case other:
            raise TypeError(f"{type(other).__name__} is no ending of an action")
    message: Message = {"role": "tool", "content": dumps(content), "name": action.proposal.said}
    message["tool_call_id"] = action.proposal.call_id
    return message
