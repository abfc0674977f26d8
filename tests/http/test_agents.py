"""Agents, registries and groups over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from contextlib import aclosing
from typing import Any

import pytest

from protolink import (
    Agent,
    AgentCard,
    AgentGroup,
    ConfigurationError,
    RunContext,
    RunEvent,
    Task,
    TaskExecutionError,
    TaskState,
    current_request_context,
    request_context,
)
from protolink.client import AgentClient
from protolink.discovery import Registry, RegistryClient
from protolink.storage import InMemoryStorage
from protolink.testing import DyingLog, call, delegate
from protolink.transport import (
    HTTPTransport,
    PeerNotFoundError,
    PeerRefusedError,
    PeerUnavailableError,
    TransportError,
    TransportStartError,
)
from protolink.transport.http import APIKeyAuthenticator
from tests.http.servers import agent_at, free_url, get, listens, port_of, post
from tests.support import ListeningLLM, model

ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789ab"
KEYS = APIKeyAuthenticator({ALICE: "alice", BOB: "bob"})


def client(url: str, key: str) -> AgentClient:
    """A client that shows a key at an address."""
    return AgentClient(HTTPTransport(credentials={url: key}))


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


class Endless:
    """A tool that waits until its run is canceled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.canceled = asyncio.Event()

    async def wait(self) -> None:
        """Wait for ever."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.canceled.set()
            raise


async def test_a_task_is_run_and_comes_back() -> None:
    """With the identity that it was sent under."""
    url = free_url()
    async with agent_at(url, "answer"):
        task = Task.create_infer("go", session_id="alice")
        done = await AgentClient("http").send_task(url, task)

    assert (done.id, done.state, done.get_output()) == (task.id, TaskState.COMPLETED, "answer")
    assert RunContext.from_task(done).run_id == RunContext.from_task(task).run_id


async def test_a_failed_run_comes_back_as_a_failed_task() -> None:
    """Failing is an outcome of the peer, not of the transport."""

    def fail() -> None:
        """Fail."""
        raise OSError("broken")

    url = free_url()
    async with agent_at(url, tools=[fail]):
        assert (await AgentClient("http").send_task(url, Task.create_tool_call("fail"))).state is TaskState.FAILED
        with pytest.raises(TaskExecutionError, match="broken"):
            await AgentClient("http").peer(url).call_tool("fail")


async def test_a_task_that_cannot_be_run_is_refused() -> None:
    """Nothing was begun, and the sender is told why."""
    url = free_url()
    async with agent_at(url):
        with pytest.raises(PeerRefusedError, match="asks for nothing"):
            await AgentClient("http").send_task(url, Task())
        values: list[Any] = [None, {}, [], "task", {"id": 7}]
        for value in values:
            assert (await post(url, "/tasks", value)).status == 422
        with pytest.raises(PeerNotFoundError):
            await RegistryClient("http", url).discover()


async def test_private_values_stay_with_the_caller() -> None:
    """Also when they may be inherited: a peer is no child."""
    seen: list[Any] = []

    def look() -> str:
        """Look at the private values."""
        seen.append(dict(current_request_context()))
        return "seen"

    url = free_url()
    async with agent_at(url, tools=[look]):
        with request_context({"token": "t"}, inherit=("token",)):
            await AgentClient("http").peer(url).call_tool("look")

    assert seen == [{}]


async def test_events_arrive_while_the_run_goes_on() -> None:
    """The first ones before the tool that they announce has ended; the final task comes last."""
    go = asyncio.Event()

    async def hold() -> str:
        """Wait to be let go."""
        await go.wait()
        return "held"

    url, given = free_url(), list[Any]()
    async with (
        agent_at(url, call("hold"), "answer", tools=[hold]),
        aclosing(AgentClient("http").peer(url).stream_task(Task.create_infer("go"))) as stream,
    ):
        async for item in stream:
            given.append(item)
            if isinstance(item, RunEvent) and item.type == "action.started":
                go.set()

    events, task = given[:-1], given[-1]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (events[-1].type, events[-1].final) == ("task.status", True)
    assert (task.state, task.get_output()) == (TaskState.COMPLETED, "answer")


async def test_a_stream_of_a_transport_without_streams_is_the_task() -> None:
    """With its receipts: what was done is returned where it cannot be watched."""
    agent = Agent(
        name="server",
        llm=model(call("double", number=2), "4"),
        tools=[double],
        transport="runtime",
        url="runtime://http-test",
    )
    await agent.start()
    given = [item async for item in AgentClient("runtime").stream_task("runtime://http-test", Task.create_infer("go"))]
    await agent.stop()

    assert [item.get_output() for item in given if isinstance(item, Task)] == ["4"]
    assert [artifact.kind for item in given if isinstance(item, Task) for artifact in item.artifacts] == [
        "action_result"
    ]


async def test_a_browser_can_read_the_stream() -> None:
    """As server-sent events, numbered by the list of the run."""
    url = free_url()
    async with agent_at(url, "answer"):
        reply = await post(url, "/tasks", Task.create_infer("go").to_dict(), Accept="text/event-stream")

    messages = [
        dict(line.split(": ", 1) for line in text.split("\n")) for text in reply.body.decode().split("\n\n")[:-1]
    ]
    assert [message["id"] for message in messages[:-1]] == [str(number) for number in range(1, len(messages))]
    assert messages[-1]["event"] == "task"
    assert json.loads(messages[-1]["data"])["state"] == "completed"


async def test_a_stream_of_a_refused_task_is_a_refusal() -> None:
    """With its status, before anything was streamed."""
    url = free_url()
    async with agent_at(url):
        with pytest.raises(PeerRefusedError, match="asks for nothing"):
            _ = [item async for item in AgentClient("http").stream_task(url, Task())]


@pytest.mark.parametrize("streaming", [False, True])
async def test_canceling_the_call_cancels_the_peers_run(streaming: bool) -> None:
    """Its tool is told, as if the run had been canceled at home."""
    endless, url = Endless(), free_url()

    async def ask() -> None:
        if not streaming:
            await AgentClient("http").peer(url).call_tool("wait")
        async with aclosing(AgentClient("http").stream_task(url, Task.create_tool_call("wait"))) as stream:
            async for _ in stream:
                pass

    async with agent_at(url, tools=[endless.wait]):
        asking = asyncio.create_task(ask())
        await endless.started.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await endless.canceled.wait()


async def test_stopping_an_agent_cancels_what_others_asked_for() -> None:
    """They are told that it may have begun, with and without a stream."""
    endless, url = Endless(), free_url()

    async def streamed() -> Any:
        return [item async for item in AgentClient("http").stream_task(url, Task.create_tool_call("wait"))]

    async with agent_at(url, tools=[endless.wait]) as agent:
        asking = [asyncio.create_task(AgentClient("http").peer(url).call_tool("wait")), asyncio.create_task(streamed())]
        await endless.started.wait()
        await agent.stop()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [PeerUnavailableError] * 2
    assert endless.canceled.is_set()


async def test_a_task_is_canceled_by_who_sent_it() -> None:
    """Both calls give the canceled task; afterwards there is none to cancel."""
    endless, url = Endless(), free_url()
    async with agent_at(url, tools=[endless.wait], authenticator=KEYS):
        alice = client(url, ALICE)
        task = Task.create_tool_call("wait")
        asking = asyncio.create_task(alice.send_task(url, task))
        await endless.started.wait()
        canceled = await alice.cancel_task(url, task.id, "enough")

        assert (await asking).state is canceled.state is TaskState.CANCELED
        with pytest.raises(PeerNotFoundError):
            await alice.cancel_task(url, task.id)


@pytest.mark.parametrize("kind", ["http", "runtime"])
async def test_a_task_can_be_looked_at_by_who_sent_it(kind: str) -> None:
    """While it goes on and after its end; one that was never sent is not there."""
    held, go, url = asyncio.Event(), asyncio.Event(), free_url() if kind == "http" else "runtime://http-test-status"

    async def hold() -> str:
        """Wait to be let go."""
        held.set()
        await go.wait()
        return "held"

    task, peer = Task.create_tool_call("hold"), AgentClient(kind)
    async with agent_at(url, tools=[hold], transport=kind):
        asking = asyncio.create_task(peer.send_task(url, task))
        await held.wait()
        assert (await peer.task_status(url, task.id)).state is TaskState.WORKING
        go.set()
        assert (await peer.task_status(url, task.id)).id == (await asking).id
        assert (await peer.task_status(url, task.id)).get_output() == "held"
        with pytest.raises(PeerNotFoundError):
            await peer.task_status(url, "no-such-task")


async def test_c17_somebody_elses_task_is_answered_as_one_that_is_not_there() -> None:
    """Byte for byte, and it goes on; so is a run that nobody sent over the wire."""
    endless, url = Endless(), free_url()
    async with agent_at(url, tools=[endless.wait], authenticator=KEYS) as agent:
        task, own = Task.create_tool_call("wait"), Task.create_tool_call("wait")
        asking = asyncio.create_task(client(url, ALICE).send_task(url, task))
        handle = agent.start_run(own)
        await endless.started.wait()
        replies = [
            await post(url, f"/tasks/{task_id}/cancel", {}, Authorization=f"Bearer {BOB}")
            for task_id in (task.id, own.id, "no-such-task")
        ]
        assert not endless.canceled.is_set()
        await client(url, ALICE).cancel_task(url, task.id)
        await handle.cancel()
        await asking

    assert {reply.status for reply in replies} == {404}
    assert len({reply.body for reply in replies}) == 1


async def test_c17_a_stored_run_of_somebody_else_is_not_given_away(tmp_path: Any) -> None:
    """Sending its ids again gives the sender the stored task, and everybody else the same refusal as for a new task."""
    url = free_url()
    async with agent_at(url, "answer", authenticator=KEYS, durability=tmp_path / "runs.sqlite"):
        task = Task.create_infer("go")
        first = await client(url, ALICE).send_task(url, task)
        again = await client(url, ALICE).send_task(url, task)
        with pytest.raises(PeerRefusedError, match="409"):
            await client(url, BOB).send_task(url, task)

    assert first.get_output() == again.get_output() == "answer"


async def test_a_run_acts_for_who_asked_for_it(tmp_path: Any) -> None:
    """What is stored names its owner; without authentication nobody acts as the application itself."""
    from protolink._runtime.principal import current_principal

    seen: list[str] = []

    def who() -> str:
        """Say who acts."""
        seen.append(current_principal())
        return "seen"

    url, other = free_url(), free_url()
    async with agent_at(url, tools=[who], authenticator=KEYS), agent_at(other, tools=[who]):
        await client(url, ALICE).peer(url).call_tool("who")
        await client(url, BOB).peer(url).call_tool("who")
        await AgentClient("http").peer(other).call_tool("who")

    assert seen == ["alice", "bob", "anonymous"]


async def test_a_card_is_given_to_who_may_ask() -> None:
    """With the declared tools as skills."""
    url = free_url()
    async with agent_at(url, tools=[double], authenticator=KEYS):
        assert (await get(url, "/card")).status == 401
        card = await client(url, ALICE).card(url)

    assert (card.name, card.url, [skill["name"] for skill in card.skills]) == ("server", url, ["double"])


async def test_agents_take_their_options_along() -> None:
    """`authenticator` and `credentials` are the HTTP transport's, and nobody else's."""
    one, two = free_url(), free_url()
    async with (
        agent_at(one, tools=[double], authenticator=KEYS),
        agent_at(two, name="caller", credentials={one: ALICE}) as caller,
    ):
        assert await caller.peer(one).call_tool("double", number=2) == 4
    foreign: list[dict[str, Any]] = [{"authenticator": KEYS}, {"credentials": {}}]
    for options in foreign:
        with pytest.raises(ConfigurationError):
            Agent(name="a", transport="runtime", url="runtime://a", **options)


async def test_a_group_of_agents_and_a_registry_lives_on_sockets() -> None:
    """They find each other by name, and nothing is left when the group is closed."""
    before = asyncio.all_tasks()
    where, one, two = free_url(), free_url(), free_url()
    registry = Registry(url=where, entry_ttl_seconds=30)
    agents = [
        Agent(name="one", transport="http", url=one, registry="http", registry_url=where),
        Agent(name="two", transport="http", url=two, tools=[double]),
    ]
    async with AgentGroup(agents, registry=registry, own_registry=True) as group:
        names = [card.name for card in await RegistryClient("http", where).discover()]
        assert await agents[0].peer("two").call_tool("double", number=21) == 42
        assert list(group.agents) == ["one", "two"]

    assert sorted(names) == ["one", "two"]
    assert [listens(url) for url in (where, one, two)] == [False] * 3
    assert asyncio.all_tasks() == before


async def test_a_group_whose_port_is_taken_leaves_every_other_port_free() -> None:
    """And starts as soon as the port is free, with the same members."""
    where, one, two = (free_url() for _ in range(3))
    members = [Agent(name=name, llm=model(), transport="http", url=url) for name, url in (("one", one), ("two", two))]
    group = AgentGroup(members, registry=Registry(url=where), own_registry=True)
    with socket.create_server(("127.0.0.1", port_of(two))):
        with pytest.raises(TransportStartError, match="cannot listen"):
            await group.start()
        assert [listens(url) for url in (where, one)] == [False, False]
    async with group:
        assert await AgentClient("http").peer(two).invoke("go") == "done"
    assert [listens(url) for url in (where, one, two)] == [False] * 3


async def test_a_group_that_is_canceled_half_way_leaves_every_port_free() -> None:
    """A registry that takes the request and says nothing holds it up; the caller gives up, and nothing is left."""
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    where, url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", free_url()
    before = asyncio.all_tasks()
    group = AgentGroup([Agent(name="a", transport="http", url=url, registry="http", registry_url=where)])
    starting = asyncio.create_task(group.start())
    await asked.wait()
    assert listens(url)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    server.close()
    await server.wait_closed()

    assert not listens(url)
    assert {task for task in asyncio.all_tasks() - before if "silent" not in repr(task)} == set()


async def test_a_registry_that_is_down_stops_the_start() -> None:
    """At once, with words, and with nothing left; once it is there the same agent starts."""
    where, url = free_url(), free_url()
    agent = Agent(name="a", transport="http", url=url, registry="http", registry_url=where)
    with pytest.raises(TransportStartError, match="nobody answers"):
        await agent.start()
    assert not listens(url)

    registry = Registry(url=where)
    await registry.start()
    await agent.start()
    assert [card.name for card in await registry.discover()] == ["a"]
    await agent.stop()
    await registry.stop()


async def test_a_registry_that_goes_down_later_leaves_the_agent_at_work(caplog: pytest.LogCaptureFixture) -> None:
    """It answers, says that nobody hears it, and stops."""
    where, url = free_url(), free_url()
    registry = Registry(url=where)
    await registry.start()
    async with agent_at(url, tools=[double], registry="http", registry_url=where):
        await registry.stop()
        with caplog.at_level(logging.WARNING):
            assert await AgentClient("http").peer(url).call_tool("double", number=2) == 4

    assert "could not leave its registry" in caplog.text


@pytest.mark.parametrize("served", [None, "runtime", "http"])
async def test_a_peer_is_reached_by_what_its_address_says(served: str | None) -> None:
    """Whatever the caller serves itself, and whether it serves anything."""
    own = {"runtime": "runtime://http-test-caller", "http": free_url()}.get(served or "")
    registry = Registry("runtime", "runtime://http-test-registry")
    await registry.start()
    async with (
        agent_at(free_url(), tools=[double], name="far", registry=registry),
        agent_at("runtime://http-test-near", tools=[double], transport="runtime", name="near", registry=registry),
    ):
        caller = Agent(name="caller", transport=served, url=own, registry=registry)
        for name in ("far", "near"):
            assert await caller.peer(name).call_tool("double", number=2) == 4
        with pytest.raises(ConfigurationError, match="begins with"):
            await caller.peer("pigeon://far").call_tool("double", number=2)
    await registry.stop()


async def test_an_agent_shows_its_credentials_to_peers_without_serving_anything() -> None:
    """What it was given belongs to the origin of the peer."""
    url = free_url()
    async with agent_at(url, tools=[double], authenticator=KEYS):
        caller = Agent(name="caller", credentials={url: ALICE})
        await caller.start()
        assert await caller.peer(url).call_tool("double", number=2) == 4
        await caller.stop()
        with pytest.raises(PeerRefusedError, match="401"):
            await Agent(name="stranger").peer(url).call_tool("double", number=2)


async def test_c02_a_run_that_is_at_work_for_somebody_else_is_refused_as_a_stored_one() -> None:
    """With the same words, which name no run: who has guessed an id learns nothing else about it."""
    endless, url = Endless(), free_url()
    async with agent_at(url, tools=[endless.wait], authenticator=KEYS):
        task = Task.create_tool_call("wait", context=RunContext())
        asking = asyncio.create_task(client(url, ALICE).send_task(url, task))
        await endless.started.wait()
        other = Task.create_tool_call("wait", context=RunContext.from_task(task))
        reply = await post(url, "/tasks", other.to_dict(), Authorization=f"Bearer {BOB}")
        await client(url, ALICE).cancel_task(url, task.id)
        await asking

    assert (reply.status, reply.json["detail"]) == (409, "a run of that id cannot be started here")


async def test_a19_a_session_is_its_senders_own() -> None:
    """Two who name the same one share nothing, neither with each other nor with the application itself."""
    llm, url = ListeningLLM(), free_url()
    async with agent_at(url, llm=llm, authenticator=KEYS, state=["conversation"]) as agent:
        for key, secret in ((ALICE, "alice's"), (BOB, "bob's"), (ALICE, "alice's again")):
            await client(url, key).peer(url).invoke(secret, session_id="s")
        await agent.invoke("the application's", session_id="s")

    prompts = [[message["content"] for message in heard if message["role"] == "user"] for heard in llm.heard]
    assert prompts == [["alice's"], ["bob's"], ["alice's", "alice's again"], ["the application's"]]


async def test_c12_an_entry_is_changed_by_who_registered_it() -> None:
    """Nobody can take an address over, end its life or keep it alive; the registry's own process can."""
    where = free_url()
    registry = Registry(HTTPTransport(where, authenticator=KEYS), storage=InMemoryStorage())
    for _ in range(2):
        await registry.start()
        alice, bob = (RegistryClient(HTTPTransport(credentials={where: key}), where) for key in (ALICE, BOB))
        card = Agent(name="a", url="http://127.0.0.1:9").public_card()
        await alice.register(card)
        with pytest.raises(PeerRefusedError, match="somebody else"):
            await bob.register(Agent(name="b", url=card.url).public_card())
        assert not await bob.heartbeat("http://127.0.0.1:9")
        assert not await bob.unregister("http://127.0.0.1:9")
        assert [found.name for found in await bob.discover()] == ["a"]
        assert await alice.heartbeat("http://127.0.0.1:9")
        with pytest.raises(PeerRefusedError, match="401"):
            await RegistryClient("http", where).discover()
        await registry.stop()
    await registry.start()
    assert await registry.unregister("http://127.0.0.1:9")
    await registry.stop()


