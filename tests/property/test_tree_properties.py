"""Random trees of agents with random limits and cancellations: what holds for each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protolink import Agent, RunBudget, RunEvent, SubagentLimits
from protolink.llms import MockLLM
from protolink.testing import call, calls, delegate

SLOTS = frozenset({"action.completed", "action.failed", "action.canceled", "action.uncertain", "action.repeated"})


@dataclass
class Plan:
    """One agent: what its model does turn by turn, and whom it owns."""

    turns: list[list[str]]
    children: list[Plan] = field(default_factory=list)


ACTIONS = st.sampled_from(["work", "fail", "reject", "delegate"])
LEAF = st.builds(
    Plan, st.lists(st.lists(st.sampled_from(["work", "fail", "reject"]), min_size=1, max_size=2), max_size=2)
)
TREES = st.recursive(
    LEAF,
    lambda inner: st.builds(
        Plan, st.lists(st.lists(ACTIONS, min_size=1, max_size=3), max_size=2), st.lists(inner, max_size=2)
    ),
    max_leaves=5,
)


def build(plan: Plan, name: str) -> Agent:
    """The agent of a plan; every call has arguments of its own, so that none is taken for a repeat."""
    numbers = iter(range(1000))

    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    def fail(number: int) -> int:
        raise ValueError("broken")

    def action(word: str) -> Any:
        number = next(numbers)
        if word == "delegate" and plan.children:
            return delegate(f"{name}{number % len(plan.children)}", f"task {number}")
        if word == "reject":
            return call("work", number="many")
        return call("fail" if word == "fail" else "work", number=number)

    script = [calls(*(action(word) for word in turn)) for turn in plan.turns]
    children = [build(child, f"{name}{index}") for index, child in enumerate(plan.children)]
    return Agent(
        name=name,
        llm=MockLLM(sequential_responses=script, default_response="done"),
        tools=[work, fail],
        subagents=children,
        subagent_limits=SubagentLimits(max_depth=4, max_concurrency=2),
        verbosity=0,
    )


async def observed(plan: Plan, budget: RunBudget, cancel_at: int) -> tuple[list[RunEvent], str]:
    """Every event of a run that is canceled once so many have been seen, and how it ended."""
    handle = build(plan, "a").start_run("go", budget=budget)
    events: list[RunEvent] = []
    canceling: asyncio.Task[None] | None = None
    async for event in handle.events():
        events.append(event)
        if len(events) == cancel_at:
            canceling = asyncio.create_task(handle.cancel("enough"))
    result = await handle.result()
    if canceling is not None:
        await canceling
    for _ in range(3):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left at work: {left}"
    assert [event.event_id for event in result.report.events] == [event.event_id for event in events]
    return events, result.status


@settings(max_examples=150, deadline=None)
@given(
    plan=TREES,
    steps=st.integers(1, 12),
    tool_calls=st.integers(0, 6),
    cancel_at=st.integers(0, 60),
)
def test_what_holds_for_every_tree(plan: Plan, steps: int, tool_calls: int, cancel_at: int) -> None:
    """Every event once and in order, one ending per entered action, one end, no budget overshot, no task left."""
    budget = RunBudget(max_steps=steps, max_tool_calls=tool_calls)

    events, status = asyncio.run(observed(plan, budget, cancel_at))

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len({event.event_id for event in events}) == len(events)
    assert events[-1].final
    assert events[-1].type == "task.status"
    assert events[-1].payload["new_state"] == status
    started = Counter(event.action_id for event in events if event.type == "action.started")
    assert set(started.values()) <= {1}
    endings = Counter(event.action_id for event in events if event.type in SLOTS or event.type == "action.rejected")
    assert all(endings[action_id] == 1 for action_id in started)
    begun = {event.run_id for event in events if event.payload.get("previous_state") == "submitted"}
    ended = Counter(
        event.run_id
        for event in events
        if event.metadata.get("source_final", event.final) and event.type == "task.status"
    )
    assert ended == Counter(dict.fromkeys(begun, 1))
    assert sum(event.type == "llm.call.started" for event in events) <= steps
    entered = [event for event in events if event.type == "action.started"]
    assert sum(event.payload["metadata"]["action_kind"] == "tool.call" for event in entered) <= tool_calls
