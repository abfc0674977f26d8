"""What happened: the private facts that a run's list is made of.

Each class is one fact, in the past tense. Facts are stored for years: fields are added with defaults,
never renamed, never given another meaning. Everything that an application can see is a view of them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from protolink._record import new_dict, record

__all__ = [
    "AGENT_CALL",
    "ActionCanceled",
    "ActionCompleted",
    "ActionDenied",
    "ActionFailed",
    "ActionJudged",
    "ActionObserved",
    "ActionPrepared",
    "ActionReconciled",
    "ActionRecord",
    "ActionRejected",
    "ActionRepeated",
    "ActionStarted",
    "ActionUncertain",
    "AnswerGiven",
    "ApprovalAnswered",
    "ApprovalAsked",
    "AttemptEnded",
    "AttemptStarted",
    "BackgroundProposed",
    "BudgetExceeded",
    "BudgetWarned",
    "CancelRequested",
    "CheckOutcome",
    "CompletionChecked",
    "ConversationLoaded",
    "DelegationSuspended",
    "ErrorInfo",
    "HistoryCompacted",
    "Inference",
    "ModelAsked",
    "ModelFailed",
    "ModelReplied",
    "ModelRetried",
    "ModelUsage",
    "PeerReported",
    "PrivateRecord",
    "ProgressReported",
    "Proposal",
    "QuestionAnswered",
    "QuestionAsked",
    "Record",
    "ReplyRefused",
    "RunFailed",
    "RunFinished",
    "RunPaused",
    "RunRecord",
    "RunStarted",
    "ToolRequest",
    "TurnRecord",
    "Usage",
    "Work",
    "Yielded",
]


@record
class ErrorInfo:
    """Why something failed, as data."""

    code: str
    """A stable word for programs: `tool_failed`, `model_failed`, ..."""

    message: str
    type: str = ""
    """The name of the exception's class, where there was one."""


@record
class Inference:
    """Work: answer a prompt."""

    prompt: str
    output_schema: dict[str, Any] | None = None
    max_attempts: int = 1
    """How many answers may be tried against the schema."""


@record
class ToolRequest:
    """Work: run one declared tool, as the application asks."""

    tool: str
    args: Any
    call_id: str
    agent: str | None = None
    """The owned worker that the named facade stands for; None for a tool of the agent's own."""

    agent_tool: str | None = None
    """The worker's tool that the facade is bound to; None where it asks for inference."""


Work = Inference | ToolRequest


AGENT_CALL = "agent_call"
"""What a model calls a delegation that has no declaration of its own."""


@record
class Proposal:
    """One action that somebody asks for; its arguments are not validated yet."""

    action_id: str
    call_id: str
    """The provider's id of the call, or the action id where it gave none."""

    tool: str | None = None
    """The tool, or the worker's tool where `agent` is set; None where a worker is asked for inference."""

    agent: str | None = None
    """The worker that the work is delegated to; None for a tool of the agent's own."""

    facade: str | None = None
    """The declaration by which the worker was addressed; None for a plain `agent_call`."""

    args: Any = None
    """The tool's arguments, or `{"task": ...}` for a worker's inference."""

    @property
    def kind(self) -> Literal["tool.call", "agent.call"]:
        """The kind of action that it would become."""
        return "tool.call" if self.agent is None else "agent.call"

    @property
    def name(self) -> str:
        """What is addressed: the tool, or the worker."""
        return self.agent or self.tool or ""

    @property
    def target(self) -> str:
        """What identical calls have in common beside their arguments."""
        return f"{self.agent}.{self.tool or 'infer'}" if self.agent is not None else self.tool or ""

    @property
    def said(self) -> str:
        """The name that whoever asked has used."""
        return self.facade or (self.tool if self.agent is None else AGENT_CALL) or ""


@record
class ModelUsage:
    """What one model call consumed. None is unknown, never zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None
    source: str = "unknown"
    """`provider`, or how the numbers were estimated."""

    estimated: bool = False


@record
class RunStarted:
    """A run exists: what was asked, by whom, within which limits."""

    task: dict[str, Any]
    """The task as it was submitted, as JSON."""

    agent_name: str
    work: tuple[Work, ...]
    context: dict[str, Any]
    """The run's `RunContext` as JSON; its budget holds the limits."""

    principal: str = "local"
    """Who may see and steer the run."""

    conversation: tuple[dict[str, Any], ...] = ()
    """Earlier messages of the session, as the model will see them again."""

    parent_action_id: str | None = None
    delegation_id: str | None = None
    durable: bool = False
    """Whether the list is stored, so that the run can outlive an attempt."""

    slice_steps: int | None = None
    """Model turns after which an attempt returns control."""

    fingerprint: dict[str, str] = field(default_factory=new_dict)
    """Digests of the configuration by component; a root's covers its children."""

    tool_choice: str | None = None
    """What this run says about the use of tools; None leaves it to the agent."""

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return str(self.task["id"])


@record
class ConversationLoaded:
    """The session's earlier messages were read; they come before what this run asks."""

    messages: tuple[dict[str, Any], ...]
    """As the model will see them again."""


