"""Starting, reading and canceling runs over HTTP, behind a real uvicorn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from protolink import Agent, AgentGroup, RedactionPolicy, RunBudget, current_request_context, request_context
from protolink.http import ApplicationLimits, create_app, session_of
from protolink.storage import InMemoryStorage
from protolink.testing import call
from tests.http.apps import ALICE, BOB, KEYS, NDJSON, SSE, agent, delete, ended, served, serving, start
from tests.http.servers import get, post
from tests.support import ListeningLLM, model

GO = {"agent": "reader", "prompt": "go"}


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


class Gate:
    """A tool that waits until it is let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.canceled = asyncio.Event()
        self.go = asyncio.Event()
        self.calls = 0

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


async def test_a_run_is_started_and_its_id_comes_at_once() -> None:
    """The run goes on by itself, and is found under the id and the location that were given."""
    gate = Gate()
    async with served(agent(call("hold"), "answer", tools=[gate.hold])) as url:
        reply = await post(url, "/runs", GO)
        await gate.entered.wait()
        working = (await get(url, reply.headers["location"])).json
        gate.go.set()
        run = await ended(url, reply.json["run_id"])

    assert (reply.status, reply.json["status"]) == (202, "working")
    assert reply.headers["x-run-id"] == reply.json["run_id"] == run["run_id"]
    assert (working["status"], working["output"]) == ("working", None)
    assert (run["agent"], run["status"], run["output"], run["error"]) == ("reader", "completed", "answer", None)
    assert (run["usage"]["steps"], run["usage"]["tool_calls"]) == (2, 1)


async def test_a_run_is_started_and_watched_as_lines_of_json() -> None:
    """Each line is an event as the runtime has it."""
    async with served(agent("answer")) as url:
        reply = await post(url, "/runs", GO, Accept=NDJSON)

    events = [json.loads(line) for line in reply.body.splitlines()]
    assert reply.headers["content-type"] == NDJSON
    assert {event["run_id"] for event in events} == {reply.headers["x-run-id"]}
    assert (events[0]["type"], events[-1]["type"], events[-1]["final"]) == ("task.status", "task.status", True)
    assert [
        event["payload"]["content"] for event in events if event["payload"].get("llm_event_type") == "llm_final"
    ] == ["answer"]


async def test_a_run_is_started_and_watched_by_a_browser() -> None:
    """As server-sent events, from the first one on."""
    async with served(agent("answer")) as url:
        reply = await post(url, "/runs", GO, Accept=SSE)

    assert reply.headers["content-type"] == SSE
    assert reply.body.startswith(b'event: event\nid: 1\ndata: {"type":"task.status"')


async def test_a_failed_run_says_why() -> None:
    """Failing is the run's outcome, not the server's."""

    def fail() -> None:
        """Fail."""
        raise OSError("broken")

    async with served(agent(call("fail"), tools=[fail])) as url:
        run = await ended(url, await start(url))

    assert (run["status"], run["output"], run["error"]["code"]) == ("failed", None, "tool_failed")
    assert "broken" in run["error"]["message"]


async def test_evidence_says_what_became_of_every_call() -> None:
    """The same records that an application reads of a result."""
    async with served(agent(call("double", number=2), "4", tools=[double], expose_tool_results=True)) as url:
        run_id = await start(url)
        await ended(url, run_id)
        evidence = (await get(url, f"/runs/{run_id}/evidence")).json

    assert evidence["run_id"] == run_id
    assert [(item["tool_name"], item["arguments"], item["result"]) for item in evidence["evidence"]] == [
        ("double", {"number": 2}, 4)
    ]


