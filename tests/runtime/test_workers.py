"""Owned workers: limits, failures as what they are, parallel and background work, one budget for the tree."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from protolink import (
    ActionDeniedError,
    Agent,
    ApprovalRequest,
    BudgetExceededError,
    CapabilityPolicy,
    ConfigurationError,
    RunBudget,
    RunContext,
    SubagentLimitError,
    SubagentLimits,
    TaskExecutionError,
    TaskState,
    Tool,
    ToolCorrectionLimitError,
    ToolFailedError,
    ToolRejectedError,
    UncertainExecutionError,
)
from protolink.llms import MockLLM
from protolink.testing import call, calls, delegate
from tests.support import assert_settled, model, observe, of_type


async def hang() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


def worker(name: str = "worker", *responses: Any, **options: Any) -> Agent:
    return Agent(name=name, llm=model(*responses, default_response=f"{name} is done"), verbosity=0, **options)


def parent(*workers: Agent, script: Any = (), **options: Any) -> Agent:
    return Agent(name="parent", subagents=workers, llm=model(*script), verbosity=0, **options)


def test_a_child_has_one_name_and_is_nobody_elses_parent() -> None:
    """A name that is taken, the parent itself and things that are no agents are refused where they are given."""
    root = parent(worker("a"))

    with pytest.raises(ConfigurationError, match="names are unique"):
        parent(worker("a"), worker("a"))
    with pytest.raises(ConfigurationError, match="its own child"):
        root.subagents["parent"] = root
    with pytest.raises(ConfigurationError, match="is an Agent"):
        parent("worker")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [{"max_children": -1}, {"max_concurrency": 0}, {"max_depth": 1.5}, {"background": 1}])
def test_limits_that_are_none_are_refused(limit: dict[str, Any]) -> None:
    """At construction, by the name of the limit."""
    with pytest.raises(ConfigurationError, match=next(iter(limit))):
        SubagentLimits(**limit)


@pytest.mark.parametrize("repetition", range(20))
async def test_parallel_children_never_overshoot_a_limit(repetition: int) -> None:
    """Fifty children race for nine model calls, ten times over: a call is reserved before it is made."""
    for _ in range(10):
        made: list[int] = []

        async def answer(_history: Any, _prompt: str, made: list[int] = made) -> str:
            made.append(1)
            await asyncio.sleep(0)
            return "done"

        child = Agent(name="child", llm=MockLLM(response_callback=answer), verbosity=0)
        root = Agent(
            name="root",
            subagents=[child],
            subagent_limits=SubagentLimits(max_children=50, max_concurrency=50),
            llm=model(calls(*(delegate("child", f"task {number}") for number in range(50)))),
            verbosity=0,
        )

        with pytest.raises(BudgetExceededError):
            await root.invoke("go", budget=RunBudget(max_llm_calls=9))

        assert len(made) == 8, f"the root's turn and eight of its children's, in round {repetition}"


async def test_delegations_of_one_reply_run_side_by_side() -> None:
    """Two children that wait for each other both end, so they are at work at the same time."""
    here = asyncio.Barrier(2)

    async def meet() -> str:
        await here.wait()
        return "met"

    children = [worker(name, call("meet"), tools=[meet]) for name in ("left", "right")]
    root = parent(*children, script=[calls(delegate("left", "meet"), delegate("right", "meet")), "both met"])

    assert await root.invoke("go") == "both met"


async def test_no_more_children_work_at_once_than_allowed() -> None:
    """The others wait for a place and get it."""
    at_work: list[int] = []
    most: list[int] = []

    async def count() -> int:
        at_work.append(1)
        most.append(len(at_work))
        await asyncio.sleep(0)
        at_work.pop()
        return len(most)

    child = Agent(name="child", tools=[Tool(count, read_only=True)], verbosity=0)
    counting = {"type": "agent_call", "agent": "child", "action": "tool_call", "tool": "count", "args": {}}
    root = parent(
        child,
        script=[calls(*(counting,) * 6)],
        subagent_limits=SubagentLimits(max_concurrency=2),
    )

    await root.invoke("go", budget=RunBudget(max_steps=3))

    assert len(most) == 6
    assert max(most) <= 2


async def test_one_child_too_many_is_a_rejection_that_the_model_can_correct() -> None:
    """The limit of children costs a correction, not the run."""
    root = parent(
        worker(),
        script=[delegate("worker", "one"), delegate("worker", "two"), "made do"],
        subagent_limits=SubagentLimits(max_children=1),
    )

    events, result = await observe(root)

    assert (result.status, result.output) == ("completed", "made do")
    (rejected,) = of_type(events, "action.rejected")
    assert rejected.payload["metadata"]["error"]["code"] == "too_many_children"


async def test_a_delegation_beyond_the_depth_fails_as_what_it_is() -> None:
    """The configured depth of the root holds for the whole tree."""
    leaf = worker("leaf")
    middle = worker("middle", delegate("leaf", "go"), subagents=[leaf])

    with pytest.raises(SubagentLimitError, match="max_depth"):
        await parent(middle, script=[delegate("middle", "go")]).invoke("go")


async def test_an_agent_does_not_work_for_itself() -> None:
    """A ring of owners would delegate for ever; whoever is at work above a run is no child of it."""
    first, second = worker("first"), worker("second", delegate("first", "again"))
    first.llm = model(delegate("second", "go"))
    first.subagents["second"] = second
    second.subagents["first"] = first

    with pytest.raises(SubagentLimitError):
        await first.invoke("go", context=RunContext())


async def test_a_childs_denial_is_the_parents_denial() -> None:
    """With the reason, and without a second chance through another road."""
    child = worker("child", call("erase"), tools=[Tool(hang, name="erase", capabilities=["records.erase"])])
    root = parent(child, script=[delegate("child", "erase it")], policy=CapabilityPolicy({"records.erase": "deny"}))

    with pytest.raises(ActionDeniedError, match=r"records\.erase is denied"):
        await root.invoke("go")


async def test_a_grandchilds_approval_asks_the_roots_handler_about_the_exact_action() -> None:
    """Whoever answers for the root decides, and is told who asks for what."""
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest, _context: RunContext) -> bool:
        asked.append(request)
        return True

    def pay(amount: int) -> str:
        return f"paid {amount}"

    leaf = worker("leaf", call("pay", amount=3), tools=[Tool(pay, capabilities=["money.send"])])
    middle = worker("middle", delegate("leaf", "pay"), subagents=[leaf])
    root = parent(
        middle,
        script=[delegate("middle", "pay"), "all paid"],
        policy=CapabilityPolicy({"money.send": "require_approval"}),
        approval_handler=approve,
        subagent_limits=SubagentLimits(max_depth=2),
    )

    assert await root.invoke("go") == "all paid"
    (request,) = asked
    assert request.metadata["agent_name"] == "leaf"
    assert request.action.payload == {"arguments": {"amount": 3}}
    assert request.metadata["root_run_id"] != request.run_id


async def test_a_childs_failure_is_the_parents_failure_with_its_cause() -> None:
    """The tool's own exception stays the cause through the generations."""

    def measure() -> str:
        raise ValueError("the sensor is broken")

    root = parent(worker("child", call("measure"), tools=[measure]), script=[delegate("child", "measure")])

    with pytest.raises(ToolFailedError, match="the sensor is broken") as caught:
        await root.invoke("go")
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_childs_exhausted_corrections_end_the_parent_as_such() -> None:
    """The allowance belongs to the child's loop, and its error to everybody above."""
    child = worker("child", call("no_such"), call("no_such", x=1), call("no_such", x=2))

    with pytest.raises(ToolCorrectionLimitError) as caught:
        await parent(child, script=[delegate("child", "try")]).invoke("go")
    assert (caught.value.tool_name, caught.value.attempts) == ("no_such", 3)


