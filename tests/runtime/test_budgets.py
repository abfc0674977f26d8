"""Budgets: each limit is reached exactly, names itself, and lets nothing through behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, BudgetExceededError, Part, RunBudget, RunContext, RunManager, Task, TaskExecutionError
from protolink.llms import MockTurn, ModelUsage, Pricing
from protolink.testing import call
from tests.support import ListeningLLM, model, observe, of_type, types


def step(number: int) -> int:
    """Return a number."""
    return number


def other(number: int) -> int:
    """Return a number as well."""
    return number


def _endless(**options: Any) -> ListeningLLM:
    return ListeningLLM(*(call("step", number=number) for number in range(100)), **options)


def _agent(llm: Any = None) -> Agent:
    return Agent(name="a", tools=[step, other], llm=llm or _endless())


@pytest.mark.parametrize(
    ("budget", "limit", "turns", "executions"),
    [
        (RunBudget(max_steps=3), "max_steps", 3, 3),
        (RunBudget(max_llm_calls=2), "max_llm_calls", 2, 2),
        (RunBudget(max_tool_calls=2), "max_tool_calls", 3, 2),
        (RunBudget(max_calls={"step": 1}), "max_calls[step]", 2, 1),
        (RunBudget(max_calls={"other": 0}), "max_steps", 10, 10),
        (RunBudget(), "max_steps", 10, 10),
        (RunBudget(max_steps=0), "max_steps", 0, 0),
        (RunBudget(max_llm_calls=0), "max_llm_calls", 0, 0),
        (RunBudget(max_tool_calls=0), "max_tool_calls", 1, 0),
        (RunBudget(max_input_tokens=0), "max_input_tokens", 0, 0),
        (RunBudget(max_output_tokens=0), "max_output_tokens", 0, 0),
        (RunBudget(max_output_tokens=1), "max_output_tokens", 1, 1),
    ],
)
async def test_a_limit_is_reached_exactly(budget: RunBudget, limit: str, turns: int, executions: int) -> None:
    """The last permitted piece of work happens, the next one does not, and the error names the limit."""
    llm = _endless()
    handle = _agent(llm).start_run("go", budget=budget)

    with pytest.raises(BudgetExceededError, match=limit.partition("[")[0]) as raised:
        await handle.outcome()

    events = list(handle.report.events)
    assert raised.value.limit == limit
    assert raised.value.code == "budget_exceeded"
    assert len(llm.heard) == turns
    assert len(of_type(events, "action.completed")) == executions
    assert of_type(events, "budget.exceeded")[0].payload["decision"]["limit"] == limit


async def test_a_run_is_warned_before_it_uses_the_rest() -> None:
    """At four fifths, once for each limit, and before the next piece of work."""
    events, _ = await observe(_agent(), budget=RunBudget(max_llm_calls=5, max_tool_calls=10))

    (warning,) = of_type(events, "budget.warning")
    assert warning.payload["decision"] == {"limit": "max_llm_calls", "allowed": 5, "used": 4}
    assert warning.severity == "warning"
    following = types(events)[warning.sequence :]
    assert (following[0], following.count("llm.call.started")) == ("llm.call.started", 1)


async def test_a_run_that_is_done_is_warned_of_nothing() -> None:
    """Its last turn used the last call; there is no rest that anybody could save."""
    llm = ListeningLLM(call("step", number=1), call("step", number=2), call("step", number=3), "answer")
    events, result = await observe(_agent(llm), budget=RunBudget(max_llm_calls=4, max_steps=4))

    assert result.status == "completed"
    assert of_type(events, "budget.warning") == []


async def test_a_tree_is_warned_once() -> None:
    """What a worker used is its root's, and where it came up the root is not warned again."""
    worker = Agent(name="worker", tools=[step], llm=ListeningLLM(*(call("step", number=n) for n in range(9)), "found"))
    llm = ListeningLLM(call("worker", task="go"), call("step", number=9), "done")
    parent = Agent(name="parent", tools=[step], llm=llm, subagents=[worker])
    parent.add_worker_tool("worker")
    events, result = await observe(parent, budget=RunBudget(max_tool_calls=10))

    assert result.status == "completed"
    assert [event.agent_name for event in of_type(events, "budget.warning")] == ["worker"]


