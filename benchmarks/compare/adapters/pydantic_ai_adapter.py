# mypy: disable-error-code="import-not-found, misc"
# pyright: basic, reportMissingImports=false
"""Pydantic AI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RequestUsage, UsageLimits
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from benchmarks.compare.subject import Run, Stream, Tool
from benchmarks.floors import ANSWER


def model(calls: int, seconds: float | None) -> Any:
    """Calls the tool so many times, then answers. Without a usage, every step would count all words anew."""

    async def respond(messages: list[Any], info: Any) -> Any:
        if seconds is not None:
            await asyncio.sleep(seconds)
        usage = RequestUsage(input_tokens=10, output_tokens=5)
        step = (len(messages) + 1) // 2
        if step > calls:
            return ModelResponse(parts=[TextPart(ANSWER)], usage=usage)
        call = ToolCallPart("lookup", json.dumps({"number": step}), tool_call_id=f"call-{step}")
        return ModelResponse(parts=[call], usage=usage)

    return FunctionModel(respond)


class Adapter:
    """Implements `benchmarks.compare.subject.Subject`."""

    packages = ("pydantic-ai-slim", "pydantic-graph", "pydantic")
    configuration = (
        "Agent.run, FunctionModel, a coroutine as the tool, no instrumentation; stream_text(debounce_by=None)"
    )
    start = """
from pydantic_ai import Agent
Agent(name="researcher", tools=[lookup])
"""

    def agent(self, tool: Tool, calls: int, seconds: float | None = None) -> Run:
        """Runs of so many calls."""
        agent = Agent(model(calls, seconds), name="researcher", tools=[tool])
        limits = UsageLimits(request_limit=None)

        async def run() -> str:
            return str((await agent.run("go", usage_limits=limits)).output)

        return run

    def streaming(self, fragments: Sequence[str]) -> Stream:
        """Runs that stream."""

        async def respond(messages: list[Any], info: Any) -> AsyncIterator[str]:
            for fragment in fragments:
                yield fragment
                await asyncio.sleep(0)

        agent = Agent(FunctionModel(stream_function=respond), name="writer")

        async def stream() -> AsyncIterator[str]:
            async with agent.run_stream("go") as result:
                async for text in result.stream_text(delta=True, debounce_by=None):
                    yield text

        return stream

    @asynccontextmanager
    async def durable(self, tool: Tool, calls: int, folder: Path) -> AsyncGenerator[Mapping[str, Run]]:
        """It leaves durable execution to other systems (Temporal, DBOS, Prefect), which are not measured here."""
        yield {}
