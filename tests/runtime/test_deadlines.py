"""Deadlines and timeouts, by a clock that is moved by hand: nothing here waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from protolink import (
    Agent,
    AgentHooks,
    BudgetExceededError,
    CapabilityPolicy,
    Policy,
    PolicyDecision,
    RunAction,
    RunBudget,
    RunContext,
    Tool,
    ToolFailedError,
    UncertainExecutionError,
)
from protolink.llms import LLM, LLMReply, LLMRequest
from protolink.testing import ManualClock, call, use_environment
from protolink.tools import PreparedTool, ToolExecution, current_execution
from tests.support import ListeningLLM, assert_settled, blocker, model, observe, of_type, results, seen, turns, types

LIMIT = RunBudget(max_runtime_seconds=5)
_ASKING = CapabilityPolicy(default_effect="require_approval")


class Hanging:
    """Something that is entered and does not end by itself, on the loop or in a thread."""

    def __init__(self, in_thread: Callable[[], Any]) -> None:
        self.entered = asyncio.Event()
        self.in_thread = in_thread

    async def on_loop(self, *_: Any) -> Any:
        """Wait for ever."""
        self.entered.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def hanging() -> AsyncGenerator[Hanging]:
    """A `Hanging` whose threads end with the block."""
    async with blocker() as waiting:
        made = Hanging(waiting.wait)
        made.entered = waiting.entered
        yield made


class _HangingPolicy(Policy):
    def __init__(self, hang: Hanging) -> None:
        self._hang = hang

    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        await self._hang.on_loop()
        raise AssertionError("nobody lets this policy go")


class _ThreadModel(LLM):
    provider, model = "thread", "t-1"

    def __init__(self, hang: Hanging) -> None:
        self._hang = hang

    def respond(self, request: LLMRequest) -> LLMReply:
        return LLMReply(text=self._hang.in_thread())


class _LoopModel(LLM):
    provider, model = "loop", "l-1"

    def __init__(self, hang: Hanging) -> None:
        self._hang = hang

    async def respond(self, request: LLMRequest) -> LLMReply:
        await self._hang.on_loop()
        return LLMReply(text="unreachable")


def work(number: int = 0) -> int:
    """Return a number."""
    return number


def _calling(**options: Any) -> Agent:
    return Agent(name="a", tools=[work], llm=model(call("work", number=1)), **options)


def _with_tool(func: Callable[..., Any], **options: Any) -> Agent:
    return Agent(name="a", tools=[Tool(func, name="work", **options)], llm=model(call("work")))


def _with_preparation(prepare: Callable[..., Any], **options: Any) -> Agent:
    async def execute(_execution: ToolExecution) -> None:
        raise AssertionError("this action is never prepared")

    tool = PreparedTool(work, prepare=prepare, execute=execute, capabilities={"some.thing"}, **options)
    return Agent(name="a", tools=[tool], llm=model(call("work", number=1)))


PLACES: dict[str, Callable[[Hanging], Agent]] = {
    "model on the loop": lambda hang: Agent(name="a", llm=_LoopModel(hang)),
    "model in a thread": lambda hang: Agent(name="a", llm=_ThreadModel(hang)),
    "factory on the loop": lambda hang: Agent(name="a", llm_factory=hang.on_loop),
    "factory in a thread": lambda hang: Agent(name="a", llm_factory=hang.in_thread),
    "async tool": lambda hang: _with_tool(_no_arguments_async(hang)),
    "threaded tool": lambda hang: _with_tool(_no_arguments(hang), sync_execution="thread"),
    "async approval": lambda hang: _calling(policy=_ASKING, approval_handler=hang.on_loop),
    "blocking approval": lambda hang: _calling(policy=_ASKING, approval_handler=lambda *_: hang.in_thread()),
    "async preparation": lambda hang: _with_preparation(hang.on_loop),
    "threaded preparation": lambda hang: _with_preparation(lambda *_: hang.in_thread(), sync_execution="thread"),
    "policy": lambda hang: _calling(policy=_HangingPolicy(hang)),
    "before_model": lambda hang: _calling(hooks=AgentHooks(before_model=hang.on_loop)),
    "after_tool": lambda hang: _calling(hooks=AgentHooks(after_tool=hang.on_loop)),
    "before_complete": lambda hang: _calling(hooks=AgentHooks(before_complete=hang.on_loop)),
}


def _no_arguments_async(hang: Hanging) -> Callable[[], Any]:
    async def work() -> None:
        await hang.on_loop()

    return work


def _no_arguments(hang: Hanging) -> Callable[[], Any]:
    def work() -> None:
        hang.in_thread()

    return work


@pytest.mark.parametrize("place", PLACES)
async def test_the_deadline_interrupts_whatever_the_run_waits_for(place: str) -> None:
    """`max_runtime_seconds` is a deadline, not a question that is asked between two steps."""
    clock = ManualClock()
    async with hanging() as hang:
        with use_environment(clock):
            caller = asyncio.create_task(PLACES[place](hang).invoke("go", budget=LIMIT))
        await hang.entered.wait()

        clock.advance(4.9)
        await turns(5)
        early = caller.done()
        clock.advance(0.1)
        with pytest.raises(BudgetExceededError) as raised:
            await caller

    assert not early
    assert (raised.value.limit, raised.value.allowed) == ("max_runtime_seconds", 5)
    assert raised.value.task is not None
    assert raised.value.task.state.value == "failed"


@pytest.mark.parametrize("place", PLACES)
async def test_a_run_that_met_its_deadline_is_complete(place: str) -> None:
    """Its list names the limit, closes every action and ends with the run's own last event."""
    clock = ManualClock()
    async with hanging() as hang:
        with use_environment(clock):
            handle = PLACES[place](hang).start_run("go", budget=LIMIT)
        await hang.entered.wait()
        clock.advance(5)
        result = await handle.result()

    events = [event async for event in handle.events()]
    assert of_type(events, "budget.exceeded")[0].payload["decision"]["limit"] == "max_runtime_seconds"
    assert_settled(events)
    assert result.status == "failed"
    assert clock.waiting == 0


