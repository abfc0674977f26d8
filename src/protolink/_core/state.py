"""The state of a tree of runs, and how each record advances it.

The state belongs to the driver alone, so `evolve` advances it in place: what it becomes depends on
nothing but what it was and the record. A record that cannot follow is refused and changes nothing.
Each record costs the same, however long the run is.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final, Literal, assert_never

from protolink._core import observations
from protolink._core.budget import Counters, model_call_limit, repeated_call_limit, tool_calls_left
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
    Inference,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    ModelRetried,
    PeerReported,
    ProgressReported,
    Proposal,
    QuestionAnswered,
    QuestionAsked,
    Record,
    ReplyRefused,
    RunFailed,
    RunFinished,
    RunPaused,
    RunStarted,
    ToolRequest,
    Work,
    Yielded,
)
from protolink._json import canonical
from protolink._record import new_dict, new_list, new_set, state
from protolink.context import RunBudget, budget_from

__all__ = [
    "ActionState",
    "Message",
    "RecordRefused",
    "RunState",
    "Stage",
    "Stop",
    "TreeState",
    "conversation_at_the_end",
    "evolve",
    "stops_attempt_only",
]

Message = dict[str, Any]
"""One message of a conversation: `role`, `content` and, for native calls, `tool_calls` or `tool_call_id`."""

Stage = Literal[
    "proposed",
    "prepared",
    "asking",
    "authorized",
    "questioned",
    "declined",
    "started",
    "uncertain",
    "completed",
    "ended",
]
"""`questioned` means that a person has yet to answer, `completed` that hooks have yet to see the result, `uncertain`
that somebody has to say what became of it; every other ending is `ended` at once."""

_UNSET: Final = object()


class RecordRefused(Exception):  # noqa: N818 - it is an answer, not a fault
    """The record cannot follow what is there; nothing was changed."""


@state
class Stop:
    """The first recorded fact that ends the run, and how the run ends because of it."""

    status: Literal["failed", "canceled"]
    record: Record
    error: ErrorInfo | None = None
    reason: str | None = None
    interrupts: bool = False
    """Whether running work was told to stop, so that what it returns now comes too late."""


@state
class ActionState:
    """One action of the current turn."""

    proposal: Proposal
    stage: Stage = "proposed"
    prepared: ActionPrepared | None = None
    prepared_at: float = 0.0
    """When it was recorded, in epoch seconds; set by whoever keeps the list."""

    judged: ActionJudged | None = None
    request_id: str | None = None
    answer: ApprovalAnswered | None = None
    question_id: str | None = None
    reply: QuestionAnswered | None = None
    """What a person answered to the question that the action is."""

    ending: Record | None = None
    observed: Any = _UNSET
    correction: int = 0
    """Which correction of the run a rejection was."""

    corrections_allowed: int = 0
    call_key: str | None = None
    """What identical calls share; None for an action that may be repeated."""

    reported: set[str] | None = None
    """The ids of the events that a peer has reported of the work that it was asked for."""

    @property
    def is_open(self) -> bool:
        """Whether its outcome is still to come."""
        return self.stage not in ("ended", "completed", "uncertain")

    @property
    def has_child_run(self) -> bool:
        """Whether its work is a run of this tree, which somebody else can drive on; a peer's run is none."""
        return self.proposal.kind == "agent.call" and not (self.prepared is not None and "url" in self.prepared.payload)

    @property
    def lacks_reply(self) -> bool:
        """Whether it is a question that nobody has answered, so that there is nothing to execute yet."""
        return self.prepared is not None and self.prepared.question and self.reply is None

    @property
    def observed_is_unset(self) -> bool:
        """Whether the model sees the result as it is, because no hook changed it."""
        return self.observed is _UNSET