async def test_a_direct_tool_run_is_warned() -> None:
    """It has no turns; each execution is a piece of work."""
    task = Task.create_tool_call("step", {"number": 0}, budget=RunBudget(max_tool_calls=5))
    for number in range(1, 5):
        content = {"tool_name": "step", "args": {"number": number}, "call_id": f"call {number}"}
        task.messages[0].parts.append(Part("tool_call", content))
    events, result = await observe(_agent(), task)

    assert result.status == "completed"
    (warning,) = of_type(events, "budget.warning")
    assert len(of_type(events[: warning.sequence], "action.started")) == 4


async def test_a_resumed_run_is_not_warned_again(tmp_path: Path) -> None:
    """The warning is in the list, like what was used."""
    llm = _endless()
    agent = Agent(name="a", tools=[step], llm=llm, yield_after_steps=4, durability=tmp_path / "runs.db")
    context = RunContext(budget=RunBudget(max_llm_calls=9))
    await agent.run_task(Task.create_infer("go", context=context))
    for _ in range(2):
        await agent.resume_task(context.run_id)

    report = await RunManager(agent).inspect(context.run_id)
    assert [event.type for event in report.events].count("budget.warning") == 1
    assert len(llm.heard) == 9


async def test_max_steps_replaces_the_ten_turns() -> None:
    """Whoever sets the limit may set a larger one."""
    llm = ListeningLLM(*(call("step", number=number) for number in range(15)))

    _, result = await observe(_agent(llm), budget=RunBudget(max_steps=16))

    assert result.status == "completed"
    assert len(llm.heard) == 16


async def test_a_rejected_proposal_costs_a_turn_and_no_tool_call() -> None:
    """What was never entered is not charged."""
    llm = ListeningLLM(call("step", number="x"), call("step", number=1))

    _, result = await observe(_agent(llm), budget=RunBudget(max_tool_calls=1, max_llm_calls=3))

    assert result.status == "completed"


async def test_a_direct_call_is_within_the_budget_of_its_context() -> None:
    """An explicit tool run has limits as well."""
    with pytest.raises(BudgetExceededError) as raised:
        await _agent().call_tool_in_context("step", RunContext(budget=RunBudget(max_tool_calls=0)), number=1)

    assert raised.value.limit == "max_tool_calls"


