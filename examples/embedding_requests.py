"""One agent for the lifetime of an application; a model and private objects for each request. Offline.

Run it with `python examples/embedding_requests.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from protolink import Agent, RunHandle, current_request_context, request_context
from protolink.llms import LLM, MockLLM


@dataclass(frozen=True)
class Accounts:
    """A client of the application's own, signed in as one customer."""

    customer: str

    def balance(self) -> int:
        return {"alice": 120, "bob": 7}[self.customer]


def balance() -> int:
    """Say how much money the customer has."""
    # The model sees a tool without parameters; which customer it is about is not the model's to decide.
    accounts: Accounts = current_request_context()["accounts"]
    return accounts.balance()


def choose_model() -> LLM:
    """Called once per run, off the event loop; it may look at the request, too."""
    name: str = current_request_context()["models"]["teller"]
    script: list[Any] = [{"type": "tool_call", "tool": "balance", "args": {}}, f"Done, says {name}."]
    return MockLLM(name, sequential_responses=script)


teller = Agent(
    name="teller",
    tools=[balance],
    sync_execution="thread",
    llm_factory=choose_model,
    expose_tool_results=True,
    verbosity=0,
)


def accept(customer: str, settings: Mapping[str, str]) -> RunHandle:
    """What a web handler does: freeze the settings, start the run, leave the scope at once."""
    values = {"accounts": Accounts(customer), "models": MappingProxyType(dict(settings))}
    with request_context(values, inherit=("accounts", "models")):
        return teller.start_run("How much do I have?", session_id=customer)


async def main() -> None:
    settings = {"teller": "small"}
    first = accept("alice", settings)
    settings["teller"] = "large"  # too late for alice, in time for bob
    second = accept("bob", settings)

    for handle in (first, second):
        result = await handle.result()
        (evidence,) = result.tool_evidence
        print(f"{handle.context.session_id}: {evidence.result}. {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