@state
class RunState:
    """One run of the tree."""

    run_id: str
    started: RunStarted
    budget: RunBudget
    work_index: int = 0
    steps: int = 0
    corrections: int = 0
    corrections_allowed: int = 0
    last_mistake: tuple[str, str] = ("", "")
    """What the last correction concerned, and what the model was told."""

    asked: ModelAsked | None = None
    """A model turn without its reply."""

    retries: int = 0
    """Calls of that turn that failed and were charged for themselves."""

    called: set[str] = field(default_factory=new_set)
    """What was called in the current piece of work, by the names that the model used; rejected calls are none."""

    actions: dict[str, ActionState] = field(default_factory=new_dict)
    """The actions of the current turn, in the order of their proposal."""

    background: dict[str, ActionState] = field(default_factory=new_dict)
    """Delegations beside the turns; they belong to no conversation."""

    delegations: int = 0
    """Child runs that were prepared, each of which counts against the limit of children."""

    action_count: int = 0
    pending_answer: Any = _UNSET
    """A final reply that was not given as the answer yet."""

    answer_attempts: int = 0
    checked: CompletionChecked | None = None
    """What the application's checks said about the latest final reply."""

    history: list[Message] = field(default_factory=new_list)
    history_characters: int = 0
    """The length of what of it is sent."""

    question_at: int = 0
    """The place of the question that is being answered."""

    call_forms: set[bool] = field(default_factory=new_set)
    """The forms in which calls of this run were said: True is a provider's own, False is JSON actions."""

    compacted: HistoryCompacted | None = None
    """What of the history is not sent any more, and what is sent instead."""

    earlier: int | None = None
    """How many messages of the history are the session's from before this run; None until they were read."""

    succeeded: dict[str, tuple[str, Any]] = field(default_factory=new_dict)
    """Observations of completed calls that must not happen twice, by tool and arguments."""

    denied: set[str] = field(default_factory=new_set)
    """Fingerprints that were denied in this run."""

    completed_ids: list[str] = field(default_factory=new_list)
    outputs: list[Any] = field(default_factory=new_list)
    stop: Stop | None = None
    rest: RunPaused | AttemptEnded | None = None
    """Why no attempt is at work, although the run has not ended."""

    finished: RunFinished | None = None
    seen: int = 0
    """Events of this run so far; counted by whoever keeps the list."""

    attempt: int = 1
    slice_used: int = 0
    """Model turns of this attempt."""

    uncertain: dict[str, ActionState] = field(default_factory=new_dict)
    """Actions whose effect is unknown until somebody says what became of it."""

    answers: dict[str, ApprovalAnswered] = field(default_factory=new_dict)
    """Every approval that was answered, by its request."""

    replies: dict[str, QuestionAnswered] = field(default_factory=new_dict)
    """Every question that was answered, by its request."""

    child_runs: dict[str, str] = field(default_factory=new_dict)
    """The child run of each delegation, by action."""

    @property
    def work(self) -> Work | None:
        """What the run is working on; None when all is done."""
        work = self.started.work
        return work[self.work_index] if self.work_index < len(work) else None

    @property
    def at_rest(self) -> bool:
        """Whether the attempt is over: the run has ended, paused, or was left to be taken up again."""
        return self.finished is not None or self.rest is not None

    @property
    def has_pending_answer(self) -> bool:
        """Whether a final reply waits to be given as the answer."""
        return self.pending_answer is not _UNSET

    @property
    def estimated_history_tokens(self) -> int:
        """A rough count of the conversation's tokens, at four characters each."""
        return self.history_characters // 4

    @property
    def sent(self) -> list[Message]:
        """The conversation as the model is sent it."""
        compacted = self.compacted
        if compacted is None:
            return self.history
        head: list[Message] = []
        if compacted.summary is not None:
            head.append(observations.summary_message(compacted.summary))
        if self.question_at < compacted.before:
            head.append(self.history[self.question_at])
        return head + self.history[compacted.before :]

    def action(self, action_id: str) -> ActionState:
        """An action of the current turn, or one in the background."""
        return self.actions.get(action_id) or self.background[action_id]

    def remember(self, message: Message) -> None:
        """Append to the conversation."""
        self.history.append(message)
        self.history_characters += len(message["content"])


@state
class TreeState:
    """A root run and everything it delegated: one budget, one order."""

    root_id: str
    counters: Counters = field(default_factory=Counters)
    seconds: float = 0.0
    """How long the root's ended attempts took together."""

    runs: dict[str, RunState] = field(default_factory=new_dict)
    warned: set[str] = field(default_factory=new_set)
    """Limits that are known to be nearly used up."""


