"""A FastAPI application around a team: a coordinator that consults two specialists, for many users at once. Offline.

`python examples/application_runtime.py` serves it on a free port with a temporary database, uses it as a browser
would, and checks what it sees. From the root of the repository,

    uvicorn examples.application_runtime:create_app --factory

serves the same application, with `application.sqlite` in the current directory. Both need
`pip install 'protolink[http]'`. The models are scripted; everything else is what a real application would do.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import httpx2
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from protolink import (
    Agent,
    AgentGroup,
    RunHandle,
    SQLiteRunStore,
    current_request_context,
    request_context,
)
from protolink.discovery import Registry
from protolink.llms import LLM, MockLLM
from protolink.storage import SQLiteStorage

Page = Literal["overview", "details", "archive"]

PAGES: Mapping[str, str] = {
    "overview": "All systems are fine.",
    "details": "The pump runs at 40 percent.",
    "archive": "Nothing has changed since 1999.",
}


class PageService:
    """The application's own client of another system: blocking, and signed in as one user."""

    def __init__(self, token: str) -> None:
        self._token = token

    def read(self, page: str) -> str:
        time.sleep(2.0 if page == "archive" else 0.02)  # as long as a slow system takes
        return PAGES[page]


# The tools have no parameters: which page and whose credentials are not the model's to decide.


def read_selected_page() -> dict[str, str]:
    """Read the page that the user has selected."""
    private = current_request_context()
    return {"page": private["page"], "text": private["service"].read(private["page"])}


def measure_selected_page() -> dict[str, int]:
    """Count the words of the page that the user has selected."""
    private = current_request_context()
    return {"words": len(private["service"].read(private["page"]).split())}


def observations(history: Any) -> list[Any]:
    """What came back since the latest question of the conversation."""
    found: list[Any] = []
    for message in reversed(history.messages):
        if message["role"] == "user":
            break
        if message["role"] == "tool":
            found.insert(0, json.loads(message["content"])["result"])
    return found


def reader_script(history: Any, _: str) -> Any:
    seen = observations(history)
    if not seen:
        return {"type": "tool_call", "tool": "read_selected_page", "args": {}}
    return f"The page {seen[0]['page']} says: {seen[0]['text']}"


def analyst_script(history: Any, _: str) -> Any:
    seen = observations(history)
    if not seen:
        return {"type": "tool_call", "tool": "measure_selected_page", "args": {}}
    return f"It has {seen[0]['words']} words."


def coordinator_script(history: Any, _: str) -> Any:
    seen = observations(history)
    if not seen:
        return {"type": "tool_call", "tool": "reader", "args": {"task": "What does the selected page say?"}}
    if len(seen) == 1:
        return {"type": "tool_call", "tool": "analyst", "args": {"task": "How long is the selected page?"}}
    question = sum(message["role"] == "user" for message in history.messages)
    return f"{seen[0]} {seen[1]} (Question {question} of this conversation.)"


SCRIPTS = {"reader": reader_script, "analyst": analyst_script, "coordinator": coordinator_script}


def team_member(name: str, **options: Any) -> Agent:
    """An agent for the application's lifetime. Which model it uses is decided for every request."""

    def choose_model() -> LLM:
        # With real providers: create_llm(current_request_context()["models"][name])
        return MockLLM(current_request_context()["models"][name], response_callback=SCRIPTS[name], fragment_size=16)

    return Agent(
        name=name,
        llm_factory=choose_model,
        transport="runtime",
        url=f"runtime://application-{name}",
        sync_execution="thread",
        max_sync_workers=4,
        expose_tool_results=True,
        verbosity=0,
        **options,
    )


class Application:
    """The team, its stores, and the settings that users may change at any time."""

    def __init__(self, database: str | os.PathLike[str], connect: Callable[[str], PageService] = PageService) -> None:
        self._connect = connect
        self.models = {"reader": "small", "analyst": "small", "coordinator": "large"}
        self.reports = SQLiteRunStore(database)
        reader = team_member("reader", description="Reads pages.", tools=[read_selected_page])
        analyst = team_member("analyst", description="Measures pages.", tools=[measure_selected_page])
        self.coordinator = team_member(
            "coordinator",
            subagents=[reader, analyst],
            state=["conversation"],
            storage=SQLiteStorage(db_path=database, namespace="coordinator"),
            run_store=self.reports,
        )
        self.coordinator.add_worker_tool("reader")
        self.coordinator.add_worker_tool("analyst")
        self.registry = Registry(transport="runtime", url="runtime://application-registry", verbosity=0)
        self.group = AgentGroup([reader, analyst, self.coordinator], registry=self.registry, own_registry=True)

    def accept(self, session_id: str, page: str) -> RunHandle:
        """Freeze everything that the request may see, for the whole team, and start its run."""
        private = {
            "models": MappingProxyType(dict(self.models)),
            "service": self._connect(f"token-of-{session_id}"),
            "page": page,
        }
        with request_context(private, inherit=("models", "service", "page")):
            return self.group.run(self.coordinator, "Consult the specialists.", session_id=session_id)


async def lines(handle: RunHandle) -> AsyncIterator[str]:
    """Native events, one JSON object a line. Raw fragments are left out: they may be actions in the making.

    A client that leaves ends this iterator and not the run.
    """
    async for event in handle.events():
        if event.payload.get("llm_event_type") != "llm_chunk":
            yield f"{json.dumps(event.to_dict())}\n"
    await handle.result()  # the stream ends when the evidence is saved


