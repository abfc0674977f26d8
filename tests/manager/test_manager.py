"""Looking after stored runs: what is listed, settled, ended and deleted, and what nobody may touch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protolink import (
    Agent,
    CapabilityPolicy,
    ConfigurationError,
    DurableExecutionError,
    RedactionPolicy,
    RunBusyError,
    RunContext,
    RunHandle,
    RunManager,
    SQLiteDurableStore,
    SQLiteRunStore,
    Task,
    TaskState,
    UncertainAction,
    UncertainExecutionError,
)
from protolink._runtime.principal import acting_as
from protolink.durable.memory import MemoryRecordLog
from protolink.errors import LostRunError, UnknownRunError
from protolink.testing import ManualClock, call, use_environment
from protolink.tools import Tool, ask_user
from tests.support import model, types

QUESTION = call("ask_user", question="Which?")


class Office:
    """A store, and agents over it that are built anew as in another process."""

    def __init__(self, log: Any = None) -> None:
        self.log = MemoryRecordLog() if log is None else log
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.effects: list[int] = []

    async def pay(self, amount: int) -> str:
        """Pay somebody; waits until it is let go."""
        self.effects.append(amount)
        self.entered.set()
        await self.go.wait()
        return f"paid {amount}"

    def lose(self, password: str = "") -> str:
        """Send something, and never learn whether it arrived."""
        raise UncertainExecutionError("the reply was lost")

    def agent(self, *turns: Any, name: str = "clerk", **options: Any) -> Agent:
        """One agent over the store."""
        settings: dict[str, Any] = {
            "name": name,
            "tools": [ask_user, self.pay, self.lose, Tool(self.pay, name="peek", read_only=True)],
            "llm": model(*turns),
            "durability": self.log,
            "verbosity": 0,
            **options,
        }
        return Agent(**settings)

    async def run(self, *turns: Any, **options: Any) -> str:
        """Run to the end of an attempt; the run's id."""
        task = await self.agent(*turns, **options).run_task(Task.create_infer("go"))
        return RunContext.from_task(task).run_id

    @asynccontextmanager
    async def abandoned(self, *turns: Any, **options: Any) -> AsyncGenerator[str]:
        """A run whose process has died inside a tool, as far as the store can tell."""
        handle = self.agent(*turns, **options).start_run("go")
        await self.entered.wait()
        self.log.break_leases()
        try:
            yield handle.run_id
        finally:
            await left_behind(handle, self.go)


async def left_behind(handle: RunHandle, go: asyncio.Event) -> None:
    """Let the process that is said to be dead find out that the run is not its own any more, if it is not."""
    go.set()
    try:
        await handle.result()
    except LostRunError:
        return


async def test_runs_are_listed_over_all_stores_the_latest_first() -> None:
    """Two agents may share a store or have their own; a store is listed once."""
    one, other = Office(), Office()
    clock = ManualClock(start=0.0)
    with use_environment(clock):
        first = await one.run("a")
        clock.advance(1)
        second = await other.run("b", name="other")
        clock.advance(1)
        third = await one.run("c", name="second")
    manager = RunManager([one.agent(), one.agent(name="second"), other.agent(name="other")])

    assert [view.run_id for view in await manager.list()] == [third, second, first]
    assert [view.run_id for view in await manager.list(agent_name="second")] == [third]
    assert [view.run_id for view in await manager.list(limit=1)] == [third]


async def test_runs_are_listed_by_status() -> None:
    """What waits for somebody is found without reading every run."""
    office = Office()
    await office.run("done")
    paused = await office.run(QUESTION)
    uncertain = await office.run(call("lose"))
    manager = RunManager(office.agent())

    assert [view.run_id for view in await manager.list(status="paused")] == [paused]
    assert [view.run_id for view in await manager.list(status="uncertain")] == [uncertain]
    with pytest.raises(ValueError, match="there are: running, paused"):
        await manager.list(status="waiting")


async def test_inspecting_gives_the_report_and_changes_nothing() -> None:
    """The report of a stored run is that of its handle, and reading it leaves the store as it was."""
    office = Office()
    run_id = await office.run(QUESTION)
    before = await office.log.get(run_id)

    report = await RunManager(office.agent()).inspect(run_id)

    assert "input.required" in types(report.events)
    assert report.final_task is not None
    assert report.final_task.state is TaskState.INPUT_REQUIRED
    assert await office.log.get(run_id) == before


async def test_what_a_policy_withholds_is_shown_to_nobody() -> None:
    """A report and a list of uncertain actions are read on screens, where no key belongs."""
    office = Office()
    run_id = await office.run(call("lose", password="hunter2"))
    manager = RunManager(office.agent(), redaction_policy=RedactionPolicy())

    report = await manager.inspect(run_id)
    (found,) = await manager.list_uncertain(run_id)

    assert "hunter2" not in str(report.to_dict())
    assert "hunter2" not in str(found)


