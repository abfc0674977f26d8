"""Runs that outlive an attempt, over HTTP: taken up, answered and read by later and by other processes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent
from protolink.testing import DyingLog, call
from protolink.tools import ask_user
from tests.http.apps import ALICE, BOB, KEYS, SSE, agent, delete, ended, events_of, messages_of, served, start, stream
from tests.http.servers import Reply, exchange, get, post, request_bytes
from tests.http.stored_app import process, reader
from tests.http.test_app_runs import GO


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of this test's own."""
    return tmp_path / "runs.sqlite"


async def waiting(url: str, run_id: str) -> Any:
    """What a paused run waits for."""
    run = await ended(url, run_id)
    assert run["status"] == "input-required", run
    return run["interruption"]


async def test_a_run_that_yielded_is_resumed_by_a_later_process(store: Path) -> None:
    """One more slice at a time, and the numbers of its events go on."""
    async with served(reader(store, yield_after_steps=1)) as url:
        run_id = await start(url, "look answer")
        first = await ended(url, run_id)
    async with served(reader(store, yield_after_steps=1)) as url:
        stored = (await get(url, f"/runs/{run_id}")).json
        resumed = await post(url, f"/runs/{run_id}/resume", {}, Accept=SSE)
        last = (await get(url, f"/runs/{run_id}")).json
        evidence = (await get(url, f"/runs/{run_id}/evidence")).json["evidence"]

    assert first["interruption"]["kind"] == "yield"
    assert first == stored
    assert first["resumable"]
    assert (last["status"], last["output"], last["resumable"]) == ("completed", "answer", False)
    assert int(messages_of(resumed.body)[0]["id"]) == first["last_event"] + 1
    assert [item["tool_name"] for item in evidence] == ["look"]


async def test_resuming_needs_no_body(store: Path) -> None:
    """Nothing is to be said."""
    async with served(reader(store, yield_after_steps=1)) as url:
        run_id = await start(url, "look answer")
        await ended(url, run_id)
        reply = await exchange(url, request_bytes(url, f"/runs/{run_id}/resume", method="POST", Content_Length="0"))
        run = await ended(url, run_id)

    assert (reply.status, reply.headers["location"]) == (202, f"/runs/{run_id}")
    assert run["status"] == "completed"


async def test_an_approval_is_given_after_a_restart(store: Path) -> None:
    """The process that asked was killed; what was approved is the action that it had stored."""
    async with process(store) as (url, server):
        run_id = await start(url, "publish answer")
        asked = await waiting(url, run_id)
        server.kill()
        await server.wait()
    async with process(store) as (url, _):
        assert await waiting(url, run_id) == asked
        decision = {"request_id": asked["request_id"], "approved": True, "fingerprint": asked["fingerprint"]}
        decided = await post(url, f"/runs/{run_id}/decisions", decision)
        run = await ended(url, run_id)
        again = await post(url, f"/runs/{run_id}/decisions", decision)
        otherwise = await post(url, f"/runs/{run_id}/decisions", {**decision, "approved": False})

    assert asked["kind"] == "approval"
    assert asked["request"]["action"]["name"] == "publish"
    assert (decided.status, again.status, otherwise.status) == (202, 202, 409)
    assert (run["status"], run["output"]) == ("completed", "answer")


async def test_a_declined_approval_ends_the_run(store: Path) -> None:
    """As it does everywhere else."""
    async with served(reader(store)) as url:
        run_id = await start(url, "publish answer")
        asked = await waiting(url, run_id)
        await post(url, f"/runs/{run_id}/decisions", {"request_id": asked["request_id"], "approved": False})
        run = await ended(url, run_id)

    assert (run["status"], run["error"]["code"]) == ("failed", "action_denied")


async def test_a_question_is_answered(store: Path) -> None:
    """With any value that JSON has."""
    script = [call("ask_user", question="Which?"), "answer"]
    async with served(agent(*script, tools=[ask_user], durability=store)) as url:
        run_id = await start(url)
        asked = await waiting(url, run_id)
        reply = await post(url, f"/runs/{run_id}/decisions", {"request_id": asked["request_id"], "answer": None})
        run = await ended(url, run_id)

    assert (asked["kind"], reply.status, run["status"]) == ("input", 202, "completed")


