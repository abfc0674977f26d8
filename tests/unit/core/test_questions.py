"""Questions in the core: what is decided about them, what follows, and what can be seen."""

from __future__ import annotations

import pytest

from protolink import RunBudget
from protolink._core.codec import BODY_CHARACTERS, decode, encode
from protolink._core.machine import Ask, Execute, Fail
from protolink._core.records import (
    ActionCanceled,
    ActionStarted,
    BudgetExceeded,
    QuestionAnswered,
    QuestionAsked,
    Record,
)
from protolink._core.state import RecordRefused
from protolink._json import dumps, parse
from tests.unit.core.facts import (
    act,
    asked,
    asks,
    authorized,
    completed,
    entered,
    fold,
    following,
    listed,
    prepared,
    seen,
    started,
)
from tests.unit.core.facts import proposed as calls

ASKED = {"question": "Which one?", "choices": ["red", "blue"]}
OPENED: tuple[Record, ...] = (started(), asked(), calls("ask_user"))
QUESTION = authorized(1, "ask_user", arguments=ASKED, question=True, read_only=True)


def put(number: int = 1) -> QuestionAsked:
    return QuestionAsked(action_id=act(number), request_id=f"question {number}")


def replied(answer: object = "red", number: int = 1) -> QuestionAnswered:
    return QuestionAnswered(action_id=act(number), request_id=f"question {number}", answer=answer, answered_by="ann")


def test_an_authorized_question_is_asked_and_not_executed() -> None:
    """It has no code: there is nothing to run until somebody has answered."""
    assert following(*OPENED, *QUESTION) == Ask((act(1),))


def test_an_answered_question_is_executed_like_any_tool() -> None:
    """Its start reserves a tool call, and its result joins the conversation."""
    assert following(*OPENED, *QUESTION, put(), replied()) == Execute((act(1),))


def test_questions_and_approvals_of_a_reply_wait_side_by_side() -> None:
    """Nothing of the reply is entered before everybody was asked, in the order of the proposals."""
    opened = (started(), asked(), calls("pay", "ask_user", "note"))
    second = authorized(2, "ask_user", arguments=ASKED, question=True)
    judged = (prepared(1, "pay"), *asks(1), *second)

    assert following(*opened, *judged, *authorized(3)) == Ask((act(1), act(2)))
    assert following(*opened, *judged, *authorized(3), put(2), replied(number=2)) == Ask((act(1),))


def test_nobody_is_asked_when_the_budget_leaves_no_call_for_the_answer() -> None:
    """A person's time is not spent on an answer that a hard limit already forbids to use."""
    opened = (started(budget=RunBudget(max_tool_calls=0)), asked(), calls("ask_user"))

    assert following(*opened, *QUESTION) == Fail(BudgetExceeded(limit="max_tool_calls", allowed=0, used=0))


def test_a_question_counts_as_a_tool_call_when_it_is_answered() -> None:
    """Asking alone costs nothing, so an unanswered question takes nothing from the others."""
    tree, _ = fold(*OPENED, *QUESTION, put())
    answered, _ = fold(*OPENED, *QUESTION, put(), replied(), entered(1))

    assert (tree.counters.tool_calls, answered.counters.tool_calls) == (0, 1)


REFUSED: dict[str, tuple[Record, ...]] = {
    "an answer before the question": (*QUESTION, replied()),
    "a start before the answer": (*QUESTION, put(), ActionStarted(action_id=act(1))),
    "a start before the question": (*QUESTION, ActionStarted(action_id=act(1))),
    "an answer to another request": (
        *QUESTION,
        put(),
        QuestionAnswered(action_id=act(1), request_id="another", answer=1),
    ),
    "a second answer": (*QUESTION, put(), replied(), replied()),
    "a second question": (*QUESTION, put(), put()),
    "a question about a tool": (*authorized(1, "note"), put()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_follow_is_refused(case: str) -> None:
    """An answer is given once, to the question that was asked, and nothing runs without it."""
    with pytest.raises(RecordRefused):
        fold(*OPENED, *REFUSED[case])


def test_an_open_question_can_be_closed() -> None:
    """A run that is canceled while somebody is asked leaves no call without a result."""
    _, run = fold(*OPENED, *QUESTION, put(), ActionCanceled(action_id=act(1)))

    assert run.actions == {}
    assert run.history[-1]["role"] == "tool"


def test_the_answer_is_what_the_model_reads() -> None:
    """Like the result of any tool."""
    _, run = fold(*OPENED, *QUESTION, put(), replied(), entered(1), completed(1, "red"))

    assert parse(run.history[-1]["content"]) == {"type": "tool_result", "tool": "ask_user", "result": "red"}


async def test_events_show_the_question_and_withhold_the_answer() -> None:
    """Arguments are public; a result that the application did not expose is not, and an answer is a result."""
    journal = await listed(*OPENED, *QUESTION, put(), replied("secret"))

    required, answered = seen(journal)[-2:]

    assert (required.type, answered.type) == ("input.required", "input.answered")
    assert required.payload["request"]["question"] == "Which one?"
    assert required.payload["request"]["choices"] == ["red", "blue"]
    assert answered.payload["answer"] == {"request_id": "question 1", "answered_by": "ann", "answer_omitted": True}
    assert "secret" not in dumps(answered.to_dict())


async def test_events_show_the_answer_where_results_are_public() -> None:
    """As they do for the results of all tools."""
    public = authorized(1, "ask_user", arguments=ASKED, question=True, public=True)
    journal = await listed(*OPENED, *public, put(), replied(["red"]))

    assert seen(journal)[-1].payload["answer"]["answer"] == ["red"]


@pytest.mark.parametrize("answer", [None, False, 0, "", "red", ["red", None], {"a": [1]}, "x" * BODY_CHARACTERS])
def test_every_answer_is_stored_and_read_back(answer: object) -> None:
    """JSON's null is an answer like others, and a long one is kept apart from its record."""
    kind, version, plain, bodies = encode(replied(answer))

    restored = decode(kind, version, plain, {name: parse(text) for name, text in bodies.items()})

    assert restored == replied(answer)
    assert ("answer" in bodies) == (isinstance(answer, str) and len(answer) >= BODY_CHARACTERS)