async def test_a_run_is_resumed_by_the_agent_that_it_belongs_to() -> None:
    """The stored name decides; the answer is given as to the agent itself."""
    office = Office()
    run_id = await office.run(QUESTION, name="second")
    manager = RunManager([office.agent("wrong"), office.agent("right", name="second")])
    waiting = (await manager.list())[0].info.summary["interruptions"]
    assert isinstance(waiting, list)

    task = await manager.resume(run_id, request_id=waiting[0]["request_id"], answer=1)

    assert task.get_output() == "right"


async def test_a_run_of_an_agent_that_is_not_here_is_not_resumed() -> None:
    """It is named, so that whoever reads the error knows what to add."""
    office = Office()
    run_id = await office.run(QUESTION, name="gone")

    with pytest.raises(ConfigurationError, match="'gone'"):
        await RunManager(office.agent()).resume(run_id)


async def test_an_unknown_run_is_an_error_of_every_verb() -> None:
    """Nothing is made up for an id that no store knows."""
    manager = RunManager(Office().agent())

    for work in (manager.inspect("x"), manager.resume("x"), manager.cancel("x"), manager.reconcile("x", "y", result=1)):
        with pytest.raises(UnknownRunError):
            await work


async def test_what_a_tool_left_uncertain_is_listed_and_settled_without_an_agent() -> None:
    """Somebody finds out, says so once, and the run goes on with that result."""
    office = Office()
    run_id = await office.run(call("lose"), "done")
    keeper = RunManager(stores=[office.log])
    (found,) = await keeper.list_uncertain()

    await keeper.reconcile(found.root_run_id, found.action_id, result="it arrived")
    task = await RunManager(office.agent("done")).resume(run_id)

    assert (found.tool_name, found.run_id, found.agent_name) == ("lose", run_id, "clerk")
    assert await keeper.list_uncertain() == []
    assert task.get_output() == "done"
    with pytest.raises(DurableExecutionError):
        await keeper.reconcile(found.root_run_id, found.action_id, result="again")


async def test_what_a_dead_process_had_entered_is_listed_although_nobody_took_the_run_up() -> None:
    """Started without an ending is uncertain by definition; since when is the moment when it was entered."""
    office = Office()
    with use_environment(ManualClock(start=0.0)):
        async with office.abandoned(call("pay", amount=3)) as run_id:
            found = await RunManager(stores=[office.log]).list_uncertain()

    assert found == [
        UncertainAction(
            root_run_id=run_id,
            run_id=run_id,
            action_id=f"{run_id}.1",
            agent_name="clerk",
            tool_name="pay",
            arguments={"amount": 3},
            since="1970-01-01T00:00:00.000000+00:00",
        )
    ]


async def test_a_tool_that_only_reads_is_never_uncertain() -> None:
    """It is run again, so nobody has to look."""
    office = Office()
    async with office.abandoned(call("peek", amount=3)):
        assert await RunManager(stores=[office.log]).list_uncertain() == []


async def test_a_run_that_is_driven_is_not_uncertain() -> None:
    """Its tool is at work and will say what came of it."""
    office = Office()
    handle = office.agent(call("pay", amount=3)).start_run("go")
    await office.entered.wait()

    assert await RunManager(stores=[office.log]).list_uncertain() == []
    office.go.set()
    await handle.result()


async def test_canceling_a_paused_run_closes_what_was_open() -> None:
    """The question has an ending, nothing is executed, and the run cannot be resumed into life."""
    office = Office()
    run_id = await office.run([QUESTION, call("pay", amount=3)])
    manager = RunManager(office.agent())

    task = await manager.cancel(run_id, "not needed any more")

    assert (task.state, task.metadata["cancel_reason"]) == (TaskState.CANCELED, "not needed any more")
    report = await manager.inspect(run_id)
    assert [action["status"] for action in report.actions] == ["canceled", "canceled"]
    assert (await manager.resume(run_id)).state is TaskState.CANCELED
    assert office.effects == []


async def test_a_reason_that_cannot_be_stored_as_it_is_is_escaped() -> None:
    """A program's odd text must not keep a run from ending."""
    office = Office()
    run_id = await office.run(QUESTION)

    task = await RunManager(office.agent()).cancel(run_id, "half of \ud800")

    assert task.metadata["cancel_reason"] == "half of \\ud800"