async def test_a_run_is_warned_of_its_deadline() -> None:
    """At four fifths of the time, while it still waits: a page can say that this may take too long."""
    clock = ManualClock()
    async with hanging() as hang:
        with use_environment(clock):
            handle = PLACES["async tool"](hang).start_run("go", budget=LIMIT)
        await hang.entered.wait()
        clock.advance(3.9)
        early = types(handle.report.events)
        clock.advance(0.1)
        warning = await seen(handle, "budget.warning")
        clock.advance(1)
        await handle.result()

    assert "budget.warning" not in early
    assert warning.payload["decision"] == {"limit": "max_runtime_seconds", "allowed": 5, "used": 4}
    assert types(handle.report.events).count("budget.warning") == 1


async def test_a_run_in_time_leaves_no_timer_behind() -> None:
    """A deadline that was not needed is called off with the run."""
    clock = ManualClock()
    with use_environment(clock):
        _, result = await observe(_calling(), budget=LIMIT)

    assert result.status == "completed"
    assert clock.waiting == 0


async def test_a_deadline_of_zero_seconds_permits_nothing() -> None:
    """Zero is a limit like any other: nothing is entered."""
    entered: list[int] = []

    async def note(number: int) -> None:
        entered.append(number)

    agent = Agent(name="a", tools=[note], llm=model(call("note", number=1)))
    with pytest.raises(BudgetExceededError):
        await agent.invoke("go", budget=RunBudget(max_runtime_seconds=0))

    assert entered == []


async def test_a_late_result_of_an_interrupted_thread_is_no_success() -> None:
    """The thread returns after the deadline; the record says that it was given up, and keeps saying so."""
    clock = ManualClock()
    async with blocker(result="late") as blocking:
        agent = _with_tool(lambda: blocking.wait(), input_schema={"type": "object"}, sync_execution="thread")
        with use_environment(clock):
            handle = agent.start_run("go", budget=LIMIT)
        await blocking.entered.wait()
        clock.advance(5)
        await handle.result()
        blocking.release()
        await blocking.left.wait()
        await turns(10)

    events = [event async for event in handle.events()]
    assert of_type(events, "action.completed") == []
    assert of_type(events, "action.canceled")[0].payload["metadata"]["unsettled"] is True


async def _timed_out(tool: Tool, entered: asyncio.Event, *script: Any) -> tuple[Any, ListeningLLM]:
    clock = ManualClock()
    llm = ListeningLLM(call("work"), *script)
    with use_environment(clock):
        handle = Agent(name="a", tools=[tool], llm=llm).start_run("go")
    await entered.wait()
    clock.advance(2)
    return handle, llm


async def test_an_async_tool_that_takes_too_long_has_failed() -> None:
    """It was stopped for certain, so its outcome is known: a failure that names the limit."""
    async with hanging() as hang:
        tool = Tool(_no_arguments_async(hang), timeout_seconds=2)
        handle, _ = await _timed_out(tool, hang.entered)

        with pytest.raises(ToolFailedError, match="2 seconds"):
            await handle.outcome()

    failed = of_type([event async for event in handle.events()], "action.failed")
    assert failed[0].payload["metadata"]["error"]["code"] == "tool_timeout"