async def test_reported_tokens_are_what_counts() -> None:
    """Where the provider reports, its numbers are charged and are not called an estimate."""
    turn = MockTurn(call("step", number=1), usage=ModelUsage(input_tokens=900, output_tokens=7, source="provider"))
    llm = ListeningLLM(turn, "answer")

    events, result = await observe(_agent(llm), budget=RunBudget(max_input_tokens=1000))

    usage = of_type(events, "llm.call.completed")[0].payload["metadata"]["metrics"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (900, 7, 907)
    assert usage["estimated"] is False
    assert result.task.metadata["error"]["code"] == "budget_exceeded"
    assert len(llm.heard) == 1


async def test_estimated_tokens_say_that_they_are() -> None:
    """An estimate is never presented as a measurement, and it counts nevertheless."""
    events, result = await observe(_agent(ListeningLLM("x" * 400)), "y" * 4000)

    details = of_type(events, "llm.call.completed")[0].payload["metadata"]
    usage = details["metrics"]["usage"]
    assert usage["estimated"] is True
    assert "estimate" in usage["source"]
    assert usage["input_tokens"] > 1000
    assert usage["output_tokens"] == 101
    assert details["metrics"]["cost"] is None
    assert result.report.metrics["budget"]["input_tokens"] == usage["input_tokens"]


async def test_an_input_that_is_too_long_is_never_sent() -> None:
    """The estimate is checked before the call, which would already cost."""
    llm = ListeningLLM("answer")

    _, result = await observe(_agent(llm), "y" * 40_000, budget=RunBudget(max_input_tokens=1000))

    assert llm.heard == []
    assert result.task.metadata["error"]["code"] == "budget_exceeded"


async def test_a_model_is_told_how_much_it_may_say() -> None:
    """What is left of the output limit travels with the request."""
    turn = MockTurn(call("step", number=1), usage=ModelUsage(input_tokens=1, output_tokens=30))
    llm = ListeningLLM(turn, "answer")

    await observe(_agent(llm), budget=RunBudget(max_output_tokens=100))

    assert [request.max_output_tokens for request in llm.requests] == [100, 70]


class PricedLLM(ListeningLLM):
    """A scripted model whose price is known."""

    blocking = False
    pricing = Pricing(input=2.0, output=10.0)


async def test_a_known_price_gives_a_cost() -> None:
    """Money for a million tokens, in and out."""
    turn = MockTurn("answer", usage=ModelUsage(input_tokens=1_000_000, output_tokens=100_000))

    events, _ = await observe(_agent(PricedLLM(turn)))

    details = of_type(events, "llm.call.completed")[0].payload["metadata"]
    assert details["metrics"]["cost"] == pytest.approx(3.0)
    assert details["budget"]["cost"] == pytest.approx(3.0)


async def test_the_cost_of_a_run_is_limited() -> None:
    """The turn that passes the limit is the last one."""
    usage = ModelUsage(input_tokens=1_000_000, output_tokens=0)
    llm = PricedLLM(*(MockTurn(call("step", number=number), usage=usage) for number in range(9)))

    with pytest.raises(BudgetExceededError) as raised:
        await _agent(llm).invoke("go", budget=RunBudget(max_cost=4.0))

    assert (raised.value.limit, raised.value.allowed) == ("max_cost", 4.0)
    assert len(llm.heard) == 2


async def test_a_cost_that_the_provider_reports_is_believed() -> None:
    """Its own bill goes before our prices."""
    turn = MockTurn("answer", usage=ModelUsage(input_tokens=10, output_tokens=10, cost=0.25))

    events, _ = await observe(_agent(PricedLLM(turn)))

    assert of_type(events, "llm.call.completed")[0].payload["metadata"]["metrics"]["cost"] == 0.25


async def test_a_cost_limit_on_a_model_without_prices_is_refused_clearly() -> None:
    """A limit that cannot be checked must not look as if it were kept; the model is not even asked."""
    llm = ListeningLLM("answer")

    with pytest.raises(TaskExecutionError, match=r"max_cost.*price"):
        await _agent(llm).invoke("go", budget=RunBudget(max_cost=1.0))

    assert llm.heard == []


async def test_retries_of_a_provider_are_charged() -> None:
    """A reply that took three calls used three calls."""
    from protolink.llms import LLM, LLMReply, LLMRequest

    class Retrying(LLM):
        provider, model = "retrying", "r-1"

        async def respond(self, request: LLMRequest) -> LLMReply:
            return LLMReply(text='{"type":"tool_call","tool":"step","args":{"number":1}}', attempts=3)

    with pytest.raises(BudgetExceededError) as raised:
        await _agent(Retrying()).invoke("go", budget=RunBudget(max_llm_calls=3))

    assert raised.value.limit == "max_llm_calls"
    assert raised.value.task is not None


async def test_a_failed_call_of_a_model_counts() -> None:
    """A provider that fails after having read the prompt is not free."""
    events, result = await observe(_agent(ListeningLLM(ConnectionError("down"))))

    assert result.status == "failed"
    assert of_type(events, "llm.call.completed") == []
    assert of_type(events, "task.error")[0].payload["recoverable"] is True


@pytest.mark.parametrize(
    "limits",
    [
        {"max_steps": -1},
        {"max_steps": 1.5},
        {"max_steps": True},
        {"max_llm_calls": "3"},
        {"max_tool_calls": -1},
        {"max_runtime_seconds": float("nan")},
        {"max_runtime_seconds": float("inf")},
        {"max_runtime_seconds": -0.1},
        {"max_input_tokens": 1e3},
        {"max_output_tokens": -5},
        {"max_cost": float("nan")},
        {"max_cost": "1"},
        {"max_calls": {"step": -1}},
        {"max_calls": {"step": True}},
        {"max_calls": [("step", 1)]},
    ],
)
def test_a_limit_that_is_none_is_refused(limits: dict[str, Any]) -> None:
    """A mistyped limit must not become no limit."""
    with pytest.raises(ValueError, match="max_"):
        RunBudget(**limits)


async def test_contradicting_limits_are_refused_at_the_start() -> None:
    """Two budgets for one run: nobody could say which holds."""
    with pytest.raises(ValueError, match="budget"):
        Agent(name="a", llm=model()).start_run(
            "go", budget=RunBudget(max_steps=1), context=RunContext(budget=RunBudget(max_steps=2))
        )


async def test_counters_never_go_back() -> None:
    """Over the events of a run every counter grows."""
    events, _ = await observe(_agent())

    seen = [event.payload["metadata"]["budget"] for event in of_type(events, "llm.call.completed")]
    for name in ("steps", "llm_calls", "tool_calls", "input_tokens", "output_tokens"):
        values = [budget[name] for budget in seen]
        assert values == sorted(values)
    assert seen[-1]["steps"] == 10
