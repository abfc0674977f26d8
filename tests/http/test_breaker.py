"""An origin where nobody answers is left alone for a while, and tried again by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from protolink import Agent, AgentCard, RunContext, Task
from protolink._environment import use_environment
from protolink.client import AgentClient
from protolink.testing import ManualClock
from protolink.transport import HTTPTransport, PeerUnavailableError
from protolink.transport.http.breaker import (
    FIRST_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    MAX_FAILURES,
    MAX_ORIGINS,
    Breakers,
)
from tests.http.servers import agent_at, free_url, port_of
from tests.support import model

ORIGIN = "http://127.0.0.1:1"


class Broken:
    """A server that hangs up on everybody, and counts them."""

    def __init__(self) -> None:
        self.url = free_url()
        self.connections = 0

    async def hang_up(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@asynccontextmanager
async def broken() -> AsyncGenerator[Broken]:
    server = Broken()
    async with await asyncio.start_server(server.hang_up, "127.0.0.1", port_of(server.url)):
        yield server


async def asked(client: AgentClient, url: str) -> str:
    """Ask for work, and say how it went."""
    try:
        await client.send_task(url, Task.create_infer("go", context=RunContext()))
    except PeerUnavailableError as error:
        return "left alone" if "left alone" in str(error) else "tried"
    return "answered"


async def test_c15_a_storm_of_work_does_not_reach_a_peer_that_is_down() -> None:
    """Of a hundred pieces of work few are tried; the others were not sent, and say so."""
    async with broken() as server:
        client = AgentClient(HTTPTransport())
        with use_environment(ManualClock()):
            outcomes = [await asked(client, server.url) for _ in range(100)]

    assert outcomes == ["tried"] * MAX_FAILURES + ["left alone"] * (100 - MAX_FAILURES)
    assert server.connections == MAX_FAILURES


async def test_c15_one_finds_out_whether_a_peer_is_back() -> None:
    """After the pause, while all others still wait; and then everybody is let through again."""
    clock, url = ManualClock(), free_url()
    client = AgentClient(HTTPTransport())
    with use_environment(clock):
        assert {await asked(client, url) for _ in range(MAX_FAILURES)} == {"tried"}
        async with agent_at(url, "an answer", "an answer", "an answer"):
            assert await asked(client, url) == "left alone"
            clock.advance(FIRST_PAUSE_SECONDS)
            outcomes = await asyncio.gather(*(asked(client, url) for _ in range(3)))
            assert sorted(outcomes) == ["answered", "left alone", "left alone"]
            assert await asked(client, url) == "answered"


async def test_c15_a_peer_that_stays_away_is_tried_less_and_less() -> None:
    """Once for each pause, which is doubled up to its longest, and differs from caller to caller."""
    clock = ManualClock()
    async with broken() as server:
        client = AgentClient(HTTPTransport())
        with use_environment(clock):
            for _ in range(600):
                await asked(client, server.url)
                clock.advance(1.0)

    assert MAX_FAILURES + 600 / LAST_PAUSE_SECONDS / 2 < server.connections < MAX_FAILURES + 40


async def test_c15_one_peers_failures_are_not_anothers() -> None:
    """Each origin has a breaker of its own."""
    down, up = free_url(), free_url()
    async with agent_at(up, "an answer"):
        client = AgentClient(HTTPTransport())
        for _ in range(MAX_FAILURES + 1):
            await asked(client, down)

        assert await asked(client, up) == "answered"


async def test_c15_a_task_is_sent_once_however_it_fails() -> None:
    """Whether a peer that hangs up had begun is not known, so nobody tries for it again."""
    async with broken() as server:
        with pytest.raises(PeerUnavailableError) as caught:
            await AgentClient(HTTPTransport()).send_task(server.url, Task.create_infer("go", context=RunContext()))

    assert caught.value.delivered
    assert server.connections == 1


async def test_c15_runs_of_one_agent_share_what_they_find_out() -> None:
    """A peer that is down is not asked anew by each run."""
    async with broken() as server:
        agent = Agent(name="caller", llm=model())
        for _ in range(20):
            with pytest.raises(PeerUnavailableError):
                await agent.peer(AgentCard("helper", url=server.url)).invoke("go")

    assert server.connections == MAX_FAILURES


def test_somebody_who_leaves_while_finding_out_lets_another_do_it() -> None:
    """Otherwise nobody would ever try again."""
    clock, breakers = ManualClock(), Breakers()
    with use_environment(clock):
        for _ in range(MAX_FAILURES):
            with pytest.raises(PeerUnavailableError), breakers.asking(ORIGIN):
                raise PeerUnavailableError("nobody answers")
        clock.advance(FIRST_PAUSE_SECONDS)
        with pytest.raises(asyncio.CancelledError), breakers.asking(ORIGIN):
            raise asyncio.CancelledError

        with breakers.asking(ORIGIN):
            pass
        with breakers.asking(ORIGIN):
            pass


def test_so_many_origins_are_remembered_and_no_more() -> None:
    """Where a registry names ever new ones."""
    breakers = Breakers()
    for number in range(MAX_ORIGINS + 10):
        with pytest.raises(PeerUnavailableError), breakers.asking(f"http://127.0.0.1:{number}"):
            raise PeerUnavailableError("nobody answers")

    assert repr(breakers) == f"<Breakers with {MAX_ORIGINS} origins that do not answer>"
