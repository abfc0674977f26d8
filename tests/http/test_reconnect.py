"""A stream that breaks is taken up again, and its run neither begins twice nor is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from protolink import RunEvent, Task, TaskState
from protolink.client import AgentClient
from protolink.discovery.submissions import MAX_REMEMBERED, RECONNECT_SECONDS, REMEMBERED_SECONDS
from protolink.testing import ManualClock, call, use_environment
from protolink.transport import HTTPTransport, PeerRefusedError, PeerUnavailableError
from protolink.transport.http import APIKeyAuthenticator
from tests.http.servers import agent_at, connected, exchange, free_url, get, post, request_bytes
from tests.support import turns

ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789ab"
KEYS = APIKeyAuthenticator({ALICE: "alice", BOB: "bob"})


class Gate:
    """A tool that counts its calls, and waits to be let go."""

    def __init__(self) -> None:
        self.calls = 0
        self.entered = asyncio.Event()
        self.canceled = asyncio.Event()
        self.go = asyncio.Event()

    async def hold(self) -> str:
        """Wait to be let go."""
        self.calls += 1
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.canceled.set()
            raise
        return "held"


@asynccontextmanager
async def cutting(target: str, after: int) -> AsyncGenerator[tuple[str, list[Any]]]:
    """A way to a server on which every connection breaks once so many bytes have come back."""
    opened: list[Any] = []

    async def back(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        left = after
        while left > 0 and (data := await source.read(min(left, 4096))):
            left -= len(data)
            sink.write(data)
            await sink.drain()

    async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        async with connected(target) as (far_reader, far_writer):
            forwarding = asyncio.create_task(_pumped(reader, far_writer))
            with suppress(ConnectionError):
                await back(far_reader, writer)
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
        writer.transport.abort()

    server = await asyncio.start_server(through, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", opened
    finally:
        server.close()
        await server.wait_closed()


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(4096):
        sink.write(data)
        await sink.drain()


def count(number: int) -> int:
    """Count on."""
    return number + 1


@pytest.mark.parametrize("cut", [4096, 5000, 7000])
async def test_a_stream_over_connections_that_break_loses_nothing(cut: int) -> None:
    """Every event arrives once and in order, and the tools run once, wherever the connections break."""
    url, calls = free_url(), [call("count", number=number) for number in range(5)]
    async with (
        agent_at(url, *calls, "answer", tools=[count], transport=HTTPTransport(url, allowed_hosts=["127.0.0.1"])),
        cutting(url, cut) as (way, opened),
    ):
        stream = AgentClient("http").stream_task(way, Task.create_infer("go"))
        given = [item async for item in stream]

    events, task = given[:-1], given[-1]
    assert len(opened) > 2
    assert [event.sequence for event in events if isinstance(event, RunEvent)] == list(range(1, len(events) + 1))
    assert isinstance(task, Task)
    assert (task.state, len(task.artifacts)) == (TaskState.COMPLETED, 5)


async def test_a_browser_goes_on_behind_the_last_event_that_it_has_seen() -> None:
    """By the header field that it sends itself; also after the run has ended."""
    url, task = free_url(), Task.create_infer("go")
    async with agent_at(url, "answer"):
        whole = await post(url, "/tasks", task.to_dict(), Accept="text/event-stream")
        rest = await get(url, f"/tasks/{task.id}/events", Accept="text/event-stream", Last_Event_ID="3")
        beyond = await get(url, f"/tasks/{task.id}/events", Last_Event_ID="999999")

    messages = whole.body.decode().split("\n\n")
    assert rest.body.decode().split("\n\n") == messages[3:]
    assert beyond.body.decode().split("\n\n") == messages[-2:]


@pytest.mark.parametrize("cursor", ["-1", "one", "1.5", "٣", "9" * 40, "1\t2"])
async def test_a_cursor_that_is_no_number_is_refused(cursor: str) -> None:
    """Nothing is guessed."""
    url = free_url()
    async with agent_at(url):
        reply = await exchange(
            url, request_bytes(url, "/tasks/t/events", Last_Event_ID=cursor.encode().decode("latin-1"))
        )

    assert reply.status == 400


async def test_c06_a_stream_is_taken_up_by_who_began_it() -> None:
    """For everybody else there is none, at work or ended, and the answer is that for one that never was."""
    gate, url, task = Gate(), free_url(), Task.create_tool_call("hold")
    async with agent_at(url, tools=[gate.hold], authenticator=KEYS):
        alice = AgentClient(HTTPTransport(credentials={url: ALICE}))
        asking = asyncio.create_task(alice.send_task(url, task))
        await gate.entered.wait()
        replies = [await get(url, f"/tasks/{name}/events", Authorization=f"Bearer {BOB}") for name in (task.id, "none")]
        gate.go.set()
        await asking
        replies.append(await get(url, f"/tasks/{task.id}/events", Authorization=f"Bearer {BOB}"))
        mine = await get(url, f"/tasks/{task.id}/events", Authorization=f"Bearer {ALICE}")

    assert [(reply.status, reply.body) for reply in replies] == [(404, replies[0].body)] * 3
    assert mine.status == 200


async def leave_early(url: str, task: Task, gate: Gate) -> None:
    """Begin a stream and vanish, as a client that is killed."""
    async with connected(url) as (reader, writer):
        writer.write(request_bytes(url, "/tasks", json.dumps(task.to_dict()).encode(), Accept="application/x-ndjson"))
        await reader.readuntil(b"action.started")
        await gate.entered.wait()


async def test_a_run_that_nobody_comes_back_for_is_canceled() -> None:
    """After a while, by the clock of the agent, and not at once."""
    gate, url, clock = Gate(), free_url(), ManualClock()
    with use_environment(clock):
        async with agent_at(url, tools=[gate.hold]):
            await leave_early(url, Task.create_tool_call("hold"), gate)
            while not clock.waiting:
                await turns(1)
            clock.advance(RECONNECT_SECONDS - 1)
            await turns(20)
            assert not gate.canceled.is_set()
            clock.advance(1)
            await gate.canceled.wait()


async def test_c16_a_task_that_is_sent_again_is_one_run() -> None:
    """While it goes on, and for as long as its end is remembered; then it is forgotten."""
    gate, url, clock = Gate(), free_url(), ManualClock()
    task, peer = Task.create_tool_call("hold"), AgentClient("http")
    with use_environment(clock):
        async with agent_at(url, tools=[gate.hold]):
            asking = [asyncio.create_task(peer.send_task(url, task)) for _ in range(3)]
            await gate.entered.wait()
            gate.go.set()
            first, *others = await asyncio.gather(*asking)
            again = await peer.send_task(url, task)
            assert gate.calls == 1
            clock.advance(REMEMBERED_SECONDS)
            await peer.send_task(url, task)

    assert [done.to_dict() for done in (*others, again)] == [first.to_dict()] * 3
    assert gate.calls == 2


async def test_c16_another_task_under_an_id_that_was_sent_is_refused() -> None:
    """Nothing is answered for what was not asked."""
    gate, url, peer = Gate(), free_url(), AgentClient("http")
    task = Task.create_tool_call("hold")
    async with agent_at(url, tools=[gate.hold]):
        gate.go.set()
        await peer.send_task(url, task)
        other = Task.create_tool_call("hold")
        other.id = task.id
        with pytest.raises(PeerRefusedError, match="409"):
            await peer.send_task(url, other)

    assert gate.calls == 1


async def test_c16_one_sender_that_goes_leaves_the_run_to_the_other() -> None:
    """Only the last one takes it along."""
    gate, url = Gate(), free_url()
    task, peer = Task.create_tool_call("hold"), AgentClient("http")
    async with agent_at(url, tools=[gate.hold]):
        staying = asyncio.create_task(peer.send_task(url, task))
        await gate.entered.wait()
        going = asyncio.create_task(peer.send_task(url, task))
        await turns(20)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        gate.go.set()
        assert (await staying).get_output() == "held"

    assert not gate.canceled.is_set()


async def test_c04_runs_that_nobody_reads_are_counted() -> None:
    """Who begins streams and vanishes keeps no more than so many runs; the oldest ends for a further one."""
    gate, url = Gate(), free_url()
    async with agent_at(url, tools=[gate.hold]):
        for _ in range(MAX_REMEMBERED):
            await leave_early(url, Task.create_tool_call("hold"), gate)
        assert not gate.canceled.is_set()
        await leave_early(url, Task.create_tool_call("hold"), gate)
        await gate.canceled.wait()


async def test_a_peer_that_was_started_again_knows_nothing_of_the_stream() -> None:
    """What became of the run is unknown then; it is not begun anew."""
    gate, url = Gate(), free_url()

    async def ask() -> None:
        async with aclosing(AgentClient("http").stream_task(url, Task.create_tool_call("hold"))) as stream:
            async for _ in stream:
                pass

    async with agent_at(url, tools=[gate.hold]):
        asking = asyncio.create_task(ask())
        await gate.entered.wait()
    async with agent_at(url, tools=[gate.hold]):
        with pytest.raises(PeerUnavailableError) as caught:
            await asking

    assert (caught.value.delivered, gate.calls) == (True, 1)


async def test_stopping_ends_what_nobody_reads() -> None:
    """A run that waits for its reader does not outlive its agent."""
    gate, url = Gate(), free_url()
    before = asyncio.all_tasks()
    async with agent_at(url, tools=[gate.hold]):
        await leave_early(url, Task.create_tool_call("hold"), gate)

    assert gate.canceled.is_set()
    assert asyncio.all_tasks() == before
