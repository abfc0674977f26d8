"""A record that cannot follow is refused and changes nothing; every call ends up with a result."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, get_args

import pytest

from protolink._core.codec import decode, encode
from protolink._core.evolve import KINDS, evolve
from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionDenied,
    ActionFailed,
    ActionObserved,
    ActionRepeated,
    AnswerGiven,
    ApprovalAnswered,
    BudgetExceeded,
    ErrorInfo,
    HistoryCompacted,
    Inference,
    ModelFailed,
    ModelReplied,
    ModelRetried,
    ModelUsage,
    ProgressReported,
    Record,
    ReplyRefused,
    RunFinished,
    ToolRequest,
)
from protolink._core.state import RecordRefused, RunState, TreeState
from protolink.context import RunBudget
from tests.unit.core.facts import (
    RUN,
    act,
    answered,
    asked,
    asks,
    authorized,
    canceled,
    completed,
    decided,
    entered,
    fold,
    judged,
    prepared,
    proposed,
    rejected,
    started,
    uncertain,
)

RUNNING = (started(), asked(), proposed("note"), *authorized(1), entered(1))
FAILED = ActionFailed(action_id=act(1), error=ErrorInfo(code="tool_failed", message="it broke"))
LOST = ModelRetried(error=ErrorInfo(code="model_failed", message="busy"), attempt=1, asked=asked(tokens=20))
DEADLINE = BudgetExceeded(limit="max_runtime_seconds", allowed=1, used=1)


def refused(records: tuple[Record, ...], record: Record) -> None:
    """`record` cannot follow `records`, and trying it leaves everything as it was."""
    tree, _ = fold(*records)
    before, _ = fold(*records)

    with pytest.raises(RecordRefused):
        evolve(tree, RUN, record)

    assert tree == before


def told(run: RunState) -> list[Any]:
    """What the conversation says of the calls, in its order."""
    return [json.loads(message["content"])["result"] for message in run.history if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("records", "record"),
    [
        pytest.param((started(),), started(), id="a second start"),
        pytest.param((started(),), answered(), id="a reply that nobody asked for"),
        pytest.param((started(), asked(), answered()), asked(2), id="a turn before the answer was given"),
        pytest.param((started(), asked(), proposed("note")), asked(2), id="a turn over open actions"),
        pytest.param((started(), canceled()), asked(), id="a turn after a stop"),
        pytest.param((started(),), AnswerGiven(content=""), id="an answer without a reply"),
        pytest.param((started(),), prepared(1), id="an action that was not proposed"),
        pytest.param((started(), asked(), proposed("note")), judged(1), id="a judgement before the preparation"),
        pytest.param((started(), asked(), proposed("note"), prepared(1)), prepared(1), id="a second preparation"),
        pytest.param((started(), asked(), proposed("note"), prepared(1)), entered(1), id="a start without judgement"),
        pytest.param(
            (started(), asked(), proposed("note"), prepared(1), *asks(1)), entered(1), id="a start without approval"
        ),
        pytest.param(
            (started(), asked(), proposed("note"), prepared(1), judged(1, "deny")),
            entered(1),
            id="a start that is denied",
        ),
        pytest.param(
            (started(), asked(), proposed("note"), prepared(1), *asks(1), decided(1, approved=False)),
            entered(1),
            id="a start that was declined",
        ),
        pytest.param(
            (started(), asked(), proposed("note"), *authorized(1)), completed(1), id="a result without a start"
        ),
        pytest.param(
            (started(), asked(), proposed("note"), *authorized(1), canceled()), entered(1), id="a start after a stop"
        ),
        pytest.param((started(),), LOST, id="a lost call without a turn"),
        pytest.param((started(), asked(), canceled()), LOST, id="another call after a stop"),
        pytest.param((started(budget=RunBudget(max_llm_calls=1)), asked()), LOST, id="another call beyond the limit"),
        pytest.param((started(),), HistoryCompacted(before=1), id="a cut behind the end"),
        pytest.param((*RUNNING, completed(1)), HistoryCompacted(before=2), id="a cut between a call and its result"),
        pytest.param(RUNNING, entered(1), id="a second start of an action"),
        pytest.param((*RUNNING, completed(1)), completed(1), id="a second result"),
        pytest.param((*RUNNING, completed(1)), FAILED, id="a second ending"),
        pytest.param(RUNNING, rejected(1), id="a validation that rejects what runs"),
        pytest.param(RUNNING, ActionObserved(action_id=act(1), changed=False), id="an observation before the result"),
        pytest.param(
            RUNNING, ActionRepeated(action_id=act(1), repeat_of=act(1), arguments={}), id="a repeat of itself"
        ),
        pytest.param(RUNNING, RunFinished(status="completed"), id="an end over an open action"),
        pytest.param((*RUNNING, canceled()), RunFinished(status="canceled"), id="a canceled end over an open action"),
    ],
)
def test_a_record_that_cannot_follow_changes_nothing(records: tuple[Record, ...], record: Record) -> None:
    """The list is the truth, so what contradicts it must not get in."""
    refused(records, record)


@pytest.mark.parametrize(
    ("records", "status"),
    [
        pytest.param((started(),), "completed", id="work that was not begun"),
        pytest.param((started(), asked(), answered()), "completed", id="an answer that was not given"),
        pytest.param((started(), canceled()), "completed", id="a canceled run"),
    ],
)
def test_a_run_does_not_complete_what_is_not_done(records: tuple[Record, ...], status: Any) -> None:
    """Success is a claim about the records before it."""
    refused(records, RunFinished(status=status))


def test_a_lost_call_is_charged_and_reserves_what_the_next_one_needs() -> None:
    """The next model may be sent more; what the first one reserved is not forgotten and not counted twice."""
    tree, run = fold(started(), asked(tokens=10), LOST)

    counters = tree.counters
    assert (counters.steps, counters.llm_calls, counters.reserved_input_tokens) == (1, 2, 20)
    assert run.asked == LOST.asked


@pytest.mark.parametrize("record", [LOST, HistoryCompacted(before=2, summary="short")])
def test_a_record_is_stored_and_read_as_it_was(record: Record) -> None:
    """A turn within a record, too, comes back as one."""
    kind, version, plain, bodies = encode(record)

    assert decode(kind, version, json.loads(json.dumps(plain)), bodies) == record


def test_a_refusal_of_a_reply_needs_a_reply() -> None:
    """The model would be told of a mistake that it did not make."""
    refused((started(), asked()), ReplyRefused(message="two actions"))


def test_nothing_follows_the_end_of_a_run() -> None:
    """A late cancellation of a finished run changes nothing."""
    ended = (started(), asked(), answered(), AnswerGiven(content="Milk."), RunFinished(status="completed"))

    for record in (canceled(), asked(2), RunFinished(status="failed")):
        refused(ended, record)


def test_a_run_that_never_started_has_no_records() -> None:
    """A record of a wrong run must not begin one."""
    with pytest.raises(RecordRefused, match="has not started"):
        evolve(TreeState(RUN), RUN, asked())


@pytest.mark.parametrize("stop", [canceled(), DEADLINE])
@pytest.mark.parametrize(
    "outcome",
    [
        completed(1),
        FAILED,
        rejected(1, "execution"),
        ProgressReported(action_id=act(1), type="progress", payload={}),
    ],
)
def test_an_outcome_after_an_interruption_comes_too_late(stop: Record, outcome: Record) -> None:
    """The work was told to stop; its result cannot become a success any more."""
    refused((*RUNNING, stop), outcome)


@pytest.mark.parametrize(
    "outcome", [ActionCanceled(action_id=act(1)), ActionCanceled(action_id=act(1), unsettled=True), uncertain(1)]
)
def test_an_interrupted_action_still_gets_an_ending(outcome: Record) -> None:
    """That it was given up, or that nobody knows."""
    _, run = fold(*RUNNING, canceled(), outcome)

    assert not any(action.is_open for action in run.actions.values())
    assert run.completed_ids == []


def test_an_outcome_beside_a_failure_is_still_welcome() -> None:
    """Reads that run side by side were not told to stop when one of them failed."""
    reading = [record for number in (1, 2) for record in authorized(number, read_only=True)]
    records = (started(), asked(), proposed("note", "note"), *reading, entered(1), entered(2))

    _, run = fold(*records, FAILED, completed(2))

    assert run.completed_ids == [act(2)]


def test_an_answer_counts_only_for_the_request_that_asked() -> None:
    """An approval is bound to one action."""
    records = (started(), asked(), proposed("note"), prepared(1), *asks(1))

    refused(records, ApprovalAnswered(action_id=act(1), request_id="another request", approved=True))


def test_an_answer_is_used_once() -> None:
    """A second answer cannot turn the first one around."""
    records = (started(), asked(), proposed("note"), prepared(1), *asks(1), decided(1, approved=False))

    refused(records, decided(1, approved=True))


def test_results_join_the_conversation_in_the_order_of_the_proposals() -> None:
    """Whatever the order they arrive in, and only when all of them are there."""
    reading = [record for number in (1, 2, 3) for record in authorized(number, read_only=True)]
    begun = (started(), asked(), proposed("a", "b", "c"), *reading, entered(1), entered(2), entered(3))

    _, before = fold(*begun, completed(3, "c"), completed(1, "a"))
    _, after = fold(*begun, completed(3, "c"), completed(1, "a"), completed(2, "b"))

    assert told(before) == []
    assert told(after) == ["a", "b", "c"]
    ids = [message["tool_call_id"] for message in after.history if message["role"] == "tool"]
    assert ids == ["call_1", "call_2", "call_3"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ((completed(1),), "completed"),
        ((FAILED,), "failed"),
        ((ActionFailed(action_id=act(1), error=FAILED.error, observed=True),), "completed"),
        ((rejected(1, "execution"),), "completed"),
        ((uncertain(1),), "failed"),
        ((canceled(), ActionCanceled(action_id=act(1))), "canceled"),
        ((DEADLINE, ActionCanceled(action_id=act(1), unsettled=True)), "failed"),
    ],
)
def test_every_call_has_a_result_in_the_conversation(ending: tuple[Record, ...], status: Any) -> None:
    """A saved conversation with an unanswered call is refused by providers when the session goes on."""
    rest = () if status != "completed" else (asked(2), answered(), AnswerGiven(content="done"))

    _, run = fold(*RUNNING, *ending, *rest, RunFinished(status=status))

    assert len(told(run)) == 1


def test_a_denied_call_and_its_closed_neighbours_have_results() -> None:
    """The rest of a reply is answered too."""
    denial = ActionDenied(action_id=act(1), code="policy_denied", reason="no")
    records = (started(), asked(), proposed("a", "b"), prepared(1), prepared(2), judged(1, "deny"), denial)

    _, run = fold(*records, ActionCanceled(action_id=act(2)), RunFinished(status="failed"))

    assert [result["status"] for result in told(run)] == ["denied", "canceled"]


def test_the_model_sees_what_the_hooks_left_of_a_result() -> None:
    """The result itself stands; its observation is another one."""
    ready = (started(), asked(), proposed("note"), *authorized(1, hooked=True), entered(1), completed(1, "raw"))

    _, run = fold(*ready, ActionObserved(action_id=act(1), changed=True, result="clean"))

    assert told(run) == ["clean"]


def test_a_result_that_the_hooks_did_not_see_stays_out_of_the_conversation() -> None:
    """A run that stops in between is saved with its session, and the next run would show it to the model."""
    ready = (started(), asked(), proposed("note"), *authorized(1, hooked=True), entered(1), completed(1, "raw"))

    _, run = fold(*ready, canceled(), RunFinished(status="canceled"))

    assert len(told(run)) == 1
    assert "raw" not in json.dumps(run.history)


def test_a_repeat_gives_the_observation_again_and_says_so() -> None:
    """Including what a hook had made of it."""
    same = {"item": "milk"}
    ready = (*authorized(1, arguments=same, hooked=True), entered(1), completed(1, "raw"))
    observed = ActionObserved(action_id=act(1), changed=True, result="clean")
    again = (asked(2), proposed("note", first=2), ActionRepeated(action_id=act(2), repeat_of=act(1), arguments=same))

    _, run = fold(started(), asked(), proposed("note"), *ready, observed, *again)

    assert told(run) == ["clean", "clean"]
    assert json.loads(run.history[-1]["content"])["repeated"] is True


def test_an_earlier_conversation_comes_before_the_question() -> None:
    """The model reads the session in its order."""
    earlier = ({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."})

    _, run = fold(started(conversation=earlier))

    assert [message["content"] for message in run.history] == ["Hello.", "Hi.", "What is stored?"]


def test_a_direct_call_adds_nothing_to_the_conversation() -> None:
    """The application asked, not the model; a model that follows answers its own prompt only."""
    request = ToolRequest(tool="note", args={}, call_id="call")
    records = (started(request, Inference(prompt="And now?")), *authorized(1), entered(1), completed(1))

    _, run = fold(*records)

    assert [message["role"] for message in run.history] == ["user"]


def test_usage_never_shrinks() -> None:
    """Whatever happens to a call, its turn was taken."""
    usage = ModelUsage(input_tokens=5, output_tokens=7)
    records: tuple[Record, ...] = (
        started(),
        asked(1, tokens=100),
        ModelReplied(text="", proposals=proposed("note").proposals, usage=usage, attempts=3),
        *authorized(1),
        entered(1),
        completed(1),
        asked(2, tokens=100),
        asked(3, tokens=100),
        ModelFailed(error=ErrorInfo(code="model_failed", message="m")),
        canceled(),
        RunFinished(status="failed"),
    )
    seen = [fold(*records[: end + 1])[0].counters.snapshot()[:5] for end in range(len(records))]

    assert all(a <= b for before, after in pairwise(seen) for a, b in zip(before, after, strict=True))
    assert seen[-1] == (3, 5, 1, 205, 7)


def test_a_start_beyond_the_budget_is_refused() -> None:
    """Work in parallel reserves in the list, so it cannot overshoot."""
    reading = [record for number in (1, 2) for record in authorized(number, read_only=True)]
    first = started(budget=RunBudget(max_tool_calls=1))

    refused((first, asked(), proposed("note", "note"), *reading, entered(1)), entered(2))


def test_a_turn_beyond_the_budget_is_refused() -> None:
    """What a child has used in the meantime counts when the turn is reserved."""
    refused((started(budget=RunBudget(max_input_tokens=9)),), asked(tokens=10))


def test_runs_of_a_tree_share_their_counters() -> None:
    """One budget for a root and everything that it delegates."""
    tree, _ = fold(started(budget=RunBudget(max_steps=1)), asked())
    evolve(tree, "child", started(run_id="child", budget=RunBudget(max_steps=1), parent_action_id=act(1)))

    with pytest.raises(RecordRefused, match="max_steps"):
        evolve(tree, "child", asked())


def test_an_action_of_another_run_is_not_open_here() -> None:
    """Records name their run; an id that belongs elsewhere is refused."""
    tree, _ = fold(*RUNNING)
    evolve(tree, "child", started(run_id="child"))

    with pytest.raises(RecordRefused, match="not open"):
        evolve(tree, "child", ActionCompleted(action_id=act(1), result=None))


def test_every_kind_of_record_advances_the_state() -> None:
    """No type checker looks into a table, and a kind that is missing would be found by whoever appends it."""
    assert frozenset(get_args(Record)) == KINDS
