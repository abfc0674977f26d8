"""Counting what a tree of runs uses, and saying which limit the next piece of work would break."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import field

from protolink._core.records import BudgetExceeded, BudgetWarned, ModelUsage, Usage
from protolink._record import new_dict, state
from protolink.context import NO_LIMITS, BudgetUsage, RunBudget

__all__ = [
    "DEFAULT_MAX_STEPS",
    "WARNING_SHARE",
    "Counters",
    "budget_left",
    "execution_warning",
    "limit_message",
    "model_call_limit",
    "repeated_call_limit",
    "tool_calls_left",
    "turn_warning",
]

DEFAULT_MAX_STEPS = 10
"""Model turns of one run whose budget sets no `max_steps`."""


WARNING_SHARE = 0.8
"""The part of a limit that is used when a run is warned."""


@state
class Counters:
    """The usage of a whole tree. Counters only grow; what is in flight is reserved beside them."""

    steps: int = 0
    llm_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    reserved_input_tokens: int = 0
    estimated: bool = False
    unpriced: bool = False
    calls: dict[str, int] = field(default_factory=new_dict)
    """Executions by tool name."""

    def reserve_model_call(self, estimated_input_tokens: int) -> None:
        """Charge a turn and its call before it is made."""
        self.steps += 1
        self.llm_calls += 1
        self.reserved_input_tokens += estimated_input_tokens

    def settle_model_call(self, estimated_input_tokens: int, usage: ModelUsage, attempts: int) -> None:
        """Replace the reservation by what the reply reported; calls that were retried count each."""
        self.reserved_input_tokens -= estimated_input_tokens
        self.llm_calls += attempts - 1
        self.input_tokens += max(0, usage.input_tokens or 0)
        self.output_tokens += max(0, usage.output_tokens or 0)
        self.estimated = self.estimated or usage.estimated
        if usage.cost is None or not 0 <= usage.cost < math.inf:
            self.unpriced = True
        else:
            self.cost = (self.cost or 0.0) + usage.cost

    def retry_model_call(self, estimated_before: int, estimated_next: int, usage: ModelUsage) -> None:
        """Charge one more call of a turn, and of the call before it what the provider reported."""
        self.llm_calls += 1
        self.reserved_input_tokens += estimated_next - estimated_before
        self.input_tokens += usage.input_tokens or 0
        self.output_tokens += usage.output_tokens or 0
        if usage.cost is not None:
            self.cost = (self.cost or 0.0) + usage.cost
        elif usage.input_tokens or usage.output_tokens:
            self.unpriced = True

    def release_model_call(self, estimated_input_tokens: int) -> None:
        """A call that failed keeps its turn and call; its tokens are unknown and count as estimated."""
        self.reserved_input_tokens -= estimated_input_tokens
        self.input_tokens += estimated_input_tokens
        self.estimated = True

    def reserve_tool_call(self, tool: str) -> None:
        """Charge an execution before it starts."""
        self.tool_calls += 1
        self.calls[tool] = self.calls.get(tool, 0) + 1

    def usage(self, runtime_seconds: float = 0.0) -> BudgetUsage:
        """The public value."""
        metadata: dict[str, object] = {}
        if self.estimated:
            metadata["estimated_tokens"] = True
        if self.cost is not None:
            metadata["cost"] = self.cost
        if self.cost is not None and self.unpriced:
            metadata["cost_incomplete"] = True
        return BudgetUsage(
            steps=self.steps,
            llm_calls=self.llm_calls,
            tool_calls=self.tool_calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            runtime_seconds=runtime_seconds,
            metadata=metadata,
        )

    def snapshot(self) -> Usage:
        """The counters at this moment: steps, model calls, tool calls, tokens in, tokens out, cost."""
        return (self.steps, self.llm_calls, self.tool_calls, self.input_tokens, self.output_tokens, self.cost)


def model_call_limit(
    counters: Counters, budget: RunBudget, run_steps: int, estimated_input_tokens: int
) -> BudgetExceeded | None:
    """The limit that one more model turn would break, or None."""
    if budget.max_steps is None:
        if run_steps >= DEFAULT_MAX_STEPS:
            return BudgetExceeded(limit="max_steps", allowed=DEFAULT_MAX_STEPS, used=run_steps)
    elif counters.steps >= budget.max_steps:
        return BudgetExceeded(limit="max_steps", allowed=budget.max_steps, used=counters.steps)
    return repeated_call_limit(counters, budget, estimated_input_tokens)


def repeated_call_limit(counters: Counters, budget: RunBudget, estimated_input_tokens: int) -> BudgetExceeded | None:
    """The limit that one more call would break, whatever the number of turns."""
    if budget.max_llm_calls is not None and counters.llm_calls >= budget.max_llm_calls:
        return BudgetExceeded(limit="max_llm_calls", allowed=budget.max_llm_calls, used=counters.llm_calls)
    if budget.max_input_tokens is not None:
        wanted = counters.input_tokens + counters.reserved_input_tokens + estimated_input_tokens
        if wanted > budget.max_input_tokens:
            return BudgetExceeded(limit="max_input_tokens", allowed=budget.max_input_tokens, used=wanted)
    if budget.max_output_tokens is not None and counters.output_tokens >= budget.max_output_tokens:
        return BudgetExceeded(limit="max_output_tokens", allowed=budget.max_output_tokens, used=counters.output_tokens)
    if budget.max_cost is not None and (counters.cost or 0.0) >= budget.max_cost:
        return BudgetExceeded(limit="max_cost", allowed=budget.max_cost, used=counters.cost or 0.0)
    return None


def tool_calls_left(counters: Counters, budget: RunBudget, tool: str) -> tuple[int | None, BudgetExceeded | None]:
    """How many more executions of `tool` are allowed (None: any number), and the limit once none is."""
    left: int | None = None
    if budget.max_tool_calls is not None:
        left = budget.max_tool_calls - counters.tool_calls
        if left <= 0:
            return 0, BudgetExceeded(limit="max_tool_calls", allowed=budget.max_tool_calls, used=counters.tool_calls)
    if tool in budget.max_calls:
        used = counters.calls.get(tool, 0)
        of_tool = budget.max_calls[tool] - used
        if of_tool <= 0:
            return 0, BudgetExceeded(limit=f"max_calls[{tool}]", allowed=budget.max_calls[tool], used=used)
        left = of_tool if left is None else min(left, of_tool)
    return left, None


def limit_message(exceeded: BudgetExceeded) -> str:
    """What is said of a limit that was reached."""
    return f"the run's {exceeded.limit} of {exceeded.allowed:g} is reached"


def turn_warning(counters: Counters, budget: RunBudget, warned: Collection[str]) -> BudgetWarned | None:
    """The first limit that one more model turn would nearly use up, and that nobody was warned of; or None."""
    return None if budget is NO_LIMITS else _warning(_used_by_turns(counters, budget), warned)


def execution_warning(counters: Counters, budget: RunBudget, warned: Collection[str]) -> BudgetWarned | None:
    """The same for one more execution of a tool."""
    return None if budget is NO_LIMITS else _warning(_used_by_tools(counters, budget), warned)


def _warning(limits: Iterable[tuple[str, float | None, float]], warned: Collection[str]) -> BudgetWarned | None:
    for limit, allowed, used in limits:
        if allowed is not None and 0 < allowed * WARNING_SHARE <= used and limit not in warned:
            return BudgetWarned(limit=limit, allowed=allowed, used=used)
    return None


def _used_by_turns(counters: Counters, budget: RunBudget) -> Iterator[tuple[str, float | None, float]]:
    """Each limit with what it allows and what is used of it."""
    yield "max_steps", budget.max_steps, counters.steps
    yield "max_llm_calls", budget.max_llm_calls, counters.llm_calls
    yield "max_input_tokens", budget.max_input_tokens, counters.input_tokens + counters.reserved_input_tokens
    yield "max_output_tokens", budget.max_output_tokens, counters.output_tokens
    yield "max_cost", budget.max_cost, counters.cost or 0.0


def _used_by_tools(counters: Counters, budget: RunBudget) -> Iterator[tuple[str, float | None, float]]:
    yield "max_tool_calls", budget.max_tool_calls, counters.tool_calls
    for tool, allowed in budget.max_calls.items():
        yield f"max_calls[{tool}]", allowed, counters.calls.get(tool, 0)


def budget_left(counters: Counters, budget: RunBudget, seconds: float | None) -> RunBudget:
    """What may still be used, as a budget for work that is not counted here; `seconds` are those to the deadline."""

    def left(limit: int | None, used: int) -> int | None:
        return None if limit is None else max(0, limit - used)

    return RunBudget(
        max_steps=left(budget.max_steps, counters.steps),
        max_llm_calls=left(budget.max_llm_calls, counters.llm_calls),
        max_tool_calls=left(budget.max_tool_calls, counters.tool_calls),
        max_runtime_seconds=seconds,
        max_input_tokens=left(budget.max_input_tokens, counters.input_tokens + counters.reserved_input_tokens),
        max_output_tokens=left(budget.max_output_tokens, counters.output_tokens),
        max_cost=None if budget.max_cost is None else max(0.0, budget.max_cost - (counters.cost or 0.0)),
        max_calls={tool: max(0, limit - counters.calls.get(tool, 0)) for tool, limit in budget.max_calls.items()},
    )
