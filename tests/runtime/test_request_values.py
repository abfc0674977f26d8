"""Private request values: captured at the start, readable everywhere in the run, recorded nowhere."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from protolink import (
    Agent,
    AgentHooks,
    ApprovalRequest,
    Policy,
    PolicyDecision,
    PolicyEffect,
    RunAction,
    RunContext,
    Tool,
    current_request_context,
    request_context,
)
from protolink.testing import call
from protolink.tools import PreparedTool, ToolExecution
from tests.support import ListeningLLM, model, turns


def _canary() -> str:
    return str(current_request_context().get("canary"))


class _Reading(Policy):
    def __init__(self, seen: list[tuple[str, str]]) -> None:
        self._seen = seen

    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        self._seen.append(("policy", _canary()))
        return PolicyDecision(PolicyEffect.REQUIRE_APPROVAL)


@pytest.mark.parametrize("mode", ["inline", "thread"])
async def test_every_place_of_a_run_reads_the_values_of_its_request(mode: Any) -> None:
    """Factory, hooks, preparation, policy, approval and execution, on the loop and in threads."""
    seen: list[tuple[str, str]] = []

    def hook(place: str) -> Any:
        return lambda _subject: seen.append((place, _canary()))

    def prepare(arguments: dict[str, Any], _context: RunContext) -> RunAction:
        seen.append(("prepare", _canary()))
        return RunAction(kind="tool.call", name="act", payload=arguments)

    async def execute(_execution: ToolExecution) -> None:
        seen.append(("execute", _canary()))

    def act() -> None:
        """Act."""

    def plain() -> None:
        seen.append(("tool", _canary()))

    def approve(_request: ApprovalRequest, _context: RunContext) -> bool:
        seen.append(("approval", _canary()))
        return True

    def speak() -> str:
        seen.append(("model", _canary()))
        return "done"

    def factory() -> Any:
        seen.append(("factory", _canary()))
        return model(call("act"), call("plain"), speak)

    tools: list[Any] = [
        PreparedTool(act, prepare=prepare, execute=execute, capabilities={"a.b"}, sync_execution=mode),
        plain,
    ]
    agent = Agent(
        name="a",
        tools=tools,
        sync_execution=mode,
        llm_factory=factory,
        policy=_Reading(seen),
        approval_handler=approve,
        hooks=AgentHooks(hook("before_model"), hook("after_tool"), hook("before_complete")),
    )
    with request_context({"canary": "mine"}):
        handle = agent.start_run("go")
    with request_context({"canary": "another's"}):
        await handle.result()

    places = {place for place, _ in seen}
    assert {value for _, value in seen} == {"mine"}
    assert places >= {"factory", "before_model", "prepare", "policy", "approval", "execute", "tool", "after_tool"}
    assert places >= {"model", "before_complete"}


async def test_two_hundred_requests_keep_their_own_values() -> None:
    """Over one agent with few threads, started in any order: 0 crossings."""

    async def on_loop(number: int) -> bool:
        await turns(number % 7)
        return _canary() == f"c{number}"

    def in_thread(number: int) -> bool:
        return _canary() == f"c{number}"

    agent = Agent(
        name="a",
        tools=[on_loop, Tool(in_thread, sync_execution="thread")],
        max_sync_workers=3,
        llm_factory=lambda: model(
            call("on_loop", number=int(_canary()[1:])), call("in_thread", number=int(_canary()[1:]))
        ),
        expose_tool_results=True,
    )

    async def serve(number: int) -> Any:
        await turns(number % 3)
        with request_context({"canary": f"c{number}"}):
            return await agent.start_run("go").result()

    served = await asyncio.gather(*(serve(number) for number in range(200)))

    assert all(record.result is True for result in served for record in result.tool_evidence)
    assert sum(len(result.tool_evidence) for result in served) == 400


async def test_values_are_recorded_nowhere() -> None:
    """Not in prompts, schemas, events, tasks, reports or the configuration."""

    def read() -> str:
        return "nothing private" if _canary() == "c4n4ry-private" else "lost"

    llm = ListeningLLM(call("read"))
    agent = Agent(name="a", tools=[read], llm=llm, expose_tool_results=True)
    with request_context({"canary": "c4n4ry-private", "client": object()}):
        handle = agent.start_run("go")
    result = await handle.result()

    everything = json.dumps([result.report.to_dict(), result.task.to_dict(), agent.to_dict()]) + llm.everything
    assert result.tool_evidence[0].result == "nothing private"
    assert "c4n4ry-private" not in everything
    assert "c4n4ry-private" not in repr(handle) + repr(result)


async def test_a_tool_cannot_change_the_values_of_its_request() -> None:
    """The mapping is read-only, so one tool cannot feed another."""
    refused: list[str] = []

    def write() -> None:
        try:
            current_request_context()["canary"] = "changed"  # type: ignore[index] # pyright: ignore[reportIndexIssue]
        except TypeError as error:
            refused.append(str(error))

    with request_context({"canary": "mine"}) as values:
        await Agent(name="a", tools=[write]).call_tool("write")
        assert values["canary"] == "mine"

    assert refused


async def test_a_scope_that_a_tool_opens_ends_with_it() -> None:
    """The next tool of the run sees the request's own values again."""
    seen: list[str] = []

    def open_scope() -> None:
        request_context({"canary": "inner"}).__enter__()

    def read() -> None:
        seen.append(_canary())

    agent = Agent(
        name="a", tools=[Tool(open_scope, sync_execution="thread"), read], llm=model(call("open_scope"), call("read"))
    )
    with request_context({"canary": "mine"}):
        await agent.invoke("go")

    assert seen == ["mine"]
    assert current_request_context() == {}


@pytest.mark.parametrize("values", [None, [("a", 1)], "text", 3])
def test_values_that_are_no_mapping_are_refused(values: Any) -> None:
    """At the scope."""
    with pytest.raises(TypeError), request_context(values):
        raise AssertionError("this scope does not exist")


def test_an_inherited_key_has_to_be_there() -> None:
    """A typing mistake in `inherit` would otherwise only be noticed in the child."""
    with pytest.raises(ValueError, match="canray"), request_context({"canary": 1}, inherit=["canray"]):
        raise AssertionError("this scope does not exist")
