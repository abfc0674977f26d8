"""Several calls in one reply: together where they only read, one after the other where they may change something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from protolink import Agent, ApprovalRequest, CapabilityPolicy, RunBudget, RunContext, Tool
from protolink.llms import ToolCall
from protolink.testing import call, calls
from tests.support import ListeningLLM, assert_settled, model, observe, of_type, results, types


def _gate(reached: int) -> Callable[[int], Any]:
    """A tool that returns only once so many of its calls are running."""
    everybody = asyncio.Event()
    inside: list[int] = []

    async def meet(number: int) -> int:
        inside.append(number)
        if len(inside) == reached:
            everybody.set()
        await everybody.wait()
        return number

    return meet


async def test_reading_calls_of_one_reply_overlap() -> None:
    """Each of them waits for all of them: one after the other they would never end."""
    tool = Tool(_gate(5), read_only=True)
    llm = ListeningLLM(calls(*(call("meet", number=number) for number in range(5))))

    _, result = await observe(Agent(name="a", tools=[tool], llm=llm))

    assert result.status == "completed"
    assert results(llm.heard[1]) == [0, 1, 2, 3, 4]


async def test_reading_calls_overlap_in_threads_as_well() -> None:
    """Side by side means the same for blocking tools."""
    import threading

    barrier = threading.Barrier(3)

    def meet(number: int) -> int:
        barrier.wait(20)
        return number

    tool = Tool(meet, read_only=True, sync_execution="thread")
    agent = Agent(name="a", tools=[tool], llm=model(calls(*(call("meet", number=number) for number in range(3)))))

    _, result = await observe(agent)

    assert result.status == "completed"


async def test_calls_that_may_change_something_never_overlap() -> None:
    """Without a declaration nothing is assumed: they run in the order in which they were proposed."""
    inside, most, order = 0, 0, []

    async def change(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(3):
            await asyncio.sleep(0)
        inside -= 1
        order.append(number)
        return number

    agent = Agent(name="a", tools=[change], llm=model(calls(*(call("change", number=n) for n in range(4)))))
    await observe(agent)

    assert most == 1
    assert order == [0, 1, 2, 3]


async def test_a_changing_call_between_reading_ones_has_the_run_to_itself() -> None:
    """What is read before it and after it may differ, so the order of the reply is kept around it."""
    trace: list[str] = []

    async def read(number: int) -> None:
        trace.append(f"read {number}")
        await asyncio.sleep(0)
        trace.append(f"/read {number}")

    async def write() -> None:
        trace.append("write")
        await asyncio.sleep(0)
        trace.append("/write")

    reply = calls(call("read", number=1), call("read", number=2), call("write"), call("read", number=3))
    agent = Agent(name="a", tools=[Tool(read, read_only=True), write], llm=model(reply))
    await observe(agent)

    middle = trace.index("write")
    assert set(trace[:middle]) == {"read 1", "/read 1", "read 2", "/read 2"}
    assert trace[middle:] == ["write", "/write", "read 3", "/read 3"]


@pytest.mark.parametrize("tool_calling", ["json", "native"])
async def test_results_join_the_conversation_in_the_order_of_the_calls(tool_calling: Any) -> None:
    """Whoever ends first, the model reads the answers in its own order, each under its own call."""
    first_may_end = asyncio.Event()

    async def step(number: int) -> int:
        if number == 0:
            await first_may_end.wait()
        if number == 2:
            first_may_end.set()
        return number

    llm = ListeningLLM(calls(*(call("step", number=number) for number in range(3))), tool_calling=tool_calling)
    agent = Agent(name="a", tools=[Tool(step, read_only=True)], llm=llm)

    events, _ = await observe(agent)

    assert results(llm.heard[1]) == [0, 1, 2]
    ended = [event.payload["metadata"]["args"]["number"] for event in of_type(events, "action.completed")]
    assert ended[-1] == 0
    if tool_calling == "native":
        asked = [made["id"] for made in llm.heard[1][1]["tool_calls"]]
        assert [message["tool_call_id"] for message in llm.heard[1][2:]] == asked


async def test_a_rejected_call_does_not_keep_the_valid_ones_from_running() -> None:
    """The model gets both: the result it can use and the mistake it can correct."""
    entered: list[int] = []

    def step(number: int) -> int:
        entered.append(number)
        return number

    llm = ListeningLLM(calls(call("step", number="wrong"), call("step", number=1), call("missing")))
    events, result = await observe(Agent(name="a", tools=[step], llm=llm))

    told = results(llm.heard[1])
    assert entered == [1]
    assert [told[0]["code"], told[1], told[2]["code"]] == ["invalid_arguments", 1, "unknown_tool"]
    assert result.status == "completed"
    assert_settled(events)


async def test_several_mistakes_of_one_reply_all_count() -> None:
    """The allowance is over proposals, not over replies: probing in bulk gains nothing."""
    llm = ListeningLLM(calls(*(call("missing", number=number) for number in range(3))))

    _, result = await observe(Agent(name="a", llm=llm))

    assert result.status == "failed"
    assert result.task.metadata["error"]["code"] == "tool_correction_limit"
    assert len(llm.heard) == 1


async def test_one_denied_call_keeps_all_of_the_reply_from_being_entered() -> None:
    """All are judged before the first one runs; a denial ends the run before anything happened."""
    entered: list[str] = []

    def safe() -> None:
        entered.append("safe")

    def dangerous() -> None:
        entered.append("dangerous")

    agent = Agent(
        name="a",
        tools=[safe, Tool(dangerous, capabilities=["disk.format"])],
        policy=CapabilityPolicy({"disk.*": "deny"}),
        llm=model(calls(call("safe"), call("dangerous"), call("safe"))),
    )
    events, result = await observe(agent)

    assert entered == []
    assert result.status == "failed"
    assert len(of_type(events, "action.denied")) == 1
    assert len(of_type(events, "action.canceled")) == 2
    assert_settled(events)


def _asking(entered: list[int], handler: Any, number_of_calls: int = 3) -> Agent:
    def step(number: int) -> int:
        entered.append(number)
        return number

    return Agent(
        name="a",
        tools=[step],
        policy=CapabilityPolicy(default_effect="require_approval"),
        approval_handler=handler,
        llm=model(calls(*(call("step", number=number) for number in range(number_of_calls)))),
    )


async def test_approvals_of_one_reply_are_asked_side_by_side() -> None:
    """A person sees all of what is wanted at once, and nothing is entered before all have been answered."""
    entered: list[int] = []
    everybody = asyncio.Event()
    asked: list[str] = []

    async def approve(request: ApprovalRequest, _context: RunContext) -> bool:
        assert entered == []
        asked.append(request.request_id)
        if len(asked) == 3:
            everybody.set()
        await everybody.wait()
        return True

    events, result = await observe(_asking(entered, approve))

    assert result.status == "completed"
    assert entered == [0, 1, 2]
    assert len(set(asked)) == 3
    assert types(events).index("action.started") > max(
        index for index, kind in enumerate(types(events)) if kind == "approval.decided"
    )


async def test_a_declined_call_ends_the_run_after_the_approved_ones() -> None:
    """What a person has allowed happens; what a person has refused ends the run."""
    entered: list[int] = []

    def approve(request: ApprovalRequest, _context: RunContext) -> bool:
        return bool(request.action.payload["arguments"]["number"] != 1)

    events, result = await observe(_asking(entered, approve))

    assert entered == [0, 2]
    assert result.status == "failed"
    assert result.task.metadata["error"]["code"] == "action_denied"
    assert len(of_type(events, "action.completed")) == 2
    assert len(of_type(events, "action.denied")) == 1
    assert_settled(events)


async def test_sixty_four_calls_fit_into_a_reply() -> None:
    """The limit is generous, finite and exact."""
    entered: list[int] = []

    def step(number: int) -> int:
        entered.append(number)
        return number

    llm = ListeningLLM(calls(*(call("step", number=number) for number in range(64))))
    await observe(Agent(name="a", tools=[step], llm=llm))

    assert entered == list(range(64))
    assert results(llm.heard[1]) == list(range(64))


@pytest.mark.parametrize("tool_calling", ["json", "native"])
async def test_one_call_more_is_a_mistake_that_runs_nothing(tool_calling: Any) -> None:
    """The model is told the limit and may correct itself."""
    entered: list[int] = []

    def step(number: int) -> int:
        entered.append(number)
        return number

    reply = calls(*(call("step", number=number) for number in range(65)))
    llm = ListeningLLM(reply, "I will do less", tool_calling=tool_calling)
    events, result = await observe(Agent(name="a", tools=[step], llm=llm))

    assert entered == []
    assert result.output == "I will do less"
    assert "64" in of_type(events, "llm.stream")[1].payload["content"]


def _counting(**options: Any) -> tuple[Tool, list[int]]:
    entered: list[int] = []

    def count(number: int = 0) -> int:
        entered.append(number)
        return len(entered)

    return Tool(count, **options), entered


@pytest.mark.parametrize("together", [True, False])
async def test_an_identical_call_gives_the_recorded_result_again(together: bool) -> None:
    """A model that stutters pays once, in one reply or over several; it is told that this is a repeat."""
    tool, entered = _counting()
    twice = [call("count", number=1), call("count", number=1)]
    llm = ListeningLLM(*([calls(*twice)] if together else twice))

    events, result = await observe(Agent(name="a", tools=[tool], llm=llm, expose_tool_results=True))

    assert entered == [1]
    assert results(llm.heard[-1]) == [1, 1]
    assert '"repeated":true' in llm.heard[-1][-1]["content"]
    repeated = of_type(events, "action.repeated")
    assert repeated[0].payload["metadata"]["repeat_of"] == of_type(events, "action.completed")[0].action_id
    assert len(result.tool_evidence) == 1
    assert_settled(events)


@pytest.mark.parametrize("declared", ["read_only", "repeatable"])
async def test_a_declared_tool_runs_again(declared: str) -> None:
    """Reading twice is harmless, and some effects are meant to happen twice."""
    options: dict[str, Any] = {declared: True}
    tool, entered = _counting(**options)

    await observe(Agent(name="a", tools=[tool], llm=model(call("count", number=1), call("count", number=1))))

    assert entered == [1, 1]


async def test_the_order_of_keys_makes_no_other_call() -> None:
    """Identity is about meaning: the same arguments in another order, or spelled out, are the same call."""
    entered: list[str] = []

    def pair(left: str, right: str) -> str:
        entered.append(left + right)
        return left + right

    llm = model('{"type":"tool_call","tool":"pair","args":{"left":"a","right":"b"}}', call("pair", right="b", left="a"))
    await observe(Agent(name="a", tools=[pair], llm=llm))

    assert entered == ["ab"]


async def test_a_failed_call_may_be_tried_again() -> None:
    """Only success makes a repeat."""
    entered: list[int] = []

    def flaky() -> str:
        entered.append(1)
        if len(entered) == 1:
            raise OSError("not now")
        return "worked"

    tool = Tool(flaky, on_error="observe")
    llm = ListeningLLM(call("flaky"), call("flaky"))
    await observe(Agent(name="a", tools=[tool], llm=llm))

    assert len(entered) == 2
    assert results(llm.heard[2])[1] == "worked"


async def test_another_run_does_not_repeat() -> None:
    """What one run has done is not another's result."""
    tool, entered = _counting()
    agent = Agent(name="a", tools=[tool])

    assert [await agent.call_tool("count", number=1) for _ in range(2)] == [1, 2]
    assert entered == [1, 1]


