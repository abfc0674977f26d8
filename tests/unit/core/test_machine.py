"""What happens next, and what comes before what: the order of precedence and of several actions."""

from __future__ import annotations

from typing import Any

import pytest

from protolink._core.machine import (
    Answer,
    Ask,
    AskModel,
    CloseActions,
    Deny,
    Execute,
    Fail,
    Finish,
    Judge,
    Observe,
    Prepare,
    Repeat,
    Warn,
    decide,
)
from protolink._core.records import (
    ActionCanceled,
    ActionDenied,
    ActionFailed,
    ActionObserved,
    ActionRepeated,
    AnswerGiven,
    BudgetExceeded,
    BudgetWarned,
    ErrorInfo,
    ModelReplied,
    Record,
    ReplyRefused,
    RunFailed,
    RunFinished,
    ToolRequest,
)
from protolink.context import RunBudget
from tests.unit.core.facts import (
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
    following,
    judged,
    prepared,
    proposed,
    rejected,
    started,
    uncertain,
)

TOOL = ToolRequest(tool="note", args={}, call_id="call")
ALLOWED = (*authorized(1), *authorized(2))


def test_a_question_is_put_to_the_model() -> None:
    """The first thing that a run with a prompt does."""
    assert following(started()) == AskModel(step=1)


def test_a_direct_call_needs_no_model() -> None:
    """A run that opens with a tool request walks the same road as a model's proposal."""
    assert following(started(TOOL)) == Prepare(act(1))


def test_a_finished_run_has_nothing_left_to_do() -> None:
    """Whatever was still open in it."""
    assert following(started(), asked(), answered(), RunFinished(status="failed")) is None


def test_a_final_reply_becomes_the_answer_and_then_the_end() -> None:
    """Hooks and schema stand between a reply and the answer, so these are two commands."""
    replied = (started(), asked(), answered())

    assert following(*replied) == Answer()
    assert following(*replied, AnswerGiven(content="Milk.")) == Finish(RunFinished(status="completed"))


@pytest.mark.parametrize(
    ("stop", "end"),
    [
        (canceled(), RunFinished(status="canceled", reason="enough")),
        (
            RunFailed(error=ErrorInfo(code="c", message="m")),
            RunFinished(status="failed", error=ErrorInfo(code="c", message="m")),
        ),
    ],
)
def test_a_stop_comes_before_an_answer(stop: Record, end: RunFinished) -> None:
    """Once it is recorded that a run ends, nothing that waits is done any more."""
    assert following(started(), asked(), answered(), stop) == Finish(end)


def test_the_first_stopping_fact_decides_how_a_run_ends() -> None:
    """The list has an order, so which came first is never a race."""
    failed = RunFailed(error=ErrorInfo(code="c", message="m"))

    assert following(started(), failed, canceled()) == Finish(RunFinished(status="failed", error=failed.error))
    assert following(started(), canceled(), failed) == Finish(RunFinished(status="canceled", reason="enough"))


def test_a_stop_closes_what_is_open_before_the_end() -> None:
    """A saved conversation never has a call without a result."""
    records = (started(), asked(), proposed("note", "note"), *authorized(1), entered(1), canceled())

    assert following(*records) == CloseActions((act(1), act(2)))
    assert following(*records, ActionCanceled(action_id=act(1))) == CloseActions((act(2),))


def test_a_stop_comes_before_too_many_mistakes() -> None:
    """A run that was canceled did not fail."""
    records = (started(), asked(corrections=0), proposed("note"), rejected(1))

    assert following(*records, canceled()) == Finish(RunFinished(status="canceled", reason="enough"))


def test_too_many_mistakes_come_before_actions_that_could_still_run() -> None:
    """A reply with one mistake too many has no effect at all."""
    records = (started(), asked(corrections=0), proposed("note", "note"), rejected(1))

    command = following(*records)

    assert isinstance(command, Fail)
    assert isinstance(command.reason, ErrorInfo)
    assert command.reason.code == "tool_correction_limit"


