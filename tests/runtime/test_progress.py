"""Progress: events of a tool's own, in their place, bounded, and never mistaken for the runtime's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protolink import Agent, Tool, current_action
from protolink.testing import call
from protolink.tools import ToolExecution, current_execution, report_progress
from tests.support import assert_settled, blocker, model, observe, of_type, turns, types


def _agent(tool: Any, **options: Any) -> Agent:
    return Agent(name="a", tools=[Tool(tool, name="work", **options)], llm=model(call("work")))


@pytest.mark.parametrize("mode", ["inline", "thread", "async"])
async def test_progress_stands_between_start_and_end(mode: str) -> None:
    """In its order, with the action it belongs to, wherever the tool runs."""

    def plain() -> None:
        for percent in (10, 50, 90):
            report_progress("download.progress", percent=percent)

    async def on_loop() -> None:
        for percent in (10, 50, 90):
            report_progress("download.progress", percent=percent)
            await asyncio.sleep(0)

    tool = _agent(on_loop) if mode == "async" else _agent(plain, sync_execution=mode)
    events, _ = await observe(tool)

    progress = of_type(events, "download.progress")
    kinds = [kind for kind in types(events) if kind.startswith(("action.", "download."))]
    assert [event.payload["percent"] for event in progress] == [10, 50, 90]
    assert kinds[-5:] == ["action.started", *["download.progress"] * 3, "action.completed"]
    assert {event.action_id for event in progress} == {of_type(events, "action.started")[0].action_id}
    assert_settled(events)


@pytest.mark.parametrize(
    "kind",
    [
        "task.status",
        "action.completed",
        "action.approved",
        "approval.decided",
        "approval.required",
        "budget.exceeded",
        "llm.stream",
        "",
        "Upper",
        "with space",
        "new\nline",
        "1st",
        ".dot",
        "x" * 65,
        "bell\x07",
    ],
)
async def test_a_type_that_belongs_to_the_runtime_or_is_none_is_refused(kind: str) -> None:
    """A tool cannot forge an approval or an ending, nor a line of a log."""
    refused: list[str] = []

    def work() -> None:
        try:
            report_progress(kind, approved=True)
        except ValueError as error:
            refused.append(str(error))

    events, _ = await observe(_agent(work))

    assert len(refused) == 1
    assert kind not in types(events) or kind in {"task.status", "action.completed", "llm.stream"}
    assert "approved" not in str([event.payload for event in events])


@pytest.mark.parametrize("payload", [object(), float("nan"), {1: 2}, b"x", {"a": {1, 2}}])
async def test_a_payload_that_json_cannot_carry_is_refused(payload: Any) -> None:
    """At the call, where the tool can do something about it."""

    def work() -> None:
        with pytest.raises(TypeError):
            report_progress("tick", value=payload)

    _, result = await observe(_agent(work))

    assert result.status == "completed"


async def test_progress_is_a_copy() -> None:
    """A value that the tool changes later is recorded as it was."""

    def work() -> None:
        state = {"step": [1]}
        report_progress("tick", state=state)
        state["step"].append(2)

    events, _ = await observe(_agent(work))

    assert of_type(events, "tick")[0].payload["state"] == {"step": [1]}


async def test_a_payload_cannot_replace_the_identity_of_its_event() -> None:
    """Ids, type, task and time of an event are the runtime's."""

    def work() -> None:
        report_progress(
            "tick", event_id="forged", task_id="other", type="approval.decided", metadata={"approved": True}
        )

    events, _ = await observe(_agent(work))

    event = of_type(events, "tick")[0]
    assert event.payload["event_id"] == event.event_id != "forged"
    assert event.payload["type"] == "tick"
    assert event.payload["task_id"] == event.task_id != "other"
    assert "approved" not in event.payload["metadata"]


async def test_a_tool_cannot_flood_its_readers() -> None:
    """A thousand events of one action; the last one says that there were more."""

    def work() -> None:
        for number in range(1500):
            report_progress("tick", number=number)

    events, _ = await observe(_agent(work))

    ticks = of_type(events, "tick")
    assert len(ticks) == 1000
    assert ticks[-1].payload["truncated"] is True
    assert "truncated" not in ticks[-2].payload


async def test_progress_of_a_tool_that_has_ended_is_dropped() -> None:
    """An execution that was kept is of no use."""
    kept: list[ToolExecution] = []

    def work() -> None:
        kept.append(current_execution())

    handle = _agent(work).start_run("go")
    await handle.result()
    kept[0].emit("tick")
    await turns(3)

    assert of_type([event async for event in handle.events()], "tick") == []


async def test_progress_after_a_cancellation_is_dropped() -> None:
    """The thread still runs; nobody is interested any more."""
    async with blocker() as waiting:

        def work() -> None:
            report_progress("before")
            waiting.wait()
            report_progress("after")

        handle = _agent(work, sync_execution="thread").start_run("go")
        await waiting.entered.wait()
        await handle.cancel()
        waiting.release()
        await waiting.left.wait()
        await turns(10)

    kinds = types([event async for event in handle.events()])
    assert "before" in kinds
    assert "after" not in kinds


async def test_progress_of_parallel_calls_belongs_to_each() -> None:
    """Each call finds its own execution."""

    async def work(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            report_progress("tick", number=number, action=current_action().action_id)

    tool = Tool(work, read_only=True)
    agent = Agent(name="a", tools=[tool], llm=model([call("work", number=number) for number in range(3)]))
    events, _ = await observe(agent)

    ticks = of_type(events, "tick")
    assert len(ticks) == 9
    assert all(event.action_id == event.payload["action"] for event in ticks)


def test_outside_a_tool_there_is_no_execution() -> None:
    """Both ways of asking say so."""
    with pytest.raises(LookupError):
        current_execution()
    with pytest.raises(LookupError):
        current_action()
    with pytest.raises(LookupError):
        report_progress("tick")


@pytest.mark.parametrize("mode", ["inline", "thread", "async"])
async def test_a_tool_knows_its_action(mode: str) -> None:
    """Its id is the idempotency key, the same as in the events, and gone afterwards."""
    seen: list[str] = []

    def plain() -> None:
        seen.append(current_action().action_id)

    async def on_loop() -> None:
        await asyncio.sleep(0)
        seen.append(current_action().action_id)

    events, _ = await observe(_agent(on_loop) if mode == "async" else _agent(plain, sync_execution=mode))

    assert seen == [of_type(events, "action.started")[0].action_id]
    with pytest.raises(LookupError):
        current_action()