async def test_what_does_not_fit_a_waiting_run_changes_nothing(store: Path) -> None:
    """Resuming it, another request, another kind of answer, the fingerprint of another action."""
    async with served(reader(store)) as url:
        run_id = await start(url, "publish answer")
        asked = await waiting(url, run_id)
        request_id = asked["request_id"]
        refused = [
            await post(url, f"/runs/{run_id}/resume", {}),
            await post(url, f"/runs/{run_id}/decisions", {"request_id": "another", "approved": True}),
            await post(url, f"/runs/{run_id}/decisions", {"request_id": request_id, "answer": "yes"}),
            await post(
                url, f"/runs/{run_id}/decisions", {"request_id": request_id, "approved": True, "fingerprint": "x"}
            ),
        ]

        assert [reply.status for reply in refused] == [409] * 4
        assert await waiting(url, run_id) == asked


async def test_a_run_that_has_ended_is_not_taken_up(store: Path) -> None:
    """Neither by resuming it nor by an answer that nobody asked for; nor is one that is stored nowhere."""
    async with served(reader(store), agent("answer", name="other")) as url:
        stored = await start(url, "look answer")
        unstored = await start(url, name="other")
        for run_id in (stored, unstored):
            await ended(url, run_id)
            for path, body in (("resume", {}), ("decisions", {"request_id": "r", "approved": True})):
                assert (await post(url, f"/runs/{run_id}/{path}", body)).status == 409


async def test_a_run_of_an_earlier_process_is_canceled(store: Path) -> None:
    """One that waits, and one whose process was killed in the middle of it: what it had entered stays uncertain."""
    async with process(store) as (url, server):
        paused = await start(url, "publish answer")
        await waiting(url, paused)
        holding = await start(url, "hold answer")
        async with stream(url, f"/runs/{holding}/events") as messages:
            async for message in messages:
                if "action.started" in message["data"]:
                    break
        server.kill()
        await server.wait()
    async with served(reader(store)) as url:
        left = (await get(url, f"/runs/{holding}")).json
        replies = [await delete(url, f"/runs/{run_id}") for run_id in (paused, holding, holding)]

    assert (left["status"], left["resumable"]) == ("working", True)
    assert [reply.status for reply in replies] == [200, 200, 409]
    assert {reply.json["status"] for reply in replies[:2]} == {"canceled"}
    assert [item["name"] for item in replies[1].json["uncertain_actions"]] == ["hold"]


async def test_a_run_with_an_unknown_effect_waits_for_somebody_to_look(store: Path) -> None:
    """Taking it up is refused until the application has said what became of the operation."""
    async with process(store) as (url, server):
        run_id = await start(url, "hold answer")
        async with stream(url, f"/runs/{run_id}/events") as messages:
            async for message in messages:
                if "action.started" in message["data"]:
                    break
        server.kill()
        await server.wait()
    agent = reader(store)
    async with served(agent) as url:
        assert (await post(url, f"/runs/{run_id}/resume", {})).status == 202
        run = await ended(url, run_id)
        refused = await post(url, f"/runs/{run_id}/resume", {})
        await agent.reconcile(run_id, run["uncertain_actions"][0]["action_id"], result="held")
        assert (await post(url, f"/runs/{run_id}/resume", {})).status == 202
        settled = await ended(url, run_id)

    assert (run["status"], run["error"]["code"], run["resumable"]) == ("failed", "uncertain_execution", False)
    assert refused.status == 409
    assert (settled["status"], settled["output"]) == ("completed", "answer")


async def test_a_key_is_known_to_every_process(store: Path) -> None:
    """A client that sends its request to the next process starts no second run."""
    request = {"agent": "reader", "prompt": "look answer"}
    async with process(store) as (url, server):
        first = await post(url, "/runs", request, Idempotency_Key="k")
        await ended(url, first.json["run_id"])
        server.kill()
        await server.wait()
    async with process(store) as (url, _), process(store) as (other, _):
        again = [await post(address, "/runs", request, Idempotency_Key="k") for address in (url, other)]
        different = await post(other, "/runs", {**request, "prompt": "answer"}, Idempotency_Key="k")
        both = await asyncio.gather(
            *(post(address, "/runs", request, Idempotency_Key="l") for address in (url, other) * 5)
        )

    assert [reply.json for reply in again] == [{"run_id": first.json["run_id"], "status": "completed"}] * 2
    assert different.status == 409
    assert {reply.status for reply in both} == {202}
    assert len({reply.json["run_id"] for reply in both}) == 1


