"""Tasks and reports of runs are kept before anybody has the result."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, ConfigurationError, RunContext, SQLiteRunStore, TaskState
from protolink.storage import InMemoryRunStore
from protolink.testing import call
from tests.embed.stores import BrokenRunStore, WaitingRunStore
from tests.support import blocker, model, turns


def lookup(item: int) -> str:
    """Return an item."""
    return f"item {item}"


async def test_the_task_and_the_report_are_kept(tmp_path: Path) -> None:
    """Both are what the result shows, events and evidence included."""
    store = SQLiteRunStore(tmp_path / "runs.db")
    agent = Agent(name="reader", llm=model(call("lookup", item=1)), tools=[lookup], run_store=store)
    result = await agent.start_run("go", session_id="alice").result()

    assert store.get_task(result.task.id) == result.task
    report = store.get_report(result.report.context.run_id)
    assert report is not None
    assert report.events == result.report.events
    assert report.tool_evidence == result.tool_evidence
    (record,) = store.list_report_records(session_id="alice")
    assert (record.agent_name, record.status) == ("reader", "completed")


async def test_a_store_given_to_a_run_takes_the_place_of_the_agents() -> None:
    """One request may belong elsewhere; the agent's own store is for the others."""
    usual, special = InMemoryRunStore(), InMemoryRunStore()
    agent = Agent(name="reader", llm=model(), run_store=usual)
    result = await agent.start_run("go", store=special).result()

    assert special.get_task(result.task.id) is not None
    assert usual.list_task_records() == []


async def test_a_store_given_to_a_run_leaves_the_conversation_where_it_is() -> None:
    """Where a run is recorded has nothing to do with what its session remembers."""
    store = InMemoryRunStore()
    agent = Agent(name="reader", llm=model("first answer"), state=["conversation"])
    await agent.start_run("first", session_id="alice", store=store).result()
    result = await agent.start_run("second", session_id="alice").result()

    assert result.status == "completed"
    assert len(store.list_task_records()) == 1


async def test_failed_and_canceled_runs_are_kept_with_their_outcome(caplog: pytest.LogCaptureFixture) -> None:
    """They are the ones that somebody will look for."""
    started = asyncio.Event()

    async def wait() -> None:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()

    def fail() -> None:
        """Fail."""
        raise OSError("broken")

    store = InMemoryRunStore()
    agent = Agent(name="reader", llm=model(call("fail"), call("wait")), tools=[wait, fail], run_store=store)
    failed = await agent.start_run("go").result()
    handle = agent.start_run("go")
    await started.wait()
    await handle.cancel("enough")
    canceled = await handle.result()

    for result, state in ((failed, TaskState.FAILED), (canceled, TaskState.CANCELED)):
        task = store.get_task(result.task.id)
        assert task is not None
        assert task.state is state
        report = store.get_report(RunContext.from_task(task).run_id)
        assert report is not None
        assert report.tool_evidence == result.tool_evidence
    assert caplog.records == []


async def test_a_store_that_fails_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is given, the operator is told, and what could be kept was kept."""
    store = BrokenRunStore()
    result = await Agent(name="reader", llm=model("answer"), run_store=store).start_run("go").result()

    assert (result.status, result.output) == ("completed", "answer")
    assert [record.levelno for record in caplog.records if record.name == "protolink"] == [logging.ERROR]
    assert store.get_report(result.report.context.run_id) is not None


async def test_the_result_waits_until_the_run_is_kept() -> None:
    """Whoever has the result may ask the store."""
    async with blocker() as disk:
        store = WaitingRunStore(disk.wait)
        handle = Agent(name="reader", llm=model(), run_store=store).start_run("go")
        result = asyncio.create_task(handle.result())
        await disk.entered.wait()
        await turns(10)
        assert not result.done()
        disk.release()

        assert store.get_report((await result).report.context.run_id) is not None


async def test_a_run_that_is_canceled_from_outside_is_kept() -> None:
    """A server that is told to stop cancels its tasks; the last run is on record all the same."""
    store = InMemoryRunStore()
    started = asyncio.Event()

    async def wait() -> None:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()

    agent = Agent(name="reader", llm=model(call("wait")), tools=[wait], run_store=store)
    caller = asyncio.create_task(agent.invoke("go"))
    await started.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)

    assert [record.status for record in store.list_task_records()] == ["canceled"]


async def test_a_workers_share_is_in_its_parents_report() -> None:
    """A tree of runs is kept once, under its root; the worker's own store is for the runs that it is the root of."""
    mine, parents = InMemoryRunStore(), InMemoryRunStore()
    worker = Agent(name="worker", llm=model(call("lookup", item=1)), tools=[lookup], run_store=mine)
    parent = Agent(name="parent", llm=model(call("worker", task="find")), subagents=[worker], run_store=parents)
    parent.add_worker_tool("worker")
    result = await parent.start_run("go").result()

    report = parents.get_report(result.report.context.run_id)
    assert report is not None
    assert [evidence.agent_name for evidence in report.tool_evidence] == ["worker"]
    assert mine.list_report_records() == []


@pytest.mark.parametrize("store", ["runs.db", object()])
async def test_what_is_no_run_store_is_refused(store: Any) -> None:
    """At the constructor, or where the run would begin."""
    with pytest.raises(ConfigurationError, match="run_store"):
        Agent(name="reader", run_store=store)
    with pytest.raises(ConfigurationError, match="store"):
        Agent(name="reader", llm=model()).start_run("go", store=store)
