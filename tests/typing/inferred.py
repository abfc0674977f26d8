"""What type checkers infer of the public API, and what they refuse. Nobody runs this file: `make check` reads it.

A line that has to be refused says so to both checkers. Should it become acceptable, the comment is one too many, and
that is an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, assert_type

from pydantic import BaseModel

from protolink import (
    Agent,
    AgentGroup,
    AgentHooks,
    ApprovalRequest,
    CapabilityPolicy,
    CompletionCheck,
    ModelRequest,
    Policy,
    PolicyDecision,
    PolicyEffect,
    RunAction,
    RunBudget,
    RunContext,
    RunEvent,
    RunHandle,
    RunHandoff,
    RunManager,
    RunReport,
    RunResult,
    SubagentHandle,
    Task,
    Tool,
    ToolEvidence,
    UncertainAction,
    create_llm,
)
from protolink.durable.store import StoredRunView
from protolink.http import create_app
from protolink.http.application import Application
from protolink.llms import LLM
from protolink.sync import SyncRunHandle
from protolink.tools import BaseTool, PreparedTool, ToolExecution


class Answer(BaseModel):
    text: str


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


async def runs(agent: Agent, group: AgentGroup) -> None:
    handle = agent.start_run("Hello", budget=RunBudget(max_llm_calls=1))
    assert_type(handle, RunHandle)
    assert_type(handle.events(), AsyncIterator[RunEvent])
    async for event in handle.events(after=3):
        assert_type(event, RunEvent)
        assert_type(event.type, str)
        assert_type(event.sequence, int)
    assert_type(handle.chunks(), AsyncIterator[str])
    async for evidence in handle.tool_evidence():
        assert_type(evidence, ToolEvidence)
    assert_type(await handle.spawn("child", "Work."), SubagentHandle)
    assert_type(handle.report, RunReport)

    result = await handle.result()
    assert_type(result, RunResult)
    assert_type(result.status, str)
    assert_type(result.error, str | None)
    assert_type(result.tool_evidence, tuple[ToolEvidence, ...])
    assert_type(result.handoff, RunHandoff | None)
    assert_type(result.task, Task)

    assert_type(group.run(agent, "Hello", session_id="s"), RunHandle)
    assert_type(RunHandle.start(agent, "Hello", session_id="s"), RunHandle)
    assert_type(await agent.run_task(Task.create_infer("Hello")), Task)
    assert_type(await agent.resume_task("run", approved=True), Task)
    assert_type(await agent.resume_run("run"), RunHandle | Task)


async def wrong_runs(agent: Agent, group: AgentGroup) -> None:
    handle = agent.start_run(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.start_run("Hello", budget=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    agent.start_run("Hello", budgets=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RunHandle.start(agent, "Hello", budget=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    group.run(agent, "Hello", session=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await agent.resume("run", approved="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await agent.resume("run", approve=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    list(handle.events())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    handle.result().status  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
    handle.result()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    RunBudget(max_llm_calls="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RunBudget(max_turns=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def typed_answers(agent: Agent) -> None:
    assert_type(await agent.invoke_typed("Say it.", Answer), Answer)
    assert_type(await agent.invoke_typed("Count.", int, max_attempts=2), int)
    assert_type(await agent.invoke_typed("List.", list[str]), list[str])
    assert_type(agent.sync.invoke_typed("Say it.", Answer), Answer)

    text: str = await agent.invoke_typed("Say it.", Answer)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    await agent.invoke_typed("Say it.", "Answer")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    (await agent.invoke_typed("Say it.", Answer)).texts  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
    del text


def without_a_loop(agent: Agent) -> None:
    assert_type(agent.sync.run_task(Task.create_infer("Hello")), Task)
    assert_type(agent.sync.resume_task("run", request_id="r", answer=[1]), Task)
    assert_type(agent.sync.reconcile("run", "action", result=1), Task)
    with agent.sync.start_run("Hello", session_id="s") as handle:
        assert_type(handle, SyncRunHandle)
        assert_type(handle.events(), Iterator[RunEvent])
        assert_type(handle.result(), RunResult)
    agent.sync.start_run("Hello", session=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    agent.sync.reconcile("run", "action", happened=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def tools(agent: Agent) -> None:
    bare = agent.tool(add)
    assert_type(bare(1, 2), int)
    bare("1", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    @agent.tool(capabilities=["files.read"], read_only=True, timeout_seconds=2)
    async def read(path: str) -> bytes:
        """Read a file."""
        return path.encode()

    read(3)  # type: ignore[arg-type, unused-coroutine]  # pyright: ignore[reportArgumentType, reportUnusedCoroutine]
    agent.tool(reed_only=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    agent.tool(on_error="ignore")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

    assert_type(Tool(add), Tool)
    assert_type(Tool.from_callable(add, idempotent=True), Tool)
    assert_type(agent.add_tool(add), BaseTool)
    assert_type(agent.tools, Mapping[str, BaseTool])
    Tool(add, sync_execution="process")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Tool.from_callable(add, tag="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    agent.add_tool("add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def prepare(arguments: dict[str, Any], context: RunContext) -> RunAction:
    return RunAction("tool.call", "move", arguments)


async def execute(execution: ToolExecution) -> str:
    assert_type(execution.action, RunAction)
    assert_type(execution.remaining_seconds, float | None)
    return "moved"


def execute_at_once(execution: ToolExecution) -> str:
    return "moved"


def prepared_tools() -> None:
    PreparedTool(add, prepare=prepare, execute=execute, capabilities=["move"])
    PreparedTool(add, prepare=execute, execute=execute, capabilities=["move"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    PreparedTool(add, prepare=prepare, execute=execute_at_once, capabilities=[])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    PreparedTool(add, prepare=prepare, execute=execute)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Quiet(Policy):
    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        return PolicyDecision(PolicyEffect.ALLOW)


def look(request: ModelRequest) -> None:
    assert_type(request.history, list[dict[str, Any]])


def look_elsewhere(request: RunEvent) -> None: ...


def approve(request: ApprovalRequest, context: RunContext) -> bool:
    return "files.read" in request.action.capabilities


def configuration() -> None:
    agent = Agent(name="a", policy=[Quiet(), CapabilityPolicy()], hooks=AgentHooks(before_model=look))
    Agent(name="a", approval_handler=approve)
    Agent(name="a", policy=PolicyEffect.DENY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(name="a", approval_handler=look)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(name="a", hooks=[look])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent(name="a", tool=[add])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AgentHooks(before_model=look_elsewhere)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Policy()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
    CompletionCheck("done", lambda completion: completion.receipt != ())  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert_type(create_llm("mock"), LLM)
    assert_type(create_app(AgentGroup([agent]), budget=RunBudget(max_steps=1)), Application)
    create_app(agent)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def stored_runs(manager: RunManager) -> None:
    assert_type(await manager.list(limit=3), list[StoredRunView])
    assert_type(await manager.inspect("run"), RunReport)
    assert_type(await manager.resume("run", approved=True), Task)
    assert_type(await manager.list_uncertain(), list[UncertainAction])
    await manager.resume("run", approved="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
