"""Worker threads: a bound that holds, a queue that is fair, and application code that cannot hurt the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from protolink import Agent, AgentHooks, ApprovalRequest, CapabilityPolicy, RunContext, Tool, ToolFailedError
from protolink.testing import call
from tests.reliability.scale import scaled
from tests.reliability.tally import Tally
from tests.support import PATIENCE_SECONDS, assert_settled, blocker, model, observe, of_type, turns

Interpreter = Callable[[str], str]


async def test_a_slot_comes_back_when_its_thread_ends() -> None:
    """Not when the waiter gives up: a bound that forgets running threads is none."""
    entered: list[int] = []
    async with blocker() as first:

        def work(number: int) -> int:
            entered.append(number)
            if number == 1:
                first.wait()
            return number

        agent = Agent(name="a", tools=[work], sync_execution="thread", max_sync_workers=1)
        given_up = asyncio.create_task(agent.call_tool("work", number=1))
        await first.entered.wait()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        waiting = asyncio.create_task(agent.call_tool("work", number=2))
        await turns(20)
        while_running = list(entered)
        first.release()

        assert await waiting == 2
    assert while_running == [1]


async def test_waiting_calls_get_their_slot_in_order() -> None:
    """Who asked first is served first."""
    entered: list[int] = []
    async with blocker() as first:

        def work(number: int) -> int:
            entered.append(number)
            if number == 0:
                first.wait()
            return number

        agent = Agent(name="a", tools=[work], sync_execution="thread", max_sync_workers=1)
        calls = [asyncio.create_task(agent.call_tool("work", number=0))]
        await first.entered.wait()
        for number in range(1, 6):
            calls.append(asyncio.create_task(agent.call_tool("work", number=number)))
            await turns(5)
        first.release()

        assert await asyncio.gather(*calls) == [0, 1, 2, 3, 4, 5]
    assert entered == [0, 1, 2, 3, 4, 5]


async def test_a_canceled_waiting_call_passes_its_slot_on() -> None:
    """It is never entered, and whoever stood behind it moves up."""
    entered: list[int] = []
    async with blocker() as first:

        def work(number: int) -> int:
            entered.append(number)
            if number == 0:
                first.wait()
            return number

        agent = Agent(name="a", tools=[work], sync_execution="thread", max_sync_workers=1)
        calls = [asyncio.create_task(agent.call_tool("work", number=0))]
        await first.entered.wait()
        for number in (1, 2):
            calls.append(asyncio.create_task(agent.call_tool("work", number=number)))
            await turns(5)
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        first.release()

        assert await calls[2] == 2
        assert await calls[0] == 0
    assert entered == [0, 2]


async def test_a_call_that_never_got_its_slot_is_not_unsettled() -> None:
    """Canceled in the queue, nothing of it can still be running."""
    async with blocker() as first:
        agent = Agent(
            name="a",
            tools=[Tool(lambda: first.wait(), name="hold", input_schema={"type": "object"})],
            sync_execution="thread",
            max_sync_workers=1,
        )
        holding = asyncio.create_task(agent.call_tool("hold"))
        await first.entered.wait()
        agent.llm = model(call("hold"))
        handle = agent.start_run("go")
        await turns(10)
        await handle.cancel()
        first.release()
        await holding

    events = [event async for event in handle.events()]
    canceled = of_type(events, "action.canceled")
    assert canceled[0].payload["metadata"]["unsettled"] is False


class UnprintableError(Exception):
    """An exception that cannot say what it is about."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISED: dict[str, Callable[[], BaseException]] = {
    "StopIteration": lambda: StopIteration("stop"),
    "StopAsyncIteration": lambda: StopAsyncIteration("stop"),
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": lambda: GeneratorExit("gone"),
    "CancelledError": lambda: asyncio.CancelledError("mine"),
    "unprintable": UnprintableError,
    "BaseException": lambda: BaseException("bare"),
    "group": lambda: BaseExceptionGroup("several", [SystemExit(1), ValueError("x")]),
    "TimeoutError": lambda: TimeoutError("slow"),
    "AssertionError": lambda: AssertionError("wrong"),
}


def _raising(mode: str, make: Callable[[], BaseException]) -> Tool:
    async def on_loop() -> None:
        await turns(1)
        raise make()

    def plain() -> None:
        raise make()

    if mode == "async":
        return Tool(on_loop, name="break")
    return Tool(plain, name="break", sync_execution="thread" if mode == "thread" else "inline")


