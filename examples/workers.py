"""A typed delegation, workers at work side by side, and one in the background: all in one stream. Offline.

Run it with `python examples/workers.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from protolink import Agent, RunBudget, RunEvent, RunHandle, SubagentLimits
from protolink.llms import MockLLM
from protolink.tools import report_progress

SHELVES = {"history": ["The Guns of August"], "physics": ["QED", "Six Easy Pieces"]}


def titles(subject: str) -> list[str]:
    """List the titles on one shelf."""
    report_progress("shelf.visited", subject=subject)
    return SHELVES.get(subject, [])


def librarian() -> Agent:
    """A worker with tools and no model."""
    return Agent(name="librarian", description="Knows the shelves.", tools=[titles], verbosity=0)


def reader() -> Agent:
    """A worker with a model: it gets a task, and a conversation of its own."""
    llm = MockLLM(default_response="It is about light and electrons.", fragment_size=12)
    return Agent(name="reader", description="Reads and summarizes.", llm=llm, verbosity=0)


def editor() -> Agent:
    """The parent. Its model is offered `list_titles(subject)` and `reader(task)`."""
    script: list[Any] = [
        # Two calls in one reply: delegations run side by side.
        [
            {"type": "tool_call", "tool": "list_titles", "args": {"subject": "history"}},
            {"type": "tool_call", "tool": "list_titles", "args": {"subject": "physics"}},
        ],
        {"type": "tool_call", "tool": "reader", "args": {"task": "Summarize QED."}},
        "Take QED: it is about light and electrons.",
    ]
    agent = Agent(
        name="editor",
        subagents=[librarian(), reader()],
        subagent_limits=SubagentLimits(max_children=4, max_concurrency=3),
        llm=MockLLM(sequential_responses=script),
        verbosity=0,
    )
    agent.add_worker_tool("librarian", tool="titles", name="list_titles")
    agent.add_worker_tool("reader", description="Have one book summarized.")
    return agent


def show(event: RunEvent) -> None:
    """One line per event; the indentation says how deep it is, the name who speaks."""
    indent = "    " if event.parent_action_id else ""
    if event.payload.get("llm_event_type") == "llm_chunk":
        if event.agent_name == "reader":  # the other fragments are actions in JSON
            print(f"{indent}{event.agent_name}: {event.payload['content']!r}")
    elif event.type in ("action.started", "action.completed", "shelf.visited"):
        print(f"{indent}{event.agent_name}: {event.type} {event.payload['metadata']['tool']}")
    elif event.type == "task.status":
        print(f"{indent}{event.agent_name}: {event.payload['new_state']}{' (the end)' if event.final else ''}")


async def watch(handle: RunHandle) -> None:
    async for event in handle.events():
        show(event)


async def main() -> None:
    handle = editor().start_run("Recommend a book on physics.", budget=RunBudget(max_llm_calls=6, max_tool_calls=4))
    watching = asyncio.create_task(watch(handle))

    # Beside the turns of the run. Its end would cancel the worker, so whoever wants the result awaits it.
    background = await handle.spawn("reader", "Summarize Six Easy Pieces.")
    summary = (await background.result()).get_output()

    result = await handle.result()
    await watching
    print(f"\n{result.status}: {result.output}")
    print(f"in the background: {summary}")
    print("evidence:", *(f"{seen.agent_name}/{seen.tool_name} {seen.arguments}" for seen in result.tool_evidence))


if __name__ == "__main__":
    asyncio.run(main())