async def test_canceling_ends_a_run_and_gives_how_it_ended() -> None:
    """Its tool is told; a second cancellation has nothing left to cancel."""
    gate = Gate()
    async with served(agent(call("hold"), tools=[gate.hold])) as url:
        run_id = await start(url)
        await gate.entered.wait()
        canceled = await delete(url, f"/runs/{run_id}")
        again = await delete(url, f"/runs/{run_id}")

    assert (canceled.status, canceled.json["status"]) == (200, "canceled")
    assert gate.canceled.is_set()
    assert again.status == 409


async def test_a_client_can_narrow_the_budget_and_nothing_else() -> None:
    """Whatever it asks for, the application's limits hold."""
    calls = [call("double", number=number) for number in range(20)]
    async with served(agent(*calls, tools=[double]), budget=RunBudget(max_steps=3)) as url:
        wide = await ended(url, await start(url, budget={"max_steps": 1000}))
        narrow = await ended(url, await start(url, budget={"max_steps": 2, "max_calls": {"double": 1}}))

    assert (wide["usage"]["steps"], wide["error"]["code"]) == (3, "budget_exceeded")
    assert (narrow["usage"]["tool_calls"], narrow["error"]["code"]) == (1, "budget_exceeded")


async def test_without_a_budget_of_the_application_a_run_takes_ten_turns() -> None:
    """A client cannot ask for more than a run takes that was given no budget."""
    calls = [call("double", number=number) for number in range(20)]
    async with served(agent(*calls, tools=[double])) as url:
        run = await ended(url, await start(url, budget={"max_steps": 20}))

    assert run["usage"]["steps"] == 10


async def test_a_session_goes_on_for_the_client_whose_it_is() -> None:
    """Two clients that call their sessions the same have one each, and the application knows both by name."""
    storage, llm = InMemoryStorage("reader"), ListeningLLM("one", "two", "three")
    reader = Agent(name="reader", llm=llm, state=["conversation"], storage=storage)
    async with served(reader, authenticator=KEYS) as url:
        for key, prompt in ((ALICE, "I am Alice."), (BOB, "I am Bob."), (ALICE, "Who am I?")):
            run_id = await start(url, prompt, key=key, session_id="main")
            run = await ended(url, run_id, X_API_Key=key)
            assert (run["status"], run["session_id"]) == ("completed", "main")

    said = [[message["content"] for message in messages if message["role"] == "user"] for messages in llm.heard]
    assert said == [["I am Alice."], ["I am Bob."], ["I am Alice.", "Who am I?"]]
    assert len(storage.load_session(session_of("alice", "main"))) == 4
    assert not storage.load_session("main")


def test_sessions_of_different_clients_never_have_one_name() -> None:
    """Whatever stands in the names."""
    names = ["a", "a:b", "b:a", ":", "a%3A", "%3Aa", "b"]
    sessions = [session_of(principal, session_id) for principal in names for session_id in names]

    assert len(set(sessions)) == len(names) ** 2


async def test_the_same_key_starts_one_run() -> None:
    """Also of several requests that come at once; another client's key is another key."""
    gate = Gate()
    async with served(agent(call("hold"), tools=[gate.hold]), authenticator=KEYS) as url:
        headers = {"Idempotency_Key": "k-1", "X_API_Key": ALICE}
        replies = await asyncio.gather(*(post(url, "/runs", GO, **headers) for _ in range(20)))
        again = await post(url, "/runs", dict(reversed(GO.items())), **headers)
        other = await post(url, "/runs", GO, **{**headers, "X_API_Key": BOB})
        different = await post(url, "/runs", {**GO, "prompt": "stop"}, **headers)

    assert {reply.status for reply in [*replies, again, other]} == {202}
    assert {reply.json["run_id"] for reply in [*replies, again]} == {again.json["run_id"]}
    assert other.json["run_id"] != again.json["run_id"]
    assert (different.status, different.headers["content-type"]) == (409, "application/problem+json")
    assert gate.calls <= 2