def evolve(tree: TreeState, run_id: str, record: Record) -> None:
    """Advance `tree` by one record of the run `run_id`. Raises `RecordRefused`."""
    run = tree.runs.get(run_id)
    if isinstance(record, RunStarted):
        if run is not None:
            raise RecordRefused(f"run {run_id!r} has already started")
        tree.runs[run_id] = _started(run_id, record)
        parent = tree.runs.get(record.context.get("parent_run_id") or "")
        if parent is not None and record.parent_action_id is not None:
            parent.child_runs[record.parent_action_id] = run_id
        return
    if run is None:
        raise RecordRefused(f"run {run_id!r} has not started")
    if run.finished is not None:
        if not isinstance(record, ActionReconciled):
            raise RecordRefused(f"run {run_id!r} has ended")
        _reconciled_afterwards(run, record)
        return
    if run.rest is not None and not isinstance(record, _AT_REST):
        raise RecordRefused(f"run {run_id!r} is at rest")
    match record:
        case ConversationLoaded():
            _conversation_loaded(run, record)
        case ModelAsked():
            _model_asked(tree, run, record)
        case ModelReplied():
            _model_replied(tree, run, record)
        case ActionPrepared():
            action = _action(run, record.action_id, "proposed")
            action.prepared, action.stage = record, "prepared"
            run.delegations += action.proposal.kind == "agent.call"
            if not (record.read_only or record.repeatable):
                action.call_key = call_key(record.tool, canonical(record.arguments))
        case ActionJudged():
            action = _action(run, record.action_id, "prepared")
            action.judged = record
            action.stage = "authorized" if record.effect == "allow" else "asking"
            if record.effect == "deny":
                action.stage = "declined"
        case ActionStarted():
            _action_started(tree, run, record)
        case ActionCompleted():
            _completed(run, _running(run, record.action_id), record)
        case ModelFailed():
            if run.asked is not None:
                tree.counters.release_model_call(run.asked.estimated_input_tokens)
                run.asked = None
            _stop(run, Stop("failed", record, error=record.error))
        case ReplyRefused():
            _reply_refused(run, record)
        case ActionRejected():
            _action_rejected(run, record)
        case ApprovalAsked():
            _action(run, record.action_id, "asking").request_id = record.request_id
        case ApprovalAnswered():
            _approval_answered(run, record)
        case QuestionAsked():
            action = _action(run, record.action_id, "authorized")
            if not action.lacks_reply:
                raise RecordRefused(f"action {record.action_id!r} has nothing to ask")
            action.question_id, action.stage = record.request_id, "questioned"
        case QuestionAnswered():
            _question_answered(run, record)
        case ActionDenied():
            action = _action(run, record.action_id, "declined", "asking")
            if action.prepared is not None:
                run.denied.add(action.prepared.fingerprint)
            _end(run, action, record)
            error = ErrorInfo(code=_DENIED_CODES[record.code], message=record.reason)
            _stop_for(run, Stop("failed", record, error=error), record.action_id)
        case ActionObserved():
            _observed(run, record)
        case ActionRepeated():
            action = _action(run, record.action_id, "proposed", "authorized")
            found = run.succeeded.get(call_key(action.proposal.target, canonical(record.arguments)))
            if found is None:
                raise RecordRefused(f"action {record.action_id!r} repeats nothing that has succeeded")
            action.observed = found[1]
            direct = isinstance(run.work, ToolRequest) and record.action_id not in run.background
            _end(run, action, record)
            if direct:
                run.outputs.append(found[1])
                _next_work(run)
        case ActionFailed():
            action = _running(run, record.action_id, "proposed", "prepared")
            direct = isinstance(run.work, ToolRequest)
            _end(run, action, record)
            if direct or not record.observed:
                _stop_for(run, Stop("failed", record, error=record.error), record.action_id)
        case ActionCanceled():
            _end(run, _open(run, record.action_id), record)
        case ActionUncertain():
            action = _action(run, record.action_id, "started")
            if run.started.durable and record.action_id in run.actions:
                action.stage = "uncertain"
                run.uncertain[record.action_id] = action
            else:
                _end(run, action, record)
            error = ErrorInfo(code="uncertain_execution", message=record.reason)
            _stop_for(run, Stop("failed", record, error=error), record.action_id)
        case BackgroundProposed(proposal=proposal):
            if run.stop is not None or run.work is None:
                raise RecordRefused(f"run {run_id!r} is ending and starts no more workers")
            run.action_count += 1
            run.background[proposal.action_id] = ActionState(proposal)
        case ProgressReported():
            _running(run, record.action_id, "proposed", "prepared", "authorized")
        case CompletionChecked():
            if not run.has_pending_answer:
                raise RecordRefused("no final reply is waiting to be checked")
            run.checked = record
        case PeerReported():
            action = _running(run, record.action_id)
            event_id = record.event["event_id"]
            reported = action.reported or set[str]()
            if event_id in reported:
                raise RecordRefused(f"action {record.action_id!r} has this report already")
            reported.add(event_id)
            action.reported = reported
        case AnswerGiven():
            _answer_given(run, record)
        case ModelRetried():
            _model_retried(tree, run, record)
        case HistoryCompacted():
            _history_compacted(run, record)
        case AttemptStarted():
            _attempt_started(run, record)
        case ActionReconciled():
            _reconciled(run, record)
        case DelegationSuspended():
            _action(run, record.action_id, "started")
            _stop(run, Stop("failed", record, error=record.error))
        case Yielded():
            if run.stop is not None or run.actions:
                raise RecordRefused("a run yields only between its turns")
        case RunPaused() | AttemptEnded():
            run.rest = record
            if run_id == tree.root_id:
                tree.seconds += record.seconds
        case CancelRequested():
            _stop(run, Stop("canceled", record, reason=record.reason, interrupts=True))
        case BudgetWarned():
            if record.limit in tree.warned:
                raise RecordRefused(f"the run was warned of its {record.limit} before")
            tree.warned.add(record.limit)
        case BudgetExceeded():
            error = ErrorInfo(code="budget_exceeded", message=_budget_message(record))
            _stop(run, Stop("failed", record, error=error, interrupts=record.limit == "max_runtime_seconds"))
        case RunFailed():
            _stop(run, Stop("failed", record, error=record.error))
        case RunFinished():
            if any(action.is_open for action in (*run.actions.values(), *run.background.values())):
                raise RecordRefused("a run cannot end while one of its actions is open")
            if record.status == "completed" and (run.stop is not None or run.work is not None):
                raise RecordRefused("a run cannot complete what is not done")
            _flush(run)
            run.finished = record
            if run_id == tree.root_id:
                tree.seconds += record.seconds
        case _:
            assert_never(record)


