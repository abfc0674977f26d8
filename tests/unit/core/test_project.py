"""What becomes public, what must not, and from whose point of view."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protolink._core.records import (
    ActionCanceled,
    ActionDenied,
    ActionObserved,
    ActionRepeated,
    AnswerGiven,
    BudgetExceeded,
    BudgetWarned,
    ErrorInfo,
    Inference,
    ModelFailed,
    ModelReplied,
    ModelUsage,
    ProgressReported,
    Proposal,
    Record,
    ReplyRefused,
    RunFailed,
    RunFinished,
)
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
    judged,
    listed,
    prepared,
    proposed,
    rejected,
    seen,
    started,
    uncertain,
)

SECRET = "hunter2"
RUNNING = (started(), asked(), proposed("note"), *authorized(1), entered(1))
DELEGATION = ModelReplied(
    text="",
    proposals=(Proposal(action_id=act(1), call_id="call_1", agent="helper", args={"task": "Help."}),),
)


def child(*records: Record) -> list[tuple[str, Record]]:
    """A child of the first action and its records."""
    start = started(run_id="child", parent_action_id=act(1), delegation_id=act(1))
    start.context["parent_run_id"] = RUN
    return [("child", record) for record in (start, *records)]


def visible(events: Any) -> str:
    """Everything that an application could find in some events."""
    return json.dumps([event.to_dict() for event in events])


@pytest.mark.parametrize(
    "records",
    [
        pytest.param((started(Inference(prompt=SECRET)),), id="a prompt"),
        pytest.param((started(conversation=({"role": "user", "content": SECRET},)),), id="a stored conversation"),
        pytest.param((started(), asked(), ModelReplied(text=SECRET, problem="unclear")), id="an unusable reply"),
        pytest.param((started(), asked(), ModelReplied(text=SECRET, answer=SECRET)), id="a reply before its answer"),
        pytest.param((started(), asked(), ModelReplied(text="", answer="", reasoning=SECRET)), id="reasoning"),
        pytest.param((started(), asked(), proposed("note", args={"key": SECRET})), id="arguments before validation"),
        pytest.param((*RUNNING, completed(1, SECRET)), id="a private result"),
        pytest.param(
            (
                *RUNNING,
                completed(1, SECRET),
                asked(2),
                proposed("note", first=2),
                ActionRepeated(action_id=act(2), repeat_of=act(1), arguments={"number": 1}),
            ),
            id="a private result that is repeated",
        ),
        pytest.param(
            (
                started(),
                asked(),
                proposed("note"),
                *authorized(1, hooked=True, public=True),
                entered(1),
                completed(1, ""),
                ActionObserved(action_id=act(1), changed=True, result=SECRET),
            ),
            id="what the model sees instead of a result",
        ),
    ],
)
async def test_what_is_private_does_not_come_through(records: tuple[Record, ...]) -> None:
    """Events go to browsers and logs; the list itself does not."""
    assert SECRET not in visible(seen(await listed(*records)))


async def test_a_public_result_comes_through() -> None:
    """None is a result too, which is not the same as one that is left out."""
    ready = (started(), asked(), proposed("note"), *authorized(1, public=True), entered(1))

    *_, shown = seen(await listed(*ready, completed(1, None)))
    *_, omitted = seen(await listed(*RUNNING, completed(1, None)))

    assert shown.payload["metadata"]["result"] is None
    assert "result_omitted" not in shown.payload["metadata"]
    assert omitted.payload["metadata"]["result_omitted"] is True
    assert "result" not in omitted.payload["metadata"]


async def test_records_that_are_private_leave_no_gap() -> None:
    """A reader who counts must not think that it missed something."""
    ready = (started(), asked(), proposed("note"), *authorized(1, hooked=True), entered(1), completed(1))
    journal = await listed(
        *ready, ActionObserved(action_id=act(1), changed=False), canceled(), RunFinished(status="canceled")
    )

    events = seen(journal)

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len(events) == len(journal.entries) - 2


@pytest.mark.parametrize(
    ("records", "kind", "details"),
    [
        ((started(),), "task.status", {"previous_state": "submitted", "new_state": "working"}),
        ((started(), asked()), "llm.call.started", {"llm_event_type": "llm_call_started"}),
        ((started(), asked(), answered()), "llm.call.completed", {"llm_event_type": "llm_call_completed"}),
        (
            (started(), asked(), answered(), AnswerGiven(content={"a": 1})),
            "llm.stream",
            {"llm_event_type": "llm_final", "content": {"a": 1}},
        ),
        (
            (started(), asked(), ModelReplied(text="", problem="p"), ReplyRefused(message="two actions")),
            "llm.stream",
            {"llm_event_type": "llm_parse_error", "content": "two actions"},
        ),
        ((started(), asked(), proposed("note"), prepared(1)), "action.requested", {"action_id": act(1)}),
        ((started(), asked(), proposed("note"), *authorized(1)), "action.policy", {}),
        (RUNNING, "action.started", {}),
        ((*RUNNING, completed(1)), "action.completed", {}),
        ((*RUNNING, uncertain(1)), "action.uncertain", {}),
        ((*RUNNING, ActionCanceled(action_id=act(1))), "action.canceled", {}),
        ((started(), asked(), proposed("note"), rejected(1)), "action.rejected", {}),
        ((started(), asked(), proposed("note"), prepared(1), *asks(1)), "approval.required", {}),
        ((started(), asked(), proposed("note"), prepared(1), *asks(1), decided(1, True)), "approval.decided", {}),
        (
            (started(), ModelFailed(error=ErrorInfo(code="c", message="m"))),
            "task.error",
            {"error_code": "c", "error_message": "m", "recoverable": True},
        ),
        ((started(), RunFailed(error=ErrorInfo(code="c", message="m"))), "task.error", {"recoverable": False}),
        (
            (started(), BudgetWarned(limit="max_steps", allowed=5, used=4)),
            "budget.warning",
            {"decision": {"limit": "max_steps", "allowed": 5, "used": 4}},
        ),
        (
            (started(), BudgetExceeded(limit="max_steps", allowed=1, used=1)),
            "budget.exceeded",
            {"decision": {"limit": "max_steps", "allowed": 1, "used": 1}},
        ),
        (
            (started(), RunFinished(status="failed", error=ErrorInfo(code="c", message="m"))),
            "task.status",
            {"previous_state": "working", "new_state": "failed"},
        ),
    ],
)
async def test_a_fact_has_its_documented_event(records: tuple[Record, ...], kind: str, details: dict[str, Any]) -> None:
    """The type, and what the payload says beside the five keys that every payload has."""
    event = seen(await listed(*records))[-1]

    assert event.type == kind
    assert {key: event.payload.get(key) for key in details} == details
    for key, value in (("event_id", event.event_id), ("type", kind), ("timestamp", event.timestamp)):
        assert event.payload[key] == value
    assert event.payload["task_id"] == f"task of {RUN}"


async def test_every_event_says_who_and_where() -> None:
    """Readers group by these when several agents are at work."""
    events = seen(await listed(*RUNNING, completed(1), asked(2), answered(), AnswerGiven(content="Milk.")))

    assert {(event.run_id, event.agent_name, event.version) for event in events} == {(RUN, "keeper", "1.0")}
    assert [event.step for event in events] == [None, 1, 1, 1, 1, 1, 1, 2, 2, 2]
    assert len({event.event_id for event in events}) == len(events)


async def test_events_of_an_action_carry_its_id_and_validated_arguments() -> None:
    """From the request to the end, so that a reader needs no memory."""
    events = [event for event in seen(await listed(*RUNNING, completed(1))) if event.action_id is not None]

    assert [event.type for event in events] == [
        "action.requested",
        "action.policy",
        "action.started",
        "action.completed",
    ]
    for event in events:
        details = event.payload["metadata"]
        assert (event.action_id, details["tool"], details["args"]) == (act(1), "note", {"number": 1})
        assert details["action_kind"] == "tool.call"


async def test_a_repeat_shows_its_arguments() -> None:
    """They were validated, and the record has them, whether or not the call was prepared again."""
    repeat = ActionRepeated(action_id=act(2), repeat_of=act(1), arguments={"number": 1})
    event = seen(await listed(*RUNNING, completed(1), asked(2), proposed("note", first=2), repeat))[-1]

    assert event.payload["metadata"]["repeat_of"] == act(1)
    assert event.payload["metadata"]["args"] == {"number": 1}


async def test_a_rejection_says_in_which_phase_and_which_correction_it_was() -> None:
    """The second one says two, also when the first event is read again afterwards."""
    second = (asked(2), proposed("note", first=2), *authorized(2), entered(2), rejected(2, "execution"))
    events = seen(await listed(started(), asked(), proposed("note"), rejected(1), *second))

    details = [event.payload["metadata"] for event in events if event.type == "action.rejected"]
    assert [(one["phase"], one["correction_count"], one["max_tool_corrections"]) for one in details] == [
        ("validation", 1, 2),
        ("execution", 2, 2),
    ]
    assert details[0]["rejection"]["changes_made"] is False


async def test_a_model_call_tells_what_it_used_and_what_is_unknown() -> None:
    """Unknown is None; the budget is that of the whole tree at that moment."""
    usage = ModelUsage(input_tokens=5, output_tokens=7, source="provider")
    events = seen(
        await listed(
            started(), asked(), answered(usage=usage), AnswerGiven(content=""), RunFinished(status="completed")
        )
    )

    details = events[2].payload["metadata"]
    assert (details["provider"], details["model"], details["latency_ms"]) == ("mock", "mock-gpt", None)
    assert details["metrics"]["cost"] is None
    assert details["metrics"]["usage"] == {
        "input_tokens": 5,
        "output_tokens": 7,
        "total_tokens": 12,
        "cached_tokens": None,
        "reasoning_tokens": None,
        "estimated": False,
        "source": "provider",
    }
    assert details["budget"]["llm_calls"] == 1


async def test_an_unknown_part_makes_the_total_unknown() -> None:
    """A sum with a guess in it is a guess."""
    events = seen(await listed(started(), asked(), answered(usage=ModelUsage(input_tokens=5))))

    assert events[-1].payload["metadata"]["metrics"]["usage"]["total_tokens"] is None


async def test_an_approval_request_shows_the_exact_operation() -> None:
    """Whoever decides sees what would be executed, bound by its fingerprint."""
    operation = prepared(1)
    event = seen(await listed(started(), asked(), proposed("note"), operation, *asks(1)))[-1]

    request = event.payload["request"]
    assert request["payload"] == {"arguments": {"number": 1}}
    assert (request["request_id"], request["fingerprint"]) == ("request 1", operation.fingerprint)


async def test_progress_of_a_tool_cannot_take_the_place_of_what_the_runtime_says() -> None:
    """Every payload has its five keys; a tool's words stand beside them."""
    said = {"percent": 50, "metadata": "mine", "event_id": "mine", "type": "task.status", "task_id": "mine"}
    event = seen(await listed(*RUNNING, ProgressReported(action_id=act(1), type="progress", payload=said)))[-1]

    assert (event.type, event.payload["percent"]) == ("progress", 50)
    assert event.payload["event_id"] == event.event_id
    assert event.payload["task_id"] == event.task_id
    assert event.payload["metadata"]["tool"] == "note"


