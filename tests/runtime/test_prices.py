"""What runs cost: by the provider, by the application's table, by published prices, or nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from protolink import Agent, BudgetExceededError, RunBudget, TaskExecutionError
from protolink.errors import ConfigurationError
from protolink.llms import MockLLM, MockTurn, ModelUsage, Pricing
from protolink.testing import call
from tests.support import observe, of_type

USAGE = ModelUsage(input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000, source="provider")


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def _llm(*turns: Any, provider: str = "acme", model: str = "big") -> MockLLM:
    llm = MockLLM(model, sequential_responses=[MockTurn(turn, usage=USAGE) for turn in turns])
    llm.provider = provider
    return llm


async def _cost(agent: Agent) -> Any:
    events, _ = await observe(agent)
    return of_type(events, "llm.call.completed")[0].payload["metadata"]["metrics"]["cost"]


@pytest.mark.parametrize(
    ("pricing", "cost"), [(Pricing(input=2, output=10), 7.0), (Pricing(input=2, output=10, cached_input=0.5), 6.4)]
)
async def test_the_table_of_the_application_counts(pricing: Pricing, cost: float) -> None:
    """A negotiated price is nobody's business but the application's; cached tokens may have one of their own."""
    assert await _cost(Agent(name="a", llm=_llm("done"), prices={"acme:big": pricing})) == pytest.approx(cost)


async def test_what_is_not_in_the_table_stays_unknown() -> None:
    """Unknown is not free."""
    prices = {"acme:small": Pricing(input=1, output=1)}

    assert await _cost(Agent(name="a", llm=_llm("done"), prices=prices)) is None


async def test_the_money_limit_holds_by_the_table() -> None:
    """The next turn is not made once the limit is reached."""
    llm = _llm(call("add", left=1, right=2), "done")
    agent = Agent(name="a", tools=[add], llm=llm, prices={"acme:big": Pricing(input=2, output=10)})

    with pytest.raises(BudgetExceededError, match="max_cost"):
        await agent.invoke("go", budget=RunBudget(max_cost=5))


async def test_a_money_limit_needs_a_price() -> None:
    """A limit that nobody can check would be a false comfort."""
    agent = Agent(name="a", llm=_llm("done"), prices={"acme:small": Pricing(input=1, output=1)})

    with pytest.raises(TaskExecutionError, match="known prices"):
        await agent.invoke("go", budget=RunBudget(max_cost=5))


async def test_published_prices_are_looked_up() -> None:
    """Cached tokens are cheaper where the provider says so."""
    pytest.importorskip("genai_prices", reason="the extra `prices` is not installed; `make setup` installs it")
    known = await _cost(Agent(name="a", llm=_llm("done", provider="openai", model="gpt-4o"), prices="published"))

    assert known == pytest.approx(0.6 * 2.5 + 0.4 * 1.25 + 0.5 * 10)
    assert await _cost(Agent(name="a", llm=_llm("done"), prices="published")) is None


@pytest.mark.parametrize("prices", [{"big": Pricing(input=1, output=1)}, {"acme:big": 3}, "cheap", 3])
def test_what_is_no_list_of_prices_is_refused(prices: Any) -> None:
    """It is a mistake in the wiring."""
    with pytest.raises(ConfigurationError, match="price"):
        Agent(name="a", prices=prices)