def test_the_allowance_is_one_for_all_kinds_of_mistakes() -> None:
    """Malformed replies and rejected calls draw on it together, and a success does not fill it up."""
    turn = (asked(1, corrections=1), proposed("note"), rejected(1))
    success = (asked(2, corrections=1), proposed("note", first=2), *authorized(2), entered(2), completed(2))
    unclear = ModelReplied(text="{", problem="two actions")
    malformed = (asked(3, corrections=1), unclear, ReplyRefused(message="two actions"))

    assert isinstance(following(started(), *turn, *success), AskModel)
    assert isinstance(following(started(), *turn, *success, *malformed), Fail)


def test_an_answer_that_misses_its_schema_is_no_correction() -> None:
    """It has an allowance of its own."""
    refused = ReplyRefused(message="no number", of_answer=True)

    assert following(started(), asked(corrections=0), answered(), refused) == AskModel(step=2)


def test_mistakes_come_before_hard_limits() -> None:
    """The first reason in the order is the one that is told."""
    budget = RunBudget(max_llm_calls=1)

    command = following(started(budget=budget), asked(corrections=0), proposed("note"), rejected(1))

    assert isinstance(command, Fail)
    assert isinstance(command.reason, ErrorInfo)


def test_a_warning_comes_before_a_turn_and_once() -> None:
    """The answer uses nothing, so nobody is warned then."""
    start = started(budget=RunBudget(max_llm_calls=5, max_tool_calls=1))
    records: list[Record] = [start, asked(corrections=5), proposed("note"), *authorized(1), entered(1), completed(1)]
    for turn in range(2, 5):
        records += [
            asked(turn, corrections=5),
            ModelReplied(text="?", problem="no action"),
            ReplyRefused(message="no action"),
        ]
    warned = BudgetWarned(limit="max_llm_calls", allowed=5, used=4)

    assert following(*records) == Warn(warned)
    assert following(*records, warned) == AskModel(step=5)
    assert following(*records, warned, asked(5, corrections=5), answered()) == Answer()


def test_a_warning_comes_before_an_execution() -> None:
    """Where calls are what is nearly used up; turns are none of its concern."""
    budget = RunBudget(max_llm_calls=1, max_tool_calls=5)
    records: list[Record] = [started(budget=budget), asked(), proposed(*["note"] * 5)]
    for number in range(1, 6):
        records += authorized(number)
    for number in range(1, 5):
        records += [entered(number), completed(number)]

    assert following(*records[:-2]) == Execute((act(4),))
    assert following(*records) == Warn(BudgetWarned(limit="max_tool_calls", allowed=5, used=4))


def test_open_actions_come_before_hard_limits() -> None:
    """The last turn that the budget allows may still do what it proposed."""
    budget = RunBudget(max_llm_calls=1)
    records = (started(budget=budget), asked(), proposed("note"), *authorized(1))

    assert following(*records) == Execute((act(1),))


def test_an_answer_comes_before_hard_limits() -> None:
    """What the last allowed call answered is an answer."""
    assert following(started(budget=RunBudget(max_llm_calls=1)), asked(), answered()) == Answer()


def test_a_hard_limit_comes_before_another_turn() -> None:
    """Zero permits nothing."""
    exceeded = BudgetExceeded(limit="max_llm_calls", allowed=0, used=0)

    assert following(started(budget=RunBudget(max_llm_calls=0))) == Fail(exceeded)


def test_every_proposal_of_a_reply_is_prepared_before_one_is_judged() -> None:
    """Preparation has no effects; a mistake in the last proposal is known before the first has any."""
    records: tuple[Record, ...] = (started(), asked(), proposed("note", "note"))

    assert following(*records) == Prepare(act(1))
    assert following(*records, prepared(1)) == Prepare(act(2))
    assert following(*records, prepared(1), prepared(2)) == Judge(act(1))


def test_every_proposal_of_a_reply_is_judged_before_one_is_executed() -> None:
    """A policy that refuses the last one keeps the first one from having an effect."""
    records = (started(), asked(), proposed("note", "note"), prepared(1), prepared(2), judged(1))

    assert following(*records) == Judge(act(2))
    assert following(*records, judged(2)) == Execute((act(1),))


