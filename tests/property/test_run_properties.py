"""Any script, any budget, any moment to die or to be canceled: what always holds of a run.

A tiny interpreter performs what is decided, without a model, a tool or a clock: each command gives the records
that the shell would append, and an action that is entered has an effect that can be counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from hypothesis import event, given, settings
from hypothesis import strategies as st

from protolink._core.budget import model_call_limit, repeated_call_limit
from protolink._core.evolve import evolve
from protolink._core.machine import (
    Answer,
    Ask,
    AskModel,
    CloseActions,
    Command,
    Continue,
    Deny,
    Drain,
    EndAttempt,
    Execute,
    Fail,
    Finish,
    Judge,
    Observe,
    Pause,
    Prepare,
    Repeat,
    Suspect,
    Warn,
    decide,
)
from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionDenied,
    ActionFailed,
    ActionJudged,
    ActionObserved,
    ActionPrepared,
    ActionRejected,
    ActionRepeated,
    ActionStarted,
    ActionUncertain,
    AnswerGiven,
    ApprovalAnswered,
    ApprovalAsked,
    BudgetExceeded,
    CancelRequested,
    ErrorInfo,
    Inference,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    ModelRetried,
    ModelUsage,
    Proposal,
    Record,
    ReplyRefused,
    RunFailed,
    RunStarted,
    ToolRequest,
    Work,
)
from protolink._core.state import RecordRefused, RunState, TreeState
from protolink.context import RunBudget, RunContext

RUN: Final = "run"
PROMPT_TOKENS: Final = 20
"""More than the conversation alone is estimated at, for a prompt has other parts too."""

BROKEN: Final = ErrorInfo(code="broken", message="it broke")

FATES: Final = (
    "invalid",
    "reject_preparation",
    "preparation_fails",
    "deny",
    "approve",
    "decline",
    "succeed",
    "succeed_hooked",
    "reject_execution",
    "fail",
    "fail_observed",
    "uncertain",
)
NEVER_ENTERED: Final = frozenset({"invalid", "reject_preparation", "preparation_fails", "deny", "decline"})

# Most calls go well, or every run would end with its first turn.
GOES_ON: Final = ("succeed", "succeed", "succeed", "succeed_hooked", "succeed_hooked", "approve", "fail_observed")

calls = st.fixed_dictionaries(
    {
        "tool": st.sampled_from(["note", "read"]),
        "value": st.integers(0, 3),
        "fate": st.integers(0, 5).flatmap(lambda n: st.sampled_from(FATES if n == 5 else GOES_ON)),
    }
)
several = st.lists(calls, min_size=1, max_size=4)
turns = several | several | several | st.sampled_from(["unfit answer", "malformed", "answer", "no model", "lost call"])
limits = st.none() | st.none() | st.integers(0, 6)
budgets = st.builds(
    RunBudget,
    max_steps=limits,
    max_llm_calls=limits,
    max_tool_calls=limits,
    max_input_tokens=st.none() | st.integers(0, 300),
    max_calls=st.dictionaries(st.sampled_from(["note", "read"]), st.integers(0, 3), max_size=2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Everything that the world will do to a run."""

    direct: list[dict[str, Any]]
    """Calls that the application itself asks for, before the prompt."""

    turns: list[Any]
    corrections: int
    budget: RunBudget
    backwards: bool
    """Whether what runs side by side ends in reverse order."""

    @property
    def bound(self) -> int:
        """More records than such a run can have."""
        proposals = len(self.direct) + sum(len(turn) for turn in self.turns if isinstance(turn, list))
        return 20 + 8 * proposals + 8 * len(self.turns)


scripts = st.builds(
    Script,
    direct=st.just([]) | st.lists(calls, max_size=2, unique_by=lambda call: call["value"]),
    turns=st.lists(turns, min_size=1, max_size=6),
    corrections=st.integers(0, 3),
    budget=st.just(RunBudget()) | budgets,
    backwards=st.booleans(),
)


class Dead(Exception):  # noqa: N818 - it is what happens to the process, not a fault of the test
    """The process is gone."""


