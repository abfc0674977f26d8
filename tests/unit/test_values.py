"""Public values survive being stored, ignore what they do not know, and refuse what they cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolink import (
    AgentCard,
    ApprovalDecision,
    ApprovalRequest,
    Artifact,
    BudgetUsage,
    Message,
    Part,
    PolicyDecision,
    PolicyEffect,
    RunAction,
    RunBudget,
    RunContext,
    RunEvent,
    RunHandoff,
    RunInterruption,
    RunReport,
    Task,
    TaskState,
)

words = st.text(max_size=8)
names = st.text("abcdefgh.", min_size=1, max_size=8)
counts = st.integers(0, 10**9)
numbers = st.floats(0, 1e9)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, json_values, max_size=3)

budgets = st.builds(
    RunBudget,
    max_steps=st.none() | counts,
    max_llm_calls=st.none() | counts,
    max_tool_calls=st.none() | counts,
    max_runtime_seconds=st.none() | numbers | counts,
    max_input_tokens=st.none() | counts,
    max_output_tokens=st.none() | counts,
    metadata=objects,
    max_cost=st.none() | numbers,
    max_calls=st.dictionaries(names, counts, max_size=2),
)
usages = st.builds(
    BudgetUsage,
    steps=counts,
    llm_calls=counts,
    tool_calls=counts,
    input_tokens=counts,
    output_tokens=counts,
    runtime_seconds=numbers,
    metadata=objects,
)
contexts = st.builds(
    RunContext,
    run_id=names,
    session_id=st.none() | words,
    trace_id=st.none() | words,
    workspace_uri=st.none() | words,
    parent_run_id=st.none() | words,
    agent_chain=st.lists(words, max_size=3),
    permissions=objects,
    budget=budgets,
    canceled=st.booleans(),
    cancel_reason=st.none() | words,
    metadata=objects,
    created_at=words,
)
parts = st.builds(Part, type=names, content=json_values)
messages = st.builds(Message, id=words, role=words, parts=st.lists(parts, max_size=2), timestamp=words)
artifacts = st.builds(
    Artifact,
    id=words,
    parts=st.lists(parts, max_size=2),
    metadata=objects,
    timestamp=words,
    kind=words,
    name=st.none() | words,
    uri=st.none() | words,
    media_type=st.none() | words,
    action_id=st.none() | words,
)
tasks = st.builds(
    Task,
    id=words,
    state=st.sampled_from(TaskState),
    messages=st.lists(messages, max_size=2),
    artifacts=st.lists(artifacts, max_size=2),
    metadata=objects,
    flow_state=objects,
    created_at=words,
)
actions = st.builds(
    RunAction,
    kind=names,
    name=names,
    payload=objects,
    capabilities=st.frozensets(names, max_size=3),
    artifacts=st.lists(artifacts, max_size=1).map(tuple),
    description=words,
    metadata=objects,
    action_id=names,
    created_at=words,
)
events = st.builds(
    RunEvent,
    type=names,
    run_id=words,
    task_id=words,
    agent_name=words,
    sequence=counts,
    step=st.none() | counts,
    span_id=st.none() | words,
    parent_span_id=st.none() | words,
    action_id=st.none() | words,
    parent_action_id=st.none() | words,
    delegation_id=st.none() | words,
    severity=words,
    summary=words,
    payload=objects,
    final=st.booleans(),
    metadata=objects,
    event_id=words,
    version=words,
    timestamp=words,
)
reports = st.builds(
    RunReport,
    context=contexts,
    context_manifests=st.lists(objects, max_size=1).map(tuple),
    events=st.lists(events, max_size=2).map(tuple),
    actions=st.lists(objects, max_size=1).map(tuple),
    approvals=st.lists(objects, max_size=1).map(tuple),
    artifacts=st.lists(artifacts, max_size=1).map(tuple),
    metrics=objects,
    final_task=st.none() | tasks,
    metadata=objects,
    created_at=words,
    validations=st.lists(objects, max_size=1).map(tuple),
)
handoffs = st.builds(
    RunHandoff,
    run_id=words,
    reason=words,
    steps=counts,
    usage=usages,
    completed_action_ids=st.lists(words, max_size=2).map(tuple),
)
interruptions = st.builds(
    RunInterruption,
    run_id=words,
    request_id=st.none() | words,
    kind=words,
    request=st.none() | objects,
    fingerprint=st.none() | words,
)
cards = st.builds(
    AgentCard,
    name=names,
    description=words,
    url=st.none() | words,
    version=words,
    skills=st.lists(objects, max_size=2),
    metadata=objects,
)
judgements = st.builds(
    PolicyDecision,
    effect=st.sampled_from(PolicyEffect),
    reason=words,
    policy_name=words,
    matched_capabilities=st.lists(words, max_size=2).map(tuple),
    metadata=objects,
)
requests = st.builds(
    ApprovalRequest,
    action=actions,
    policy_decision=judgements,
    run_id=words,
    request_id=words,
    created_at=words,
    metadata=objects,
)
decisions = st.builds(
    ApprovalDecision,
    approved=st.booleans(),
    request_id=words,
    reason=st.none() | words,
    decided_by=st.none() | words,
    metadata=objects,
    decided_at=words,
)

STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    RunBudget: budgets,
    BudgetUsage: usages,
    RunContext: contexts,
    Task: tasks,
    Message: messages,
    Part: parts,
    Artifact: artifacts,
    RunAction: actions,
    RunEvent: events,
    RunReport: reports,
    RunHandoff: handoffs,
    RunInterruption: interruptions,
    AgentCard: cards,
    ApprovalRequest: requests,
    ApprovalDecision: decisions,
    PolicyDecision: judgements,
}

ACTION = RunAction(kind="tool.call", name="note", payload={"a": 1, "b": {"c": [1]}}, capabilities=frozenset({"x", "y"}))
SAMPLES: tuple[Any, ...] = (
    RunBudget(max_steps=3),
    BudgetUsage(steps=3),
    RunContext(),
    Task.create_infer("What is stored?"),
    Message.user("Hello."),
    Part("text", "Hello."),
    Artifact(name="file"),
    ACTION,
    RunEvent(type="task.status", run_id="r", task_id="t", agent_name="a"),
    RunReport.from_task(Task.create_infer("What is stored?")),
    RunHandoff(run_id="r", reason="step_slice", steps=3, usage=BudgetUsage()),
    RunInterruption(run_id="r", request_id="q", kind="approval"),
    AgentCard("keeper"),
    ApprovalRequest(action=ACTION, policy_decision=PolicyDecision(PolicyEffect.ALLOW), run_id="r"),
    ApprovalDecision(approved=True, request_id="q"),
    PolicyDecision(PolicyEffect.DENY, reason="no"),
)


def of_kind(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_a_value_that_was_stored_is_read_back_equal(kind: Any, data: st.DataObject) -> None:
    """Through the text of a file: nothing is lost, renamed or turned into another type."""
    value = data.draw(STRATEGIES[kind])

    assert kind.from_dict(json.loads(json.dumps(value.to_dict()))) == value


@pytest.mark.parametrize("value", SAMPLES, ids=of_kind)
def test_a_key_of_a_newer_release_is_ignored(value: Any) -> None:
    """An older reader knows less and still reads."""
    assert type(value).from_dict({**value.to_dict(), "from_the_future": {"anything": 1}}) == value


@pytest.mark.parametrize("value", SAMPLES, ids=of_kind)
def test_what_is_no_dictionary_is_no_value(value: Any) -> None:
    """The complaint names what should have been read."""
    with pytest.raises(ValueError, match=type(value).__name__):
        type(value).from_dict("hunter2")


WRONG: tuple[tuple[Any, str, Any], ...] = (
    (RunBudget, "max_steps", "hunter2"),
    (RunBudget, "max_runtime_seconds", True),
    (RunBudget, "max_calls", ["hunter2"]),
    (BudgetUsage, "steps", "hunter2"),
    (BudgetUsage, "runtime_seconds", None),
    (RunContext, "run_id", 12345),
    (RunContext, "session_id", ["hunter2"]),
    (RunContext, "agent_chain", [12345]),
    (RunContext, "canceled", "hunter2"),
    (RunContext, "budget", "hunter2"),
    (Task, "id", None),
    (Task, "messages", "hunter2"),
    (Task, "metadata", [12345]),
    (Message, "role", 12345),
    (Message, "parts", {"hunter2": 1}),
    (Part, "type", 12345),
    (Artifact, "kind", None),
    (Artifact, "uri", 12345),
    (RunAction, "kind", ["hunter2"]),
    (RunAction, "payload", "hunter2"),
    (RunAction, "capabilities", "hunter2"),
    (RunEvent, "sequence", "hunter2"),
    (RunEvent, "sequence", True),
    (RunEvent, "final", "hunter2"),
    (RunReport, "events", "hunter2"),
    (RunReport, "final_task", "hunter2"),
    (RunHandoff, "steps", 1.5),
    (RunHandoff, "completed_action_ids", [12345]),
    (RunInterruption, "kind", 12345),
    (AgentCard, "name", ["hunter2"]),
    (AgentCard, "skills", "hunter2"),
    (ApprovalRequest, "request_id", None),
    (ApprovalDecision, "approved", "hunter2"),
    (PolicyDecision, "effect", None),
    (PolicyDecision, "matched_capabilities", "hunter2"),
)


@pytest.mark.parametrize(("kind", "field", "wrong"), WRONG, ids=lambda part: getattr(part, "__name__", None))
def test_a_wrong_type_is_refused_by_value_and_field(kind: Any, field: str, wrong: Any) -> None:
    """A message about stored data names where to look and never shows what is there."""
    sample = next(value for value in SAMPLES if type(value) is kind)

    with pytest.raises(ValueError, match=rf"{kind.__name__}\.{field} must be") as caught:
        kind.from_dict({**sample.to_dict(), field: wrong})

    assert "hunter2" not in str(caught.value)
    assert "12345" not in str(caught.value)


def test_an_effect_that_is_none_is_refused_by_field() -> None:
    """A stored decision that cannot be understood must not be shown either."""
    with pytest.raises(ValueError, match=r"PolicyDecision\.effect") as caught:
        PolicyDecision.from_dict({"effect": "hunter2"})

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "field"),
    [(RunContext, "run_id"), (Task, "id"), (Part, "type"), (RunAction, "name"), (RunEvent, "event_id")],
)
def test_a_missing_field_is_named(kind: Any, field: str) -> None:
    """An identity that is made up while reading would be another one at each reading."""
    data = next(value for value in SAMPLES if type(value) is kind).to_dict()
    del data[field]

    with pytest.raises(ValueError, match=rf"{kind.__name__} has no '{field}'"):
        kind.from_dict(data)


def test_an_unknown_state_is_read_as_unknown() -> None:
    """A task of a newer release is still a task."""
    task = Task.from_dict({"id": "t", "state": "hibernating"})

    assert (task.state, task.is_terminal) == (TaskState.UNKNOWN, False)


@pytest.mark.parametrize("limit", [-1, 1.5, True, "3", float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["max_steps", "max_tool_calls", "max_output_tokens"])
def test_a_limit_that_is_no_count_is_refused(name: str, limit: Any) -> None:
    """A budget that cannot hold must not look like one."""
    with pytest.raises(ValueError, match=name):
        RunBudget(**{name: limit})


@pytest.mark.parametrize("limit", [-0.1, True, "3", float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["max_runtime_seconds", "max_cost"])
def test_a_limit_that_is_no_amount_is_refused(name: str, limit: Any) -> None:
    """Comparing with NaN is always false, so it would never be reached."""
    with pytest.raises(ValueError, match=name):
        RunBudget(**{name: limit})


def test_a_limit_by_name_is_checked_too() -> None:
    """The complaint says which tool's."""
    with pytest.raises(ValueError, match=r"max_calls\['note'\]"):
        RunBudget(max_calls={"note": -1})


