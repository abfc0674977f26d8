"""How the records of actions advance the state; part of `evolve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from protolink._core.budget import limit_message, tool_calls_left
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
    ApprovalAnswered,
    ApprovalAsked,
    BackgroundProposed,
    DelegationSuspended,
    ErrorInfo,
    PeerReported,
    ProgressReported,
    QuestionAnswered,
    QuestionAsked,
    ToolRequest,
)
from protolink._core.state import ActionState, RecordRefused, RunState, Stage, Stop, TreeState, call_key
from protolink._json import canonical

__all__ = ["ACTION_STEPS", "forget_uncertain"]


def _action(run: RunState, action_id: str, *stages: Stage) -> ActionState:
    """An action in one of these stages; in any in which its outcome is still to come where none is named."""
    action = run.actions.get(action_id) or run.background.get(action_id)
    if action is None:
        raise RecordRefused(f"action {action_id!r} is not open")
    if action.stage not in stages if stages else not action.is_open:
        raise RecordRefused(f"action {action_id!r} is {action.stage}")
    return action


def _running(run: RunState, action_id: str, *also: Stage) -> ActionState:
    """An action whose outcome is still welcome: after an interruption it comes too late."""
    if run.stop is not None and run.stop.interrupts:
        raise RecordRefused(f"the run of action {action_id!r} was stopped before this outcome")
    return _action(run, action_id, "started", *also)


def _stop_for(run: RunState, stop: Stop, action_id: str) -> None:
    """Stop the run for one of its turn's actions; a worker in the background fails on its own."""
    if action_id not in run.background:
        run.halt(stop)


def forget_uncertain(run: RunState, action_id: str) -> ActionState:
    """Somebody has said what became of an action. Raises `RecordRefused` where that was not in doubt."""
    action = run.uncertain.pop(action_id, None)
    if action is None:
        raise RecordRefused(f"action {action_id!r} is not uncertain")
    return action


def _keep_success(run: RunState, action: ActionState, action_id: str, result: Any) -> None:
    """Remember a call that must not happen twice, with what the model sees of it."""
    if action.call_key is not None:
        run.succeeded[action.call_key] = (action_id, result)


def _prepared(_tree: TreeState, run: RunState, record: ActionPrepared) -> None:
    action = _action(run, record.action_id, "proposed")
    action.prepared, action.stage = record, "prepared"
    if action.proposal.kind == "agent.call":
        run.delegations += 1
    if not (record.read_only or record.repeatable):
        action.call_key = call_key(record.tool, canonical(record.arguments))


def _rejected(_tree: TreeState, run: RunState, record: ActionRejected) -> None:
    if record.phase == "execution":
        action = _running(run, record.action_id)
    else:
        action = _action(run, record.action_id, "proposed")
    if record.action_id in run.background:
        run.end(action, record)
        return
    run.corrections += 1
    run.last_mistake = (action.proposal.said, record.message)
    action.correction = run.corrections
    action.corrections_allowed = run.corrections_allowed
    direct = isinstance(run.work, ToolRequest)
    run.end(action, record)
    if direct:
        error = ErrorInfo(code=record.code, message=record.message, type="ToolRejectedError")
        run.halt(Stop("failed", record, error=error))


def _judged(_tree: TreeState, run: RunState, record: ActionJudged) -> None:
    action = _action(run, record.action_id, "prepared")
    action.judged = record
    action.stage = _JUDGED[record.effect]


_JUDGED: Final[Mapping[str, Stage]] = {"allow": "authorized", "require_approval": "asking", "deny": "declined"}


def _approval_asked(_tree: TreeState, run: RunState, record: ApprovalAsked) -> None:
    _action(run, record.action_id, "asking").request_id = record.request_id


def _approval_answered(_tree: TreeState, run: RunState, record: ApprovalAnswered) -> None:
    action = _action(run, record.action_id, "asking")
    if action.request_id != record.request_id:
        raise RecordRefused(f"request {record.request_id!r} is not the one that asks about this action")
    action.answer = record
    run.answers[record.request_id] = record
    action.stage = "authorized" if record.approved else "declined"


def _question_asked(_tree: TreeState, run: RunState, record: QuestionAsked) -> None:
    action = _action(run, record.action_id, "authorized")
    if not action.lacks_reply:
        raise RecordRefused(f"action {record.action_id!r} has nothing to ask")
    action.question_id, action.stage = record.request_id, "questioned"


def _question_answered(_tree: TreeState, run: RunState, record: QuestionAnswered) -> None:
    action = _action(run, record.action_id, "questioned")
    if action.question_id != record.request_id:
        raise RecordRefused(f"request {record.request_id!r} is not the question of this action")
    action.reply = record
    run.replies[record.request_id] = record
    action.stage = "authorized"


def _denied(_tree: TreeState, run: RunState, record: ActionDenied) -> None:
    action = _action(run, record.action_id, "declined", "asking")
    if action.prepared is not None:
        run.denied.add(action.prepared.fingerprint)
    run.end(action, record)
    error = ErrorInfo(code=_DENIED_CODES[record.code], message=record.reason)
    _stop_for(run, Stop("failed", record, error=error), record.action_id)


_DENIED_CODES: Final = {
    "policy_denied": "action_denied",
    "approval_declined": "action_denied",
    "approval_required": "approval_required",
}


