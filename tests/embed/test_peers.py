"""Agents reach each other by address, by card and by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from protolink import (
    Agent,
    AgentCard,
    ConfigurationError,
    RunContext,
    Task,
    TaskExecutionError,
    TaskState,
    current_request_context,
    request_context,
)
from protolink.client import AgentClient
from protolink.discovery import Registry
from protolink.testing import call
from protolink.transport import PeerRefusedError, PeerUnavailableError, RuntimeTransport
from tests.support import model

URL = "runtime://peers-test"


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@asynccontextmanager
async def serving(*responses: Any, **options: Any) -> AsyncGenerator[Agent]:
    """A started agent, stopped at the end."""
    settings: dict[str, Any] = {"name": "server", "url": URL, "transport": "runtime", "tools": [double], **options}
    agent = Agent(llm=model(*responses), **settings)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop()


async def test_a_task_is_run_and_comes_back() -> None:
    """With the identity that it was sent under; the sender's own task stays as it was."""
    async with serving("answer"):
        task = Task.create_infer("go", session_id="alice")
        done = await AgentClient("runtime").send_task(URL, task)

    assert (done.id, done.state, done.get_output()) == (task.id, TaskState.COMPLETED, "answer")
    assert RunContext.from_task(done).run_id == RunContext.from_task(task).run_id
    assert task.state is TaskState.SUBMITTED


async def test_a_failed_run_comes_back_as_a_failed_task() -> None:
    """Failing is an outcome of the peer, not of the transport; `invoke` raises it."""

    def fail() -> None:
        """Fail."""
        raise OSError("broken")

    async with serving(call("fail"), tools=[fail]):
        peer = AgentClient().peer(URL)
        assert (await peer.send_task(Task.create_tool_call("fail"))).state is TaskState.FAILED
        with pytest.raises(TaskExecutionError, match="broken"):
            await peer.call_tool("fail")
        with pytest.raises(TaskExecutionError, match="broken"):
            await peer.invoke("go")


async def test_a_task_that_cannot_be_run_is_refused() -> None:
    """Nothing was begun, and the sender is told why."""
    async with serving():
        with pytest.raises(PeerRefusedError, match="asks for nothing"):
            await AgentClient().send_task(URL, Task())
        for operation, payload in (("task", None), ("task", {}), ("drop", {})):
            with pytest.raises(PeerRefusedError):
                await RuntimeTransport().call(URL, operation, payload)


async def test_a_reply_that_is_no_task_is_an_error_of_the_transport() -> None:
    """Whoever answers at that address is no agent."""
    registry = Registry("runtime", URL)
    await registry.start()
    with pytest.raises(PeerRefusedError, match="no operation 'task'"):
        await AgentClient().send_task(URL, Task.create_infer("go"))
    await registry.stop()


async def test_private_values_stay_with_the_caller() -> None:
    """Also when they may be inherited: a peer is no child."""
    seen: list[Any] = []

    def look() -> str:
        """Look at the private values."""
        seen.append(dict(current_request_context()))
        return "seen"

    async with serving(tools=[look]):
        with request_context({"token": "t"}, inherit=("token",)):
            await AgentClient().peer(URL).call_tool("look")

    assert seen == [{}]


async def test_canceling_the_call_cancels_the_peers_run() -> None:
    """Its tool is told, as if the run had been canceled at home."""
    started, canceled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        """Wait for ever."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            canceled.set()
            raise

    async with serving(tools=[wait]):
        calling = asyncio.create_task(AgentClient().peer(URL).call_tool("wait"))
        await started.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

        assert canceled.is_set()


async def test_a_peer_is_found_by_address_card_and_name() -> None:
    """A name is looked up in the registry, each time anew."""
    registry = Registry("runtime", "runtime://peers-test-registry")
    await registry.start()
    caller = Agent(name="caller", registry=registry)
    async with serving(registry=registry) as server:
        for target in (URL, server.public_card(), "server"):
            assert await caller.peer(target).call_tool("double", number=2) == 4
        await registry.register(AgentCard("server", url="runtime://another"))
        with pytest.raises(PeerUnavailableError, match="2 agents named 'server'"):
            await caller.peer("server").url()
    await registry.unregister("runtime://another")
    with pytest.raises(PeerUnavailableError, match="0 agents named 'server'"):
        await caller.peer("server").url()
    await registry.stop()


async def test_a_peer_that_cannot_be_addressed_is_refused() -> None:
    """A name needs a registry, and a card an address."""
    caller = Agent(name="caller")
    with pytest.raises(ConfigurationError, match="no registry"):
        await caller.peer("server").url()
    with pytest.raises(ConfigurationError, match="no address"):
        await caller.peer(AgentCard("server")).url()


async def test_starting_and_stopping_can_be_repeated() -> None:
    """Two starts at once are one, and a stopped agent answers no more but still runs work of this process."""
    agent = Agent(name="server", llm=model("answer"), transport="runtime", url=URL)
    for _ in range(2):
        await asyncio.gather(agent.start(), agent.start())
        assert (await AgentClient().peer(URL).send_task(Task.create_infer("go"))).state is TaskState.COMPLETED
        await asyncio.gather(agent.stop(), agent.stop())
        with pytest.raises(PeerUnavailableError):
            await AgentClient().peer(URL).invoke("go")
    assert await agent.invoke("go") == "done"


async def test_an_agent_without_a_transport_starts_and_serves_nothing() -> None:
    """A team may hold members that only work at home."""
    agent = Agent(name="local", llm=model("answer"))
    await agent.start()

    assert await agent.invoke("go") == "answer"
    await agent.stop()


def test_the_public_card_lists_the_tools() -> None:
    """Peers choose by what is offered; a card that lists skills itself is left as it is."""
    agent = Agent(name="server", tools=[double], transport=RuntimeTransport(URL))

    assert agent.card.url == URL
    assert agent.public_card().skills == [{"name": "double", "description": "Double a number."}]
    stated = Agent(AgentCard("server", skills=[{"name": "other"}]), tools=[double])
    assert stated.public_card().skills == [{"name": "other"}]


@pytest.mark.parametrize(
    "options",
    [
        {"transport": "runtime"},
        {"transport": RuntimeTransport()},
        {"transport": "pigeon", "url": "http://127.0.0.1:1"},
        {"transport": "runtime", "url": "http://127.0.0.1:1"},
        {"transport": RuntimeTransport(URL), "url": "runtime://other"},
        {"transport": 7, "url": URL},
        {"registry": "runtime"},
        {"registry_url": URL},
        {"registry": object()},
    ],
)
def test_wiring_that_cannot_work_is_refused(options: Any) -> None:
    """Where the agent is built."""
    with pytest.raises(ConfigurationError):
        Agent(name="server", **options)