async def test_the_answer_and_the_end_of_a_run_are_final() -> None:
    """The answer is the last word of its stream; the status after it is the last event of all."""
    ended = (started(), asked(), answered(), AnswerGiven(content="Milk."), RunFinished(status="completed"))

    events = seen(await listed(*ended))

    final = [(event.type, event.payload.get("llm_event_type")) for event in events if event.final]
    assert final == [("llm.stream", "llm_final"), ("task.status", None)]
    assert events[-1].final


async def test_the_end_of_a_child_is_final_for_the_child_alone() -> None:
    """The parent goes on; its readers learn whether the child's own reader would have stopped here."""
    records = child(asked(), answered(), AnswerGiven(content="Milk."), RunFinished(status="completed"))
    journal = await listed(started(), asked(), DELEGATION, *records)

    from_root = [event for event in seen(journal, RUN) if event.run_id == "child"]
    own = [event for event in seen(journal, "child") if event.run_id == "child"]

    assert not any(event.final for event in from_root)
    assert [event.metadata["source_final"] for event in from_root] == [event.final for event in own]
    assert own[-1].final


async def test_a_childs_events_keep_their_identity_and_lineage() -> None:
    """One stream, one order; every event says whose it is and which action led to it."""
    journal = await listed(started(), asked(), DELEGATION, *child(asked(), answered()))

    events = [event for event in seen(journal) if event.run_id == "child"]

    assert [event.sequence for event in events] == [4, 5, 6]
    assert [event.metadata["source_sequence"] for event in events] == [1, 2, 3]
    assert [event.event_id for event in events] == ["child:4", "child:5", "child:6"]
    for event in events:
        assert (event.parent_action_id, event.delegation_id, event.metadata["parent_run_id"]) == (act(1), act(1), RUN)
        assert event.task_id == "task of child"


