"""The agent's verbs for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from protolink.context import RunBudget, RunContext
from protolink.events import RunEvent
from protolink.message import Message
from protolink.task import Task

if TYPE_CHECKING:
    from protolink._options import ResumeOptions, RunOptions, Settlement
    from protolink.agent import Agent
    from protolink.handle import RunHandle, RunResult
    from protolink.llms.choice import ToolChoice

__all__ = ["SyncAgent", "SyncRunHandle"]

T = TypeVar("T")


def _require_no_loop(verb: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"agent.sync.{verb} would block the running event loop; await agent.{verb} instead")


def _run(verb: str, work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in this thread, on an event loop of its own."""
    try:
        _require_no_loop(verb)
    except RuntimeError:
        work.close()
        raise
    return asyncio.run(work)


class SyncAgent:
    """Blocking spellings of `Agent`'s verbs, as `agent.sync`.

    Each call runs in the calling thread, so several threads can use one agent at once. Inside a running
    event loop every verb raises `RuntimeError`, for it would stop that loop.
    """

    __slots__ = ("_agent",)

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def invoke(
        self,
        message: str | Message,
        part_type: str = "infer",
        tool_name: str | None = None,
        tool_args: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        *,
        budget: RunBudget | None = None,
        context: RunContext | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> Any:
        """`Agent.invoke`, blocking."""
        work = self._agent.invoke(
            message,
            part_type,
            tool_name,
            tool_args,
            session_id,
            budget=budget,
            context=context,
            tool_choice=tool_choice,
        )
        return _run("invoke", work)

    def invoke_typed(
        self,
        message: str,
        response_model: type[T],
        *,
        max_attempts: int = 1,
        session_id: str | None = None,
        budget: RunBudget | None = None,
        context: RunContext | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> T:
        """`Agent.invoke_typed`, blocking."""
        work = self._agent.invoke_typed(
            message,
            response_model,
            max_attempts=max_attempts,
            session_id=session_id,
            budget=budget,
            context=context,
            tool_choice=tool_choice,
        )
        return _run("invoke_typed", work)

    def run_task(self, task: Task, *, tool_choice: ToolChoice | None = None) -> Task:
        """`Agent.run_task`, blocking."""
        return _run("run_task", self._agent.run_task(task, tool_choice=tool_choice))

    def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """`Agent.call_tool`, blocking."""
        return _run("call_tool", self._agent.call_tool(name, **arguments))

    def call_tool_in_context(self, name: str, context: RunContext, /, **arguments: Any) -> Any:
        """`Agent.call_tool_in_context`, blocking."""
        return _run("call_tool_in_context", self._agent.call_tool_in_context(name, context, **arguments))

    def resume_task(self, run_id: str, **response: Unpack[ResumeOptions]) -> Task:
        """`Agent.resume_task`, blocking."""
        return _run("resume_task", self._agent.resume_task(run_id, **response))

    def resume(self, run_id: str, **response: Unpack[ResumeOptions]) -> Any:
        """`Agent.resume`, blocking."""
        return _run("resume", self._agent.resume(run_id, **response))

    def reconcile(self, run_id: str, action_id: str, **settlement: Unpack[Settlement]) -> Task:
        """`Agent.reconcile`, blocking."""
        return _run("reconcile", self._agent.reconcile(run_id, action_id, **settlement))

    def start_run(self, prompt_or_task: str | Task | Message, **options: Unpack[RunOptions]) -> SyncRunHandle:
        """`Agent.start_run`, for a `with` block. The run goes on while one of the handle's methods waits."""
        _require_no_loop("start_run")
        return SyncRunHandle(self._agent, prompt_or_task, options)


class SyncRunHandle:
    """A run that is driven by whoever reads it: an event loop of its own, in the calling thread.

    Leaving the `with` block cancels a run that has not ended.
    """

    __slots__ = ("_handle", "_runner")

    def __init__(self, agent: Agent, work: str | Task | Message, options: RunOptions) -> None:
        self._runner = asyncio.Runner()

        async def start() -> RunHandle:
            return agent.start_run(work, **options)

        try:
            self._handle = self._runner.run(start())
        except BaseException:
            self._runner.close()
            raise

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._handle.run_id

    def events(self, after: int = 0) -> Iterator[RunEvent]:
        """The run's events, driving the run until its end."""
        events = self._handle.events(after)

        async def following() -> RunEvent | None:
            return await anext(events, None)

        while (event := self._runner.run(following())) is not None:
            yield event

    def result(self) -> RunResult:
        """Drive the run to its end."""
        return self._runner.run(self._handle.result())

    def cancel(self, reason: str = "canceled by the application") -> None:
        """Ask the run to end and await that it has."""
        self._runner.run(self._handle.cancel(reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cancel("the with block was left")
        finally:
            self._runner.close()
