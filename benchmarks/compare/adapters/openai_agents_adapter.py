# mypy: disable-error-code="import-not-found, misc"
# pyright: basic, reportMissingImports=false
"""The OpenAI Agents SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from benchmarks.compare.subject import Run, Stream, Tool
from benchmarks.floors import ANSWER

set_tracing_disabled(True)


def message(text: str) -> Any:
    """What a model says."""
    part = ResponseOutputText(annotations=[], text=text, type="output_text", logprobs=[])
    return ResponseOutputMessage(id="message", content=[part], role="assistant", status="completed", type="message")


class Scripted(Model):
    """Calls the tool so many times, then answers; or streams fragments."""

    def __init__(self, calls: int, seconds: float | None = None, fragments: Sequence[str] = ()) -> None:
        self.calls = calls
        self.seconds = seconds
        self.fragments = fragments

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **options: Any) -> Any:
        """What comes in this step."""
        if self.seconds is not None:
            await asyncio.sleep(self.seconds)
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        step = (len(input) + 1) // 2
        if step > self.calls:
            return ModelResponse(output=[message(ANSWER)], usage=usage, response_id=None)
        arguments = json.dumps({"number": step})
        call = ResponseFunctionToolCall(
            arguments=arguments, call_id=f"call-{step}", name="lookup", type="function_call"
        )
        return ModelResponse(output=[call], usage=usage, response_id=None)

    async def stream_response(self, *_: Any, **options: Any) -> AsyncIterator[Any]:
        """Every fragment, each in its turn, then the whole."""
        for number, fragment in enumerate(self.fragments):
            yield ResponseTextDeltaEvent(
                content_index=0,
                delta=fragment,
                item_id="message",
                logprobs=[],
                output_index=0,
                sequence_number=number,
                type="response.output_text.delta",
            )
            await asyncio.sleep(0)
        response = Response(
            id="response",
            created_at=0,
            model="scripted",
            object="response",
            output=[message("".join(self.fragments))],
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(response=response, sequence_number=len(self.fragments), type="response.completed")


class Adapter:
    """Implements `benchmarks.compare.subject.Subject`."""

    packages = ("openai-agents", "openai", "pydantic")
    configuration = (
        "Runner.run and run_streamed, a Model of its own, a coroutine as the tool, no session, tracing disabled"
    )
    start = """
from agents import Agent, function_tool
Agent(name="researcher", tools=[function_tool(lookup)])
"""

    def agent(self, tool: Tool, calls: int, seconds: float | None = None) -> Run:
        """Runs of so many calls."""
        agent = Agent(name="researcher", model=Scripted(calls, seconds), tools=[function_tool(tool)])
        config = RunConfig(tracing_disabled=True)

        async def run() -> str:
            done = await Runner.run(agent, [{"role": "user", "content": "go"}], max_turns=calls + 1, run_config=config)
            return str(done.final_output)

        return run

    def streaming(self, fragments: Sequence[str]) -> Stream:
        """Runs that stream."""
        agent = Agent(name="writer", model=Scripted(0, fragments=fragments))
        config = RunConfig(tracing_disabled=True)

        async def stream() -> AsyncIterator[str]:
            async for event in Runner.run_streamed(agent, "go", run_config=config).stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    yield event.data.delta

        return stream

    @asynccontextmanager
    async def durable(self, tool: Tool, calls: int, folder: Path) -> AsyncGenerator[Mapping[str, Run]]:
        """Its sessions keep conversations, and its integrations with other systems are not measured here."""
        yield {}
