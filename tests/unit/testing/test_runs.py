"""Running an agent to its end and keeping what it showed."""

from __future__ import annotations

import asyncio

import pytest

from protolink import Agent, RunBudget
from protolink.testing import ScriptedLLM, call, collect, run_events


def store(item: str) -> str:
    """Store an item."""
    return f"{item} is stored"


async def test_a_run_is_collected_from_its_beginning_to_its_end() -> None:
    """Reading late misses nothing."""
    agent = Agent(name="keeper", llm=ScriptedLLM([call("store", item="milk"), "Stored."]), tools=[store], verbosity=0)
    handle = agent.start_run("Store milk.")
    await handle.result()

    events, result = await collect(handle)

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (events[0].payload["new_state"], events[-1].payload["new_state"]) == ("working", "completed")
    assert result.output == "Stored."


async def test_a_failed_run_is_collected_too() -> None:
    """A test of a failure wants its events, not an exception."""
    agent = Agent(name="keeper", llm=ScriptedLLM(["Never said."]), verbosity=0)

    run = await run_events(agent, "Hello.", budget=RunBudget(max_llm_calls=0))

    assert run.result.status == "failed"
    assert "budget.exceeded" in [event.type for event in run.events]


async def test_a_canceled_caller_leaves_no_run_behind() -> None:
    """A test that is broken off must not leave its run to the next one."""
    entered, left = asyncio.Event(), asyncio.Event()

    async def dig() -> None:
        """Dig."""
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    agent = Agent(name="digger", llm=ScriptedLLM([call("dig")]), tools=[dig], verbosity=0)
    running = asyncio.ensure_future(run_events(agent, "Dig."))
    await entered.wait()

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert left.is_set()