async def test_a_delegation_is_its_own_lineage() -> None:
    """The parent's action and the child's events share the delegation's id."""
    journal = await listed(started(), asked(), DELEGATION, rejected(1))

    event = seen(journal)[-1]

    assert (event.delegation_id, event.action_id) == (act(1), act(1))
    assert event.payload["metadata"]["action_kind"] == "agent.call"


async def test_a_fragment_stands_between_the_records() -> None:
    """It has a place in the stream and none in the list."""
    journal = await listed(started(), asked())
    journal.fragment(RUN, "Mi")
    await journal.append(RUN, answered())

    events = seen(journal)

    assert [event.sequence for event in events] == [1, 2, 3, 4]
    assert (events[2].payload["llm_event_type"], events[2].payload["content"]) == ("llm_chunk", "Mi")


async def test_each_reader_gets_values_of_its_own() -> None:
    """A reader that changes an event changes it for nobody else, and no record either."""
    ready = (started(), asked(), proposed("note"), *authorized(1, public=True), entered(1))
    journal = await listed(*ready, completed(1, {"kept": ["milk"]}))
    before = visible(seen(journal))

    for event in seen(journal):
        details = event.payload["metadata"]
        for value in (details.get("result"), details.get("args"), details):
            if isinstance(value, dict):
                value.clear()
        event.payload.clear()
        event.metadata["mine"] = True

    assert visible(seen(journal)) == before


async def test_a_denial_says_who_denied() -> None:
    """Policy or person: the code tells."""
    denial = ActionDenied(action_id=act(1), code="policy_denied", reason="because")
    event = seen(await listed(started(), asked(), proposed("note"), prepared(1), judged(1, "deny"), denial))[-1]

    assert event.type == "action.denied"
    assert event.payload["metadata"]["error"] == {"code": "policy_denied", "message": "because"}