@pytest.mark.parametrize(
    "change",
    [
        lambda action: action.payload.update(a=2),
        lambda action: action.payload["b"].clear(),
        lambda action: action.payload["b"]["c"].append(2),
        lambda action: action.metadata.update(a=2),
        lambda action: setattr(action, "name", "remove"),
        lambda action: action.payload.pop("a"),
        lambda action: action.payload.setdefault("d", 1),
    ],
)
def test_an_action_is_frozen_through_and_through(change: Any) -> None:
    """What was approved is what is executed."""
    before = ACTION.to_dict()

    with pytest.raises((TypeError, AttributeError)):
        change(ACTION)

    assert ACTION.to_dict() == before


def test_an_action_does_not_share_its_payload_with_whoever_made_it() -> None:
    """A preparation that keeps its dictionary and changes it later changes nothing."""
    payload: dict[str, Any] = {"a": [1]}
    action = RunAction(kind="tool.call", name="note", payload=payload)

    payload["a"].append(2)
    action.to_dict()["payload"]["a"].append(3)

    assert action.to_dict()["payload"] == {"a": [1]}


@given(objects, st.frozensets(names, max_size=3))
def test_a_fingerprint_is_that_of_the_operation_alone(payload: dict[str, Any], capabilities: frozenset[str]) -> None:
    """Neither the order of keys nor who asked, when and under which id makes it another operation."""
    backwards = dict(reversed(payload.items()))
    first = RunAction(kind="k", name="n", payload=payload, capabilities=capabilities)
    second = RunAction(
        kind="k", name="n", payload=backwards, capabilities=capabilities, description="d", metadata={"m": 1}
    )

    assert first.action_id != second.action_id
    assert first.fingerprint == second.fingerprint
    assert RunAction.from_dict(first.to_dict()).fingerprint == first.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        RunAction(kind="other", name="note", payload=ACTION.payload, capabilities=ACTION.capabilities),
        RunAction(kind="tool.call", name="other", payload=ACTION.payload, capabilities=ACTION.capabilities),
        ACTION.with_payload({"a": 1, "b": {"c": [2]}}),
        ACTION.with_payload({"a": True, "b": {"c": [1]}}),
        ACTION.with_payload({"a": "1", "b": {"c": [1]}}),
        ACTION.with_capabilities({"x"}),
        ACTION.with_capabilities({"x,y"}),
    ],
)
def test_another_operation_has_another_fingerprint(other: RunAction) -> None:
    """An approval of one must not fit the other."""
    assert other.fingerprint != ACTION.fingerprint