async def test_a_childs_uncertain_effect_is_uncertain_for_the_parent() -> None:
    """Nobody above may take it for a failure."""

    def send() -> str:
        raise UncertainExecutionError("the reply was lost")

    root = parent(worker("child", call("send"), tools=[send]), script=[delegate("child", "send"), "sent"])

    with pytest.raises(UncertainExecutionError, match="the reply was lost"):
        await root.invoke("go")


async def test_a_rejection_by_a_workers_tool_can_be_corrected_by_the_parents_model() -> None:
    """It changed nothing, wherever it was raised."""

    def lookup(number: int) -> str:
        if number > 9:
            raise ToolRejectedError("There are nine shelves.", code="no_such_shelf")
        return f"shelf {number}"

    catalog = Agent(name="catalog", tools=[lookup], verbosity=0)
    root = parent(catalog, script=[call("catalog_lookup", number=12), call("catalog_lookup", number=3), "found"])
    root.add_worker_tool("catalog", tool="lookup")

    events, result = await observe(root)

    assert (result.status, result.output) == ("completed", "found")
    assert [event.agent_name for event in of_type(events, "action.rejected")] == ["catalog", "parent"]


async def test_a_failing_child_stops_its_siblings() -> None:
    """They work for a run that is ending, and the end awaits them."""

    def fail() -> str:
        raise ValueError("broken")

    slow = worker("slow", call("hang"), tools=[hang])
    failing = worker("failing", call("fail"), tools=[fail])
    root = parent(slow, failing, script=[calls(delegate("slow", "x"), delegate("failing", "x"))])

    events, result = await observe(root)

    assert result.status == "failed"
    statuses = {event.agent_name: event.payload["new_state"] for event in of_type(events, "task.status")}
    assert statuses == {"parent": "failed", "slow": "canceled", "failing": "failed"}
    assert_settled(events)


