"""Counting what a tree uses, and naming the limit that more would break."""

from __future__ import annotations

import pytest

from protolink._core.budget import (
    DEFAULT_MAX_STEPS,
    Counters,
    execution_warning,
    model_call_limit,
    tool_calls_left,
    turn_warning,
)
from protolink._core.records import BudgetExceeded, BudgetWarned, ModelUsage
from protolink.context import RunBudget


def used(calls: int = 1, *, tokens_in: int = 10, tokens_out: int = 20, cost: float | None = None) -> Counters:
    """Counters after some model calls."""
    counters = Counters()
    for _ in range(calls):
        counters.reserve_model_call(5)
        counters.settle_model_call(5, ModelUsage(input_tokens=tokens_in, output_tokens=tokens_out, cost=cost), 1)
    return counters


@pytest.mark.parametrize(
    ("budget", "limit", "allowed", "seen"),
    [
        (RunBudget(max_steps=2), "max_steps", 2, 2),
        (RunBudget(max_llm_calls=2), "max_llm_calls", 2, 2),
        (RunBudget(max_input_tokens=20), "max_input_tokens", 20, 21),
        (RunBudget(max_output_tokens=40), "max_output_tokens", 40, 40),
        (RunBudget(max_cost=0.5), "max_cost", 0.5, 0.5),
        (RunBudget(max_steps=0), "max_steps", 0, 2),
    ],
)
def test_a_turn_that_would_break_a_limit_is_named_with_it(
    budget: RunBudget, limit: str, allowed: float, seen: float
) -> None:
    """The limit, what it allows and what it would have come to."""
    assert model_call_limit(used(2, cost=0.25), budget, 2, 1) == BudgetExceeded(limit=limit, allowed=allowed, used=seen)


@pytest.mark.parametrize(
    "budget",
    [
        RunBudget(max_steps=3, max_llm_calls=3, max_input_tokens=21, max_output_tokens=41, max_cost=0.6),
        RunBudget(max_tool_calls=0, max_runtime_seconds=0.0, max_calls={"note": 0}),
    ],
)
def test_a_turn_within_every_limit_is_allowed(budget: RunBudget) -> None:
    """Limits of other things do not concern it."""
    assert model_call_limit(used(2, cost=0.25), budget, 2, 1) is None


@pytest.mark.parametrize(
    ("budget", "limit", "allowed", "seen"),
    [
        (RunBudget(max_steps=5), "max_steps", 5, 4),
        (RunBudget(max_llm_calls=5), "max_llm_calls", 5, 4),
        (RunBudget(max_input_tokens=50), "max_input_tokens", 50, 40),
        (RunBudget(max_output_tokens=100), "max_output_tokens", 100, 80),
        (RunBudget(max_cost=1.25), "max_cost", 1.25, 1.0),
    ],
)
def test_a_limit_that_is_nearly_used_up_is_named_once(
    budget: RunBudget, limit: str, allowed: float, seen: float
) -> None:
    """From four fifths on; whoever knows it already is not told again."""
    counters = used(4, cost=0.25)

    assert turn_warning(counters, budget, ()) == BudgetWarned(limit=limit, allowed=allowed, used=seen)
    assert turn_warning(counters, budget, {limit}) is None


@pytest.mark.parametrize(
    "budget",
    [
        RunBudget(),
        RunBudget(max_steps=0, max_tool_calls=0, max_cost=0.0),
        RunBudget(max_steps=6, max_llm_calls=6, max_input_tokens=51, max_output_tokens=101, max_cost=1.3),
    ],
)
def test_nobody_is_warned_of_what_is_far_off_or_forbidden_anyway(budget: RunBudget) -> None:
    """A limit of zero is a decision, and the ten turns of a run without a limit are none that somebody has set."""
    assert turn_warning(used(4, cost=0.25), budget, ()) is None


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        (RunBudget(max_llm_calls=5, max_tool_calls=5), "max_tool_calls"),
        (RunBudget(max_llm_calls=5, max_calls={"other": 5, "note": 5}), "max_calls[note]"),
    ],
)
def test_an_execution_is_warned_of_what_it_uses(budget: RunBudget, limit: str) -> None:
    """It makes no turn, and a turn executes nothing yet."""
    counters = used(4)
    for _ in range(4):
        counters.reserve_tool_call("note")

    assert execution_warning(counters, budget, ()) == BudgetWarned(limit=limit, allowed=5, used=4)
    assert execution_warning(counters, budget, {limit}) is None
    assert turn_warning(counters, budget, {"max_llm_calls"}) is None


