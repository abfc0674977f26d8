"""Typed delegation, live worker activity, a correction before approval, and an explicit continuation. Offline.

Run it with `python examples/worker_execution.py`. Checkpoints are in a temporary folder.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from protolink import (
    Agent,
    ApprovalRequest,
    CapabilityPolicy,
    RunAction,
    RunBudget,
    RunContext,
    RunEvent,
    Task,
    ToolRejectedError,
)
from protolink.llms import MockLLM
from protolink.tools import ToolExecution
from protolink.tools.prepared import PreparedTool

CHECKS = ("lint", "tests")


class Plan:
    """What the application plans. Only an authorized execution changes it."""

    def __init__(self) -> None:
        self.selected: list[str] = []
        self.asked: list[str] = []

    def approve(self, request: ApprovalRequest, context: RunContext) -> bool:
        """Say yes, and keep what was asked. A request that cannot be carried out never gets here."""
        self.asked.append(request.action.payload["arguments"]["check_id"])
        return True

    def tool(self) -> PreparedTool:
        """Selecting a check: looked at, authorized and executed in three steps."""
        return PreparedTool(select_check, prepare=prepare, execute=self._execute, capabilities=("plan.select",))

    async def _execute(self, execution: ToolExecution) -> str:
        execution.check()
        check_id: str = execution.authorization.action.payload["arguments"]["check_id"]
        self.selected.append(check_id)
        return f"Selected {check_id}."


def select_check(check_id: str) -> str:
    """Select one available check for the plan."""
    raise AssertionError("this function describes the signature only")


def prepare(arguments: dict[str, Any], context: RunContext) -> RunAction:
    """Turn a proposal into the exact operation, or say how to correct it. It changes nothing."""
    if arguments["check_id"] not in CHECKS:
        raise ToolRejectedError(
            "That check is unavailable; nothing changed.",
            code="unknown_check",
            details={"valid_ids": list(CHECKS)},
            suggestion="Choose lint or tests.",
        )
    return RunAction(kind="tool.call", name="select_check", payload={"arguments": arguments})


def lookup(item_id: int) -> str:
    """Return an item from the local fixture."""
    return {1: "Evidence E1", 2: "Evidence E2"}[item_id]


def coordinator(plan: Plan, checkpoints: Path) -> Agent:
    """A durable parent that works three turns at a time and owns two workers."""
    researcher = Agent(
        name="researcher",
        llm=MockLLM(default_response="The fixture contains evidence E1.", fragment_size=12),
        verbosity=0,
    )
    catalog = Agent(name="catalog", tools=[lookup], verbosity=0)
    script: list[Any] = [
        {"type": "tool_call", "tool": "researcher", "args": {"task": "Find evidence in the fixture."}},
        {"type": "tool_call", "tool": "lookup_evidence", "args": {"item_id": 1}},
        {"type": "tool_call", "tool": "select_check", "args": {"check_id": "typo"}},
        {"type": "tool_call", "tool": "select_check", "args": {"check_id": "lint"}},
        "E1 is real, and lint is selected.",
    ]
    agent = Agent(
        name="coordinator",
        llm=MockLLM(sequential_responses=script),
        tools=[plan.tool()],
        policy=CapabilityPolicy({"plan.select": "require_approval"}),
        approval_handler=plan.approve,
        subagents=[researcher, catalog],
        yield_after_steps=3,
        durability=checkpoints,
        verbosity=0,
    )
    agent.add_worker_tool("researcher", description="Find supporting evidence in the supplied material.")
    agent.add_worker_tool("catalog", tool="lookup", name="lookup_evidence")
    return agent


def show(event: RunEvent) -> None:
    """One line for what people want to see. A worker speaks under its own name, while it works."""
    indent = "    " if event.parent_action_id else ""
    if event.type in ("action.started", "action.completed", "action.rejected"):
        print(f"{indent}{event.agent_name}: {event.type} {event.payload['metadata']['tool']}")
    elif event.type == "task.status":
        print(f"{indent}{event.agent_name}: {event.payload['new_state']}")
    elif event.payload.get("llm_event_type") == "llm_chunk" and event.agent_name == "researcher":
        print(f"{indent}{event.agent_name} says {event.payload['content']!r}")  # the parent's fragments are actions


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan()
        agent = coordinator(plan, Path(folder) / "runs.sqlite")
        context = RunContext(budget=RunBudget(max_steps=8, max_llm_calls=8, max_tool_calls=3))
        handle = agent.start_run(Task.create_infer("Plan the release.", context=context))

        events: list[RunEvent] = []
        async for event in handle.events():
            events.append(event)
            show(event)
        result = await handle.result()
        handoff = result.handoff
        assert result.status == "input-required"
        assert handoff is not None
        print(f"\nthe slice is used up after {handoff.steps} turns; {handoff.usage.llm_calls} model calls in the tree")

        worker = [event for event in events if event.agent_name == "researcher"]
        assert worker
        assert not any(event.final for event in worker)
        (rejected,) = [event for event in events if event.type == "action.rejected"]
        assert rejected.payload["metadata"]["phase"] == "preparation"
        assert (plan.asked, plan.selected) == ([], []), "an invalid request reached a person, or was executed"

        # The application decides that another slice is worth it; nothing goes on by itself.
        continued = await agent.resume_task(handle.run_id)
        print(f"{continued.state.value}: {continued.get_output()}")
        assert continued.get_output() == "E1 is real, and lint is selected."
        assert (plan.asked, plan.selected) == (["lint"], ["lint"])
        print(f"approved and executed: {', '.join(plan.selected)}")


if __name__ == "__main__":
    asyncio.run(main())