async def test_a_worker_is_not_started_in_a_run_that_has_ended_meanwhile() -> None:
    """The end of a run awaits its workers, so one that nobody told to stop would be awaited for ever."""
    root = parent(worker("worker", call("hang"), tools=[hang]), script=["end"])

    handle = root.start_run("x")
    with pytest.raises(TaskExecutionError) as caught:
        await handle.spawn("worker", "dig")  # the run's only turn comes before the worker's first

    assert caught.value.code == "run_ended"
    result = await handle.result()
    assert result.status == "completed"
    assert {event.agent_name for event in result.report.events} == {"parent"}


async def test_a_worker_that_waits_for_a_place_is_not_started_by_the_end_of_the_run() -> None:
    """The end frees the place, and whoever waited for it learns that it comes too late."""
    go_on = asyncio.Event()

    async def wait() -> str:
        await go_on.wait()
        return "waited"

    root = parent(
        worker("worker", call("hang"), tools=[hang]),
        script=[call("wait"), "end"],
        tools=[wait],
        subagent_limits=SubagentLimits(max_concurrency=1),
    )
    handle = root.start_run("x")
    first = await handle.spawn("worker", "first")
    second = asyncio.create_task(handle.spawn("worker", "second"))
    judged = 0
    async for event in handle.events():
        judged += event.type == "action.policy"
        if judged == 3:  # the tool and both workers: the second one waits now
            break
    go_on.set()

    with pytest.raises(TaskExecutionError) as caught:
        await second

    assert caught.value.code == "run_ended"
    assert (await first.result()).state is TaskState.CANCELED
    result = await handle.result()
    assert len({event.run_id for event in result.report.events if event.agent_name == "worker"}) == 1


async def test_a_background_worker_can_be_stopped_alone() -> None:
    """Its siblings and its parent go on."""
    go_on = asyncio.Event()

    async def wait() -> str:
        await go_on.wait()
        return "waited"

    root = parent(
        worker("left", call("hang"), tools=[hang]), worker("right"), script=[call("wait"), "end"], tools=[wait]
    )
    handle = root.start_run("x")
    left, right = await handle.spawn("left", "dig"), await handle.spawn("right", "dig")

    await left.cancel("not needed")
    states = ((await left.result()).state, (await right.result()).state)
    go_on.set()

    assert states == (TaskState.CANCELED, TaskState.COMPLETED)
    assert (await handle.result()).output == "end"


async def test_spawning_walks_the_road_of_every_action() -> None:
    """A policy that denies delegation denies it to the application's own call as well, and the run goes on."""
    go_on = asyncio.Event()

    async def wait() -> str:
        await go_on.wait()
        return "waited"

    root = parent(
        worker(), script=[call("wait"), "end"], tools=[wait], policy=CapabilityPolicy({"agent.delegate": "deny"})
    )
    handle = root.start_run("x")

    with pytest.raises(ActionDeniedError):
        await handle.spawn("worker", "dig")
    with pytest.raises(ToolRejectedError):
        await handle.spawn("nobody", "dig")
    go_on.set()

    assert (await handle.result()).status == "completed"


async def test_a_model_starts_awaits_and_stops_workers_itself() -> None:
    """With background=True, by three tools whose names are then taken."""
    started: list[str] = []

    def script(history: Any, _prompt: str) -> Any:
        heard = [json.loads(m["content"])["result"] for m in history.messages if m["role"] == "tool"]
        started[:] = [item["child_id"] for item in heard if "agent" in item]
        match len(heard):
            case 0:
                return call("spawn_subagent", agent="quick", prompt="dig")
            case 1:
                return call("spawn_subagent", agent="slow", prompt="dig")
            case 2:
                return call("wait_subagent", child_id=started[0])
            case 3:
                return call("cancel_subagent", child_id=started[1])
            case _:
                return f"{heard[2]['output']}; {heard[3]['status']}"

    root = Agent(
        name="parent",
        subagents=[worker("quick"), worker("slow", call("hang"), tools=[hang])],
        subagent_limits=SubagentLimits(background=True),
        llm=MockLLM(response_callback=script),
        verbosity=0,
    )

    assert await root.invoke("go") == "quick is done; canceled"
    with pytest.raises(ConfigurationError):
        root.add_tool(Tool(hang, name="wait_subagent"))


async def test_a_workers_answer_reaches_the_model_of_a_native_provider_too() -> None:
    """Delegation is one natively offered tool, and a facade another."""
    root = Agent(
        name="parent",
        subagents=[worker("helper")],
        llm=MockLLM(
            sequential_responses=[
                {"type": "tool_call", "tool": "agent_call", "args": {"agent": "helper", "prompt": "help"}},
                call("helper", task="help again"),
                "helped twice",
            ],
            tool_calling="native",
        ),
        verbosity=0,
    )
    root.add_worker_tool("helper")

    events, result = await observe(root)

    assert (result.status, result.output) == ("completed", "helped twice")
    assert len({event.run_id for event in events if event.agent_name == "helper"}) == 2