@record
class HistoryCompacted:
    """The oldest messages are not sent any more, because the model's context window would not hold them."""

    before: int
    """Messages before this number are left out, but for the question that is being answered."""

    summary: str | None = None
    """What is sent in their place, where a hook wrote it."""


@record
class AttemptStarted:
    """Somebody took up a run that was at rest, or whose process had ended."""

    attempt: int
    principal: str = "local"
    fingerprint: dict[str, str] | None = None
    """The configuration from here on, where it was changed on purpose."""


@record
class ModelAsked:
    """A model turn was reserved and is about to be made."""

    step: int
    provider: str
    model: str
    corrections_allowed: int
    estimated_input_tokens: int
    native: bool = False
    """Whether tools are offered in the provider's own format."""

    streaming: bool = False
    tool_choice: str = "auto"
    """What the turn says about the use of tools: `auto`, `required`, `none`, or the name of one."""


@record
class ModelRetried:
    """A call of the turn failed, and another one was reserved: of the same model, or of the next one."""

    error: ErrorInfo
    attempt: int
    """Which call of the turn failed, from 1."""

    asked: ModelAsked
    """The turn as the next call makes it."""

    delay_seconds: float = 0.0
    """The pause before the next call."""

    status: int | None = None
    """The provider's HTTP status."""

    request_id: str | None = None
    streamed: bool = False
    """Whether pieces of the lost reply had been shown already; they count for nothing."""

    usage: ModelUsage = field(default_factory=ModelUsage)
    """What the lost call consumed, where the provider said so."""


@record
class ModelReplied:
    """The model's complete reply, as it came and as it was understood.

    Exactly one of `proposals`, `answer` and `problem` says what it means.
    """

    text: str
    proposals: tuple[Proposal, ...] = ()
    answer: Any = None
    problem: str | None = None
    """Why the reply is neither an action nor an answer."""

    usage: ModelUsage = field(default_factory=ModelUsage)
    seconds: float | None = None
    attempts: int = 1
    finish_reason: str | None = None
    request_id: str | None = None
    reasoning: str | None = None
    provider_state: Any = None
    """What the provider wants to see again with this reply. Private, and opaque to everybody else."""


@record
class ModelFailed:
    """The provider, or the factory that should have given one, failed; no action was entered."""

    error: ErrorInfo


@record
class ReplyRefused:
    """A reply cannot be used and the model is told why."""

    message: str
    of_answer: bool = False
    """Whether a final answer failed its schema, as opposed to a malformed action."""


@record
class ActionPrepared:
    """A proposal became the exact operation that everything after this refers to."""

    action_id: str
    kind: str
    name: str
    tool: str
    """The declared tool that will run it."""

    arguments: dict[str, Any]
    """The validated arguments, as JSON."""

    payload: dict[str, Any]
    capabilities: tuple[str, ...]
    fingerprint: str
    description: str = ""
    metadata: dict[str, Any] = field(default_factory=new_dict)
    artifacts: tuple[dict[str, Any], ...] = ()
    read_only: bool = False
    idempotent: bool = False
    repeatable: bool = False
    public: bool = False
    """Whether the application sees the result."""

    hooked: bool = False
    """Whether hooks see the result before the model does."""

    question: bool = False
    """Whether the result is what a person answers."""


@record
class ActionRejected:
    """A request was refused in a way that the model can correct; nothing changed."""

    action_id: str
    phase: Literal["validation", "preparation", "execution"]
    code: str
    message: str
    details: dict[str, Any] | None = None
    suggestion: str | None = None
    arguments: dict[str, Any] | None = None
    """The validated arguments; None where validation refused them."""

    seconds: float | None = None


@record
class ActionJudged:
    """The policies spoke: allow, deny, or ask."""

    action_id: str
    effect: Literal["allow", "deny", "require_approval"]
    reason: str = ""
    policy_name: str = ""
    matched_capabilities: tuple[str, ...] = ()


@record
class ApprovalAsked:
    """Somebody is being asked about exactly this action."""

    action_id: str
    request_id: str


@record
class ApprovalAnswered:
    """An answer to one request; it is used once."""

    action_id: str
    request_id: str
    approved: bool
    reason: str | None = None
    decided_by: str | None = None


@record
class QuestionAsked:
    """Somebody is being asked what the model wants to know; the answer is the action's result."""

    action_id: str
    request_id: str


@record
class QuestionAnswered:
    """The answer to one question. Private: as the action's result, a view decides who sees it."""

    action_id: str
    request_id: str
    answer: Any
    answered_by: str | None = None


@record
class ActionDenied:
    """A policy or a person said no; the action was not executed."""

    action_id: str
    code: Literal["policy_denied", "approval_declined", "approval_required"]
    reason: str


@record
class ActionStarted:
    """An authorized action was reserved in the budget and is about to be entered."""

    action_id: str


@record
class ActionCompleted:
    """An entered action returned."""

    action_id: str
    result: Any
    """The return value as JSON. Private: a view decides who sees it."""

    rendered: bool = False
    """Whether JSON could not carry the value as it was."""

    seconds: float | None = None