@pytest.mark.parametrize("mode", ["inline", "thread", "async"])
@pytest.mark.parametrize("raised", RAISED)
async def test_whatever_a_tool_raises_fails_its_run_only(raised: str, mode: str) -> None:
    """Neither the event loop nor the process is the tool's to end."""
    agent = Agent(name="a", tools=[_raising(mode, RAISED[raised])], llm=model(call("break")))

    events, result = await observe(agent)

    assert result.status == "failed"
    assert result.tool_evidence[0].outcome == "failed"
    assert_settled(events)
    _, after = await observe(Agent(name="b", llm=model("alive")))
    assert after.output == "alive"


@pytest.mark.parametrize("raised", RAISED)
async def test_the_slot_of_a_thread_that_raised_comes_back(raised: str) -> None:
    """An exception is an end as well."""
    agent = Agent(name="a", tools=[_raising("thread", RAISED[raised])], max_sync_workers=1)

    for _ in range(3):
        with pytest.raises(ToolFailedError):
            await agent.call_tool("break")


async def test_an_interrupt_in_a_thread_is_that_threads_failure() -> None:
    """Python delivers the real one to the main thread only, so this one is an exception like any other."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    agent = Agent(name="a", tools=[interrupt], sync_execution="thread", max_sync_workers=1)

    for _ in range(2):
        with pytest.raises(ToolFailedError):
            await agent.call_tool("interrupt")


async def _exit(*_: Any) -> Any:
    raise SystemExit(4)


def _exit_now(*_: Any) -> Any:
    raise SystemExit(4)


def note(number: int = 0) -> int:
    """Note a number."""
    return number


_ASKING = CapabilityPolicy(default_effect="require_approval")

LEAVING: dict[str, Callable[[Callable[..., Any]], dict[str, Any]]] = {
    "before_model": lambda exit: {"hooks": AgentHooks(before_model=exit)},
    "after_tool": lambda exit: {"hooks": AgentHooks(after_tool=exit)},
    "before_complete": lambda exit: {"hooks": AgentHooks(before_complete=exit)},
    "approval_handler": lambda exit: {"policy": _ASKING, "approval_handler": exit},
    "llm_factory": lambda exit: {"llm": None, "llm_factory": exit},
    "action_builder": lambda exit: {"tools": [Tool(note, action_builder=exit)]},
}


@pytest.mark.parametrize("leave", [_exit, _exit_now], ids=["async", "sync"])
@pytest.mark.parametrize("place", LEAVING)
async def test_exiting_is_a_failure_of_the_code_that_does_it(place: str, leave: Callable[..., Any]) -> None:
    """`sys.exit()` in a hook, a handler, a factory or a preparation ends this run and not the service."""
    options: dict[str, Any] = {"tools": [note], "llm": model(call("note", number=1)), **LEAVING[place](leave)}

    events, result = await observe(Agent(name="a", **options))

    assert result.status == "failed"
    assert "SystemExit" in (result.error or "")
    assert_settled(events)


async def test_an_exiting_model_fails_the_attempt() -> None:
    """The same for a provider."""
    _, result = await observe(Agent(name="a", llm=model(SystemExit(2))))

    assert result.status == "failed"


def test_event_loops_in_several_threads_share_one_bound() -> None:
    """The limit belongs to the agent, whoever drives its runs."""
    lock, running, most = threading.Lock(), [0], [0]
    full, go = threading.Event(), threading.Event()

    def work(number: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] == 2:
                full.set()
        go.wait(PATIENCE_SECONDS)
        with lock:
            running[0] -= 1
        return number

    agent = Agent(name="a", tools=[work], sync_execution="thread", max_sync_workers=2)
    answers: list[int] = []

    def serve(start: int) -> None:
        async def main() -> list[Any]:
            return await asyncio.gather(*(agent.call_tool("work", number=start + n) for n in range(3)))

        answers.extend(asyncio.run(main()))

    loops = [threading.Thread(target=serve, args=(start,)) for start in (0, 10, 20)]
    for thread in loops:
        thread.start()
    assert full.wait(PATIENCE_SECONDS)
    go.set()
    for thread in loops:
        thread.join(PATIENCE_SECONDS)

    assert sorted(answers) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert most == [2]


def test_a_loop_that_closed_leaves_its_slot_to_the_others() -> None:
    """A waiting call whose loop is gone must not swallow the slot that it is given."""
    go = threading.Event()
    inside: list[Callable[[], object]] = []

    def work(number: int) -> int:
        inside[0]()
        if number == 0:
            go.wait(PATIENCE_SECONDS)
        return number

    agent = Agent(name="a", tools=[work], sync_execution="thread", max_sync_workers=1)

    async def abandon() -> None:
        entered = asyncio.Event()
        loop = asyncio.get_running_loop()
        inside.append(lambda: loop.is_closed() or loop.call_soon_threadsafe(entered.set))
        holding = asyncio.create_task(agent.call_tool("work", number=0))
        await entered.wait()
        queued = asyncio.create_task(agent.call_tool("work", number=1))
        await turns(5)
        holding.cancel()
        queued.cancel()
        await asyncio.gather(holding, queued, return_exceptions=True)

    asyncio.run(abandon())
    go.set()

    assert asyncio.run(agent.call_tool("work", number=2)) == 2


@pytest.mark.fault(name="F11")
def test_stuck_threads_do_not_keep_the_process_alive(interpreter: Interpreter, tally: Tally) -> None:
    """Functions that never return keep their slots, whoever waits for one can leave, and none is joined at exit."""
    threads = scaled(commit=8, short=30, full=100)
    program = """
