"""The application in another one, and alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from protolink import Agent, AgentGroup, ConfigurationError, RunBudget
from protolink.http import ApplicationLimits, create_app
from protolink.testing import call
from protolink.transport import TransportStartError
from protolink.transport.http import HTTPLimits
from tests.conftest import Interpreter
from tests.http.apps import agent, ended, events_of, messages_of, served, serving, start
from tests.http.servers import free_url, get, listens, post
from tests.http.test_app_runs import GO


async def test_alone_it_starts_its_group_and_closes_it() -> None:
    """As the server starts and stops; the agents' own addresses are served meanwhile."""
    address = free_url()
    group = AgentGroup([agent("answer", transport="http", url=address)])
    async with serving(create_app(group)) as url:
        assert group.running
        assert listens(address)
        assert (await ended(url, await start(url)))["status"] == "completed"

    assert not group.running
    assert not listens(address)


async def test_a_group_that_cannot_start_stops_the_server() -> None:
    """Before it listens, and with the reason."""
    group = AgentGroup([agent("answer", transport="http", url="http://no-such-host.invalid:9")])
    app = create_app(group)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)

    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "could not be started" in sent[0]["message"] or "no address" in sent[0]["message"]
    with pytest.raises(TransportStartError):
        await group.start()


async def test_a_group_that_somebody_else_started_is_theirs_to_close() -> None:
    """The application takes part in its life and ends it not."""
    async with AgentGroup([agent("answer")]) as group:
        async with serving(create_app(group)) as url:
            await start(url)
        assert group.running


@pytest.mark.parametrize("host", ["fastapi", "starlette"])
async def test_it_lives_in_another_application(host: str) -> None:
    """Under a path of the host's, which starts the group in its own lifespan and has routes of its own."""
    group = AgentGroup([agent("answer", "answer")])
    agents = create_app(group)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[None]:
        async with group:
            yield

    async def own(request: Any) -> Any:
        handle = group.run("reader", "go")
        return JSONResponse({"output": (await handle.result()).output})

    if host == "fastapi":
        app: Any = FastAPI(lifespan=lifespan)
        app.add_route("/own", own)
        app.mount("/api/agents", agents)
    else:
        app = Starlette(routes=[Route("/own", own), Mount("/api/agents", agents)], lifespan=lifespan)
    async with serving(app) as url:
        reply = await post(url, "/api/agents/runs", GO)
        events = messages_of((await get(url, reply.headers["location"] + "/events")).body)
        run = (await get(url, reply.headers["location"])).json
        described = (await get(url, "/api/agents/openapi.json")).json
        missing = await get(url, "/api/agents/")
        own_reply = await get(url, "/own")

    assert reply.headers["location"] == f"/api/agents/runs/{reply.json['run_id']}"
    assert events_of(events)[-1]["final"]
    assert run["output"] == own_reply.json["output"] == "answer"
    assert described["servers"] == [{"url": "/api/agents"}]
    assert (missing.status, missing.headers["content-type"]) == (404, "application/problem+json")


async def test_behind_a_proxy_the_paths_are_those_that_clients_see() -> None:
    """A proxy that takes a prefix away says so, by the server's root path."""
    async with serving(create_app(AgentGroup([agent("answer")])), root_path="/proxied") as url:
        reply = await post(url, "/runs", GO)

    assert reply.headers["location"] == f"/proxied/runs/{reply.json['run_id']}"


async def test_runs_of_clients_end_with_the_group() -> None:
    """Nothing that a client has asked for outlives the application."""
    entered, canceled = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        """Wait for ever."""
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            canceled.set()
            raise

    async with served(agent(call("hold"), tools=[hold])) as url:
        await start(url)
        await entered.wait()

    assert canceled.is_set()


async def test_it_answers_no_websocket() -> None:
    """There is none to be had."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await create_app(AgentGroup([]))({"type": "websocket", "path": "/runs", "headers": []}, receive, send)

    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    "options",
    [
        {"authenticator": "secret"},
        {"allowed_hosts": "localhost"},
        {"allowed_hosts": ["*"]},
        {"allowed_origins": ["*"]},
        {"allowed_origins": "https://example.org"},
        {"max_body_bytes": 0},
        {"budget": 3},
        {"limits": HTTPLimits()},
    ],
)
def test_wiring_that_cannot_work_is_refused(options: Any) -> None:
    """When the application is made."""
    with pytest.raises(ConfigurationError):
        create_app(AgentGroup([]), **options)


@pytest.mark.parametrize("group", [None, [], Agent(name="reader")])
def test_it_serves_a_group(group: Any) -> None:
    """An agent alone has nobody who starts it."""
    with pytest.raises(ConfigurationError, match="AgentGroup"):
        create_app(group)


@pytest.mark.parametrize("limit", ["max_runs", "max_ended_runs", "max_idempotency_keys"])
def test_every_limit_is_one(limit: str) -> None:
    """None of them can be switched off."""
    options: dict[str, Any] = {limit: float("inf")}
    with pytest.raises(ConfigurationError, match=limit):
        ApplicationLimits(**options)


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "h11"])
def test_a_missing_extra_says_what_to_install(package: str, interpreter: Interpreter) -> None:
    """And concerns nobody who does not import it."""
    program = f"""
import sys
sys.modules["{package}"] = None
from protolink import AgentGroup, ConfigurationError
try:
    import protolink.http
except ConfigurationError as error:
    print("protolink[http]" in str(error), "{package}" in str(error))
"""
    assert interpreter(program) == "True True\n"


def test_it_says_what_it_is() -> None:
    """In a log, say."""
    shown = repr(create_app(AgentGroup([]), budget=RunBudget(max_steps=3)))
    assert shown == "<Application of <AgentGroup of 0 agents, not running>>"
