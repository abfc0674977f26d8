"""The state of a tree of runs. Records alone change it: see `evolve`."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final, Literal

from protolink._core import observations
from protolink._core.budget import Counters
from protolink._core.records import (
    ActionCanceled,
    ActionJudged,
    ActionPrepared,
    ActionRejected,
    ActionUncertain,
    ApprovalAnswered,
    AttemptEnded,
    CompletionChecked,
    DelegationSuspended,
    ErrorInfo,
    HistoryCompacted,
    Inference,
    ModelAsked,
    ModelFailed,
    Proposal,
    QuestionAnswered,
    Record,
    RunFinished,
    RunPaused,
    RunStarted,
    ToolRequest,
    Work,
)
from protolink._record import new_dict, new_list, new_set, state
from protolink.context import RunBudget

__all__ = [
    "ActionState",
    "Message",
    "RecordRefused",
    "RunState",
    "Stage",
    "Stop",
    "TreeState",
    "call_key",
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

    @property
    def stops_attempt_only(self) -> bool:
        """Whether a durable run is stopped by something outside of it, and can be taken up again."""
        return self.started.durable and self.stop is not None and isinstance(self.stop.record, _OUTSIDE)

    def halt(self, stop: Stop) -> None:
        """Keep the first stopping fact; an interruption of work that is already ending still interrupts.

        What stops only an attempt gives way to a cancellation: the next attempt would forget both.
        """
        if self.stop is None or (stop.status == "canceled" and self.stops_attempt_only):
            self.stop = stop
        elif stop.interrupts:
            self.stop.interrupts = True

    def remember(self, message: Message) -> None:
        """Append to the conversation."""
        self.history.append(message)
        self.history_characters += len(message["content"])

    def settle_answer(self) -> None:
        """The final reply was given as the answer, or refused."""
        self.pending_answer = _UNSET

    def begin_work(self) -> None:
        """Put the next piece of work in front of the model, or its action in front of the pipeline."""
        self.corrections = 0
        self.answer_attempts = 0
        self.called.clear()
        work = self.work
        if isinstance(work, Inference):
            self.question_at = len(self.history)
            self.remember(observations.question_message(work))
        elif work is not None:
            self.action_count += 1
            action_id = f"{self.run_id}.{self.action_count}"
            self.actions[action_id] = ActionState(_direct(work, action_id))

    def next_work(self) -> None:
        """Go on to the next piece of work."""
        self.flush()
        self.work_index += 1
        self.begin_work()

    def end(self, action: ActionState, record: Record) -> None:
        """Close an action; the last one of a turn moves them all into the conversation."""
        action.ending, action.stage = record, "ended"
        if action.proposal.action_id in self.actions:
            if not isinstance(record, ActionRejected | ActionCanceled):
                self.called.add(action.proposal.said)
            self.flush_when_done()

    def flush_when_done(self) -> None:
        """Move the turn into the conversation once each of its actions has an ending."""
        for action in self.actions.values():
            if action.stage != "ended":
                return
        self.flush()

    def flush(self) -> None:
        """Move the turn's endings into the conversation, in the order of the proposals."""
        if self.actions:
            for message in self.endings:
                self.remember(message)
            self.actions.clear()

    @property
    def endings(self) -> list[Message]:
        """The endings of the turn's actions as messages, in the order of the proposals."""
        if not isinstance(self.work, Inference):
            return []
        return [observations.tool_message(action) for action in self.actions.values() if action.ending is not None]

    @property
    def conversation_at_the_end(self) -> list[Message]:
        """The conversation as it is once the run has ended: what was said, and an answer to every call."""
        return [*self.history, *self.endings]


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


_OUTSIDE: Final = (ModelFailed, ActionUncertain, DelegationSuspended)
"""What stops an attempt of a durable run and not the run itself."""


def _direct(work: ToolRequest, action_id: str) -> Proposal:
    """The action that the application asked for itself."""
    if work.agent is None:
        return Proposal(action_id=action_id, call_id=work.call_id, tool=work.tool, args=work.args)
    return Proposal(
        action_id=action_id,
        call_id=work.call_id,
        tool=work.agent_tool,
        agent=work.agent,
        facade=work.tool,
        args=work.args,
    )


def call_key(tool: str, arguments: str) -> str:
    """What makes two calls identical: the tool and the canonical text of its arguments."""
    return f"{tool} {arguments}"
