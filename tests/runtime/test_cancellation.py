"""Cancellation: from whoever, at any moment, against any code, it ends the run and nothing is entered after."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from protolink import (
    Agent,
    AgentHooks,
    ApprovalRequest,
    CapabilityPolicy,
    ModelRequest,
    Policy,
    PolicyDecision,
    PolicyEffect,
    RunAction,
    RunContext,
    RunHandle,
    Task,
    TaskExecutionError,
    Tool,
    ToolObservation,
)
from protolink.llms import LLM, LLMReply, LLMRequest, ToolCall
from protolink.testing import ManualClock, call, use_environment
from protolink.tools import PreparedTool, ToolExecution
from tests.support import (
    assert_settled,
    blocker,
    model,
    observe,
    of_type,
    seen,
    turns,
)

Entered = list[str]


def _working_tool(entered: Entered) -> Callable[[int], Any]:
    async def work(number: int) -> int:
        entered.append(f"work {number}")
        await turns(3)
        return number

    return work


def _tools(entered: Entered) -> Agent:
    script = model(call("work", number=1), call("work", number=2), "done")
    return Agent(name="worker", tools=[_working_tool(entered)], llm=script)


def _several_calls(entered: Entered) -> Agent:
    script = model([call("work", number=number) for number in range(4)], "done")
    return Agent(name="several", tools=[_working_tool(entered)], llm=script)


def _side_by_side(entered: Entered) -> Agent:
    tool = Tool(_working_tool(entered), read_only=True)
    script = model([call("work", number=number) for number in range(4)], "done")
    return Agent(name="parallel", tools=[tool], llm=script)


def _prepared(entered: Entered) -> Agent:
    async def prepare(arguments: dict[str, Any], _context: RunContext) -> RunAction:
        await turns(2)
        return RunAction(kind="tool.call", name="pay", payload=arguments)

    async def execute(execution: ToolExecution) -> str:
        entered.append(execution.action.action_id)
        await turns(2)
        return "paid"

    def pay(amount: int) -> str:
        """Pay an amount."""
        raise AssertionError("a signature is never called")

    async def approve(_request: ApprovalRequest, _context: RunContext) -> bool:
        await turns(2)
        return True

    tool = PreparedTool(pay, prepare=prepare, execute=execute, capabilities={"money.send"})
    policy = CapabilityPolicy({"money.*": "require_approval"})
    return Agent(name="payer", tools=[tool], llm=model(call("pay", amount=3)), policy=policy, approval_handler=approve)


class _SlowPolicy(Policy):
    name = "slow"

    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        await turns(2)
        return PolicyDecision(PolicyEffect.ALLOW)


def _hooked(entered: Entered) -> Agent:
    async def wait(_subject: object) -> None:
        await turns(2)

    hooks = AgentHooks(before_model=wait, after_tool=wait, before_complete=wait)
    script = model(call("work", number=1), "done", fragment_size=1)
    return Agent(name="hooked", tools=[_working_tool(entered)], llm=script, hooks=hooks, policy=_SlowPolicy())


class _SlowModel(LLM):
    provider, model, streaming = "slow", "slow-1", True
    native_tools = True

    def __init__(self) -> None:
        self._turn = 0

    async def respond(self, request: LLMRequest) -> LLMReply:
        self._turn += 1
        for letter in "working":
            request.fragment(letter)
            await asyncio.sleep(0)
        if self._turn == 1:
            return LLMReply(text="working", calls=(ToolCall(name="work", arguments={"number": 1}, id="a"),))
        return LLMReply(text="working")


def _streaming(entered: Entered) -> Agent:
    return Agent(name="streaming", tools=[_working_tool(entered)], llm=_SlowModel())


KINDS: dict[str, Callable[[Entered], Agent]] = {
    "tools": _tools,
    "several calls": _several_calls,
    "side by side": _side_by_side,
    "prepared and approved": _prepared,
    "hooks and policies": _hooked,
    "streamed": _streaming,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_canceling_at_any_turn_of_the_loop_leaves_a_finished_run(kind: str) -> None:
    """Wherever it waits, a canceled run ends, closes what it opened and enters nothing more."""
    for turn in range(500):
        entered: Entered = []
        handle = KINDS[kind](entered).start_run("go")
        await turns(turn)

        await handle.cancel("enough")
        before = len(entered)
        await turns(10)

        result = await handle.result()
        assert_settled([event async for event in handle.events()])
        assert len(entered) == before
        if result.status == "completed":
            assert turn > 5
            return
        assert result.status == "canceled"
        assert result.task.metadata["cancel_reason"] == "enough"
    raise AssertionError("the run never ended by itself")


@pytest.mark.parametrize("kind", KINDS)
async def test_canceling_the_driving_task_at_any_turn_leaves_a_finished_run(kind: str) -> None:
    """An event loop that is shut down cancels every task; the record must still be complete."""
    for turn in range(1, 500):
        entered: Entered = []
        handle = KINDS[kind](entered).start_run("go")
        driving = [task for task in asyncio.all_tasks() if task.get_name().startswith("protolink run")]
        await turns(turn)
        if driving[0].done():
            assert turn > 5
            return

        driving[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving[0]

        assert (await handle.result()).status in ("canceled", "completed")
        assert_settled([event async for event in handle.events()])
    raise AssertionError("the run never ended by itself")


async def test_a_driving_task_that_never_had_a_turn_leaves_nobody_waiting() -> None:
    """A loop that is shut down right after the start cancels a task that has not begun; its waiters must learn it."""
    handle = _tools([]).start_run("go")
    driving = next(task for task in asyncio.all_tasks() if task.get_name().startswith("protolink run"))
    waiting = asyncio.create_task(handle.result())

    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    await turns(10)

    told = waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert told


async def test_a_run_canceled_before_its_first_turn_calls_nothing() -> None:
    """A cancellation that comes before the run had a turn of the loop finds nothing done and lets nothing begin."""
    entered: Entered = []
    handle = _tools(entered).start_run("go")

    await handle.cancel()

    events = [event async for event in handle.events()]
    assert entered == []
    assert of_type(events, "llm.call.started") == []
    assert (await handle.result()).status == "canceled"


async def test_a_tool_that_swallows_its_cancellation_cannot_complete() -> None:
    """Code that ignores being told to stop does not talk the run back to life."""
    entered = asyncio.Event()

    async def stubborn() -> str:
        entered.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "tardy value"

    agent = Agent(name="a", tools=[stubborn], llm=model(call("stubborn")), expose_tool_results=True)
    handle = agent.start_run("go")
    await entered.wait()

    await handle.cancel()

    result = await handle.result()
    assert result.status == "canceled"
    assert [record.outcome for record in result.tool_evidence] == ["canceled"]
    assert "tardy value" not in str(result.report.to_dict())


async def test_a_tool_that_never_ends_is_abandoned_after_its_grace() -> None:
    """Cleaning up has half a second; then the run ends without the tool and says that it may still work."""
    let_go, entered = asyncio.Event(), asyncio.Event()

    async def immortal() -> None:
        entered.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    clock = ManualClock()
    with use_environment(clock):
        handle = Agent(name="a", tools=[immortal], llm=model(call("immortal"))).start_run("go")
    await entered.wait()
    try:
        canceling = asyncio.create_task(handle.cancel())
        await turns(3)
        clock.advance(0.4)
        await turns(3)
        early = canceling.done()
        clock.advance(0.1)
        await canceling
    finally:
        let_go.set()
    await turns(5)

    events = [event async for event in handle.events()]
    assert not early
    assert of_type(events, "action.canceled")[0].payload["metadata"]["unsettled"] is True
    assert clock.waiting == 0
    assert_settled(events)


async def test_a_tool_that_never_ends_does_not_hold_a_canceled_driving_task() -> None:
    """A loop that is shut down waits for its tasks; the grace has to end there as well."""
    let_go, entered = asyncio.Event(), asyncio.Event()

    async def immortal() -> None:
        entered.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    clock = ManualClock()
    with use_environment(clock):
        handle = Agent(name="a", tools=[immortal], llm=model(call("immortal"))).start_run("go")
    await entered.wait()
    driving = next(task for task in asyncio.all_tasks() if task.get_name().startswith("protolink run"))
    try:
        driving.cancel()
        await turns(3)
        clock.advance(0.5)
        await turns(10)
        ended = driving.done()
    finally:
        let_go.set()
        await asyncio.gather(driving, return_exceptions=True)

    assert ended
    assert (await handle.result()).status == "canceled"


async def test_cleanup_that_keeps_to_its_grace_is_awaited() -> None:
    """A tool gets to release what it holds before the run is over."""
    entered, cleaned = asyncio.Event(), asyncio.Event()

    async def tidy() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await turns(5)
            cleaned.set()

    handle = Agent(name="a", tools=[tidy], llm=model(call("tidy"))).start_run("go")
    await entered.wait()

    await handle.cancel()

    assert cleaned.is_set()
    canceled = of_type([event async for event in handle.events()], "action.canceled")
    assert canceled[0].payload["metadata"]["unsettled"] is False


async def test_a_cleanup_that_raises_does_not_turn_a_cancellation_into_a_failure() -> None:
    """The first stopping fact is the cancellation; what breaks while tidying up comes too late to matter."""
    entered = asyncio.Event()

    async def breaks() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("cleanup broke")

    handle = Agent(name="a", tools=[breaks], llm=model(call("breaks"))).start_run("go")
    await entered.wait()

    await handle.cancel()

    assert (await handle.result()).status == "canceled"


async def test_nothing_of_the_same_reply_is_entered_after_a_cancellation() -> None:
    """Calls that wait behind a canceled one end canceled without having begun."""
    entered: list[int] = []
    waiting = asyncio.Event()

    async def step(number: int) -> None:
        entered.append(number)
        waiting.set()
        await asyncio.Event().wait()

    script = model([call("step", number=number) for number in range(3)])
    handle = Agent(name="a", tools=[step], llm=script).start_run("go")
    await waiting.wait()

    await handle.cancel()

    events = [event async for event in handle.events()]
    assert entered == [0]
    assert len(of_type(events, "action.canceled")) == 3
    assert_settled(events)


def _calls(agent: Agent) -> dict[str, Callable[[], Any]]:
    return {
        "invoke": lambda: agent.invoke("go"),
        "invoke a tool": lambda: agent.invoke("", "tool_call", "hang"),
        "invoke_typed": lambda: agent.invoke_typed("go", int),
        "run_task": lambda: agent.run_task(Task.create_infer("go")),
        "call_tool": lambda: agent.call_tool("hang"),
        "call_tool_in_context": lambda: agent.call_tool_in_context("hang", RunContext()),
    }


@pytest.mark.parametrize("verb", _calls(Agent(name="names")))
async def test_canceling_the_caller_cancels_the_run(verb: str) -> None:
    """A verb that owns its run takes it along: nothing goes on behind a caller that has gone."""
    entered, stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    agent = Agent(name="a", tools=[hang], llm=model(call("hang")))
    caller = asyncio.create_task(_calls(agent)[verb]())
    await entered.wait()

    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert stopped.is_set()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("protolink run")]


async def test_a_caller_with_a_time_limit_of_its_own_gets_its_timeout() -> None:
    """The run's cancellation must not swallow the caller's: `asyncio.timeout` has to see it."""
    entered = asyncio.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    async def bounded() -> None:
        async with asyncio.timeout(None) as limit:
            entering = asyncio.create_task(entered.wait())
            entering.add_done_callback(lambda _: limit.reschedule(asyncio.get_running_loop().time()))
            await Agent(name="a", tools=[hang]).call_tool("hang")

    with pytest.raises(TimeoutError):
        await bounded()


async def test_the_first_of_several_cancellations_gives_the_reason() -> None:
    """Canceling is idempotent; who came second waits for the same end."""
    handle = _tools([]).start_run("go")
    await turns(2)

    await asyncio.gather(*(handle.cancel(reason) for reason in ("first", "second", "third")))

    result = await handle.result()
    assert result.task.metadata["cancel_reason"] == "first"
    assert result.status == "canceled"


async def test_canceling_an_ended_run_changes_nothing() -> None:
    """A run that has completed stays completed."""
    events, result = await observe(agent := Agent(name="a", llm=model("answer")))
    handle = agent.start_run("again")
    await handle.result()

    await handle.cancel("too late")

    after = await handle.result()
    assert (result.status, after.status) == ("completed", "completed")
    assert "cancel_reason" not in after.task.metadata
    assert len(handle.report.events) == len(events)


async def test_a_canceled_run_raises_for_whoever_awaits_its_outcome() -> None:
    """A second caller, who did not cancel, learns why there is no answer."""
    handle = _tools([]).start_run("go")
    waiting = asyncio.create_task(handle.outcome())
    await turns(3)

    await handle.cancel("stopped by hand")

    with pytest.raises(TaskExecutionError, match="stopped by hand") as raised:
        await waiting
    assert raised.value.code == "canceled"
    assert raised.value.task is not None
    assert raised.value.task.state.value == "canceled"


async def test_several_readers_see_the_same_end_of_a_canceled_run() -> None:
    """A reader that waits while the run is canceled gets every event up to the last."""
    handle = _several_calls([]).start_run("go")

    async def read() -> list[str]:
        return [event.event_id async for event in handle.events()]

    readers = [asyncio.create_task(read()) for _ in range(3)]
    await turns(4)
    await handle.cancel()

    ids = await asyncio.gather(*readers)
    assert ids[0] == ids[1] == ids[2] == [event.event_id for event in handle.report.events]


async def test_a_tool_may_cancel_its_own_run() -> None:
    """Asking for the end from inside must not wait for itself."""
    handles: list[RunHandle] = []

    async def give_up() -> str:
        await handles[0].cancel("the tool gave up")
        return "unreachable"

    handles.append(Agent(name="a", tools=[give_up], llm=model(call("give_up"))).start_run("go"))
    result = await handles[0].result()

    assert result.status == "canceled"
    assert result.task.metadata["cancel_reason"] == "the tool gave up"


async def test_a_hook_may_cancel_its_own_run() -> None:
    """The same from a hook, which runs between two records."""
    handles: list[RunHandle] = []

    async def give_up(_observation: ToolObservation) -> None:
        await handles[0].cancel("seen enough")

    agent = Agent(
        name="a",
        tools=[_working_tool([])],
        llm=model(call("work", number=1)),
        hooks=AgentHooks(after_tool=give_up),
    )
    handles.append(agent.start_run("go"))

    assert (await handles[0].result()).status == "canceled"


async def test_an_approval_that_comes_after_the_cancellation_enters_nothing() -> None:
    """The handler cannot be stopped in its thread; what it finally says concerns a run that has ended."""
    entered: Entered = []
    async with blocker(result=True) as person:
        agent = Agent(
            name="a",
            tools=[_working_tool(entered)],
            llm=model(call("work", number=1)),
            policy=CapabilityPolicy(default_effect="require_approval"),
            approval_handler=person.wait,
        )
        handle = agent.start_run("go")
        await person.entered.wait()

        await handle.cancel()
        person.release()
        await person.left.wait()
        await turns(10)

    events = [event async for event in handle.events()]
    assert entered == []
    assert of_type(events, "approval.decided") == []
    assert (await handle.result()).status == "canceled"


async def test_a_provider_that_streams_in_a_thread_stops_at_its_next_fragment() -> None:
    """A thread cannot be canceled, but a reply that nobody wants need not be read to its end."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with blocker() as network:

        class Streaming(LLM):
            provider, model, streaming = "thread", "t-1", True

            def respond(self, request: LLMRequest) -> LLMReply:
                request.fragment("first")
                network.wait()
                try:
                    request.fragment("second")
                except ConnectionAbortedError:
                    loop.call_soon_threadsafe(stopped.set)
                    raise
                return LLMReply(text="unwanted")

        handle = Agent(name="a", llm=Streaming()).start_run("go")
        await network.entered.wait()
        await handle.cancel()
        network.release()
        await stopped.wait()

    chunks = [chunk async for chunk in handle.chunks()]
    assert chunks == ["first"]
    assert (await handle.result()).status == "canceled"


