"""Lost model calls: when they are made again, of which model, and what becomes visible of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest

from protolink import Agent, ModelFailedError, RunBudget, RunEvent
from protolink._environment import use_environment
from protolink.errors import ConfigurationError
from protolink.llms import (
    LLM,
    LLMReply,
    LLMRequest,
    MockLLM,
    ModelCallError,
    ModelUsage,
    Pricing,
    RetryPolicy,
    RoutedLLM,
)
from protolink.testing import ManualClock, call
from tests.support import ListeningLLM, observe, of_type

BUSY = ModelCallError("the provider is busy", retryable=True, status=429)
AT_ONCE = RetryPolicy(first_delay_seconds=0)


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def _retried(events: list[RunEvent]) -> list[dict[str, Any]]:
    return [event.payload["metadata"] for event in of_type(events, "llm.call.retried")]


async def test_a_lost_call_is_made_again_and_both_are_charged() -> None:
    """The provider counts every call, so the budget does as well; the turn is one."""
    llm = ListeningLLM(BUSY, BUSY, "done")

    events, result = await observe(Agent(name="a", llm=llm, retry_policy=AT_ONCE))

    assert result.output == "done"
    assert [one["attempts"] for one in _retried(events)] == [1, 2]
    assert [one["status"] for one in _retried(events)] == [429, 429]
    completed = of_type(events, "llm.call.completed")[0].payload["metadata"]
    assert completed["attempts"] == 3
    assert (completed["budget"]["steps"], completed["budget"]["llm_calls"]) == (1, 3)


@pytest.mark.parametrize("failure", [ModelCallError("bad key", status=401), RuntimeError("a bug")])
async def test_what_will_not_be_better_is_not_tried_again(failure: Exception) -> None:
    """A wrong key stays wrong, and a bug of an adapter is nobody's outage."""
    llm = ListeningLLM(failure, "done")

    with pytest.raises(ModelFailedError):
        await Agent(name="a", llm=llm, retry_policy=AT_ONCE).invoke("go")
    assert len(llm.requests) == 1


async def test_the_last_failure_is_the_cause() -> None:
    """After as many calls as the policy allows, the run says what the provider said last."""
    llm = ListeningLLM(BUSY, BUSY, BUSY, "done")

    with pytest.raises(ModelFailedError, match="busy") as raised:
        await Agent(name="a", llm=llm, retry_policy=AT_ONCE).invoke("go")
    assert raised.value.__cause__ is BUSY
    assert len(llm.requests) == 3


async def test_the_pauses_grow_and_honour_the_providers_wish() -> None:
    """Half of each pause is chance, of which the manual clock takes all."""
    wish = ModelCallError("busy", retryable=True, retry_after=7)
    llm = ListeningLLM(BUSY, BUSY, wish, "done")
    clock = WatchedClock()
    policy = RetryPolicy(max_attempts=4, first_delay_seconds=1)
    with use_environment(clock):
        handle = Agent(name="a", llm=llm, retry_policy=policy).start_run("go")
        delays: list[float] = []
        async for event in handle.events():
            if event.type == "llm.call.retried":
                delays.append(event.payload["metadata"]["delay_seconds"])
                await clock.is_set.wait()
                clock.is_set.clear()
                clock.advance(delays[-1])

    assert delays == [1, 2, 7]
    assert (await handle.result()).output == "done"