def test_a_policy_denial_comes_before_everything_that_was_allowed() -> None:
    """Nothing of the reply is entered, whichever of its actions was denied."""
    records: tuple[Record, ...] = (started(), asked(), proposed("note", "note"), prepared(1), prepared(2), judged(1))
    denied = (*records, judged(2, "deny"))
    recorded = ActionDenied(action_id=act(2), code="policy_denied", reason="no")

    assert following(*denied) == Deny(act(2))
    assert following(*denied, recorded) == CloseActions((act(1),))


def test_everything_that_needs_approval_is_asked_together_and_first() -> None:
    """A person sees all of a reply before any of it happens."""
    records = (started(), asked(), proposed("a", "b", "c"), prepared(1), prepared(2), prepared(3))

    assert following(*records, *asks(1), judged(2), *asks(3)) == Ask((act(1), act(3)))


def test_what_was_approved_runs_before_a_declined_approval_ends_the_run() -> None:
    """An answer that was given is kept to, and nobody is asked any more once one is a no."""
    records = (started(), asked(), proposed("a", "b"), prepared(1, "a"), prepared(2, "b"), *asks(1), *asks(2))
    answers = (decided(1, approved=False), decided(2, approved=True))

    assert following(*records, *answers[:1]) == Deny(act(1))
    assert following(*records, *answers) == Execute((act(2),))
    assert following(*records, *answers, entered(2), completed(2)) == Deny(act(1))


def test_actions_run_alone_and_in_order() -> None:
    """Undeclared means that it may have effects, and effects have an order."""
    records = (started(), asked(), proposed("note", "note"), *ALLOWED)

    assert following(*records) == Execute((act(1),))
    assert following(*records, entered(1), completed(1)) == Execute((act(2),))


def test_actions_that_only_read_run_together() -> None:
    """Up to the first that may have effects; what comes after it waits for it."""
    reading = [record for number in (1, 2, 4) for record in authorized(number, "read", read_only=True)]
    records = (started(), asked(), proposed("read", "read", "note", "read"), *reading, *authorized(3))
    done = (entered(1), entered(2), completed(1), completed(2))

    assert following(*records) == Execute((act(1), act(2)))
    assert following(*records, *done) == Execute((act(3),))
    assert following(*records, *done, entered(3), completed(3)) == Execute((act(4),))


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (RunBudget(max_tool_calls=2), (act(1), act(2))),
        (RunBudget(max_calls={"read": 1}), (act(1),)),
        (RunBudget(max_calls={"other": 1}), (act(1), act(2), act(3))),
    ],
)
def test_only_as_many_run_together_as_the_budget_has_left(budget: RunBudget, expected: tuple[str, ...]) -> None:
    """A limit cannot be overshot by doing things at once."""
    reading = [record for number in (1, 2, 3) for record in authorized(number, "read", read_only=True)]

    assert following(started(budget=budget), asked(), proposed("read", "read", "read"), *reading) == Execute(expected)


@pytest.mark.parametrize(
    ("budget", "limit"),
    [(RunBudget(max_tool_calls=1), "max_tool_calls"), (RunBudget(max_calls={"note": 1}), "max_calls[note]")],
)
def test_an_action_beyond_the_budget_fails_the_run(budget: RunBudget, limit: str) -> None:
    """It is named before it is entered, and the one before it keeps its result."""
    records = (started(budget=budget), asked(), proposed("note", "note"), *ALLOWED, entered(1), completed(1))

    assert following(*records) == Fail(BudgetExceeded(limit=limit, allowed=1, used=1))


