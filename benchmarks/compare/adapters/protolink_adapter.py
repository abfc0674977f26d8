"""This library, as its checkout is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.compare.subject import STORED_AS_IT_COMES, STORED_FIRST, Run, Stream, Tool
from benchmarks.floors import ANSWER
from benchmarks.models import Streaming
from protolink import Agent, RunBudget
from protolink.llms import LLM
from protolink.llms.port import LLMReply, LLMRequest, ModelUsage, ToolCall


class Model(LLM):
    """Calls the tool so many times, then answers."""

    provider = "benchmark"
    model = "scripted"
    native_tools = True

    def __init__(self, calls: int, seconds: float | None) -> None:
        self.calls = calls
        self.seconds = seconds

    async def respond(self, request: LLMRequest) -> LLMReply:
        """What comes in this step."""
        if self.seconds is not None:
            await asyncio.sleep(self.seconds)
        usage = ModelUsage(input_tokens=10, output_tokens=5, source="provider")
        if request.step > self.calls:
            return LLMReply(text=ANSWER, usage=usage)
        arguments = json.dumps({"number": request.step})
        call = ToolCall(name="lookup", arguments=arguments, id=f"call-{request.step}")
        return LLMReply(calls=(call,), usage=usage)


class NativeStreaming(Streaming):
    """The same with a provider's own calls."""

    native_tools = True


class Adapter:
    """Implements `benchmarks.compare.subject.Subject`."""

    packages = ("protolink", "pydantic")
    configuration = "Agent.start_run and invoke; stored steps: durability=, which has one way of storing"
    start = """
from protolink import Agent
Agent(name="researcher", tools=[lookup])
"""

    def agent(self, tool: Tool, calls: int, seconds: float | None = None) -> Run:
        """Runs of so many calls."""
        return self._runs(Agent(name="researcher", llm=Model(calls, seconds), tools=[tool]), calls)

    def streaming(self, fragments: Sequence[str]) -> Stream:
        """Runs that stream."""
        agent = Agent(name="writer", llm=NativeStreaming(fragments))
        return lambda: agent.start_run("go").chunks()

    @asynccontextmanager
    async def durable(self, tool: Tool, calls: int, folder: Path) -> AsyncGenerator[Mapping[str, Run]]:
        """Every record is in the file before what follows from it is done."""
        path = folder / "protolink.sqlite"
        agent = Agent(name="researcher", llm=Model(calls, None), tools=[tool], durability=path)
        runs = self._runs(agent, calls)
        yield {STORED_AS_IT_COMES: runs, STORED_FIRST: runs}

    def _runs(self, agent: Agent, calls: int) -> Run:
        budget = RunBudget(max_steps=calls + 1)

        async def run() -> str:
            return str(await agent.invoke("go", budget=budget))

        return run