class WatchedClock(ManualClock):
    """A clock that says when a timer was set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_set = asyncio.Event()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        """Set a timer, and say so."""
        self.is_set.set()
        return super().call_later(seconds, callback)


async def test_a_wish_beyond_the_longest_pause_is_not_waited_for() -> None:
    """A run that would sleep for an hour without anybody knowing is worse than one that says why it ended."""
    llm = ListeningLLM(ModelCallError("quota", retryable=True, retry_after=3600), "done")

    with pytest.raises(ModelFailedError, match="quota"):
        await Agent(name="a", llm=llm).invoke("go")


async def test_a_pause_can_be_canceled() -> None:
    """Nobody has to wait for a provider once nobody wants its answer."""
    with use_environment(ManualClock()):
        handle = Agent(name="a", llm=ListeningLLM(BUSY, "done")).start_run("go")
        async for event in handle.events():
            if event.type == "llm.call.retried":
                await handle.cancel()

    assert (await handle.result()).status == "canceled"


async def test_a_deadline_ends_a_pause() -> None:
    """Waiting for a provider is work of the run like any other."""
    clock = ManualClock()
    with use_environment(clock):
        budget = RunBudget(max_runtime_seconds=0.1)
        handle = Agent(name="a", llm=ListeningLLM(BUSY, "done")).start_run("go", budget=budget)
        async for event in handle.events():
            if event.type == "llm.call.retried":
                clock.advance(0.2)

    assert "max_runtime_seconds" in ((await handle.result()).error or "")


async def test_no_call_is_made_that_the_budget_forbids() -> None:
    """The limit counts calls, whatever they are made for."""
    llm = ListeningLLM(BUSY, "done")

    with pytest.raises(ModelFailedError, match="busy"):
        await Agent(name="a", llm=llm, retry_policy=AT_ONCE).invoke("go", budget=RunBudget(max_llm_calls=1))
    assert len(llm.requests) == 1


async def test_what_a_lost_call_consumed_is_counted() -> None:
    """A reply that broke off may have been charged for."""
    lost = ModelCallError("cut", retryable=True, usage=ModelUsage(input_tokens=100, output_tokens=50, cost=2.0))
    llm = ListeningLLM(lost, "done")

    events, _ = await observe(Agent(name="a", llm=llm, retry_policy=AT_ONCE))

    budget = of_type(events, "llm.call.completed")[0].payload["metadata"]["budget"]
    assert budget["input_tokens"] > 100
    assert budget["output_tokens"] > 50
    assert budget["cost"] == 2.0


class Breaking(LLM):
    """Shows a piece of its reply and loses the rest, as often as it is told to."""

    provider, model, streaming = "test", "breaking", True

    def __init__(self, times: int) -> None:
        self.times = times

    async def respond(self, request: LLMRequest) -> LLMReply:
        self.times -= 1
        if self.times >= 0:
            request.fragment("Hel")
            raise ModelCallError("cut off", retryable=True)
        request.fragment("Hello.")
        return LLMReply(text="Hello.")


async def test_a_reply_that_broke_off_says_so_before_it_is_streamed_again() -> None:
    """A reader that joins fragments has to know that those before count for nothing."""
    events, result = await observe(Agent(name="a", llm=Breaking(1), retry_policy=AT_ONCE))

    shown = [
        event.payload.get("content") or event.payload["metadata"]["streamed"]
        for event in events
        if event.payload.get("llm_event_type") in ("llm_chunk", "llm_call_retried")
    ]
    assert shown == ["Hel", True, "Hello."]
    assert result.output == "Hello."


async def test_the_next_model_answers_where_the_first_one_fails() -> None:
    """Another provider is there at once, so nobody waits for the one that is down."""
    down = MockLLM("down", default_response=ModelCallError("no such key", status=401))
    up = ListeningLLM(call("add", left=1, right=2), "done", model="up", tool_calling="native")
    agent = Agent(name="a", tools=[add], llm=RoutedLLM([down, up]))

    events, result = await observe(agent)

    assert result.output == "done"
    (fallback,) = _retried(events)
    assert (fallback["model"], fallback["next_model"], fallback["delay_seconds"]) == ("down", "up", 0)
    completed = [event.payload["metadata"] for event in of_type(events, "llm.call.completed")]
    assert [(one["model"], one["native"], one["attempts"]) for one in completed] == [("up", True, 2), ("up", True, 1)]
    assert [request.native for request in up.requests] == [True, True]


async def test_a_model_is_not_changed_in_the_middle_of_a_reply() -> None:
    """Half of one model's sentence and half of another's is nobody's answer."""
    up = ListeningLLM("done", model="up")

    events, result = await observe(Agent(name="a", llm=RoutedLLM([Breaking(1), up]), retry_policy=AT_ONCE))

    assert [one["next_model"] for one in _retried(events)] == ["breaking"]
    assert (result.output, up.requests) == ("Hello.", [])


async def test_every_run_begins_with_the_first_model() -> None:
    """An outage of one run is no verdict on the model for good."""
    first = ListeningLLM(BUSY, "first", model="first")
    agent = Agent(name="a", llm=RoutedLLM([first, ListeningLLM("second", model="second")]))

    assert [await agent.invoke("go"), await agent.invoke("go")] == ["second", "first"]


async def test_a_model_without_a_price_is_no_fallback_under_a_limit_of_money() -> None:
    """The limit could not be kept there."""
    priced, free = ListeningLLM(ModelCallError("down")), ListeningLLM("done")
    priced.pricing = Pricing(input=1, output=1)

    with pytest.raises(ModelFailedError, match="down"):
        await Agent(name="a", llm=RoutedLLM([priced, free])).invoke("go", budget=RunBudget(max_cost=1))
    assert free.requests == []


@pytest.mark.parametrize("models", [[], "mock", [3]])
def test_what_cannot_be_routed_is_refused(models: Any) -> None:
    """It is a mistake in the wiring."""
    with pytest.raises(ConfigurationError):
        RoutedLLM(models)


@pytest.mark.parametrize(
    "options", [{"max_attempts": 0}, {"first_delay_seconds": -1}, {"max_delay_seconds": float("inf")}]
)
def test_a_policy_without_an_end_is_refused(options: dict[str, Any]) -> None:
    """A retry that nobody bounds is an outage of one's own."""
    with pytest.raises(ConfigurationError):
        RetryPolicy(**options)


@pytest.mark.parametrize("mode", ["json", "native"])
async def test_the_next_model_reads_the_conversation_in_its_own_form(mode: Literal["json", "native"]) -> None:
    """Half a conversation was said to another model, and a provider refuses what is not in its format."""
    other: Literal["json", "native"] = "json" if mode == "native" else "native"
    first = ListeningLLM(call("add", left=1, right=2), ModelCallError("down"), model="first", tool_calling=mode)
    second = ListeningLLM("done", model="second", tool_calling=other)

    await observe(Agent(name="a", tools=[add], llm=RoutedLLM([first, second])))

    _, reply, result = second.heard[0]
    assert "tool_calls" not in reply
    assert '"tool":"add"' in reply["content"]
    assert result["role"] == ("tool" if other == "json" else "user")


async def test_a_session_is_gone_on_with_by_a_model_of_the_other_form() -> None:
    """The messages of a session outlive the model that said them."""
    native = ListeningLLM(call("add", left=1, right=2), tool_calling="native")
    agent = Agent(name="a", tools=[add], llm=native, state=["conversation"])
    await agent.invoke("go", session_id="s")
    said = ListeningLLM()
    agent.llm = said

    await agent.invoke("on", session_id="s")

    assert all("tool_calls" not in message for message in said.heard[0])
    assert '"tool":"add"' in said.heard[0][1]["content"]