async def test_many_agents_start_and_stop_again() -> None:
    """Each start and stop is complete, also when many come at once."""
    urls = [free_url() for _ in range(5)]
    agents = [Agent(name=f"a{number}", transport="http", url=url) for number, url in enumerate(urls)]
    for _ in range(3):
        await asyncio.gather(*(agent.start() for agent in agents))
        assert [(await get(url, "/health")).status for url in urls] == [200] * 5
        await asyncio.gather(*(agent.stop() for agent in agents))
        assert not any(map(listens, urls))


@pytest.mark.parametrize("kind", ["http", "runtime"])
async def test_a_run_that_its_store_left_is_one_of_unknown_outcome(kind: str) -> None:
    """It has begun: nobody is told that a second attempt were safe."""
    url = free_url() if kind == "http" else "runtime://http-test-left"
    async with agent_at(url, call("double", number=2), tools=[double], transport=kind, durability=DyingLog(dies_at=4)):
        with pytest.raises(TransportError) as caught:
            await AgentClient(kind).send_task(url, Task.create_infer("go"))

    assert caught.value.delivered


@pytest.mark.parametrize("kind", ["http", "runtime"])
async def test_every_transport_knows_what_is_not_there(kind: str) -> None:
    """Cards are given and tasks are canceled in one process as between two."""
    url = free_url() if kind == "http" else "runtime://http-test-there"
    async with agent_at(url, tools=[double], transport=kind):
        assert (await AgentClient(kind).card(url)).name == "server"
        with pytest.raises(PeerNotFoundError) as caught:
            await AgentClient(kind).cancel_task(url, "no-such-task")

    assert not caught.value.delivered


