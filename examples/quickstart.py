"""One agent from end to end, offline: `make demo`, or `python examples/quickstart.py`.

The model is scripted. It looks at the stock, asks for an order that cannot be placed, corrects it, and has it
approved. Then a second agent delegates to the first one. Everything is printed while it happens.
"""

from __future__ import annotations

import asyncio
from typing import Any

from protolink import (
    Agent,
    ApprovalRequest,
    CapabilityPolicy,
    RunAction,
    RunBudget,
    RunContext,
    RunEvent,
    RunHandle,
    RunResult,
    ToolRejectedError,
)
from protolink.llms import MockLLM
from protolink.tools import ToolExecution
from protolink.tools.prepared import PreparedTool

STOCK = {"tea": 12, "milk": 3}
ORDERS: list[str] = []


def in_stock(item: str) -> int:
    """Say how many of an item there are.

    Args:
        item: The item's name in the singular.
    """
    return STOCK.get(item, 0)


def place_order(item: str, count: int) -> str:
    """Order more of an item."""
    raise AssertionError("the signature only describes the tool")


def prepare_order(arguments: dict[str, Any], context: RunContext) -> RunAction:
    """Refuse what the model can correct; otherwise say exactly what will happen. Changes nothing."""
    if arguments["count"] > 10:
        raise ToolRejectedError(
            "An order has at most 10 pieces; nothing was ordered.",
            code="too_many",
            details={"max_count": 10},
            suggestion="Order 10 or fewer.",
        )
    return RunAction(kind="tool.call", name="place_order", payload={"arguments": arguments})


async def execute_order(execution: ToolExecution) -> str:
    """Carry out the very action that was approved."""
    execution.check()
    order = execution.action.payload["arguments"]
    ORDERS.append(f"{order['count']} x {order['item']}")
    execution.emit("order.placed", number=len(ORDERS))
    return f"Ordered {order['count']} x {order['item']}."


async def ask_the_manager(request: ApprovalRequest, context: RunContext) -> bool:
    """Stands in for a person, who would read what is printed here and answer about exactly that."""
    print("\n".join(f"      | {line}" for line in request.render().splitlines()))
    return True


def shopkeeper() -> Agent:
    """An agent with a plain tool, a prepared one, and a rule about orders."""
    script: list[Any] = [
        {"type": "tool_call", "tool": "in_stock", "args": {"item": "milk"}},
        {"type": "tool_call", "tool": "place_order", "args": {"item": "milk", "count": 50}},
        {"type": "tool_call", "tool": "place_order", "args": {"item": "milk", "count": 10}},
        "There were 3, so I ordered 10 more.",
        "There are 12 teas and 3 milks.",
    ]
    order = PreparedTool(place_order, prepare=prepare_order, execute=execute_order, capabilities=["orders.place"])
    return Agent(
        name="shopkeeper",
        description="Knows the stock and places orders.",
        llm=MockLLM(sequential_responses=script),
        tools=[in_stock, order],
        policy=CapabilityPolicy({"orders.*": "require_approval"}),
        approval_handler=ask_the_manager,
        expose_tool_results=True,
        verbosity=0,
    )


def coordinator(worker: Agent) -> Agent:
    """An agent whose only tool is the other agent."""
    script: list[Any] = [
        {"type": "tool_call", "tool": "shopkeeper", "args": {"task": "What is in stock?"}},
        "The shop has 12 teas and 3 milks.",
    ]
    agent = Agent(name="coordinator", subagents=[worker], llm=MockLLM(sequential_responses=script), verbosity=0)
    agent.add_worker_tool("shopkeeper")
    return agent


def in_one_line(event: RunEvent) -> str | None:
    """An event for people; None for raw fragments, which are mostly actions in JSON."""
    details = event.payload["metadata"]
    match event.type:
        case "llm.stream":
            return f"answer: {event.payload['content']}" if event.payload["llm_event_type"] == "llm_final" else None
        case "llm.call.completed":
            usage = details["metrics"]["usage"]
            return f"{event.type} ({'about ' if usage['estimated'] else ''}{usage['total_tokens']} tokens)"
        case "action.rejected":
            return f"{event.type} {details['tool']}: {event.summary}"
        case "task.status":
            return f"{event.type} {event.payload['new_state']}"
        case _:
            return f"{event.type} {details.get('tool', '')}".rstrip()


async def show(handle: RunHandle) -> RunResult:
    """Print every event as it happens; what a worker does is indented."""
    async for event in handle.events():
        if text := in_one_line(event):
            print(f"{event.sequence:>4}  {'    ' if event.parent_action_id else ''}{event.agent_name:<11}  {text}")
    return await handle.result()


def print_evidence(result: RunResult) -> None:
    """One line per tool action, whatever became of it."""
    print(f"\n{'tool':<12} {'outcome':<10} {'arguments':<32} result")
    for evidence in result.tool_evidence:
        shown = evidence.error["message"] if evidence.error else evidence.result
        print(f"{evidence.tool_name:<12} {evidence.outcome:<10} {evidence.arguments!s:<32} {shown}")


async def main() -> None:
    print("One agent\n")
    keeper = shopkeeper()
    result = await show(keeper.start_run("Refill the milk.", budget=RunBudget(max_llm_calls=5, max_tool_calls=2)))
    print_evidence(result)
    print(f"\n{result.status}: {result.output}")

    print("\n\nOne agent asks another\n")
    result = await show(coordinator(keeper).start_run("What do we have?"))
    print(f"\n{result.status}: {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