async def test_a_timed_out_thread_that_may_still_work_is_uncertain() -> None:
    """Nobody can say whether a thread that goes on will have its effect."""
    async with hanging() as hang:
        tool = Tool(_no_arguments(hang), sync_execution="thread", timeout_seconds=2)
        handle, _ = await _timed_out(tool, hang.entered)

        with pytest.raises(UncertainExecutionError) as raised:
            await handle.outcome()

    assert raised.value.tool_name == "work"
    assert raised.value.arguments == {}
    assert raised.value.root_run_id == raised.value.run_id == handle.run_id
    assert raised.value.action_id


@pytest.mark.parametrize("declared", ["read_only", "idempotent"])
async def test_a_timed_out_thread_without_lasting_effect_has_failed(declared: str) -> None:
    """What cannot change anything, or may be done again, leaves no doubt behind."""
    async with hanging() as hang:
        options: dict[str, Any] = {declared: True}
        tool = Tool(_no_arguments(hang), sync_execution="thread", timeout_seconds=2, **options)
        handle, _ = await _timed_out(tool, hang.entered)

        with pytest.raises(ToolFailedError):
            await handle.outcome()


async def test_a_timeout_can_be_the_models_to_observe() -> None:
    """With `on_error="observe"` the run goes on and the model reads what happened."""
    async with hanging() as hang:
        tool = Tool(_no_arguments_async(hang), timeout_seconds=2, on_error="observe")
        handle, llm = await _timed_out(tool, hang.entered, "gave up")

        assert await handle.outcome() == "gave up"

    assert results(llm.heard[1])[0]["code"] == "tool_timeout"


async def test_an_uncertain_timeout_is_never_the_models_to_observe() -> None:
    """A model that reads of a failure would try again, and do it twice."""
    async with hanging() as hang:
        tool = Tool(_no_arguments(hang), sync_execution="thread", timeout_seconds=2, on_error="observe")
        handle, llm = await _timed_out(tool, hang.entered, "gave up")

        with pytest.raises(UncertainExecutionError):
            await handle.outcome()

    assert len(llm.heard) == 1


async def test_a_tool_in_time_is_not_timed_out() -> None:
    """Its timer goes with it."""
    clock = ManualClock()
    with use_environment(clock):
        _, result = await observe(_with_tool(work, timeout_seconds=2))

    assert result.status == "completed"
    assert clock.waiting == 0


async def test_a_tool_that_ends_well_after_its_timeout_was_too_late() -> None:
    """A tool that cleans up after being told to stop and returns a value has still used up its time."""
    entered = asyncio.Event()

    async def slow() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        return "unreachable"

    handle, _ = await _timed_out(Tool(slow, name="work", timeout_seconds=2), entered)

    with pytest.raises(ToolFailedError, match="2 seconds"):
        await handle.outcome()


async def test_a_tool_knows_how_much_time_is_left() -> None:
    """The nearer of the run's deadline and the tool's timeout counts."""
    clock = ManualClock()
    left: list[float | None] = []

    async def look() -> None:
        left.append(current_execution().remaining_seconds)
        clock.advance(1)
        left.append(current_execution().remaining_seconds)

    tools = [Tool(look, name="short", timeout_seconds=3), Tool(look, name="long", timeout_seconds=60), Tool(look)]
    agent = Agent(name="a", tools=tools, llm=model(call("short"), call("long"), call("look")))
    with use_environment(clock):
        await agent.invoke("go", budget=RunBudget(max_runtime_seconds=30))
        await agent.invoke("", "tool_call", "look")

    assert left == [3, 2, 29, 28, 28, 27, None, None]


async def test_durations_come_from_the_clock_that_never_goes_back() -> None:
    """Evidence measures with the same clock as deadlines do."""
    clock = ManualClock()

    async def take(seconds: int) -> None:
        clock.advance(seconds)

    with use_environment(clock):
        _, result = await observe(Agent(name="a", tools=[take], llm=model(call("take", seconds=7))))

    assert result.tool_evidence[0].duration_seconds == 7


async def test_a_tool_can_notice_that_its_run_was_stopped() -> None:
    """Long work in a thread asks `check()` and ends early."""
    clock = ManualClock()
    noticed = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with blocker() as blocking:

        def long() -> None:
            execution = current_execution()
            execution.check()
            blocking.wait()
            if execution.cancellation.canceled and execution.cancellation.reason == "enough":
                loop.call_soon_threadsafe(noticed.set)
            execution.check()

        with use_environment(clock):
            agent = Agent(name="a", tools=[long], sync_execution="thread", llm=model(call("long")))
            handle = agent.start_run("go")
        await blocking.entered.wait()
        await handle.cancel("enough")
        blocking.release()
        await noticed.wait()

    assert (await seen(handle, "action.canceled")).payload["metadata"]["unsettled"] is True
