"""The example application, used over real connections: what its users see of each other, and what they never see."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from examples.application_runtime import Application, PageService, answer_of, ask, create_app, models_of, serving
from protolink import SQLiteRunStore
from tests.http.servers import free_url, port_of
from tests.support import Blocker, blocker

ROOT = Path(__file__).resolve().parents[2]


def service_behind(door: Blocker) -> type[PageService]:
    """A service whose archive is read once somebody opens the door; the other pages are there at once."""

    class Service(PageService):
        def read(self, page: str) -> str:
            if page == "archive":
                door.wait()
            return f"the text of {page}"

    return Service


@asynccontextmanager
async def application(path: Path, door: Blocker) -> AsyncGenerator[tuple[httpx2.AsyncClient, Application]]:
    app = create_app(path / "application.sqlite", service_behind(door))
    async with serving(app) as client:
        yield client, app.state.application


async def test_concurrent_requests_keep_their_pages_and_models(tmp_path: Path) -> None:
    """What was frozen when a request was accepted holds for its later consultations, whatever is set meanwhile."""
    async with blocker() as door, application(tmp_path, door) as (client, team):
        first = asyncio.create_task(ask(client, "alice", "archive"))
        await door.entered.wait()
        team.models.update(reader="r2", analyst="a2", coordinator="c2")
        bob, bobs = await ask(client, "bob", "details")
        door.release()
        alice, alices = await first

    assert "the text of archive" in answer_of(alice, alices)
    assert "the text of details" in answer_of(bob, bobs)
    assert models_of(alices) == {"reader": "small", "analyst": "small", "coordinator": "large"}
    assert models_of(bobs) == {"reader": "r2", "analyst": "a2", "coordinator": "c2"}


async def test_a_stream_shows_consultations_and_one_answer_and_no_fragments(tmp_path: Path) -> None:
    """A fragment may be half of an action; the last line is the end of the run that the header names."""
    async with blocker() as door, application(tmp_path, door) as (client, _):
        run_id, events = await ask(client, "alice", "overview")

    assert answer_of(run_id, events)
    assert {event["agent_name"] for event in events} == {"reader", "analyst", "coordinator"}
    assert "llm_chunk" not in [event["payload"].get("llm_event_type") for event in events]
    assert (events[-1]["run_id"], events[-1]["type"], events[-1]["final"]) == (run_id, "task.status", True)


async def test_credentials_are_in_no_stream_and_in_no_file(tmp_path: Path) -> None:
    """They are the request's own, and nobody hands them on."""
    async with blocker() as door, application(tmp_path, door) as (client, _):
        run_id, events = await ask(client, "alice", "overview")
        evidence = (await client.get(f"/runs/{run_id}/evidence")).text

    assert "token-of-alice" not in json.dumps(events) + evidence
    assert not [path for path in tmp_path.iterdir() if b"token-of-alice" in path.read_bytes()]


async def test_evidence_and_conversations_outlive_the_application(tmp_path: Path) -> None:
    """Both are in the file; a session of somebody else begins anew."""
    async with blocker() as door, application(tmp_path, door) as (client, _):
        run_id, _ = await ask(client, "alice", "overview")
    async with blocker() as door, application(tmp_path, door) as (client, _):
        evidence = (await client.get(f"/runs/{run_id}/evidence")).json()
        second = await ask(client, "alice", "details")
        other = await ask(client, "bob", "details")

    assert [(record["agent_name"], record["outcome"]) for record in evidence] == [
        ("reader", "completed"),
        ("analyst", "completed"),
    ]
    assert all(record["delegation_id"] == record["parent_action_id"] for record in evidence)
    assert "Question 2" in answer_of(*second)
    assert "Question 1" in answer_of(*other)


async def test_a_request_is_canceled_while_a_thread_blocks(tmp_path: Path) -> None:
    """Its stream ends at once, others go on, and the late return of the thread changes nothing."""
    async with blocker() as door, application(tmp_path, door) as (client, _):
        async with client.stream("POST", "/runs", json={"session_id": "alice", "page": "archive"}) as response:
            run_id = response.headers["X-Run-ID"]
            await door.entered.wait()
            assert (await client.delete(f"/runs/{run_id}")).json() == {"run_id": run_id, "status": "canceled"}
            events = [json.loads(line) async for line in response.aiter_lines()]
        other, others = await ask(client, "bob", "details")
        door.release()
        evidence = (await client.get(f"/runs/{run_id}/evidence")).json()

        assert (await client.delete(f"/runs/{run_id}")).status_code == 404
    assert events[-1]["payload"]["new_state"] == "canceled"
    assert [record["outcome"] for record in evidence] == ["canceled"]
    assert "the text of details" in answer_of(other, others)


async def test_a_client_that_leaves_cancels_nothing(tmp_path: Path) -> None:
    """A closed tab is no decision; the run goes on and its evidence is saved."""
    async with blocker() as door, application(tmp_path, door) as (client, _):
        async with client.stream("POST", "/runs", json={"session_id": "alice", "page": "archive"}) as response:
            run_id = response.headers["X-Run-ID"]
            await door.entered.wait()
        door.release()
        while (saved := await client.get(f"/runs/{run_id}/evidence")).status_code == 404:
            pass

    assert [record["outcome"] for record in saved.json()] == ["completed", "completed"]


async def test_shutting_down_cancels_what_is_running(tmp_path: Path) -> None:
    """The lifespan ends when the runs have, and what became of them is saved."""
    async with blocker() as door:
        async with application(tmp_path, door) as (client, team):
            handle = team.accept("alice", "archive")
            await door.entered.wait()
            del client
        result = await handle.result()

    assert result.status == "canceled"
    saved = SQLiteRunStore(tmp_path / "application.sqlite").get_task(result.task.id)
    assert saved is not None
    assert saved.state.value == "canceled"


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"session_id":"a"}', b'{"session_id":"","page":"overview"}', b'{"session_id":"a","page":"x"}']
)
async def test_a_request_that_makes_no_sense_starts_nothing(tmp_path: Path, body: bytes) -> None:
    """It is the client's mistake, and says so."""
    async with blocker() as door, application(tmp_path, door) as (client, _):
        response = await client.post("/runs", content=body, headers={"Content-Type": "application/json"})
        unknown = await client.get("/runs/no-such-run/evidence")

    assert (response.status_code, "x-run-id" in response.headers) == (422, False)
    assert unknown.status_code == 404


@contextmanager
def served_from(folder: Path) -> Generator[str]:
    """The application as the documentation says to serve it; asked to stop at the end, as an operator does it."""
    url = free_url()
    command = [sys.executable, "-m", "uvicorn", "examples.application_runtime:create_app", "--factory"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        [*command, "--port", str(port_of(url))], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            said = next((line for line in process.stderr if "Uvicorn running" in line or "Error" in line), "")
            assert "Uvicorn running" in said, said
            yield url
            process.send_signal(signal.SIGTERM)
            assert "Application shutdown complete" in process.stderr.read()
        finally:
            process.kill()


async def test_uvicorn_serves_it_from_a_fresh_checkout(tmp_path: Path) -> None:
    """Nothing but the folder of examples is needed; the database is made in the current directory and found again."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    answers: list[Any] = []
    for _ in range(2):
        with served_from(tmp_path) as url:
            async with httpx2.AsyncClient(base_url=url) as client:
                answers.append(answer_of(*await ask(client, "alice", "overview")))

    assert (tmp_path / "application.sqlite").exists()
    assert ["Question 1" in answers[0], "Question 2" in answers[1]] == [True, True]