_AT_REST: Final = (AttemptStarted, ApprovalAnswered, QuestionAnswered, ActionReconciled)
"""What can be said to a run that nobody drives."""

_OUTSIDE: Final = (ModelFailed, ActionUncertain, DelegationSuspended)
"""What stops an attempt of a durable run and not the run itself."""

_DENIED_CODES: Final = {
    "policy_denied": "action_denied",
    "approval_declined": "action_denied",
    "approval_required": "approval_required",
}


def _budget_message(record: BudgetExceeded) -> str:
    return f"the run's {record.limit} of {record.allowed:g} is reached"


def _started(run_id: str, record: RunStarted) -> RunState:
    run = RunState(run_id, record, budget_from(record.context.get("budget") or {}))
    for message in record.conversation:
        run.remember(message)
    _begin_work(run)
    return run


def _conversation_loaded(run: RunState, record: ConversationLoaded) -> None:
    if run.earlier is not None or run.steps > 0:
        raise RecordRefused(f"run {run.run_id!r} has its conversation already")
    run.history[:0] = record.messages
    run.history_characters += sum(len(message["content"]) for message in record.messages)
    run.earlier = len(record.messages)
    run.question_at += len(record.messages)


def _history_compacted(run: RunState, record: HistoryCompacted) -> None:
    before = 0 if run.compacted is None else run.compacted.before
    if not before < record.before < len(run.history) or run.history[record.before]["role"] == "tool":
        raise RecordRefused("the conversation cannot be cut there")
    run.compacted = record
    run.history_characters = sum(len(message["content"]) for message in run.sent)


def _begin_work(run: RunState) -> None:
    """Put the next piece of work in front of the model, or its action in front of the pipeline."""
    run.corrections = 0
    run.answer_attempts = 0
    run.called.clear()
    match run.work:
        case Inference() as inference:
            run.question_at = len(run.history)
            run.remember(observations.question_message(inference))
        case ToolRequest() as request:
            run.action_count += 1
            action_id = f"{run.run_id}.{run.action_count}"
            delegated = request.agent is not None
            proposal = Proposal(
                action_id=action_id,
                call_id=request.call_id,
                tool=request.agent_tool if delegated else request.tool,
                agent=request.agent,
                facade=request.tool if delegated else None,
                args=request.args,
            )
            run.actions[action_id] = ActionState(proposal)
        case None:
            pass
        case unknown:
            assert_never(unknown)


def _attempt_started(run: RunState, record: AttemptStarted) -> None:
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


def _no_longer_uncertain(run: RunState, action_id: str) -> ActionState:
    action = run.uncertain.pop(action_id, None)
    if action is None:
        raise RecordRefused(f"action {action_id!r} is not uncertain")
    return action