_PEER = """
import asyncio, sys
from protolink import Agent
from protolink.llms import MockLLM
async def wait() -> None:
    "Wait for ever."
    print("entered", flush=True)
    await asyncio.Event().wait()
async def main():
    llm = MockLLM(default_response={"type": "tool_call", "tool": "wait", "args": {}})
    await Agent(name="peer", llm=llm, transport="http", url=sys.argv[1], tools=[wait]).start()
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_peer_that_is_killed_leaves_the_outcome_unknown(streaming: bool) -> None:
    """Its process is gone in the middle of the work: look before retrying. Afterwards nobody is there."""
    url, task = free_url(), Task.create_tool_call("wait")

    async def ask() -> Any:
        if streaming:
            return [item async for item in AgentClient("http").stream_task(url, task)]
        return await AgentClient("http").send_task(url, task)

    peer = await asyncio.create_subprocess_exec(sys.executable, "-c", _PEER, url, stdout=asyncio.subprocess.PIPE)
    assert peer.stdout is not None
    assert await peer.stdout.readline() == b"ready\n"
    asking = asyncio.create_task(ask())
    assert await peer.stdout.readline() == b"entered\n"
    peer.kill()
    with pytest.raises(PeerUnavailableError) as broken:
        await asking
    await peer.wait()
    with pytest.raises(PeerUnavailableError) as gone:
        await ask()

    assert (broken.value.delivered, gone.value.delivered) == (True, False)


async def test_a_model_that_asked_a_peer_that_is_killed_has_an_uncertain_action() -> None:
    """What was reported by then stays; the run ends, and says that somebody has to look."""
    url, known = free_url(), Registry("runtime", "runtime://http-test-killed")
    await known.start()
    await known.register(AgentCard("peer", url=url))
    peer = await asyncio.create_subprocess_exec(sys.executable, "-c", _PEER, url, stdout=asyncio.subprocess.PIPE)
    assert peer.stdout is not None
    assert await peer.stdout.readline() == b"ready\n"
    handle = Agent(name="caller", llm=model(delegate("peer", "go")), registry=known).start_run("go")
    assert await peer.stdout.readline() == b"entered\n"
    events: list[RunEvent] = []
    async for event in handle.events():
        events.append(event)
        if (event.agent_name, event.type) == ("peer", "action.started"):
            peer.kill()
    result = await handle.result()
    await peer.wait()
    await known.stop()

    assert (result.status, len(result.task.metadata["uncertain_actions"])) == ("failed", 1)
    assert "action.started" in [event.type for event in events if event.agent_name == "peer"]
    assert [event.agent_name for event in events if event.type == "action.uncertain"] == ["caller"]
