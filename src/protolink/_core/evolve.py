"""How each record advances the state of a tree.

The state belongs to the driver alone, so `evolve` advances it in place: what it becomes depends on
nothing but what it was and the record. A record that cannot follow is refused and changes nothing.
Each record costs the same, however long the run is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from protolink._core import observations
from protolink._core.action_steps import ACTION_STEPS, forget_uncertain
from protolink._core.budget import limit_message, model_call_limit, repeated_call_limit
from protolink._core.records import (
    ActionReconciled,
    ActionUncertain,
    AnswerGiven,
    ApprovalAnswered,
    AttemptEnded,
    AttemptStarted,
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
    QuestionAnswered,
    Record,
    ReplyRefused,
    RunFailed,
    RunFinished,
    RunPaused,
    RunStarted,
    Yielded,
)
from protolink._core.state import ActionState, RecordRefused, RunState, Stop, TreeState
from protolink.context import budget_from

__all__ = ["KINDS", "evolve"]


def evolve(tree: TreeState, run_id: str, record: Record) -> None:
    """Advance `tree` by one record of the run `run_id`. Raises `RecordRefused`."""
    run = tree.runs.get(run_id)
    if run is None or isinstance(record, RunStarted):
        _start(tree, run_id, run, record)
        return
    if run.finished is not None:
        if not isinstance(record, ActionReconciled):
            raise RecordRefused(f"run {run_id!r} has ended")
        _reconcile_afterwards(run, record)
        return
    if run.rest is not None and not isinstance(record, _AT_REST):
        raise RecordRefused(f"run {run_id!r} is at rest")
    _STEPS[type(record)](tree, run, record)


_AT_REST: Final = (AttemptStarted, ApprovalAnswered, QuestionAnswered, ActionReconciled)
"""What can be said to a run that nobody drives."""


def _start(tree: TreeState, run_id: str, known: RunState | None, record: Record) -> None:
    if not isinstance(record, RunStarted):
        raise RecordRefused(f"run {run_id!r} has not started")
    if known is not None:
        raise RecordRefused(f"run {run_id!r} has already started")
    run = RunState(run_id, record, budget_from(record.context.get("budget") or {}))
    for message in record.conversation:
        run.remember(message)
    run.begin_work()
    tree.runs[run_id] = run
    parent = tree.runs.get(record.context.get("parent_run_id") or "")
    if parent is not None and record.parent_action_id is not None:
        parent.child_runs[record.parent_action_id] = run_id


def _reconcile_afterwards(run: RunState, record: ActionReconciled) -> None:
    """A run that was called off has ended with what nobody knew; what is learned of it changes nothing else."""
    forget_uncertain(run, record.action_id)
    if record.happened:
        run.completed_ids.append(record.action_id)


def _conversation_loaded(_tree: TreeState, run: RunState, record: ConversationLoaded) -> None:
    if run.earlier is not None or run.steps > 0:
        raise RecordRefused(f"run {run.run_id!r} has its conversation already")
    run.history[:0] = record.messages
    run.history_characters += sum(len(message["content"]) for message in record.messages)
    run.earlier = len(record.messages)
    run.question_at += len(record.messages)


def _history_compacted(_tree: TreeState, run: RunState, record: HistoryCompacted) -> None:
    before = 0 if run.compacted is None else run.compacted.before
    if not before < record.before < len(run.history) or run.history[record.before]["role"] == "tool":
        raise RecordRefused("the conversation cannot be cut there")
    run.compacted = record
    run.history_characters = sum(len(message["content"]) for message in run.sent)


def _model_asked(tree: TreeState, run: RunState, record: ModelAsked) -> None:
    if run.stop is not None:
        raise RecordRefused("the run was stopped before this model turn")
    if run.has_pending_answer or run.actions:
        raise RecordRefused("the turn before is not finished")
    exceeded = model_call_limit(tree.counters, run.budget, run.steps, record.estimated_input_tokens)
    if exceeded is not None:
        raise RecordRefused(limit_message(exceeded))
    if run.asked is not None:
        tree.counters.release_model_call(run.asked.estimated_input_tokens)
    tree.counters.reserve_model_call(record.estimated_input_tokens)
    run.steps += 1
    run.slice_used += 1
    run.corrections_allowed = record.corrections_allowed
    run.asked = record
    run.retries = 0


def _model_retried(tree: TreeState, run: RunState, record: ModelRetried) -> None:
    if run.asked is None or run.stop is not None:
        raise RecordRefused("no model turn is waiting for another call")
    before, after = run.asked.estimated_input_tokens, record.asked.estimated_input_tokens
    exceeded = repeated_call_limit(tree.counters, run.budget, after - before)
    if exceeded is not None:
        raise RecordRefused(limit_message(exceeded))
    tree.counters.retry_model_call(before, after, record.usage)
    run.retries += 1
    run.asked = record.asked
    run.corrections_allowed = record.asked.corrections_allowed


def _model_replied(tree: TreeState, run: RunState, record: ModelReplied) -> None:
    asked = run.asked
    if asked is None:
        raise RecordRefused("no model turn is waiting for this reply")
    tree.counters.settle_model_call(asked.estimated_input_tokens, record.usage, record.attempts - run.retries)
    run.remember(observations.assistant_message(record, native=asked.native))
    run.asked = None
    if record.proposals:
        run.call_forms.add(asked.native)
        run.action_count += len(record.proposals)
        for proposal in record.proposals:
            run.actions[proposal.action_id] = ActionState(proposal)
    elif record.problem is None:
        run.pending_answer = record.answer


def _model_failed(tree: TreeState, run: RunState, record: ModelFailed) -> None:
    if run.asked is not None:
        tree.counters.release_model_call(run.asked.estimated_input_tokens)
        run.asked = None
    run.halt(Stop("failed", record, error=record.error))


def _reply_refused(_tree: TreeState, run: RunState, record: ReplyRefused) -> None:
    if run.asked is not None or run.actions or run.has_pending_answer is not record.of_answer:
        raise RecordRefused("there is no such reply to refuse")
    if record.of_answer:
        run.answer_attempts += 1
        run.settle_answer()
    else:
        run.corrections += 1
        run.last_mistake = ("reply", record.message)
    run.remember(observations.refusal_message(record, run.corrections, run.corrections_allowed))


def _completion_checked(_tree: TreeState, run: RunState, record: CompletionChecked) -> None:
    if not run.has_pending_answer:
        raise RecordRefused("no final reply is waiting to be checked")
    run.checked = record


def _answer_given(_tree: TreeState, run: RunState, record: AnswerGiven) -> None:
    if not run.has_pending_answer:
        raise RecordRefused("no final reply is waiting to be given")
    run.settle_answer()
    run.outputs.append(record.content)
    run.next_work()


def _attempt_started(_tree: TreeState, run: RunState, record: AttemptStarted) -> None:
    """Take the run up again. What stopped only the last attempt is forgotten; what is unknown is not."""
    run.attempt = record.attempt
    run.slice_used = 0
    run.rest = None
    if run.stop is not None and isinstance(run.stop.record, ModelFailed | DelegationSuspended):
        run.stop = None
    if run.stop is not None and isinstance(run.stop.record, ActionUncertain) and not run.uncertain:
        run.stop = None
    for action in run.actions.values():
        prepared = action.prepared
        if action.stage != "started" or prepared is None or action.proposal.kind != "tool.call":
            continue
        # Its process ended meanwhile. What was declared harmless to run again runs again, under the same key.
        if prepared.read_only or prepared.idempotent:
            action.stage = "authorized"


def _yielded(_tree: TreeState, run: RunState, _record: Yielded) -> None:
    if run.stop is not None or run.actions:
        raise RecordRefused("a run yields only between its turns")


def _attempt_over(tree: TreeState, run: RunState, record: RunPaused | AttemptEnded) -> None:
    run.rest = record
    if run.run_id == tree.root_id:
        tree.seconds += record.seconds


def _cancel_requested(_tree: TreeState, run: RunState, record: CancelRequested) -> None:
    run.halt(Stop("canceled", record, reason=record.reason, interrupts=True))


def _budget_warned(tree: TreeState, _run: RunState, record: BudgetWarned) -> None:
    if record.limit in tree.warned:
        raise RecordRefused(f"the run was warned of its {record.limit} before")
    tree.warned.add(record.limit)


def _budget_exceeded(_tree: TreeState, run: RunState, record: BudgetExceeded) -> None:
    error = ErrorInfo(code="budget_exceeded", message=limit_message(record))
    run.halt(Stop("failed", record, error=error, interrupts=record.limit == "max_runtime_seconds"))


def _run_failed(_tree: TreeState, run: RunState, record: RunFailed) -> None:
    run.halt(Stop("failed", record, error=record.error))


def _run_finished(tree: TreeState, run: RunState, record: RunFinished) -> None:
    if any(action.is_open for action in (*run.actions.values(), *run.background.values())):
        raise RecordRefused("a run cannot end while one of its actions is open")
    if record.status == "completed" and (run.stop is not None or run.work is not None):
        raise RecordRefused("a run cannot complete what is not done")
    run.flush()
    run.finished = record
    if run.run_id == tree.root_id:
        tree.seconds += record.seconds


# A table and not a `match`, which would ask for one class after the other.
_STEPS: Final[Mapping[type[Any], Callable[[TreeState, RunState, Any], None]]] = {
    **ACTION_STEPS,
    AnswerGiven: _answer_given,
    AttemptEnded: _attempt_over,
    AttemptStarted: _attempt_started,
    BudgetExceeded: _budget_exceeded,
    BudgetWarned: _budget_warned,
    CancelRequested: _cancel_requested,
    CompletionChecked: _completion_checked,
    ConversationLoaded: _conversation_loaded,
    HistoryCompacted: _history_compacted,
    ModelAsked: _model_asked,
    ModelFailed: _model_failed,
    ModelReplied: _model_replied,
    ModelRetried: _model_retried,
    ReplyRefused: _reply_refused,
    RunFailed: _run_failed,
    RunFinished: _run_finished,
    RunPaused: _attempt_over,
    Yielded: _yielded,
}

KINDS: Final = frozenset({RunStarted, *_STEPS})
"""Every kind of record that there is; a test compares it with `Record`, as no type checker looks into a table."""