def _started(tree: TreeState, run: RunState, record: ActionStarted) -> None:
    if run.stop is not None:
        raise RecordRefused("the run was stopped before this action was entered")
    action = _action(run, record.action_id, "authorized")
    prepared = action.prepared
    if prepared is None:
        raise RecordRefused(f"action {record.action_id!r} was never prepared")
    if action.lacks_reply:
        raise RecordRefused(f"nobody has answered the question of action {record.action_id!r}")
    if action.proposal.kind == "tool.call":
        _, exceeded = tool_calls_left(tree.counters, run.budget, prepared.tool)
        if exceeded is not None:
            raise RecordRefused(limit_message(exceeded))
        tree.counters.reserve_tool_call(prepared.tool)
    action.stage = "started"


def _progress_reported(_tree: TreeState, run: RunState, record: ProgressReported) -> None:
    _running(run, record.action_id, "proposed", "prepared", "authorized")


def _completed(_tree: TreeState, run: RunState, record: ActionCompleted) -> None:
    action = _running(run, record.action_id)
    run.completed_ids.append(record.action_id)
    if record.action_id in run.background:
        run.end(action, record)
        return
    _keep_success(run, action, record.action_id, record.result)
    if action.prepared is not None and action.prepared.hooked:
        action.ending, action.stage = record, "completed"
        run.called.add(action.proposal.said)
    else:
        run.end(action, record)
    if isinstance(run.work, ToolRequest):
        run.outputs.append(record.result)
        run.next_work()


def _observed(_tree: TreeState, run: RunState, record: ActionObserved) -> None:
    action = _action(run, record.action_id, "completed")
    if record.changed:
        action.observed = record.result
        _keep_success(run, action, record.action_id, record.result)
    action.stage = "ended"
    run.flush_when_done()


def _repeated(_tree: TreeState, run: RunState, record: ActionRepeated) -> None:
    action = _action(run, record.action_id, "proposed", "authorized")
    found = run.succeeded.get(call_key(action.proposal.target, canonical(record.arguments)))
    if found is None:
        raise RecordRefused(f"action {record.action_id!r} repeats nothing that has succeeded")
    action.observed = found[1]
    direct = isinstance(run.work, ToolRequest) and record.action_id not in run.background
    run.end(action, record)
    if direct:
        run.outputs.append(found[1])
        run.next_work()


def _failed(_tree: TreeState, run: RunState, record: ActionFailed) -> None:
    action = _running(run, record.action_id, "proposed", "prepared")
    direct = isinstance(run.work, ToolRequest)
    run.end(action, record)
    if direct or not record.observed:
        _stop_for(run, Stop("failed", record, error=record.error), record.action_id)


def _canceled(_tree: TreeState, run: RunState, record: ActionCanceled) -> None:
    run.end(_action(run, record.action_id), record)


def _uncertain(_tree: TreeState, run: RunState, record: ActionUncertain) -> None:
    action = _action(run, record.action_id, "started")
    if run.started.durable and record.action_id in run.actions:
        action.stage = "uncertain"
        run.uncertain[record.action_id] = action
    else:
        run.end(action, record)
    error = ErrorInfo(code="uncertain_execution", message=record.reason)
    _stop_for(run, Stop("failed", record, error=error), record.action_id)


def _reconciled(_tree: TreeState, run: RunState, record: ActionReconciled) -> None:
    action = forget_uncertain(run, record.action_id)
    if record.happened:
        run.completed_ids.append(record.action_id)
        _keep_success(run, action, record.action_id, record.result)
    if run.stop is not None and isinstance(run.stop.record, ActionUncertain) and not run.uncertain:
        run.stop = None
    direct = isinstance(run.work, ToolRequest)
    run.end(action, record)
    if direct and record.happened:
        run.outputs.append(record.result)
        run.next_work()
    elif direct:
        error = ErrorInfo(code="not_executed", message="the operation was verified as not executed")
        run.halt(Stop("failed", record, error=error))


def _background_proposed(_tree: TreeState, run: RunState, record: BackgroundProposed) -> None:
    if run.stop is not None or run.work is None:
        raise RecordRefused(f"run {run.run_id!r} is ending and starts no more workers")
    run.action_count += 1
    run.background[record.proposal.action_id] = ActionState(record.proposal)


def _delegation_suspended(_tree: TreeState, run: RunState, record: DelegationSuspended) -> None:
    _action(run, record.action_id, "started")
    run.halt(Stop("failed", record, error=record.error))


def _peer_reported(_tree: TreeState, run: RunState, record: PeerReported) -> None:
    action = _running(run, record.action_id)
    event_id = record.event["event_id"]
    if action.reported is None:
        action.reported = set()
    elif event_id in action.reported:
        raise RecordRefused(f"action {record.action_id!r} has this report already")
    action.reported.add(event_id)


ACTION_STEPS: Final[Mapping[type[Any], Callable[[TreeState, RunState, Any], None]]] = {
    ActionCanceled: _canceled,
    ActionCompleted: _completed,
    ActionDenied: _denied,
    ActionFailed: _failed,
    ActionJudged: _judged,
    ActionObserved: _observed,
    ActionPrepared: _prepared,
    ActionReconciled: _reconciled,
    ActionRejected: _rejected,
    ActionRepeated: _repeated,
    ActionStarted: _started,
    ActionUncertain: _uncertain,
    ApprovalAnswered: _approval_answered,
    ApprovalAsked: _approval_asked,
    BackgroundProposed: _background_proposed,
    DelegationSuspended: _delegation_suspended,
    PeerReported: _peer_reported,
    ProgressReported: _progress_reported,
    QuestionAnswered: _question_answered,
    QuestionAsked: _question_asked,
}
"""What becomes of a run, by the kind of record."""
