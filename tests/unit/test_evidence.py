"""One record per tool action, read off the events, live or stored."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolink import Agent, RunEvent, ToolEvidence, collect_tool_evidence
from protolink.testing import ScriptedLLM, call, calls, collect, run_events

NOON = "2026-01-01T12:00:00.000000+00:00"
LATER = "2026-01-01T12:00:01.500000+00:00"


def seen(kind: str, action_id: str = "a", timestamp: str = LATER, **details: Any) -> RunEvent:
    """An event of an action, as a run shows it."""
    metadata = {"tool": "note", "action_kind": "tool.call", "args": {"item": "milk"}, **details}
    return RunEvent(
        type=f"action.{kind}",
        run_id="r",
        task_id="t",
        agent_name="keeper",
        action_id=action_id,
        payload={"metadata": metadata},
        timestamp=timestamp,
    )


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("completed", "completed"),
        ("rejected", "rejected"),
        ("denied", "rejected"),
        ("failed", "failed"),
        ("canceled", "canceled"),
    ],
)
def test_every_ending_has_its_outcome(kind: str, outcome: str) -> None:
    """A policy's denial is a rejected request."""
    (evidence,) = collect_tool_evidence([seen("started", timestamp=NOON), seen(kind)])

    assert evidence.outcome == outcome
    assert (evidence.tool_name, evidence.arguments, evidence.action_id) == ("note", {"item": "milk"}, "a")
    assert (evidence.run_id, evidence.task_id, evidence.agent_name) == ("r", "t", "keeper")


@pytest.mark.parametrize("kind", ["requested", "policy", "started", "uncertain", "repeated"])
def test_what_is_no_known_ending_is_no_evidence(kind: str) -> None:
    """The outcome of an uncertain call is not known, and a repeat executed nothing."""
    assert collect_tool_evidence([seen(kind)]) == ()


def test_a_delegation_is_not_counted_as_a_tool() -> None:
    """The child's own tools are, with its ids."""
    assert collect_tool_evidence([seen("completed", action_kind="agent.call")]) == ()


def test_a_start_that_was_not_seen_leaves_start_and_duration_unknown() -> None:
    """Unknown is None, even where the runtime measured: what was rejected before it began has no duration."""
    (evidence,) = collect_tool_evidence([seen("rejected", duration_seconds=1.0, args=None)])

    assert (evidence.started_at, evidence.duration_seconds, evidence.arguments) == (None, None, None)
    assert evidence.finished_at == LATER


def test_a_measured_duration_counts_before_the_times() -> None:
    """Wall clocks jump; without a measurement their difference has to do."""
    start = seen("started", timestamp=NOON)

    (measured,) = collect_tool_evidence([start, seen("completed", duration_seconds=0.25)])
    (derived,) = collect_tool_evidence([start, seen("completed")])
    (backwards,) = collect_tool_evidence([seen("started", timestamp=LATER), seen("completed", timestamp=NOON)])

    assert (measured.duration_seconds, derived.duration_seconds, backwards.duration_seconds) == (0.25, 1.5, 0.0)


def test_a_private_result_is_told_apart_from_none() -> None:
    """`result_omitted` says which of the two it is."""
    (private,) = collect_tool_evidence([seen("completed", result_omitted=True)])
    (nothing,) = collect_tool_evidence([seen("completed", result=None)])

    assert (private.result, private.result_omitted) == (None, True)
    assert (nothing.result, nothing.result_omitted) == (None, False)


@given(
    st.lists(
        st.sampled_from([(kind, id_) for kind in ("started", "completed", "failed") for id_ in "abc"]), max_size=12
    )
)
def test_an_action_gives_one_record_however_often_it_is_seen(order: list[tuple[str, str]]) -> None:
    """Forwarded live events and snapshots overlap; the first ending that is seen counts."""
    evidence = collect_tool_evidence([seen(kind, id_) for kind, id_ in order])

    ids = [record.action_id for record in evidence]
    endings = [id_ for kind, id_ in order if kind != "started"]
    assert ids == list(dict.fromkeys(endings))


def test_stored_events_give_the_same_evidence() -> None:
    """Reading a report back needs no run."""
    events = [seen("started", timestamp=NOON), seen("completed", result={"kept": 1})]

    assert collect_tool_evidence(json.loads(json.dumps([event.to_dict() for event in events]))) == (
        collect_tool_evidence(events)
    )


def test_a_record_can_be_shown() -> None:
    """Every field by its name, as JSON."""
    (evidence,) = collect_tool_evidence([seen("completed", result={"kept": 1})])

    assert json.loads(json.dumps(evidence.to_dict())) == evidence.to_dict()
    assert set(evidence.to_dict()) == {field.name for field in fields(ToolEvidence)}


def test_an_event_without_details_is_passed_over() -> None:
    """An application may store events of its own beside ours."""
    event = RunEvent(type="action.completed", run_id="r", task_id="t", agent_name="a", action_id="x")

    assert collect_tool_evidence([event]) == ()


def store(item: str) -> str:
    """Store an item."""
    return f"{item} is stored"


async def test_a_handle_a_result_and_a_report_give_the_same_evidence() -> None:
    """They are views of one list."""
    script = [calls(call("store", item="milk"), call("store", item=1), call("drop")), "Done."]
    agent = Agent(name="keeper", llm=ScriptedLLM(script), tools=[store], expose_tool_results=True, verbosity=0)
    handle = agent.start_run("Store milk.")

    live = [record async for record in handle.tool_evidence()]
    events, result = await collect(handle)

    assert [(record.tool_name, record.outcome, record.result) for record in live] == [
        ("store", "rejected", None),
        ("drop", "rejected", None),
        ("store", "completed", "milk is stored"),
    ]
    assert tuple(live) == result.tool_evidence == result.report.tool_evidence == collect_tool_evidence(events)


async def test_evidence_is_private_unless_the_agent_exposes_it() -> None:
    """The result goes to the model, and to nobody else."""
    agent = Agent(name="keeper", llm=ScriptedLLM([call("store", item="milk"), "Done."]), tools=[store], verbosity=0)

    _, result = await run_events(agent, "Store milk.")

    (evidence,) = result.tool_evidence
    assert (evidence.result, evidence.result_omitted, evidence.outcome) == (None, True, "completed")
    assert evidence.duration_seconds is not None