@dataclass
class Shell:
    """Performs commands of one run and keeps its list. The effects outlive it."""

    script: Script
    effects: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    tree: TreeState = field(default_factory=lambda: TreeState(RUN))
    dies_after: int | None = None
    canceled_after: int | None = None

    @property
    def run(self) -> RunState:
        return self.tree.runs[RUN]

    def append(self, *records: Record) -> None:
        """Add records that are stored together, so that nothing can happen between them."""
        for record in records:
            before = self.tree.counters.snapshot()[:5]
            evolve(self.tree, RUN, record)
            self.records.append(record)
            after = self.tree.counters.snapshot()[:5]
            assert all(now >= then for then, now in zip(before, after, strict=True)), "usage shrank"
        if self.canceled_after is not None and len(self.records) >= self.canceled_after and self.run.finished is None:
            self.canceled_after = None
            self.append(CancelRequested(reason="enough"))
        if self.dies_after is not None and len(self.records) >= self.dies_after:
            raise Dead

    def begin(self) -> None:
        work: tuple[Work, ...] = tuple(
            ToolRequest(tool=call["tool"], args=call, call_id=f"direct {number}")
            for number, call in enumerate(self.script.direct)
        )
        context = RunContext(run_id=RUN, budget=self.script.budget)
        question = Inference(prompt="Go on.", output_schema={}, max_attempts=2)
        task = {"id": "task", "state": "submitted"}
        self.append(RunStarted(task=task, agent_name="keeper", work=(*work, question), context=context.to_dict()))

    def to_the_end(self) -> None:
        command = decide(self.tree, self.run)
        while command is not None:
            self.perform(command)
            following = decide(self.tree, self.run)
            assert following != command, f"{command} changed nothing"
            assert len(self.records) < self.script.bound, "the run does not end"
            command = following

    def perform(self, command: Command) -> None:
        for records in self.outcomes(command):
            try:
                self.append(*records)
            except RecordRefused:
                # A stop got in between. What was entered still needs an ending; the rest is decided again.
                action = self.run.actions.get(getattr(records[0], "action_id", ""))
                if action is not None and action.stage == "started":
                    self.append(ActionCanceled(action_id=action.proposal.action_id))

    def outcomes(self, command: Command) -> Iterator[tuple[Record, ...]]:
        """What performing a command appends, one commit after the other."""
        match command:
            case AskModel():
                yield from self.model_turn(command.step)
            case Prepare(action_id=action_id):
                yield (self.prepared(action_id),)
            case Judge(action_id=action_id):
                fate = self.fate(action_id)
                effect = {"deny": "deny", "approve": "require_approval", "decline": "require_approval"}.get(
                    fate, "allow"
                )
                judged = ActionJudged(action_id=action_id, effect=effect)  # type: ignore[arg-type]
                asked = ApprovalAsked(action_id=action_id, request_id=action_id)
                yield (judged, asked) if effect == "require_approval" else (judged,)
            case Ask(action_ids=action_ids):
                for action_id in action_ids:
                    approved = self.fate(action_id) == "approve"
                    yield (ApprovalAnswered(action_id=action_id, request_id=action_id, approved=approved),)
            case Deny(action_id=action_id):
                yield (ActionDenied(action_id=action_id, code="policy_denied", reason="no"),)
            case Execute(action_ids=action_ids):
                for action_id in action_ids:
                    yield (ActionStarted(action_id=action_id),)
                for action_id in reversed(action_ids) if self.script.backwards else action_ids:
                    if self.run.actions[action_id].stage == "started":
                        self.effects.append(action_id)
                        yield (self.ended(action_id),)
            case Repeat(action_id=action_id, repeat_of=repeat_of):
                prepared = self.run.actions[action_id].prepared
                assert prepared is not None
                yield (ActionRepeated(action_id=action_id, repeat_of=repeat_of, arguments=prepared.arguments),)
            case Observe(action_id=action_id):
                yield (ActionObserved(action_id=action_id, changed=True, result="seen"),)
            case CloseActions(action_ids=action_ids):
                yield tuple(ActionCanceled(action_id=action_id) for action_id in action_ids)
            case Answer():
                yield (self.answer(),)
            case Fail(reason=reason):
                yield (reason if isinstance(reason, BudgetExceeded) else RunFailed(error=reason),)
            case Finish(record=record) | Warn(record=record):
                yield (record,)
            case Drain() | Continue() | Suspect() | Pause() | EndAttempt():
                raise AssertionError("no worker, no earlier attempt, and nothing to pause for")
            case unknown:
                assert_never(unknown)

    def fate(self, action_id: str) -> str:
        fate: str = self.run.actions[action_id].proposal.args["fate"]
        return fate

    def model_turn(self, step: int) -> Iterator[tuple[Record, ...]]:
        exceeded = model_call_limit(self.tree.counters, self.run.budget, self.run.steps, PROMPT_TOKENS)
        if exceeded is not None:
            yield (exceeded,)
            return
        yield (
            ModelAsked(
                step=step,
                provider="mock",
                model="mock",
                native=True,
                streaming=False,
                corrections_allowed=self.script.corrections,
                estimated_input_tokens=PROMPT_TOKENS,
            ),
        )
        turn: Any = self.script.turns[step - 1] if step <= len(self.script.turns) else "answer"
        if turn == "lost call":
            if repeated_call_limit(self.tree.counters, self.run.budget, 0) is not None:
                yield (ModelFailed(error=BROKEN),)
                return
            assert self.run.asked is not None
            lost = ModelUsage(input_tokens=2, output_tokens=1)
            yield (ModelRetried(error=BROKEN, attempt=1, asked=self.run.asked, usage=lost),)
        usage = ModelUsage(input_tokens=15, output_tokens=3)
        match turn:
            case "no model":
                yield (ModelFailed(error=BROKEN),)
            case "malformed":
                yield (ModelReplied(text="{", problem="malformed", usage=usage), ReplyRefused(message="malformed"))
            case "answer" | "unfit answer" | "lost call":
                attempts = self.run.retries + 1
                yield (ModelReplied(text=turn, answer=turn, usage=usage, attempts=attempts),)
            case _:
                first = self.run.action_count + 1
                proposals = tuple(
                    Proposal(action_id=f"{RUN}.{number}", call_id=f"{RUN}.{number}", tool=call["tool"], args=call)
                    for number, call in enumerate(turn, first)
                )
                yield (ModelReplied(text="", proposals=proposals, usage=usage),)

    def prepared(self, action_id: str) -> Record:
        proposal = self.run.actions[action_id].proposal
        fate = self.fate(action_id)
        if fate == "invalid":
            return ActionRejected(action_id=action_id, phase="validation", code="invalid", message="m")
        if fate == "reject_preparation":
            return ActionRejected(action_id=action_id, phase="preparation", code="no", message="m")
        if fate == "preparation_fails":
            return ActionFailed(action_id=action_id, error=BROKEN)
        arguments = {"value": proposal.args["value"]}
        return ActionPrepared(
            action_id=action_id,
            kind="tool.call",
            name=proposal.name,
            tool=proposal.name,
            arguments=arguments,
            payload={"arguments": arguments},
            capabilities=(),
            fingerprint=f"{proposal.name} {arguments}",
            read_only=proposal.name == "read",
            hooked=fate == "succeed_hooked" and isinstance(self.run.work, Inference),
        )

    def ended(self, action_id: str) -> Record:
        match self.fate(action_id):
            case "reject_execution":
                return ActionRejected(action_id=action_id, phase="execution", code="no", message="m")
            case "fail":
                return ActionFailed(action_id=action_id, error=BROKEN)
            case "fail_observed":
                return ActionFailed(action_id=action_id, error=BROKEN, observed=True)
            case "uncertain":
                return ActionUncertain(action_id=action_id, reason="lost")
            case _:
                return ActionCompleted(action_id=action_id, result="done")

    def answer(self) -> Record:
        if self.run.pending_answer == "answer":
            return AnswerGiven(content="answer")
        if self.run.answer_attempts + 1 < 2:
            return ReplyRefused(message="it does not fit", of_answer=True)
        return RunFailed(error=ErrorInfo(code="infer_parse_error", message="it does not fit"))