def test_an_identical_call_that_succeeded_is_repeated_and_not_executed() -> None:
    """Even within one reply, where both were prepared before the first one ran."""
    same = {"item": "milk"}
    ready = (*authorized(1, arguments=same), *authorized(2, arguments=same))

    command = following(started(), asked(), proposed("note", "note"), *ready, entered(1), completed(1))

    assert command == Repeat(act(2), act(1))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"arguments": {"item": "milk"}}, {"arguments": {"item": "tea"}}),
        ({"arguments": {"item": "milk"}}, {"arguments": {"item": "milk"}, "tool": "drop"}),
        ({"arguments": {}, "read_only": True}, {"arguments": {}, "read_only": True}),
        ({"arguments": {}, "repeatable": True}, {"arguments": {}, "repeatable": True}),
    ],
)
def test_another_call_is_executed(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Other arguments, another tool, or a tool that says that a second time is fine."""
    ready = (*authorized(1, **first), entered(1), completed(1), asked(2), proposed("note", first=2))

    assert following(started(), asked(), proposed("note"), *ready, *authorized(2, **second)) == Execute((act(2),))


def test_an_identical_call_that_failed_may_be_tried_again() -> None:
    """Only success stands in for another execution."""
    same = {"item": "milk"}
    failed = ActionFailed(action_id=act(1), error=ErrorInfo(code="tool_failed", message="m"), observed=True)
    first = (started(), asked(), proposed("note"), *authorized(1, arguments=same), entered(1), failed)

    assert following(*first, asked(2), proposed("note", first=2), *authorized(2, arguments=same)) == Execute((act(2),))


def test_a_repeat_costs_no_tool_call() -> None:
    """It is decided before the budget is asked."""
    same = {"item": "milk"}
    first = (asked(), proposed("note"), *authorized(1, arguments=same), entered(1), completed(1))
    again = (asked(2), proposed("note", first=2), *authorized(2, arguments=same))

    assert following(started(budget=RunBudget(max_tool_calls=1)), *first, *again) == Repeat(act(2), act(1))


def test_hooks_see_a_result_before_the_next_action_is_entered() -> None:
    """The model is told of results in order, each as the hooks left it."""
    ready = (*authorized(1, hooked=True), *authorized(2, hooked=True))
    done = (started(), asked(), proposed("note", "note"), *ready, entered(1), completed(1))

    assert following(*done) == Observe(act(1))
    assert following(*done, ActionObserved(action_id=act(1), changed=False)) == Execute((act(2),))


def test_an_uncertain_action_stops_the_run() -> None:
    """Nobody may build on an effect that is unknown."""
    records = (started(), asked(), proposed("note", "note"), *ALLOWED, entered(1), uncertain(1))

    assert following(*records) == CloseActions((act(2),))
    end = following(*records, ActionCanceled(action_id=act(2)))
    assert isinstance(end, Finish)
    assert end.record.error is not None
    assert end.record.error.code == "uncertain_execution"


def test_nothing_is_started_beside_an_action_that_is_running() -> None:
    """What was entered has an outcome to come: neither it nor another turn begins meanwhile."""
    command = following(started(), asked(), proposed("note"), *authorized(1), entered(1))

    assert not isinstance(command, AskModel | Execute)


def test_pieces_of_work_are_done_one_after_the_other() -> None:
    """A task can hold tool calls and prompts; its output is the last one's."""
    again = ToolRequest(tool="note", args={"number": 2}, call_id="again")
    first = (started(TOOL, again), *authorized(1), entered(1), completed(1, "one"))

    assert following(*first) == Prepare(act(2))
    tree, run = fold(*first, *authorized(2), entered(2), completed(2, "two"))
    assert decide(tree, run) == Finish(RunFinished(status="completed"))
    assert run.outputs == ["one", "two"]


def test_an_application_may_ask_for_the_same_call_twice() -> None:
    """A repeat within one task counts as done: no model is asked about it."""
    same = {"item": "milk"}
    first = (started(TOOL, TOOL), *authorized(1, arguments=same), entered(1), completed(1, "one"))
    repeated = ActionRepeated(action_id=act(2), repeat_of=act(1), arguments=same)

    tree, run = fold(*first, repeated)

    assert decide(tree, run) == Finish(RunFinished(status="completed"))
    assert run.outputs == ["one", "one"]