def test_ten_steps_are_the_limit_of_a_run_without_one() -> None:
    """They are counted per run; a limit that is set counts the whole tree."""
    counters = used(50)

    assert model_call_limit(counters, RunBudget(), DEFAULT_MAX_STEPS - 1, 0) is None
    exceeded = model_call_limit(counters, RunBudget(), DEFAULT_MAX_STEPS, 0)
    assert exceeded == BudgetExceeded(limit="max_steps", allowed=10, used=10)
    assert model_call_limit(counters, RunBudget(max_steps=60), 50, 0) is None


def test_tokens_in_flight_count() -> None:
    """Two children that ask at once cannot both get the last tokens."""
    counters = Counters()
    counters.reserve_model_call(60)

    exceeded = model_call_limit(counters, RunBudget(max_input_tokens=100), 0, 60)

    assert exceeded == BudgetExceeded(limit="max_input_tokens", allowed=100, used=120)


def test_a_reply_replaces_the_estimate() -> None:
    """What the provider reports counts, once."""
    counters = Counters()
    counters.reserve_model_call(60)
    counters.settle_model_call(60, ModelUsage(input_tokens=8, output_tokens=2), 1)

    assert counters.snapshot() == (1, 1, 0, 8, 2, None)
    assert counters.reserved_input_tokens == 0
    assert "estimated_tokens" not in counters.usage().metadata


def test_a_failed_call_counts_as_estimated() -> None:
    """Its tokens are unknown, and unknown is not free."""
    counters = Counters()
    counters.reserve_model_call(60)
    counters.release_model_call(60)

    assert counters.snapshot() == (1, 1, 0, 60, 0, None)
    assert counters.usage().metadata["estimated_tokens"] is True


def test_retries_of_a_call_count_each() -> None:
    """A provider that tried three times made three calls of one turn."""
    counters = Counters()
    counters.reserve_model_call(0)
    counters.settle_model_call(0, ModelUsage(), 3)

    assert counters.snapshot()[:2] == (1, 3)


@pytest.mark.parametrize(
    "usage",
    [
        ModelUsage(input_tokens=-100, output_tokens=0),
        ModelUsage(input_tokens=0, output_tokens=-100),
        ModelUsage(input_tokens=0, output_tokens=0, cost=-1.0),
        ModelUsage(input_tokens=0, output_tokens=0, cost=float("nan")),
    ],
)
def test_a_provider_cannot_pay_into_a_budget(usage: ModelUsage) -> None:
    """Counters never shrink, whatever numbers a reply claims; a cost that is no number would end every limit."""
    counters = used(2, cost=0.25)
    before = counters.snapshot()
    counters.reserve_model_call(0)
    counters.settle_model_call(0, usage, 1)

    after = counters.snapshot()
    assert all((now or 0.0) >= (then or 0.0) for then, now in zip(before, after, strict=True))


def test_a_cost_is_unknown_until_a_price_is() -> None:
    """None is unknown, never zero, and a partial sum says that it is one."""
    assert used(1).usage().metadata == {}
    assert used(2, cost=0.25).usage().metadata == {"cost": 0.5}
    counters = used(1, cost=0.25)
    counters.reserve_model_call(0)
    counters.settle_model_call(0, ModelUsage(input_tokens=1, output_tokens=1), 1)
    assert counters.usage().metadata == {"cost": 0.25, "cost_incomplete": True}


def test_executions_left_are_the_least_of_the_limits() -> None:
    """One limit for all tools and one by name, both counted in executions."""
    counters = Counters()
    counters.reserve_tool_call("note")

    assert tool_calls_left(counters, RunBudget(), "note") == (None, None)
    assert tool_calls_left(counters, RunBudget(max_tool_calls=4, max_calls={"note": 3}), "note") == (2, None)
    assert tool_calls_left(counters, RunBudget(max_tool_calls=4, max_calls={"note": 3}), "other") == (3, None)


def test_the_limit_without_executions_left_is_named() -> None:
    """So that a person knows which one to raise."""
    counters = Counters()
    counters.reserve_tool_call("note")

    assert tool_calls_left(counters, RunBudget(max_tool_calls=1), "other") == (
        0,
        BudgetExceeded(limit="max_tool_calls", allowed=1, used=1),
    )
    assert tool_calls_left(counters, RunBudget(max_calls={"note": 1}), "note") == (
        0,
        BudgetExceeded(limit="max_calls[note]", allowed=1, used=1),
    )
