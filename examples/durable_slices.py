"""A slice yields and its process ends; a second process resumes the run from the file to its end. Offline.

Run it with `python examples/durable_slices.py`. It starts itself twice, as two processes that have nothing in
common but a folder.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from protolink import Agent, RunBudget, RunContext, RunHandoff, RunManager, Task
from protolink.llms import MockLLM

SECTIONS = ("intro", "method", "results")


def inspect_section(section: str) -> str:
    """Read one section. What it does to the world is a line in a file, which outlives every process."""
    with open("effects.txt", "a", encoding="utf-8") as effects:
        effects.write(f"{section} read by process {os.getpid()}\n")
    return f"Evidence from {section}."


def respond(history: Any, system_prompt: str) -> Any:
    """Decide as a model that reads its observations: the first section without evidence, else the answer."""
    known = " ".join(message["content"] for message in history.messages)
    for section in SECTIONS:
        if f"Evidence from {section}." not in known:
            return {"type": "tool_call", "tool": "inspect_section", "args": {"section": section}}
    return "All three sections are fine."


def reviewer() -> Agent:
    """The agent, as each process builds it anew over the same file."""
    return Agent(
        name="reviewer",
        tools=[inspect_section],
        llm=MockLLM(response_callback=respond),
        yield_after_steps=2,
        durability="runs.sqlite",
        verbosity=0,
    )


async def first_process() -> None:
    """Work for one slice, and leave a hand-off."""
    context = RunContext(budget=RunBudget(max_steps=8, max_tool_calls=3))
    task = await reviewer().run_task(Task.create_infer("Review the text.", context=context))
    handoff = RunHandoff.from_task(task)
    assert handoff is not None
    print(f"process {os.getpid()}: {task.state.value} after {handoff.steps} turns; the hand-off says:")
    print(f"  reason {handoff.reason}, {handoff.usage.llm_calls} model calls, {handoff.usage.tool_calls} tool calls,")
    print(f"  completed: {', '.join(handoff.completed_action_ids)}")


async def second_process() -> None:
    """Find what waits, grant slices until the run has ended, and print what became of it."""
    manager = RunManager(reviewer())
    for run in await manager.list(status="paused"):
        task = await manager.resume(run.run_id)
        while RunHandoff.from_task(task) is not None:
            task = await manager.resume(run.run_id)
        report = await manager.inspect(run.run_id)
        print(f"process {os.getpid()}: {task.state.value}: {task.get_output()}")
        print(f"  {report.metrics['budget']['steps']} turns and {report.metrics['actions_completed']} actions in all")


def main() -> None:
    if sys.argv[1:] == ["first"]:
        asyncio.run(first_process())
    elif sys.argv[1:] == ["second"]:
        asyncio.run(second_process())
    else:
        with tempfile.TemporaryDirectory() as folder:
            for process in ("first", "second"):
                subprocess.run([sys.executable, str(Path(__file__).resolve()), process], cwd=folder, check=True)
            effects = (Path(folder) / "effects.txt").read_text(encoding="utf-8").splitlines()
        print("what happened to the world:")
        print(*(f"  {effect}" for effect in effects), sep="\n")
        assert [effect.split()[0] for effect in effects] == list(SECTIONS), "a tool ran twice, or not at all"
        print("no tool ran twice")


if __name__ == "__main__":
    main()
