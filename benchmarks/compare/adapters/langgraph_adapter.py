# mypy: disable-error-code="import-not-found, misc"
# pyright: basic, reportMissingImports=false
"""LangGraph, through the agent that LangChain builds on it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

os.environ.setdefault("LANGSMITH_TRACING", "false")

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.compare.subject import STORED_AS_IT_COMES, STORED_FIRST, Run, Stream, Tool
from benchmarks.floors import ANSWER


class Scripted(BaseChatModel):
    """Calls the tool so many times, then answers; or streams fragments."""

    calls: int = 0
    seconds: float | None = None
    fragments: Sequence[str] = ()

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """The script knows its tool."""
        return self

    def _generate(self, *_: Any, **options: Any) -> Any:
        raise NotImplementedError("every run is asynchronous")

    async def _agenerate(self, messages: list[Any], *_: Any, **options: Any) -> Any:
        if self.seconds is not None:
            await asyncio.sleep(self.seconds)
        usage: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        step = (len(messages) + 1) // 2
        if step > self.calls:
            said = AIMessage(ANSWER, usage_metadata=usage)
        else:
            arguments = json.loads(json.dumps({"number": step}))  # an adapter of a provider parses them
            call: Any = {"name": "lookup", "args": arguments, "id": f"call-{step}"}
            said = AIMessage("", tool_calls=[call], usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=said)])


class Streaming(Scripted):
    """A chat model of LangChain that has `_astream` is always streamed where somebody reads."""

    async def _astream(self, *_: Any, **options: Any) -> AsyncIterator[Any]:
        for fragment in self.fragments:
            yield ChatGenerationChunk(message=AIMessageChunk(fragment))
            await asyncio.sleep(0)


class Adapter:
    """Implements `benchmarks.compare.subject.Subject`."""

    packages = ("langgraph", "langchain", "langchain-core", "langgraph-checkpoint-sqlite", "pydantic")
    configuration = (
        "create_agent without middleware, ainvoke and astream(stream_mode='messages'), a coroutine as the tool, no "
        "LangSmith; stored steps: AsyncSqliteSaver as it is (WAL, synchronous=FULL), durability='async', which is the "
        "default, and durability='sync'"
    )
    start = """
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
create_agent(GenericFakeChatModel(messages=iter([])), tools=[lookup])
"""

    def agent(self, tool: Tool, calls: int, seconds: float | None = None) -> Run:
        """Runs of so many calls."""
        agent = create_agent(Scripted(calls=calls, seconds=seconds), tools=[tool])
        return _runs(agent, calls)

    def streaming(self, fragments: Sequence[str]) -> Stream:
        """Runs that stream."""
        agent = create_agent(Streaming(fragments=fragments), tools=[])

        async def stream() -> AsyncIterator[str]:
            async for message, _ in agent.astream({"messages": [("user", "go")]}, stream_mode="messages"):
                if message.content:
                    yield message.content

        return stream

    @asynccontextmanager
    async def durable(self, tool: Tool, calls: int, folder: Path) -> AsyncGenerator[Mapping[str, Run]]:
        """Every run is a thread of its own in the file."""
        async with AsyncExitStack() as stack:
            runs: dict[str, Run] = {}
            for name, mode in ((STORED_AS_IT_COMES, "async"), (STORED_FIRST, "sync")):
                path = str(folder / f"langgraph-{mode}.sqlite")
                saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
                agent = create_agent(Scripted(calls=calls), tools=[tool], checkpointer=saver)
                runs[name] = _runs(agent, calls, durability=mode)
            yield runs


def _runs(agent: Any, calls: int, **options: Any) -> Run:
    threads = count()

    async def run() -> str:
        config: Any = {"recursion_limit": 2 * calls + 3, "configurable": {"thread_id": str(next(threads))}}
        state = await agent.ainvoke({"messages": [("user", "go")]}, config, **options)
        return str(state["messages"][-1].content)

    return run