async def test_canceling_by_task_or_run_id_reaches_live_runs_only() -> None:
    """`cancel_task` says whether there was something to cancel."""
    agent = _tools([])
    task = Task.create_infer("go")
    handle = agent.start_run(task)
    other = agent.start_run("again")

    assert await agent.cancel_task(task.id, "by task")
    assert await agent.cancel_task(other.run_id, "by run")
    assert not await agent.cancel_task(task.id)
    assert not await agent.cancel_task("unknown")
    assert (await handle.result()).task.metadata["cancel_reason"] == "by task"


async def test_a_reason_that_is_no_text_is_refused() -> None:
    """It would be stored and shown; the mistake is the caller's and is told there."""
    handle = _tools([]).start_run("go")

    with pytest.raises(TypeError, match="reason"):
        await handle.cancel(None)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    assert (await handle.result()).status == "completed"


async def test_a_model_request_after_a_cancellation_is_never_made() -> None:
    """Canceled inside a hook before the model is asked, the model hears nothing."""
    asked: list[str] = []
    in_hook = asyncio.Event()

    async def wait(_request: ModelRequest) -> None:
        in_hook.set()
        await asyncio.Event().wait()

    async def respond() -> str:
        asked.append("asked")
        return "answer"

    agent = Agent(name="a", llm=model(respond), hooks=AgentHooks(before_model=wait))
    handle = agent.start_run("go")
    await in_hook.wait()

    await handle.cancel()

    assert asked == []
    assert await seen(handle, "task.status")