async def test_parallel_calls_cannot_overshoot_a_limit() -> None:
    """A slot of the budget is reserved before its call starts, so together they are bound as one by one."""
    entered: list[int] = []

    async def read(number: int) -> int:
        entered.append(number)
        await asyncio.sleep(0)
        return number

    agent = Agent(
        name="a",
        tools=[Tool(read, read_only=True)],
        llm=model(calls(*(call("read", number=number) for number in range(6)))),
    )
    events, result = await observe(agent, budget=RunBudget(max_tool_calls=4))

    assert entered == [0, 1, 2, 3]
    assert result.task.metadata["error"]["code"] == "budget_exceeded"
    assert_settled(events)


async def test_one_failure_among_parallel_calls_lets_the_others_finish() -> None:
    """They were entered already; their results are recorded, and then the run fails."""
    both = asyncio.Event()

    async def read(number: int) -> int:
        if number == 0:
            both.set()
            raise ValueError("broken")
        await both.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        return number

    agent = Agent(
        name="a",
        tools=[Tool(read, read_only=True)],
        llm=model(calls(*(call("read", number=number) for number in range(3)))),
    )
    events, result = await observe(agent)

    assert sorted(record.outcome for record in result.tool_evidence) == ["completed", "completed", "failed"]
    assert result.status == "failed"
    assert_settled(events)


async def test_native_ids_that_collide_or_lack_are_replaced() -> None:
    """Results are matched to calls by id, so two calls never share one, whatever the provider says."""
    from protolink.llms import LLM, LLMReply, LLMRequest

    heard: list[Any] = []

    class Careless(LLM):
        provider, model, native_tools = "careless", "c-1", True

        async def respond(self, request: LLMRequest) -> LLMReply:
            heard.append([dict(message) for message in request.messages])
            if len(heard) > 1:
                return LLMReply(text="done")
            ids = ["same", "same", None, ""]
            return LLMReply(calls=tuple(ToolCall(name="step", arguments={"n": n}, id=i) for n, i in enumerate(ids)))

    def step(n: int) -> int:
        return n

    await observe(Agent(name="a", tools=[step], llm=Careless()))

    asked = [made["id"] for made in heard[1][1]["tool_calls"]]
    assert len(set(asked)) == 4
    assert [message["tool_call_id"] for message in heard[1][2:]] == asked