async def test_a_run_is_read_along_in_another_process(store: Path) -> None:
    """Its events come live there too; what only its own process can do is refused."""
    async with process(store) as (url, _), process(store) as (other, _):
        run_id = await start(url, "look hold look answer")
        seen, refused = list[dict[str, str]](), list[Reply]()
        async with stream(other, f"/runs/{run_id}/events") as messages:
            async for message in messages:
                seen.append(message)
                if '"action.started"' in message["data"] and '"tool":"hold"' in message["data"]:
                    refused = [
                        await post(other, f"/runs/{run_id}/resume", {}),
                        await delete(other, f"/runs/{run_id}"),
                    ]
                    store.with_name("go").touch()
        whole = messages_of((await get(other, f"/runs/{run_id}/events")).body)
        mine = (await get(url, f"/runs/{run_id}")).json
        theirs = (await get(other, f"/runs/{run_id}")).json

    assert [reply.status for reply in refused] == [409, 409]
    assert seen == whole
    assert '"final":true' in seen[-1]["data"]
    assert {**mine, "usage": None} == {**theirs, "usage": None}


async def test_a_stopped_server_leaves_every_run_at_rest(store: Path) -> None:
    """Asked to end, it ends soon, whoever is still connected."""
    async with process(store) as (url, server):
        runs = [await start(url, "hold answer") for _ in range(20)]
        streams = [asyncio.create_task(get(url, f"/runs/{run_id}/events")) for run_id in runs]
        paused = await start(url, "publish answer")
        await waiting(url, paused)
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            await server.wait()
        await asyncio.gather(*streams, return_exceptions=True)
    async with served(reader(store)) as url:
        statuses = [(await get(url, f"/runs/{run_id}")).json["status"] for run_id in [*runs, paused]]

    assert statuses == ["canceled"] * 20 + ["input-required"]


async def test_stored_runs_belong_to_their_owner(store: Path) -> None:
    """Also those of an earlier process, whatever is asked of them."""
    async with served(reader(store), authenticator=KEYS) as url:
        run_id = await start(url, "publish answer", key=ALICE)
        await ended(url, run_id, X_API_Key=ALICE)
    async with served(reader(store), authenticator=KEYS) as url:
        mine = await get(url, f"/runs/{run_id}", X_API_Key=ALICE)
        theirs = await get(url, f"/runs/{run_id}", X_API_Key=BOB)
        nobodys = await get(url, f"/runs/{'0' * 32}", X_API_Key=BOB)

    assert mine.json["status"] == "input-required"
    assert (theirs.status, theirs.body) == (nobodys.status, nobodys.body)


async def test_a_run_is_stored_before_its_id_is_given(store: Path) -> None:
    """A process that dies right after its answer has lost nothing that it promised."""
    async with process(store) as (url, server):
        run_id = await start(url, "stream")
        server.kill()
        await server.wait()
    async with served(reader(store)) as url:
        assert (await get(url, f"/runs/{run_id}")).json["status"] == "working"


async def test_a_store_that_fails_accepts_no_run() -> None:
    """The client is told to try again, and nothing of the inside."""
    async with served(agent("answer", durability=DyingLog(dies_at=1))) as url:
        reply = await post(url, "/runs", GO)

    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert set(reply.json) == {"type", "title", "status", "detail", "id"}


async def test_another_configuration_does_not_take_a_run_up(store: Path) -> None:
    """What the run was started under is not what a client may change."""
    async with served(reader(store)) as url:
        run_id = await start(url, "publish answer")
        asked = await waiting(url, run_id)
    changed: Agent = reader(store, execution_version="2")
    async with served(changed) as url:
        reply = await post(url, f"/runs/{run_id}/decisions", {"request_id": asked["request_id"], "approved": True})

    assert reply.status == 409
    assert "configuration" in reply.json["detail"]


async def test_a_fragment_before_a_crash_hides_no_event_after_it(store: Path) -> None:
    """Fragments are not stored, and a client that has seen some goes on behind them all the same."""
    async with process(store) as (url, server):
        run_id, seen, first = await start(url, "look stream"), 0, dict[str, Any]()
        async with stream(url, f"/runs/{run_id}/events") as messages:
            async for message in messages:
                seen = int(message["id"])
                if seen > 30:
                    break
        server.kill()
        await server.wait()
    async with served(reader(store)) as url:
        assert (await get(url, f"/runs/{run_id}/events", Last_Event_ID=str(seen))).status == 204
        assert (await post(url, f"/runs/{run_id}/resume", {})).status == 202
        async with stream(url, f"/runs/{run_id}/events", Last_Event_ID=str(seen)) as messages:
            async for message in messages:
                first = json.loads(message["data"])
                break
        await delete(url, f"/runs/{run_id}")
        whole = events_of(messages_of((await get(url, f"/runs/{run_id}/events")).body))

    before = [event for event in whole if event["sequence"] < first["sequence"]]
    assert first["sequence"] > seen >= before[-1]["sequence"]