def finished(script: Script, **moments: Any) -> Shell:
    """A whole run."""
    shell = Shell(script, **moments)
    shell.begin()
    shell.to_the_end()
    return shell


def fold(records: list[Record]) -> TreeState:
    tree = TreeState(RUN)
    for record in records:
        evolve(tree, RUN, record)
    return tree


def check_effects(shell: Shell) -> None:
    """No action is entered twice, none that may not be entered is, and no success happens again."""
    starts = [record.action_id for record in shell.records if isinstance(record, ActionStarted)]
    assert max(Counter(starts).values(), default=0) <= 1
    assert max(Counter(shell.effects).values(), default=0) <= 1
    assert set(shell.effects) <= set(starts)
    operations: dict[str, tuple[str, int]] = {}
    succeeded: set[tuple[str, int]] = set()
    for record in shell.records:
        if isinstance(record, ActionPrepared):
            operations[record.action_id] = (record.tool, record.arguments["value"])
        elif isinstance(record, ActionStarted):
            assert operations[record.action_id] not in succeeded
        elif isinstance(record, ActionCompleted) and operations[record.action_id][0] != "read":
            succeeded.add(operations[record.action_id])
    denied = {
        record.action_id for record in shell.records if isinstance(record, ActionJudged) and record.effect == "deny"
    }
    for reply in (record for record in shell.records if isinstance(record, ModelReplied)):
        ids = {proposal.action_id for proposal in reply.proposals}
        assert not ids & denied or not ids & set(starts), "a reply with a denied call had an effect"
        refused = {proposal.action_id for proposal in reply.proposals if proposal.args["fate"] in NEVER_ENTERED}
        assert not refused & set(starts)