def _reconciled_afterwards(run: RunState, record: ActionReconciled) -> None:
    """A run that was called off has ended with what nobody knew; what is learned of it changes nothing else."""
    _no_longer_uncertain(run, record.action_id)
    if record.happened:
        run.completed_ids.append(record.action_id)


def _reconciled(run: RunState, record: ActionReconciled) -> None:
    action = _no_longer_uncertain(run, record.action_id)
    if record.happened:
        run.completed_ids.append(record.action_id)
        _keep_success(run, action, record.action_id, record.result)
    if run.stop is not None and isinstance(run.stop.record, ActionUncertain) and not run.uncertain:
        run.stop = None
    direct = isinstance(run.work, ToolRequest)
    _end(run, action, record)
    if direct and record.happened:
        run.outputs.append(record.result)
        _next_work(run)
    elif direct:
        error = ErrorInfo(code="not_executed", message="the operation was verified as not executed")
        _stop(run, Stop("failed", record, error=error))


def _action(run: RunState, action_id: str, *stages: Stage) -> ActionState:
    action = run.actions.get(action_id) or run.background.get(action_id)
    if action is None:
        raise RecordRefused(f"action {action_id!r} is not open")
    if action.stage not in stages:
        raise RecordRefused(f"action {action_id!r} is {action.stage}")
    return action


def _open(run: RunState, action_id: str) -> ActionState:
    return _action(run, action_id, "proposed", "prepared", "asking", "authorized", "questioned", "declined", "started")


def _running(run: RunState, action_id: str, *also: Stage) -> ActionState:
    """An action whose outcome is still welcome: after an interruption it comes too late."""
    if run.stop is not None and run.stop.interrupts:
        raise RecordRefused(f"the run of action {action_id!r} was stopped before this outcome")
    return _action(run, action_id, "started", *also)


def _stop(run: RunState, stop: Stop) -> None:
    """Keep the first stopping fact; an interruption of work that is already ending still interrupts.

    What stops only an attempt gives way to a cancellation: the next attempt would forget both.
    """
    if run.stop is None or (stop.status == "canceled" and stops_attempt_only(run)):
        run.stop = stop
    elif stop.interrupts:
        run.stop.interrupts = True


def stops_attempt_only(run: RunState) -> bool:
    """Whether a durable run is stopped by something outside of it, and can be taken up again."""
    return run.started.durable and run.stop is not None and isinstance(run.stop.record, _OUTSIDE)


def _stop_for(run: RunState, stop: Stop, action_id: str) -> None:
    """Stop the run for one of its turn's actions; a worker in the background fails on its own."""
    if action_id not in run.background:
        _stop(run, stop)


def _end(run: RunState, action: ActionState, record: Record) -> None:
    """Close an action; the last one of a turn moves them all into the conversation."""
    action.ending, action.stage = record, "ended"
    if action.proposal.action_id in run.actions:
        if not isinstance(record, ActionRejected | ActionCanceled):
            run.called.add(action.proposal.said)
        _flush_when_done(run)


def _flush_when_done(run: RunState) -> None:
    if all(action.stage == "ended" for action in run.actions.values()):
        _flush(run)


def _model_asked(tree: TreeState, run: RunState, record: ModelAsked) -> None:
    if run.stop is not None:
        raise RecordRefused("the run was stopped before this model turn")
    if run.has_pending_answer or run.actions:
        raise RecordRefused("the turn before is not finished")
    exceeded = model_call_limit(tree.counters, run.budget, run.steps, record.estimated_input_tokens)
    if exceeded is not None:
        raise RecordRefused(_budget_message(exceeded))
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
        raise RecordRefused(_budget_message(exceeded))
    tree.counters.retry_model_call(before, after, record.usage)
    run.retries += 1
    run.asked = record.asked
    run.corrections_allowed = record.asked.corrections_allowed


def _model_replied(tree: TreeState, run: RunState, record: ModelReplied) -> None:
    if run.asked is None:
        raise RecordRefused("no model turn is waiting for this reply")
    attempts = record.attempts - run.retries
    tree.counters.settle_model_call(run.asked.estimated_input_tokens, record.usage, attempts)
    run.remember(observations.assistant_message(record, native=run.asked.native))
    if record.proposals:
        run.call_forms.add(run.asked.native)
    run.asked = None
    if record.proposals:
        run.action_count += len(record.proposals)
        for proposal in record.proposals:
            run.actions[proposal.action_id] = ActionState(proposal)
    elif record.problem is None:
        run.pending_answer = record.answer