def test_previews_are_not_part_of_the_operation() -> None:
    """They are for whoever decides."""
    assert ACTION.with_artifacts([Artifact(name="preview")]).fingerprint == ACTION.fingerprint


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"kind": " "}, ValueError),
        ({"name": ""}, ValueError),
        ({"action_id": ""}, ValueError),
        ({"capabilities": "files.read"}, ValueError),
        ({"capabilities": ["", "x"]}, ValueError),
        ({"payload": ["a"]}, TypeError),
        ({"payload": {"a": object()}}, TypeError),
        ({"payload": {"a": float("nan")}}, TypeError),
        ({"payload": {1: "a"}}, TypeError),
    ],
)
def test_an_action_that_cannot_be_recorded_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    """At the place that makes it, not when it is stored."""
    given: dict[str, Any] = {"kind": "tool.call", "name": "note", **changes}

    with pytest.raises(error):
        RunAction(**given)


@pytest.mark.parametrize("answer", ["yes", 1, None, "false"])
def test_a_decision_is_true_or_false(answer: Any) -> None:
    """A text that is truthy is not consent."""
    with pytest.raises(TypeError, match="True or False"):
        ApprovalDecision(approved=answer, request_id="q")


def test_a_stored_decision_without_an_answer_is_a_refusal() -> None:
    """Silence is no consent."""
    assert ApprovalDecision.from_dict({"request_id": "q"}).approved is False


def test_a_child_context_has_a_run_of_its_own_under_the_same_rules() -> None:
    """Same session, permissions and budget, and a copy that shares nothing that can change."""
    parent = RunContext(session_id="s", permissions={"files.*": "deny"}, budget=RunBudget(max_steps=3))

    child = parent.child("keeper")
    child.permissions.clear()

    assert (child.parent_run_id, child.agent_chain, child.session_id) == (parent.run_id, ["keeper"], "s")
    assert (child.budget, parent.permissions) == (parent.budget, {"files.*": "deny"})
    assert child.run_id != parent.run_id


def test_only_a_task_that_yielded_has_a_handoff() -> None:
    """Approvals and questions are other interruptions."""
    handoff = RunHandoff(
        run_id="r", reason="step_slice", steps=3, usage=BudgetUsage(steps=3), completed_action_ids=("a",)
    )
    task = Task.create("Hello.")

    assert RunHandoff.from_task(task) is None
    task.metadata["interruption"] = RunInterruption("r", "q", "approval", {}).to_dict()
    assert RunHandoff.from_task(task) is None
    task.metadata["interruption"] = RunInterruption("r", None, "yield", handoff.to_dict()).to_dict()
    assert RunHandoff.from_task(task) == handoff