class RunRequest(BaseModel):
    """What a browser posts."""

    session_id: str = Field(min_length=1, max_length=100)
    page: Page


def create_app(
    database: str | os.PathLike[str] = "application.sqlite", connect: Callable[[str], PageService] = PageService
) -> FastAPI:
    """The application. Session and run ids are names, not permissions: scope them to the signed-in user."""
    application = Application(database, connect)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with application.group:
            yield

    app = FastAPI(title="A team of specialists", lifespan=lifespan)
    app.state.application = application

    @app.post("/runs")
    async def start(request: RunRequest) -> StreamingResponse:
        handle = application.accept(request.session_id, request.page)
        return StreamingResponse(lines(handle), media_type="application/x-ndjson", headers={"X-Run-ID": handle.run_id})

    @app.delete("/runs/{run_id}")
    async def cancel(run_id: str) -> dict[str, str]:
        if not await application.coordinator.cancel_task(run_id, "canceled by the user"):
            raise HTTPException(404, "no such run is active")
        return {"run_id": run_id, "status": "canceled"}

    @app.get("/runs/{run_id}/evidence")
    async def evidence(run_id: str) -> list[dict[str, Any]]:
        report = await asyncio.to_thread(application.reports.get_report, run_id)
        if report is None:
            raise HTTPException(404, "no such run has ended")
        return [record.to_dict() for record in report.tool_evidence]

    return app


# From here on: the demonstration.


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncGenerator[httpx2.AsyncClient]:
    """The application on a free port of this machine, and a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            async with httpx2.AsyncClient(base_url=address) as client:
                (await client.get("/openapi.json")).raise_for_status()  # answered once the team is ready
                yield client
        finally:
            server.should_exit = True
            await running


async def ask(client: httpx2.AsyncClient, session_id: str, page: Page) -> tuple[str, list[dict[str, Any]]]:
    """Post a request and read its stream to the end; gives the run's id and its events."""
    async with client.stream("POST", "/runs", json={"session_id": session_id, "page": page}) as response:
        events = [json.loads(line) async for line in response.aiter_lines()]
        return response.headers["X-Run-ID"], events


def answer_of(run_id: str, events: list[dict[str, Any]]) -> str:
    """The complete answer of the coordinator; the specialists' have other run ids."""
    (answer,) = [
        event["payload"]["content"]
        for event in events
        if event["payload"].get("llm_event_type") == "llm_final" and event["run_id"] == run_id
    ]
    return str(answer)


def models_of(events: list[dict[str, Any]]) -> dict[str, str]:
    """Which model each agent has used."""
    return {
        event["agent_name"]: event["payload"]["metadata"]["model"]
        for event in events
        if event["type"] == "llm.call.completed"
    }


async def demonstrate(client: httpx2.AsyncClient, application: Application) -> None:
    cards = await application.registry.discover()
    print("registered:", ", ".join(sorted(card.name for card in cards)))
    assert len(cards) == 3

    # Two users at once: each has a page and models of its own, although the settings change in between.
    first = application.accept("alice", "overview")
    application.models.update(reader="large", analyst="large")
    run_id, events = await ask(client, "bob", "details")
    alices = await first.result()
    assert (alices.status, alices.output.count("All systems are fine.")) == ("completed", 1)
    assert models_of([event.to_dict() for event in alices.report.events])["analyst"] == "small"
    assert models_of(events) == {"reader": "large", "analyst": "large", "coordinator": "large"}
    print("bob:", answer_of(run_id, events))
    assert "The pump runs at 40 percent. It has 6 words." in answer_of(run_id, events)
    assert all(event["payload"].get("llm_event_type") != "llm_chunk" for event in events)
    assert "token-of-bob" not in json.dumps(events)

    for record in (await client.get(f"/runs/{run_id}/evidence")).json():
        print("evidence:", record["agent_name"], record["tool_name"], record["outcome"], record["result"])
        assert record["delegation_id"] is not None

    # A conversation goes on; another user's is not part of it.
    run_id, events = await ask(client, "bob", "overview")
    print("bob:", answer_of(run_id, events))
    assert "Question 2 of this conversation" in answer_of(run_id, events)

    # The archive is slow. The user gives up while a specialist's thread is still waiting for it.
    async with client.stream("POST", "/runs", json={"session_id": "carol", "page": "archive"}) as response:
        run_id = response.headers["X-Run-ID"]
        event: dict[str, Any] = {}
        async for line in response.aiter_lines():
            event = json.loads(line)
            if event["type"] == "action.started" and event["payload"]["metadata"]["tool"] == "read_selected_page":
                assert (await client.delete(f"/runs/{run_id}")).json()["status"] == "canceled"
        assert (event["run_id"], event["final"], event["payload"]["new_state"]) == (run_id, True, "canceled")
    (record,) = (await client.get(f"/runs/{run_id}/evidence")).json()
    print("carol:", event["payload"]["new_state"], "- evidence:", record["tool_name"], record["outcome"])
    assert record["outcome"] == "canceled"
    assert (await client.delete(f"/runs/{run_id}")).status_code == 404


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Path(folder) / "application.sqlite")
        async with serving(app) as client:
            await demonstrate(client, app.state.application)
    print("the team is stopped")


if __name__ == "__main__":
    asyncio.run(main())