def _reply_refused(run: RunState, record: ReplyRefused) -> None:
    if run.asked is not None or run.actions or run.has_pending_answer is not record.of_answer:
        raise RecordRefused("there is no such reply to refuse")
    if record.of_answer:
        run.answer_attempts += 1
        run.pending_answer = _UNSET
    else:
        run.corrections += 1
        run.last_mistake = ("reply", record.message)
    run.remember(observations.refusal_message(record, run.corrections, run.corrections_allowed))


def _action_rejected(run: RunState, record: ActionRejected) -> None:
    if record.phase == "execution":
        action = _running(run, record.action_id)
    else:
        action = _action(run, record.action_id, "proposed")
    if record.action_id in run.background:
        _end(run, action, record)
        return
    run.corrections += 1
    run.last_mistake = (action.proposal.said, record.message)
    action.correction = run.corrections
    action.corrections_allowed = run.corrections_allowed
    direct = isinstance(run.work, ToolRequest)
    _end(run, action, record)
    if direct:
        error = ErrorInfo(code=record.code, message=record.message, type="ToolRejectedError")
        _stop(run, Stop("failed", record, error=error))


def _approval_answered(run: RunState, record: ApprovalAnswered) -> None:
    action = _action(run, record.action_id, "asking")
    if action.request_id != record.request_id:
        raise RecordRefused(f"request {record.request_id!r} is not the one that asks about this action")
    action.answer = record
    run.answers[record.request_id] = record
    action.stage = "authorized" if record.approved else "declined"


def _question_answered(run: RunState, record: QuestionAnswered) -> None:
    action = _action(run, record.action_id, "questioned")
    if action.question_id != record.request_id:
        raise RecordRefused(f"request {record.request_id!r} is not the question of this action")
    action.reply = record
    run.replies[record.request_id] = record
    action.stage = "authorized"


def _action_started(tree: TreeState, run: RunState, record: ActionStarted) -> None:
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
            raise RecordRefused(_budget_message(exceeded))
        tree.counters.reserve_tool_call(prepared.tool)
    action.stage = "started"


def _completed(run: RunState, action: ActionState, record: ActionCompleted) -> None:
    run.completed_ids.append(record.action_id)
    if record.action_id in run.background:
        _end(run, action, record)
        return
    _keep_success(run, action, record.action_id, record.result)
    if action.prepared is not None and action.prepared.hooked:
        action.ending, action.stage = record, "completed"
        run.called.add(action.proposal.said)
    else:
        _end(run, action, record)
    if isinstance(run.work, ToolRequest):
        run.outputs.append(record.result)
        _next_work(run)


def _keep_success(run: RunState, action: ActionState, action_id: str, result: Any) -> None:
    """Remember a call that must not happen twice, with what the model sees of it."""
    if action.call_key is not None:
        run.succeeded[action.call_key] = (action_id, result)


def _observed(run: RunState, record: ActionObserved) -> None:
    action = _action(run, record.action_id, "completed")
    if record.changed:
        action.observed = record.result
        _keep_success(run, action, record.action_id, record.result)
    action.stage = "ended"
    _flush_when_done(run)


def _answer_given(run: RunState, record: AnswerGiven) -> None:
    if not run.has_pending_answer:
        raise RecordRefused("no final reply is waiting to be given")
    run.pending_answer = _UNSET
    run.outputs.append(record.content)
    _next_work(run)


def _next_work(run: RunState) -> None:
    _flush(run)
    run.work_index += 1
    _begin_work(run)


def call_key(tool: str, arguments: str) -> str:
    """What makes two calls identical: the tool and the canonical text of its arguments."""
    return f"{tool} {arguments}"


def conversation_at_the_end(run: RunState) -> list[Message]:
    """The conversation as it is once the run has ended: what was said, and an answer to every call."""
    return [*run.history, *_endings(run)]


def _endings(run: RunState) -> list[Message]:
    """The endings of the turn's actions as messages, in the order of the proposals."""
    if not isinstance(run.work, Inference):
        return []
    return [observations.tool_message(action) for action in run.actions.values() if action.ending is not None]


def _flush(run: RunState) -> None:
    """Move the turn's endings into the conversation, in the order of the proposals."""
    for message in _endings(run):
        run.remember(message)
    run.actions.clear()
