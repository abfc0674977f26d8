"""What is kept of a peer's words, whatever they are."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protolink import Artifact, Part, RunEvent, Task, collect_tool_evidence
from protolink._core.evolve import evolve
from protolink._core.records import RunStarted
from protolink._core.reported import receipts_of, report_of
from protolink._core.state import TreeState

RUN = "root.1"


def tree() -> TreeState:
    """A tree of one run, which has asked a peer by its first action."""
    made = TreeState("root")
    evolve(made, "root", RunStarted(task={"id": "t"}, agent_name="a", work=(), context={}))
    return made


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
details = st.dictionaries(
    st.sampled_from(["tool", "action_kind", "args", "result", "result_omitted", "error", "duration_seconds", "budget"]),
    values | st.just("tool.call"),
)
runs = st.sampled_from(["root", RUN, "root.2", "root.1.1", "other", ""])
ids = st.sampled_from(["", "1", ":1", ".1"]) | st.text(max_size=8)


@st.composite
def events(draw: st.DrawFn) -> RunEvent:
    """An event of which much looks right, and anything may be wrong."""
    run = draw(runs)
    return RunEvent(
        type=draw(st.sampled_from(["action.started", "action.completed", "action.failed", "approval.required", "x"])),
        run_id=run,
        task_id=draw(st.text(max_size=8)),
        agent_name=draw(st.text(max_size=8)),
        sequence=draw(st.integers()),
        action_id=draw(st.none() | st.just(f"{run}.1") | ids),
        parent_action_id=draw(st.none() | ids),
        severity=draw(st.sampled_from(["info", "fatal", ""])),
        summary=draw(st.text(max_size=30)),
        payload={"metadata": draw(details | values)},
        metadata={"parent_run_id": draw(values)},
        event_id=draw(st.just(f"{run}:1") | ids),
        timestamp=draw(st.sampled_from(["2026-01-01T00:00:00+00:00", "2026-01-01", "", "now"])),
    )


@given(st.lists(events(), max_size=6))
def test_what_is_kept_is_an_event_that_evidence_can_be_made_of(told: list[RunEvent]) -> None:
    """It takes nobody's identity but its own, and no view of it can fail."""
    made = tree()
    kept = [report for event in told if (report := report_of(event, run_id=RUN, peer="helper", tree=made)) is not None]

    for evidence in collect_tool_evidence(kept):
        assert isinstance(evidence.duration_seconds, int | float | None)
        assert isinstance(evidence.arguments, dict | None)
    for report in kept:
        event = RunEvent.from_dict(json.loads(json.dumps(report)))
        assert event.run_id in (RUN, "root.1.1", "other")
        assert event.run_id != RUN or event.agent_name == "helper"
        assert event.event_id.startswith(f"{event.run_id}:")
        assert "budget" not in event.payload["metadata"]


@given(st.text(max_size=10), values, st.text(max_size=8) | st.none())
def test_a_receipt_of_any_shape_is_an_event_or_nothing(kind: str, content: Any, action_id: str | None) -> None:
    """A task is whatever the peer has sent."""
    artifacts = [
        Artifact(parts=[Part("json", content)], kind=one, action_id=action_id, timestamp="2026-01-01T00:00:00+00:00")
        for one in (kind, "action_result", "action_rejection")
    ]
    for event in receipts_of(Task(artifacts=artifacts), run_id=RUN, peer="helper"):
        report_of(event, run_id=RUN, peer="helper", tree=tree())