async def test_canceling_an_abandoned_run_keeps_its_effect_uncertain() -> None:
    """Ending a run must not make anybody believe that nothing happened."""
    office = Office()
    async with office.abandoned(call("pay", amount=3)) as run_id:
        task = await RunManager(stores=[office.log]).cancel(run_id)

    assert task.state is TaskState.CANCELED
    assert task.metadata["uncertain_actions"] == [f"{run_id}.1"]
    (found,) = await RunManager(stores=[office.log]).list_uncertain()
    assert found.action_id == f"{run_id}.1"


@pytest.mark.parametrize("happened", [True, False])
async def test_what_a_canceled_run_left_uncertain_can_still_be_settled(happened: bool) -> None:
    """The run stays as it ended; only what nobody knew becomes known, once, and then the run can be pruned."""
    office = Office()
    async with office.abandoned(call("pay", amount=3)) as run_id:
        manager = RunManager(stores=[office.log])
        await manager.cancel(run_id)
    seen = [event.type for event in (await manager.inspect(run_id)).events]
    assert await manager.prune(keep=0) == []
    settle: dict[str, Any] = {"result": "paid"} if happened else {"happened": False}

    task = await manager.reconcile(run_id, f"{run_id}.1", **settle)

    assert (task.state, task.metadata["uncertain_actions"]) == (TaskState.CANCELED, [])
    assert [artifact.action_id for artifact in task.artifacts] == ([f"{run_id}.1"] if happened else [])
    assert await manager.list_uncertain() == []
    assert [event.type for event in (await manager.inspect(run_id)).events] == seen
    with pytest.raises(DurableExecutionError, match="nothing to settle"):
        await manager.reconcile(run_id, f"{run_id}.1", **settle)
    assert [view.status for view in await manager.prune(keep=0)] == ["canceled"]


async def test_canceling_an_uncertain_run_keeps_it_listed_in_its_task() -> None:
    """The same where the tool itself did not know."""
    office = Office()
    run_id = await office.run(call("lose"))

    task = await RunManager(stores=[office.log]).cancel(run_id)

    assert task.state is TaskState.CANCELED
    assert task.metadata["uncertain_actions"] == [f"{run_id}.1"]


async def test_canceling_ends_the_children_first() -> None:
    """No run of the tree is left without an end, and each call has a result."""
    office = Office()
    worker = Agent(name="worker", tools=[ask_user, office.lose], llm=model([QUESTION, QUESTION]), verbosity=0)
    root = office.agent(call("worker", task="Find out."), subagents=[worker])
    root.add_worker_tool("worker")
    run_id = RunContext.from_task(await root.run_task(Task.create_infer("go"))).run_id

    await RunManager(stores=[office.log]).cancel(run_id)

    events = (await RunManager(stores=[office.log]).inspect(run_id)).events
    ends = [event for event in events if event.payload.get("new_state") == "canceled"]
    assert [event.agent_name for event in ends] == ["worker", "clerk"]
    assert types(events).count("action.canceled") == 3


async def test_a_run_that_has_ended_stays_as_it_is() -> None:
    """A denial is not turned into a cancellation afterwards, and nothing is stored."""
    office = Office()
    policy = CapabilityPolicy({"user.ask": "deny"})
    run_id = await office.run(QUESTION, policy=policy)
    before = await office.log.read(run_id)

    task = await RunManager(office.agent(policy=policy)).cancel(run_id)

    assert task.state is TaskState.FAILED
    assert await office.log.read(run_id) == before


async def test_canceling_a_run_of_this_process_stops_it() -> None:
    """The manager of the agent that drives it tells it to stop, as its handle would."""
    office = Office()
    agent = office.agent(call("pay", amount=3))
    handle = agent.start_run("go")
    await office.entered.wait()

    task = await RunManager(agent).cancel(handle.run_id, "enough")

    assert (task.state, task.metadata["cancel_reason"]) == (TaskState.CANCELED, "enough")


async def test_a_run_that_somebody_else_drives_is_not_canceled() -> None:
    """It has to be canceled where it runs; the error comes at once and nothing changes."""
    office = Office()
    handle = office.agent(call("pay", amount=3)).start_run("go")
    await office.entered.wait()

    with pytest.raises(RunBusyError):
        await RunManager(office.agent()).cancel(handle.run_id)

    office.go.set()
    assert (await handle.result()).status == "completed"


async def test_the_agents_own_stores_learn_of_a_cancellation(tmp_path: Path) -> None:
    """What an application lists as its tasks must not show a run as waiting that has ended."""
    office = Office()
    store = SQLiteRunStore(tmp_path / "tasks.db")
    agent = office.agent(QUESTION, run_store=store)
    task = await agent.run_task(Task.create_infer("go"))

    await RunManager(agent).cancel(RunContext.from_task(task).run_id)

    stored = store.get_task(task.id)
    assert stored is not None
    assert stored.state is TaskState.CANCELED