def check_conversation(shell: Shell) -> None:
    """Each call of the model has exactly one result, right behind its turn and in the order of the calls."""
    waiting: list[str] = []
    for message in shell.run.history:
        if message["role"] == "tool":
            assert waiting, "a result without a call"
            assert message["tool_call_id"] == waiting.pop(0)
        else:
            assert not waiting, "a call without a result"
            waiting = [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting, "a call without a result"


@settings(max_examples=300)
@given(scripts)
def test_every_run_ends_and_never_does_a_thing_twice(script: Script) -> None:
    """The interpreter itself checks that usage never shrinks and that each command changes the next decision."""
    shell = finished(script)

    assert shell.run.finished is not None
    event(f"{shell.run.finished.status}, {len(shell.effects)} effects")
    check_effects(shell)
    check_conversation(shell)


@settings(max_examples=300)
@given(scripts)
def test_limits_hold(script: Script) -> None:
    """Whatever runs side by side, nothing is overshot."""
    shell = finished(script)

    counters, budget = shell.tree.counters, script.budget
    assert counters.steps <= (10 if budget.max_steps is None else budget.max_steps)
    assert budget.max_llm_calls is None or counters.llm_calls <= budget.max_llm_calls
    assert budget.max_tool_calls is None or counters.tool_calls <= budget.max_tool_calls
    assert all(counters.calls.get(tool, 0) <= limit for tool, limit in budget.max_calls.items())
    assert counters.reserved_input_tokens == 0


@settings(max_examples=300)
@given(scripts)
def test_every_prefix_of_the_list_folds_to_the_state_that_was_reached(script: Script) -> None:
    """The state depends on the records alone, so a list that was cut anywhere can be taken up."""
    records = finished(script).records
    reached = TreeState(RUN)

    for number, record in enumerate(records, 1):
        evolve(reached, RUN, record)
        assert fold(records[:number]) == reached


@settings(max_examples=300)
@given(scripts, st.data())
def test_no_effect_happens_twice_wherever_the_process_dies(script: Script, data: st.DataObject) -> None:
    """What was entered and has no ending is uncertain to the next process, which never enters it again."""
    complete = finished(script)
    dies_after = data.draw(st.integers(1, len(complete.records)), label="dies after")
    shell = Shell(script, dies_after=dies_after)
    try:
        shell.begin()
        shell.to_the_end()
    except Dead:
        pass
    if data.draw(st.booleans(), label="after the effect"):
        shell.effects.extend(id_ for id_ in entered(shell.run) if id_ not in shell.effects)

    again = Shell(script, effects=shell.effects, records=shell.records, tree=fold(shell.records))
    command = decide(again.tree, again.run)
    assert not (isinstance(command, Execute) and set(command.action_ids) & set(entered(again.run)))
    for action_id in entered(again.run):
        again.append(ActionUncertain(action_id=action_id, reason="the process is gone"))
    again.to_the_end()

    assert again.run.finished is not None
    check_effects(again)
    check_conversation(again)


def entered(run: RunState) -> list[str]:
    """The actions whose outcome is missing."""
    return [action_id for action_id, action in run.actions.items() if action.stage == "started"]


@settings(max_examples=300)
@given(scripts, st.data())
def test_a_run_that_is_canceled_anywhere_ends_and_enters_nothing_more(script: Script, data: st.DataObject) -> None:
    """From the record of the cancellation on, nothing begins and nothing succeeds."""
    complete = finished(script)
    canceled_after = data.draw(st.integers(1, len(complete.records) - 1), label="canceled after")

    shell = finished(script, canceled_after=canceled_after)

    place = next(number for number, record in enumerate(shell.records) if isinstance(record, CancelRequested))
    failing = fold(shell.records[:place]).runs[RUN].stop is not None
    assert shell.run.finished is not None
    assert shell.run.finished.status == ("failed" if failing else "canceled")
    assert not any(
        isinstance(record, ActionStarted | ActionCompleted | AnswerGiven) for record in shell.records[place:]
    )
    check_effects(shell)
    check_conversation(shell)
