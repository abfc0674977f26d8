"""A coordinator and two workers that are at work side by side, drawn as a tree that changes as events arrive. Offline.

Run it with `python examples/live_tree.py`. In a terminal, with the `cli` extra, the tree is redrawn in place;
elsewhere each change is one line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from protolink import Agent, RunBudget, RunEvent
from protolink.llms import MockLLM
from protolink.tools import report_progress

SOURCES = {"weather": ["satellite", "stations", "buoys"], "traffic": ["cameras", "reports", "timetables"]}


async def survey(topic: str) -> str:
    """Ask all sources of one topic, one after the other."""
    for source in SOURCES[topic]:
        report_progress("source.asked", source=source)
        await asyncio.sleep(0.15)  # as long as somebody needs to see it
    return f"{topic}: {len(SOURCES[topic])} sources agree"


def scout(name: str, topic: str) -> Agent:
    """A worker that surveys its topic and says what it found."""
    script: list[Any] = [
        {"type": "tool_call", "tool": "survey", "args": {"topic": topic}},
        f"All sources about {topic} agree.",
    ]
    return Agent(name=name, tools=[survey], llm=MockLLM(sequential_responses=script), verbosity=0)


def coordinator() -> Agent:
    """The parent. Its first reply asks both workers at once."""
    both = [
        {"type": "tool_call", "tool": "meteorologist", "args": {"task": "Survey the weather."}},
        {"type": "tool_call", "tool": "dispatcher", "args": {"task": "Survey the traffic."}},
    ]
    agent = Agent(
        name="coordinator",
        subagents=[scout("meteorologist", "weather"), scout("dispatcher", "traffic")],
        llm=MockLLM(sequential_responses=[both, "Go by train; the roads are wet."]),
        verbosity=0,
    )
    agent.add_worker_tool("meteorologist")
    agent.add_worker_tool("dispatcher")
    return agent


@dataclass
class Branch:
    """One run of the tree, and what it is doing."""

    name: str
    doing: str = ""
    children: list[Branch] = field(default_factory=list)


class Activity:
    """The tree of runs, as the events of the root's stream tell it."""

    def __init__(self) -> None:
        self.branches: dict[str, Branch] = {}
        self.delegations: dict[str, Branch] = {}
        self.root: Branch | None = None

    def take(self, event: RunEvent) -> Branch | None:
        """Bring the tree up to date. Gives the branch that changed, if one did."""
        branch = self.branches.get(event.run_id)
        if branch is None:
            branch = self.branches[event.run_id] = Branch(event.agent_name)
            parent = self.delegations.get(event.parent_action_id or "")
            if parent is None:
                self.root = branch
            else:
                parent.children.append(branch)
        if event.action_id is not None:
            self.delegations[event.action_id] = branch
        doing = described(event)
        if doing is None or doing == branch.doing:
            return None
        branch.doing = doing
        return branch


def described(event: RunEvent) -> str | None:
    """What an event says of the agent's work; None for those that are too fine for a tree."""
    metadata: dict[str, Any] = event.payload.get("metadata") or {}
    if event.type == "task.status":
        return str(event.payload["new_state"])
    if event.type == "llm.call.started":
        return "thinking"
    if event.type == "action.started":
        return f"at work: {metadata['tool']}"
    if event.type == "source.asked":
        return f"{metadata['tool']}: asking {event.payload['source']}"
    return None


async def draw_in_place(events: AsyncIterator[RunEvent]) -> None:
    """A tree in the terminal; this needs the `cli` extra."""
    from rich.live import Live
    from rich.tree import Tree

    def drawn(branch: Branch, onto: Tree | None = None) -> Tree:
        label = f"[bold]{branch.name}[/bold]  {branch.doing}"
        tree = Tree(label) if onto is None else onto.add(label)
        for child in branch.children:
            drawn(child, tree)
        return tree

    activity = Activity()
    with Live() as live:
        async for event in events:
            if activity.take(event) and activity.root:
                live.update(drawn(activity.root), refresh=True)


async def print_lines(events: AsyncIterator[RunEvent]) -> None:
    """A line for each change, indented below the parent."""
    activity = Activity()
    async for event in events:
        branch = activity.take(event)
        if branch is not None:
            print(f"{'' if branch is activity.root else '    '}{branch.name}: {branch.doing}")


async def main() -> None:
    handle = coordinator().start_run("How do I get to work?", budget=RunBudget(max_llm_calls=6, max_tool_calls=4))
    if sys.stdout.isatty() and find_spec("rich"):
        await draw_in_place(handle.events())
    else:
        await print_lines(handle.events())
    result = await handle.result()
    print(f"{result.status}: {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