async def _three(office: Office) -> tuple[ManualClock, list[str]]:
    """A run that completed, one that waits, and one that completed last, ten seconds apart."""
    clock = ManualClock(start=1000.0)
    with use_environment(clock):
        first = await office.run("a")
        clock.advance(10)
        second = await office.run(QUESTION)
        clock.advance(10)
        third = await office.run("b")
    return clock, [first, second, third]


async def test_pruning_deletes_what_has_ended_and_nothing_that_waits() -> None:
    """A person's pending answer is not garbage, however old."""
    office = Office()
    _, (first, second, third) = await _three(office)
    manager = RunManager(office.agent())

    deleted = await manager.prune(keep=0)

    assert [view.run_id for view in deleted] == [third, first]
    assert [view.run_id for view in await manager.list()] == [second]


async def test_pruning_by_age_and_by_count_spares_what_either_spares() -> None:
    """Both limits have to allow it."""
    office = Office()
    clock, (first, _, third) = await _three(office)
    manager = RunManager(office.agent())

    with use_environment(clock):
        assert await manager.prune(older_than_seconds=21, keep=0) == []
        assert await manager.prune(older_than_seconds=0, keep=2) == []
        assert [view.run_id for view in await manager.prune(older_than_seconds=20)] == [first]
    assert third in [view.run_id for view in await manager.list()]


async def test_a_waiting_run_is_pruned_where_its_status_is_named() -> None:
    """Somebody has said so, and then nothing else goes."""
    office = Office()
    _, (_, second, _) = await _three(office)

    deleted = await RunManager(office.agent()).prune(keep=0, statuses=["paused"])

    assert [view.run_id for view in deleted] == [second]


async def test_a_dry_run_deletes_nothing() -> None:
    """It gives exactly what would go."""
    office = Office()
    _, (first, _, third) = await _three(office)
    manager = RunManager(office.agent())

    assert [view.run_id for view in await manager.prune(keep=0, dry_run=True)] == [third, first]
    assert len(await manager.list()) == 3


async def test_a_run_that_is_driven_is_never_pruned() -> None:
    """Not even where its status is named."""
    office = Office()
    handle = office.agent(call("pay", amount=3)).start_run("go")
    await office.entered.wait()

    assert await RunManager(stores=[office.log]).prune(keep=0, statuses=["running"]) == []

    office.go.set()
    await handle.result()


WRONG: dict[str, dict[str, Any]] = {
    "no limit": {},
    "an unknown status": {"keep": 1, "statuses": ["done"]},
    "one word": {"keep": 1, "statuses": "failed"},
    "a negative age": {"older_than_seconds": -1},
    "no number": {"older_than_seconds": float("nan")},
    "a negative count": {"keep": -1},
    "a bool": {"keep": True},
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_pruning_without_a_clear_limit_is_refused(wrong: str) -> None:
    """Deleting everything by a slip of the keyboard is not offered."""
    office = Office()
    await _three(office)
    manager = RunManager(office.agent())

    with pytest.raises(ValueError, match=r"is|say"):
        await manager.prune(**WRONG[wrong])

    assert len(await manager.list()) == 3


async def test_somebody_elses_runs_are_not_there() -> None:
    """Each verb sees the acting principal's own runs; a program on its own sees all."""
    office = Office()
    with acting_as("ann"):
        run_id = await office.run(call("lose"))
    manager = RunManager(office.agent())

    with acting_as("bob"):
        assert await manager.list() == []
        assert await manager.list_uncertain() == []
        assert await manager.prune(keep=0, statuses=["uncertain"]) == []
        for work in (manager.inspect(run_id), manager.resume(run_id), manager.cancel(run_id)):
            with pytest.raises(UnknownRunError):
                await work
    with acting_as("ann"):
        assert [view.run_id for view in await manager.list()] == [run_id]
    assert len(await manager.list_uncertain()) == 1


def test_an_agent_that_stores_nothing_is_refused() -> None:
    """A manager of it could only ever be empty."""
    with pytest.raises(ConfigurationError, match="durability"):
        RunManager(Agent(name="a", verbosity=0))


async def test_two_agents_of_one_name_need_stores_of_their_own() -> None:
    """In one store nobody could say whose a run is."""
    office = Office()

    with pytest.raises(ConfigurationError, match="names are unique"):
        RunManager([office.agent(), office.agent()])
    assert await RunManager([office.agent(), Office().agent()]).list() == []


async def test_two_logs_of_one_file_are_one_store(tmp_path: Path) -> None:
    """Agents that were given the same path list each run once."""
    path = tmp_path / "runs.sqlite"
    await Office(path).run("a")
    manager = RunManager([Office(path).agent(), Office(path).agent(name="b")], stores=[SQLiteDurableStore(path)])

    assert len(await manager.list()) == 1