import asyncio, threading
from protolink import Agent

entered = threading.Semaphore(0)
THREADS = %d

def stuck() -> None:
    entered.release()
    threading.Event().wait()

async def main():
    agent = Agent(name="a", tools=[stuck], sync_execution="thread", max_sync_workers=THREADS)
    calls = [asyncio.create_task(agent.call_tool("stuck")) for _ in range(THREADS)]
    for _ in range(THREADS):
        while not entered.acquire(blocking=False):
            await asyncio.sleep(0)
    for one in calls:
        one.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    late = asyncio.create_task(agent.call_tool("stuck"))
    for _ in range(50):
        await asyncio.sleep(0)
    print(entered.acquire(blocking=False), late.done())
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)

asyncio.run(main())
print("over")
"""
    assert interpreter(program % threads) == "False False\nover\n"
    tally.add("threads that never return", threads)


def test_a_thread_that_cannot_be_started_is_a_failure_and_costs_no_slot(interpreter: Interpreter) -> None:
    """For who asks now, and for who has waited for a slot; whoever was at work hears of nothing."""
    program = """
import asyncio, threading
from protolink import Agent, ToolFailedError

LARGER_THAN_MEMORY = 1 << 46
go = threading.Event()

def work(number: int) -> int:
    if number == 1:
        go.wait()
    return number

async def main():
    agent = Agent(name="a", tools=[work], sync_execution="thread", max_sync_workers=1)
    first = asyncio.create_task(agent.call_tool("work", number=1))
    second = asyncio.create_task(agent.call_tool("work", number=2))
    await asyncio.sleep(0)
    while agent.configuration().workers.busy == 0:
        await asyncio.sleep(0)
    threading.stack_size(LARGER_THAN_MEMORY)
    go.set()
    for each in await asyncio.gather(first, second, return_exceptions=True):
        print(each if isinstance(each, int) else type(each).__name__)
    threading.stack_size(0)
    print(await agent.call_tool("work", number=3))

asyncio.run(main())
"""
    assert interpreter(program) == "1\nToolFailedError\n3\n"


async def test_threads_see_the_context_variables_of_the_request() -> None:
    """What a thread changes in them stays in the thread."""
    from contextvars import ContextVar

    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

    def read() -> str:
        value = tenant.get()
        tenant.set("changed")
        return value

    agent = Agent(name="a", tools=[Tool(read, repeatable=True)], sync_execution="thread", max_sync_workers=1)
    tenant.set("first")

    assert [await agent.call_tool("read") for _ in range(2)] == ["first", "first"]
    assert tenant.get() == "first"


async def test_a_thread_may_return_an_awaitable() -> None:
    """A plain function that hands back a coroutine is awaited on the loop."""

    async def later() -> str:
        return "awaited"

    def soon() -> Any:
        return later()

    assert await Agent(name="a", tools=[soon], sync_execution="thread").call_tool("soon") == "awaited"


async def test_a_blocking_approval_takes_a_slot_of_the_agent() -> None:
    """Handlers, factories and tools are counted together; nothing of the agent blocks without a slot."""
    order: list[str] = []
    async with blocker() as busy:

        def hold() -> None:
            busy.wait()
            order.append("tool")

        def approve(_request: ApprovalRequest, _context: RunContext) -> bool:
            order.append("approval")
            return True

        def free() -> None:
            """Do nothing."""

        tools: list[Any] = [hold, Tool(free, capabilities=["x.y"])]
        agent = Agent(
            name="a",
            tools=tools,
            sync_execution="thread",
            max_sync_workers=1,
            policy=CapabilityPolicy({"x.*": "require_approval"}),
            approval_handler=approve,
        )
        holding = asyncio.create_task(agent.call_tool("hold"))
        await busy.entered.wait()
        asking = asyncio.create_task(agent.call_tool("free"))
        await turns(20)
        busy.release()
        await asyncio.gather(holding, asking)

    assert order == ["tool", "approval"]