async def test_a_key_shows_the_events_of_its_run_again() -> None:
    """A client whose connection broke sends the request again and misses nothing."""
    async with served(agent("one", "two")) as url:
        first, second = [await post(url, "/runs", GO, Idempotency_Key="k", Accept=SSE) for _ in range(2)]

    assert first.body == second.body
    assert b"two" not in second.body


async def test_a_key_of_a_refused_request_is_free_again() -> None:
    """Nothing was started, so the next request may be another one."""
    async with served(agent("answer")) as url:
        refused = await post(url, "/runs", {**GO, "agent": "nobody"}, Idempotency_Key="k")
        accepted = await post(url, "/runs", GO, Idempotency_Key="k")

    assert (refused.status, accepted.status) == (404, 202)


async def test_a_key_outlives_its_run_in_memory() -> None:
    """Sent again much later, the request starts nothing and says what has become of the first one."""
    async with served(agent(llm=model()), limits=ApplicationLimits(max_ended_runs=1)) as url:
        first = await post(url, "/runs", GO, Idempotency_Key="k", Accept=NDJSON)
        await post(url, "/runs", GO, Accept=NDJSON)
        again = await post(url, "/runs", GO, Idempotency_Key="k")

    assert (again.status, again.json["run_id"]) == (410, first.headers["x-run-id"])


async def test_what_a_policy_withholds_is_withheld_everywhere() -> None:
    """Events, evidence and errors."""

    def fail(secret: str) -> None:
        """Fail."""
        raise OSError(f"no {secret}")

    policy = RedactionPolicy(sensitive_values=["hunter2-hunter2"])
    reader = agent(call("fail", secret="hunter2-hunter2"), tools=[fail])
    async with served(reader, redaction_policy=policy) as url:
        run_id = await start(url)
        bodies = [(await get(url, f"/runs/{run_id}{part}")).body for part in ("/events", "/evidence", "")]

    assert not any(b"hunter2" in body for body in bodies)
    assert all(b"[redacted]" in body for body in bodies)


async def test_private_request_values_come_from_the_application_around() -> None:
    """A middleware of the host's enters the scope, and the run that is started inside keeps it."""
    seen: list[Any] = []

    def look() -> str:
        """Look at the private values."""
        seen.append(dict(current_request_context()))
        return "seen"

    reader = agent(call("look"), tools=[look])
    app = create_app(AgentGroup([reader]))

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        with request_context({"path": scope.get("path")}):
            await app(scope, receive, send)

    async with serving(middleware) as url:
        await ended(url, await start(url))

    assert seen == [{"path": "/runs"}]


async def test_ended_runs_are_kept_for_a_while() -> None:
    """The latest ones of each client; what one client does pushes out nothing of another's."""
    limits = ApplicationLimits(max_ended_runs_per_principal=2)
    async with served(agent(llm=model()), authenticator=KEYS, limits=limits) as url:
        theirs = await start(url, key=BOB)
        await ended(url, theirs, X_API_Key=BOB)
        mine = [await start(url, key=ALICE) for _ in range(4)]
        for run_id in mine:
            await ended_or_gone(url, run_id)
        statuses = [(await get(url, f"/runs/{run_id}", X_API_Key=ALICE)).status for run_id in mine]

        assert statuses == [404, 404, 200, 200]
        assert (await get(url, f"/runs/{theirs}", X_API_Key=BOB)).status == 200


async def ended_or_gone(url: str, run_id: str) -> None:
    """Await the end of a run of Alice's that may have ended long ago."""
    await get(url, f"/runs/{run_id}/events", X_API_Key=ALICE)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("*/*", "application/json"),
        ("text/*", SSE),
        (f"text/html;q=0, {NDJSON}", NDJSON),
        ("application/json", "application/json"),
    ],
)
async def test_an_answer_has_the_form_that_is_asked_for(accept: str, media: str) -> None:
    """JSON where any will do."""
    async with served(agent("answer")) as url:
        reply = await post(url, "/runs", GO, Accept=accept)

    assert reply.headers["content-type"] == media