@record
class ActionObserved:
    """The hooks have seen a result on its way to the model; the result itself stands."""

    action_id: str
    changed: bool
    result: Any = None
    """What the model sees instead, where a hook changed it."""


@record
class ActionRepeated:
    """The identical call had succeeded before in this run; its observation is given again."""

    action_id: str
    repeat_of: str
    arguments: dict[str, Any]


@record
class ActionFailed:
    """An action's code raised."""

    action_id: str
    error: ErrorInfo
    observed: bool = False
    """Whether the failure goes to the model instead of ending the run."""

    seconds: float | None = None


@record
class ActionCanceled:
    """An action was given up: before its start, or while it ran."""

    action_id: str
    unsettled: bool = False
    """Whether its code may still be running, so that its effect may yet happen."""

    seconds: float | None = None


@record
class ActionUncertain:
    """An entered action ended without anybody knowing whether its effect happened."""

    action_id: str
    reason: str
    seconds: float | None = None


@record
class BackgroundProposed:
    """A worker was asked for beside the turns of the model: by the application, or by a tool."""

    proposal: Proposal


@record
class ProgressReported:
    """A running tool said something about its work."""

    action_id: str
    type: str
    payload: dict[str, Any]


@record
class PeerReported:
    """A peer said what happens in the run that it was asked for. Its word, and no outcome of anything here."""

    action_id: str
    """The delegation."""

    peer: str
    event: dict[str, Any]
    """A `RunEvent` as JSON, as far as it was believed."""


@record
class ActionReconciled:
    """Somebody settled an uncertain action: its effect happened, with this result, or it did not."""

    action_id: str
    happened: bool
    result: Any = None
    principal: str = "local"


@record
class DelegationSuspended:
    """The attempt of a child ended without the child's end, and so this run's attempt ends too."""

    action_id: str
    error: ErrorInfo


@record
class CheckOutcome:
    """What one of the application's checks said about an answer."""

    name: str
    passed: bool
    message: str = ""
    """Why it failed; empty where it passed."""


@record
class CompletionChecked:
    """The application's checks have compared a final reply with the receipts."""

    checks: tuple[CheckOutcome, ...]


@record
class AnswerGiven:
    """The answer to an inference, after the hooks."""

    content: Any


@record
class CancelRequested:
    """Somebody asked for the run to end."""

    reason: str
    principal: str = "local"


@record
class BudgetWarned:
    """Most of a hard limit is used, and the run goes on; said once for each limit of a tree."""

    limit: str
    allowed: float
    used: float


@record
class BudgetExceeded:
    """The next piece of work would break a hard limit, or a deadline passed."""

    limit: str
    allowed: float
    used: float


@record
class RunFailed:
    """The run cannot go on for a reason that is no action's."""

    error: ErrorInfo


@record
class Yielded:
    """The slice of an attempt is used up and the work is not done."""

    handoff: dict[str, Any]
    """A `RunHandoff` as JSON."""


@record
class RunPaused:
    """The attempt returns control; the run waits for somebody."""

    kind: Literal["yield", "approval", "input"]
    interruptions: tuple[dict[str, Any], ...]
    """What it waits for, in the order of the proposals: `RunInterruption`s as JSON, those of children included."""

    seconds: float = 0.0
    """How long the attempt took."""


@record
class AttemptEnded:
    """The attempt ends and the run does not: the reason lies outside it, or an effect is unknown."""

    error: ErrorInfo
    seconds: float = 0.0


@record
class RunFinished:
    """The run's end; nothing follows."""

    status: Literal["completed", "failed", "canceled"]
    error: ErrorInfo | None = None
    reason: str | None = None
    """Why it was canceled."""

    seconds: float = 0.0
    """How long the attempt took."""


ActionRecord = (
    ActionPrepared
    | ActionRejected
    | ActionJudged
    | ApprovalAsked
    | ApprovalAnswered
    | QuestionAsked
    | QuestionAnswered
    | ActionDenied
    | ActionStarted
    | ActionCompleted
    | ActionRepeated
    | ActionFailed
    | ActionCanceled
    | ActionUncertain
    | ActionReconciled
    | ProgressReported
    | PeerReported
)
"""What is seen of an action, in the order in which it can happen."""

TurnRecord = HistoryCompacted | ModelAsked | ModelRetried | ModelReplied | ModelFailed | ReplyRefused | AnswerGiven
"""What is seen of the turns of a model."""

RunRecord = (
    RunStarted
    | AttemptStarted
    | BudgetWarned
    | BudgetExceeded
    | RunFailed
    | Yielded
    | RunPaused
    | AttemptEnded
    | RunFinished
)
"""What is seen of a run as a whole."""

PrivateRecord = (
    ConversationLoaded | ActionObserved | DelegationSuspended | BackgroundProposed | CompletionChecked | CancelRequested
)
"""What nobody sees: other records say of it what can be seen."""

Record = ActionRecord | TurnRecord | RunRecord | PrivateRecord


Usage = tuple[int, int, int, int, int, float | None]
"""A tree's counters at one moment: steps, model calls, tool calls, tokens in, tokens out, cost."""
