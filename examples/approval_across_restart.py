"""A payment waits for a person while no process runs, and the stored action is what is paid. Offline.

Run it with `python examples/approval_across_restart.py`. It starts itself as three processes: one that asks, the
command line that lists, and one that brings the answers.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from protolink import Agent, CapabilityPolicy, RunManager, Task, Tool
from protolink.llms import MockLLM
from protolink.tools import ask_user


def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    with open("paid.txt", "a", encoding="utf-8") as paid:
        paid.write(f"{amount} to {to}\n")
    return f"paid {amount} to {to}"


def respond(history: Any, system_prompt: str) -> Any:
    """Ask and propose in one reply; then report what came of both."""
    observed = [json.loads(message["content"])["result"] for message in history.messages if message["role"] == "tool"]
    if not observed:
        return [
            {"type": "tool_call", "tool": "pay", "args": {"amount": 40, "to": "the gardener"}},
            {"type": "tool_call", "tool": "ask_user", "args": {"question": "For which month?"}},
        ]
    return f"I have {observed[0]}, for {observed[1]}."


def clerk() -> Agent:
    """The agent, as each process builds it anew over the same file."""
    return Agent(
        name="clerk",
        tools=[Tool(pay, capabilities=["money.pay"]), ask_user],
        llm=MockLLM(response_callback=respond),
        policy=CapabilityPolicy({"money.pay": "require_approval"}),
        durability="runs.sqlite",
        verbosity=0,
    )


async def ask() -> None:
    """Start the run. Nobody is there to ask, so it pauses, and this process ends."""
    task = await clerk().run_task(Task.create_infer("Pay the gardener."))
    print(f"{task.state.value}: {len(task.metadata['interruptions'])} requests wait")


async def answer() -> None:
    """Answer everything that waits, as a web page would with what its user has clicked."""
    manager = RunManager(clerk())
    (run,) = await manager.list(status="paused")
    waiting: Any = run.info.summary["interruptions"]
    for item in waiting:
        said: dict[str, Any] = {"answer": "March"} if item["kind"] == "input" else {"approved": True}
        task = await manager.resume(run.run_id, request_id=item["request_id"], **said)
        print(f"{item['kind']} is answered: {task.state.value}")
    print((await manager.resume(run.run_id)).get_output())


def main() -> None:
    if sys.argv[1:] == ["ask"]:
        asyncio.run(ask())
    elif sys.argv[1:] == ["answer"]:
        asyncio.run(answer())
    else:
        this = str(Path(__file__).resolve())
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, this, "ask"], cwd=folder, check=True)
            listing = [sys.executable, "-m", "protolink", "runs", "list", "--store", "runs.sqlite"]
            subprocess.run(listing, cwd=folder, check=True)
            subprocess.run([sys.executable, this, "answer"], cwd=folder, check=True)
            print("paid:", (Path(folder) / "paid.txt").read_text(encoding="utf-8").strip())


if __name__ == "__main__":
    main()
